//! The command of a local run, from its start to its end: signals, job control, exit code.
//!
//! ```text
//!   terminal ──^C, ^Z──▶ process group: supervisor and command alike
//!   kill ──▶ supervisor ──forwarded──▶ command          command ends ──▶ its code, or 128 + its signal
//! ```
//!
//! The command runs in the supervisor's process group, so that a terminal treats both as one job. A terminal signals both. A
//! signal that a process sends to the supervisor is forwarded, a real-time signal with its value. If the command is stopped by its
//! terminal, the supervisor stops as well, so that the shell reports a stopped job. Signals that cannot be caught, faults and
//! `SIGPIPE` are not forwarded. Of the kernel's own signals, those are forwarded that reach the supervisor alone:
//!
//! | signal of the kernel | reaches | forwarded |
//! |---|---|---|
//! | `SIGHUP`, `SIGCONT` of a closed terminal | the session leader | if the supervisor is the leader |
//! | terminal signals (`^C`, `^\\`, `^Z`, window size, hang-up) | the foreground process group | if the command left the supervisor's group |
//! | `SIGALRM`, `SIGVTALRM`, `SIGPROF` of timers set before `exec` | the supervisor | always |
//! | `SIGXCPU`, `SIGIO`, `SIGURG` | processes by their own limits and descriptors | never |
//!
//! The supervisor sleeps until a signal comes. So it restores the default action of `SIGCHLD`, which its parent may ignore.

// UNSAFETY: the command's signal dispositions are restored between fork and exec.
#![expect(
    unsafe_code,
    reason = "what is done about a signal, real-time ones among them; a hook between fork and exec"
)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, raise, sigaction, sigprocmask,
};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getsid};

/// Signals that are passed on to the command, beside the real-time ones.
const FORWARDED: [Signal; 17] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGXCPU,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGSTKFLT,
    Signal::SIGURG,
];

/// Greatest number of the command's liveness descriptor.
const DESCRIPTORS: libc::rlim_t = 1024;

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandExit {
    /// By itself.
    Code(u8),
    /// By a signal.
    Signal(u8),
}

/// Work of the supervisor beside the command.
pub trait SupervisorTask {
    /// Called before this process is stopped: it must release everything that other processes wait for.
    fn pause(&mut self);
    /// Called when this process continues.
    fn go_on(&mut self);
}

/// Signals blocked in this process and read in order; dropping the value unblocks them.
#[derive(Debug)]
pub struct Signals {
    before: SigSet,
    /// The earlier action of `SIGCHLD`.
    ends: SigAction,
    fd: SignalFd,
}

/// A command that runs.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
    pid: Pid,
}

fn is_real_time(number: libc::c_int) -> bool {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number)
}

fn real_time() -> SigSet {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is initialized by `sigemptyset` first; the numbers are the C library's own.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            libc::sigaddset(set.as_mut_ptr(), number);
        }
        SigSet::from_sigset_t_unchecked(set.assume_init())
    }
}

fn address(word: u64) -> usize {
    usize::try_from(word).unwrap_or(0)
}

/// The least number of the command's liveness descriptor: above the numbers that programs choose themselves, below their limit,
/// and low enough for `select`.
fn high_number() -> libc::c_int {
    let mut limit = libc::rlimit { rlim_cur: DESCRIPTORS, rlim_max: DESCRIPTORS };
    // SAFETY: the record that the call fills.
    let _as_presumed = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let within = limit.rlim_cur.min(DESCRIPTORS);
    libc::c_int::try_from(within - within / 16).unwrap_or(0)
}

/// Between fork and exec: keeps the descriptor open in the new program.
fn hand_on(sign: RawFd, from: libc::c_int) -> io::Result<()> {
    // SAFETY: a descriptor that this process has; no memory is touched.
    if unsafe { libc::fcntl(sign, libc::F_DUPFD, from) } >= 0 {
        return Ok(());
    }
    // No number is free there: the descriptor keeps its own.
    // SAFETY: a descriptor that this process has; no memory is touched.
    Errno::result(unsafe { libc::fcntl(sign, libc::F_SETFD, 0) })?;
    Ok(())
}

// === impl CommandExit ===

