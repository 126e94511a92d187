//! What the command line and the allocator answer, compared with upstream and with kept transcripts.

mod agreement;
mod alike;
mod convert;
mod golden;
mod infeasible;
mod manifests;
mod memory;
mod memory_counter;
mod node_files;
mod offered;
mod policies;
mod program;
mod published;
mod quantities;
mod selectors;
mod slices;
