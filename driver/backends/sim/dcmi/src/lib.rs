//! `libdcmi.so` for simulated NPUs: the vendor's exports, answered from [`aliquot_sim_device::npu`].
//!
//! It has the functions that a device driver for containers needs: cards and chips, health and fault events, vNPUs, settings.
//! Functions without behaviour are not exported, as in an older library.

mod code;
mod ffi;
mod layout;
mod library;
