//! `libnvidia-ml.so.1` for simulated cards: the vendor's exports, answered from [`aliquot_sim_device`].
//!
//! It reads the cards' accounting only and takes no seat: a process that watches does not count as one on the
//! card. Its answers about memory, time and processes are true at the moment of the call, without exited
//! processes. Exports without behaviour answer NVML_ERROR_NOT_SUPPORTED, as the vendor's library does for
//! what a card lacks.

mod code;
mod events;
mod ffi;
mod library;
