//! The program begins anew in its own process: what a vendor's library opened, mapped or started is gone with certainty, also of
//! libraries that cannot be shut down. The container, its probes and its log go on.

#![expect(unsafe_code, reason = "descriptors of vendors' libraries are known to the kernel alone")]

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First descriptor behind the standard ones.
const FIRST: libc::c_uint = 3;

/// Begins anew with the arguments and variables of now. Returns only if the kernel refuses, and why.
pub(super) fn anew() -> io::Error {
    // A library may have left out the flag that closes its descriptors here. Kernels before 5.11 lack the call; the libraries
    // of such days are taken at their word.
    // SAFETY: the call touches no memory; descriptors stay open until this program is replaced.
    let _kept_by_old_kernels =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    let mut words = env::args_os();
    let name = words.next().unwrap_or_default();
    Command::new(program()).arg0(name).args(words).exec()
}

/// This program's file; by its descriptor, if its name is gone.
fn program() -> PathBuf {
    env::current_exe()
        .ok()
        .filter(|path| path.is_file())
        .unwrap_or_else(|| Path::new("/proc/self/exe").to_owned())
}
