//! The terminal: drawn on in place, and restored however the program ends.
//!
//! It is restored when the value is dropped, before a panic of any thread is reported, and before the program is stopped.
//! Only a signal that cannot be caught leaves it as it is; `reset` repairs that.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use nix::unistd::write;

/// Switches to the alternate screen, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// Switches back.
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// Longest wait for a terminal that accepts no output, while it is restored.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most bytes written at once: a terminal that is ready accepts these.
const CHUNK: usize = 512;

/// The state to restore the terminal to; `None` while it is not in use.
static BORROWED: Mutex<Option<Before>> = Mutex::new(None);
static HOOK: Once = Once::new();

struct Before {
    out: File,
    keys: Option<(File, Termios)>,
}

/// A terminal that is drawn on.
pub(super) struct Screen {
    out: File,
    keys: Option<File>,
}

// === impl Screen ===

impl Screen {
    /// Borrows the terminal of standard output. Keys come from standard input, or, where that is no terminal, from the
    /// controlling one; where there is none, there are no keys.
    pub(super) fn open() -> io::Result<Self> {
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let keys = if io::stdin().is_terminal() {
            Some(File::from(io::stdin().as_fd().try_clone_to_owned()?))
        } else {
            OpenOptions::new().read(true).open("/dev/tty").ok()
        };
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                give_back();
                usual(info);
            }));
        });
        let screen = Self { out, keys };
        screen.enter()?;
        Ok(screen)
    }

    /// Sets up the terminal, also again after it was restored or another process changed it.
    pub(super) fn enter(&self) -> io::Result<()> {
        if let Some(keys) = &self.keys {
            let found = retried(|| tcgetattr(keys))?;
            let mut own = found.clone();
            // Signals of the keyboard stay signals.
            own.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            for index in [SpecialCharacterIndices::VMIN, SpecialCharacterIndices::VTIME] {
                if let Some(place) = own.control_chars.get_mut(index as usize) {
                    *place = 0;
                }
            }
            self.borrow(Some((keys.try_clone()?, found)))?;
            retried(|| tcsetattr(keys, SetArg::TCSANOW, &own))?;
        } else {
            self.borrow(None)?;
        }
        patiently(&self.out, ENTER)
    }

    /// Records the state to restore; an earlier record stays.
    fn borrow(&self, keys: Option<(File, Termios)>) -> io::Result<()> {
        let before = Before { out: self.out.try_clone()?, keys };
        BORROWED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(before);
        Ok(())
    }

    /// Gives the terminal back, until it is entered again.
    pub(super) fn leave(&self) {
        give_back();
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = terminal_size::terminal_size_of(&self.out);
        size.map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
    }

    /// Where keys come from.
    pub(super) fn keys(&self) -> Option<BorrowedFd<'_>> {
        self.keys.as_ref().map(AsFd::as_fd)
    }

    /// What was typed since the last call.
    pub(super) fn typed(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = [0; 256];
        let Some(keys) = &mut self.keys else { return Ok(Vec::new()) };
        match keys.read(&mut bytes) {
            Ok(0) => Ok(Vec::new()),
            Ok(read) => Ok(bytes.get(..read).unwrap_or_default().to_vec()),
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a frame as the terminal takes it, or the beginning of it until `sooner` has something.
    pub(super) fn draw(&self, frame: &[u8], sooner: BorrowedFd<'_>) -> io::Result<()> {
        let mut rest = frame;
        while !rest.is_empty() {
            let mut ready =
                [PollFd::new(sooner, PollFlags::POLLIN), PollFd::new(self.out.as_fd(), PollFlags::POLLOUT)];
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [sooner, terminal] = ready.map(|fd| fd.any().unwrap_or(true));
            if sooner {
                return Ok(());
            }
            if terminal {
                rest = some(&self.out, rest)?;
            }
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, if it is borrowed. Every thread may; what fails cannot be helped.
fn give_back() {
    let before = BORROWED.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Before { out, keys }) = before else { return };
    let shown = patiently(&out, LEAVE);
    let set = keys.map(|(keys, usual)| retried(|| tcsetattr(&keys, SetArg::TCSANOW, &usual)));
    match (shown, set) {
        // A terminal that is gone has nothing to be restored.
        (Ok(()) | Err(_), None | Some(Ok(()) | Err(_))) => {}
    }
}

/// Writes all, or gives up on a terminal that takes nothing for a while.
fn patiently(out: &File, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut ready = [PollFd::new(out.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut ready, PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::ZERO)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => rest = some(out, rest)?,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Writes some bytes; returns the rest.
fn some<'a>(out: &File, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
    let chunk = bytes.get(..CHUNK).unwrap_or(bytes);
    match write(out, chunk) {
        Ok(written) => Ok(bytes.get(written..).unwrap_or_default()),
        Err(Errno::EINTR | Errno::EAGAIN) => Ok(bytes),
        Err(errno) => Err(errno.into()),
    }
}

fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}