impl CommandExit {
    /// Exit code, as shells give it.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

// === impl Signals ===

impl Signals {
    /// Blocks the forwarded signals and `SIGCHLD` from now on.
    ///
    /// # Errors
    /// A signal call fails.
    pub fn block() -> io::Result<Self> {
        let mut set = real_time();
        for signal in FORWARDED.into_iter().chain([Signal::SIGCHLD]) {
            set.add(signal);
        }
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))?;
        let told = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: the default action runs no handler.
        let ends = unsafe { sigaction(Signal::SIGCHLD, &told) }?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { before, ends, fd })
    }

    /// Starts the command with the earlier signal dispositions. The command inherits `sign` at a high number and passes it on to
    /// its descendants; this process closes it.
    ///
    /// # Errors
    /// It cannot be started: not found, not a program, not allowed.
    pub fn start(&self, mut command: Command, sign: Option<File>) -> io::Result<RunningCommand> {
        let (before, ends) = (self.before, self.ends);
        let from = high_number();
        let as_it_was = move || {
            if let Some(sign) = &sign {
                hand_on(sign.as_raw_fd(), from)?;
            }
            // SAFETY: the action that this process was started with.
            unsafe { sigaction(Signal::SIGCHLD, &ends) }?;
            Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?)
        };
        // SAFETY: the hook makes a few system calls, which are async-signal-safe and touch only copies of the restored values.
        unsafe {
            command.pre_exec(as_it_was);
        }
        let child = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        Ok(RunningCommand { child, pid })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // A terminal signals the command and this process: the command has handled those signals.
        while matches!(self.fd.read_signal(), Ok(Some(_))) {}
        // SAFETY: the action that this process was started with.
        let ends = unsafe { sigaction(Signal::SIGCHLD, &self.ends) };
        let restored = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
        debug_assert!(restored.is_ok() && ends.is_ok(), "earlier signal dispositions can be restored");
    }
}

// === impl RunningCommand ===

impl RunningCommand {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, and forwards signals meanwhile.
    ///
    /// # Errors
    /// The command's state or a signal cannot be read.
    pub fn wait<B: SupervisorTask>(mut self, signals: &Signals, beside: &mut B) -> io::Result<CommandExit> {
        loop {
            if let Some(ended) = self.news(beside)? {
                return Ok(ended);
            }
            let mut ready = [PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            while let Some(info) = signals.fd.read_signal()? {
                self.forward(&info);
            }
        }
    }

    /// Forwards a signal that the command did not get as well.
    fn forward(&self, info: &siginfo) {
        let Ok(number) = libc::c_int::try_from(info.ssi_signo) else { return };
        let known = Signal::try_from(number).ok().filter(|signal| FORWARDED.contains(signal));
        let missed = match (info.ssi_code > 0, known) {
            (true, Some(signal)) => self.misses(signal),
            (true, None) => false,
            (false, known) => known.is_some() || is_real_time(number),
        };
        if !missed {
            return;
        }
        let pid = self.pid.as_raw();
        let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(address(info.ssi_ptr)) };
        // The command may have exited, or may run as another user and refuse signals.
        let _sent = match info.ssi_code {
            // SAFETY: the child is not reaped yet, so its process id is not reused; the value is passed on unchanged.
            libc::SI_QUEUE => unsafe { libc::sigqueue(pid, number, value) },
            // SAFETY: the child is not reaped yet, so its process id is not reused; no memory is passed.
            _ => unsafe { libc::kill(pid, number) },
        };
    }

    /// Whether the kernel's signal reached this process and not the command.
    fn misses(&self, signal: Signal) -> bool {
        let leads = || getsid(None).is_ok_and(|session| session == getpid());
        // A command that cannot be queried is in another group.
        let left = || getpgid(Some(self.pid)).ok() != Some(getpgrp());
        match signal {
            Signal::SIGALRM | Signal::SIGVTALRM | Signal::SIGPROF => true,
            Signal::SIGHUP | Signal::SIGCONT => leads() || left(),
            Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTSTP | Signal::SIGWINCH => left(),
            _ => false,
        }
    }

    /// The end of the command; `None`: it still runs. Follows it when its terminal stops it.
    fn news<B: SupervisorTask>(&mut self, beside: &mut B) -> io::Result<Option<CommandExit>> {
        if let Some(status) = self.child.try_wait()? {
            let part = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
            let by_signal = status.signal().map(|signal| CommandExit::Signal(part(signal)));
            return Ok(Some(by_signal.unwrap_or(CommandExit::Code(part(status.code().unwrap_or(0))))));
        }
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
        let terminal = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
        // Stopped by its terminal: the shell waits until the supervisor stops as well. A command stopped by another process is
        // continued by that process.
        if let Ok(WaitStatus::Stopped(_, signal)) = waitid(Id::Pid(self.pid), flags)
            && terminal.contains(&signal)
        {
            beside.pause();
            raise(Signal::SIGSTOP)?;
            beside.go_on();
            // The `SIGCONT` for the supervisor is meant for the command as well.
            match kill(self.pid, Signal::SIGCONT) {
                Ok(()) | Err(_) => {}
            }
        }
        Ok(None)
    }
}
