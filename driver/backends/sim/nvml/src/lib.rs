//! `libnvidia-ml.so.1` for simulated cards: the vendor's exports, answered from [`aliquot_sim_device`].
//!
//! It reads the cards' books only and takes no seat: a process that watches is no process on the card. Whatever it tells of
//! memory, time and processes is true at the moment of the call, the dead left out. Exports without behaviour answer
//! NVML_ERROR_NOT_SUPPORTED, as the vendor's library does for what a card has not.

mod code;
mod events;
mod ffi;
mod library;
