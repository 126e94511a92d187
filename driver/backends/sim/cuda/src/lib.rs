//! `libcuda.so.1` for simulated cards: the vendor's exports, answered from [`aliquot_sim_device`].
//!
//! ```text
//!   ffi/*      one row an export: the vendor's signature, checked pointers in, a call below, a code out
//!   boundary   faults of the plan, and no panic passes
//!   process    cuInit, cards, contexts, the current context of each thread
//!   memory room pool vmm array copy ipc  bytes: what is charged to the card, and where the content lies
//!   stream line word module launch graph time: what is handed to the card's schedule
//!   table      cuGetProcAddress over the facts of all exports
//! ```
//!
//! Exports without behaviour answer CUDA_ERROR_NOT_SUPPORTED. Content of
//! device memory lies in a sparse file that no processor address maps: copies read and write it through the kernel,
//! so a bad host pointer is an error and no crash, and a device pointer used on the host faults as on a real machine. Managed
//! memory alone is mapped.
//!
//! Kernels do nothing but take time. A name says how long: `k_<nanoseconds>` in all, `kb_<nanoseconds>` a block, `kp` as many
//! nanoseconds as its first parameter, a 64-bit integer, says; others as `node.toml` says.

mod array;
mod boundary;
mod code;
mod copy;
mod endpoint;
mod event;
mod external;
mod ffi;
mod graph;
mod green;
mod handle;
mod heap;
mod image;
mod ipc;
mod launch;
mod line;
mod location;
mod memory;
mod module;
mod multicast;
mod pool;
mod process;
mod range;
mod room;
mod shared;
mod sparse;
mod stacks;
mod stream;
mod table;
mod visible;
mod vmm;
mod word;
