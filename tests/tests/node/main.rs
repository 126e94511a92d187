//! One node: claims prepared, changed, recovered and released, through the library and the command line.

mod amend;
mod ascend;
mod ascend_faults;
mod container;
mod context_sizes;
mod context_turns;
mod crowded;
mod full_disk;
mod health;
mod journal;
mod kept_state;
mod nvidia;
mod nvidia_mig;
mod overlaps;
mod prepare;
mod recover;
mod service;
mod state_directory;
