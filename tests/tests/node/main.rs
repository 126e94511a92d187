//! One node: claims prepared, changed, recovered and released, through the library and the command line.

mod amend;
mod ascend;
mod ascend_faults;
mod container;
mod context_measuring;
mod context_sizes;
mod crowded;
mod full_disk;
mod health;
mod journal;
mod kept_state;
mod nvidia;
mod nvidia_mig;
mod nvidia_top;
mod overlaps;
mod prepare;
mod prepare_random;
mod recover;
mod selinux;
mod service;
mod shared_shim;
mod state_directory;
