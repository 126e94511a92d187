//! Other processes, as the kernel tells of them: whether one lives, since when, and what it maps.

use core::ffi::CStr;

use crate::sys::{self, File};

/// A process, in this process's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pid(pub(crate) u32);

/// When a process began, in ticks since boot: tells it from a later one with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start(pub(crate) u64);

/// What became of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// There is none of this number, or only its exit status.
    Gone,
    /// It lives.
    Living(Start),
    /// The kernel does not tell this process.
    Hidden,
}

/// What the kernel says of a process.
pub(crate) fn look(pid: Pid) -> State {
    if !sys::process_exists(pid.0) {
        return State::Gone;
    }
    let mut path = [0; 32];
    match path_of(pid, b"/stat", &mut path) {
        Some(path) if proc_counts_as_we_do() => facts(path).map_or(State::Hidden, Facts::state),
        _ => State::Hidden,
    }
}

/// Whether `/proc` is of this process's pid namespace: in a container that kept its parent's, numbers mean other processes.
fn proc_counts_as_we_do() -> bool {
    let mut text = [0_u8; 32];
    let file = File::open(None, c"/proc/self/stat", libc::O_RDONLY);
    let length = file.and_then(|file| file.read(&mut text)).unwrap_or(0);
    let number = text.get(..length).and_then(|text| text.split(|byte| *byte == b' ').next());
    number.and_then(decimal) == Some(u64::from(sys::pid()))
}

/// Whether the kernel says of a process, which began then, that it runs and has not begun to end: it says so before it takes
/// away what the process has mapped and open. What was mapped may stay, where another process has its memory.
pub(crate) fn runs(pid: Pid, start: Start) -> bool {
    let mut path = [0; 32];
    let facts = path_of(pid, b"/stat", &mut path).filter(|_| proc_counts_as_we_do()).and_then(facts);
    facts.is_some_and(|facts| !facts.ended && facts.flags & EXITING == 0 && facts.start == start)
}

/// This process's beginning; `None` where it is unknown.
pub(crate) fn own_start() -> Option<Start> {
    facts(c"/proc/self/stat").map(|facts| facts.start)
}

/// PF_EXITING of the kernel: among the first that it does for a process that ends.
const EXITING: u64 = 4;

/// What a `stat` file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    ended: bool,
    flags: u64,
    threads: u64,
    start: Start,
}

impl Facts {
    fn state(self) -> State {
        match (self.ended, self.threads) {
            (false, _) => State::Living(self.start),
            (true, 0 | 1) => State::Gone,
            // Threads go on without the first one, of which alone the kernel tells.
            (true, _) => State::Hidden,
        }
    }
}

fn facts(path: &CStr) -> Option<Facts> {
    // More than a name and 22 numbers.
    let mut text = [0_u8; 512];
    let length = File::open(None, path, libc::O_RDONLY)?.read(&mut text)?;
    parse_facts(text.get(..length)?)
}

/// The third, ninth, twentieth and 22nd field: state, flags, threads, beginning. The name, which may hold anything, ends with
/// the last bracket.
fn parse_facts(text: &[u8]) -> Option<Facts> {
    let after = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(after + 2..)?.split(|byte| *byte == b' ');
    let ended = matches!(fields.next()?, b"Z" | b"X" | b"x");
    let flags = decimal(fields.nth(5)?)?;
    let threads = decimal(fields.nth(10)?)?;
    let start = Start(decimal(fields.nth(1)?)?);
    Some(Facts { ended, flags, threads, start })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// `/proc/<pid><end>`
fn path_of<'a>(pid: Pid, end: &[u8], into: &'a mut [u8; 32]) -> Option<&'a CStr> {
    numbered(b"/proc/", pid.0, end, into)
}

/// The path of a descriptor of this process.
pub(crate) fn path_of_file(file: u32, into: &mut [u8; 32]) -> Option<&CStr> {
    numbered(b"/proc/self/fd/", file, b"", into)
}

/// The first byte of a lock that the open file description of a descriptor has, of this range; `None` where there is none, and
/// where the kernel does not tell.
pub(crate) fn lock_of(file: i32, range: core::ops::Range<u64>) -> Option<u64> {
    let mut path = [0; 32];
    let path = numbered(b"/proc/self/fdinfo/", u32::try_from(file).ok()?, b"", &mut path)?;
    let mut text = [0_u8; 1024];
    let length = File::open(None, path, libc::O_RDONLY)?.read(&mut text)?;
    let lines = text.get(..length)?.split(|byte| *byte == b'\n');
    lines.filter(|line| line.starts_with(b"lock:")).find_map(|line| {
        // The last two words: its first byte and its last.
        let first = line.rsplit(|byte| *byte == b' ').nth(1).and_then(decimal)?;
        range.contains(&first).then_some(first)
    })
}

fn numbered<'a>(before: &[u8], number: u32, end: &[u8], into: &'a mut [u8; 32]) -> Option<&'a CStr> {
    let mut digits = [0_u8; 10];
    let (mut rest, mut count) = (number, 0);
    while count == 0 || rest > 0 {
        *digits.get_mut(count)? = b'0' + u8::try_from(rest % 10).ok()?;
        rest /= 10;
        count += 1;
    }
    let number = digits.get(..count)?.iter().rev();
    let text = before.iter().chain(number).chain(end);
    for (place, byte) in into.iter_mut().zip(text) {
        *place = *byte;
    }
    CStr::from_bytes_until_nul(into).ok()
}

/// A file as lines of `maps` name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    major: u64,
    minor: u64,
    inode: u64,
}

/// Whether another process maps the file that this one maps at `address`; `None` where the kernel does not tell, and where it
/// maps nothing at all: then it is about to end, and what it has open is not closed yet.
pub(crate) fn maps(pid: Pid, address: usize) -> Option<bool> {
    let address = u64::try_from(address).ok()?;
    let mut file = None;
    each_mapping(c"/proc/thread-self/maps", |range, mapped| {
        if range.contains(&address) {
            file = Some(mapped);
        }
    })?;
    let file = file.filter(|file| file.inode != 0)?;
    let mut path = [0; 32];
    let mut found = None;
    let look = |_, mapped| found = Some(found == Some(true) || mapped == file);
    each_mapping(path_of(pid, b"/maps", &mut path)?, look)?;
    found
}

/// Calls `visit` for each line of a `maps` file; `None` where it cannot be read.
fn each_mapping(path: &CStr, mut visit: impl FnMut(core::ops::Range<u64>, Mapped)) -> Option<()> {
    let file = File::open(None, path, libc::O_RDONLY)?;
    let mut line = Line::default();
    let mut text = [0_u8; 512];
    loop {
        let length = file.read(&mut text)?;
        if length == 0 {
            return Some(());
        }
        for byte in text.get(..length)? {
            if let Some((range, mapped)) = line.take(*byte) {
                visit(range, mapped);
            }
        }
    }
}

/// `start-end rights offset major:minor inode path`, read byte by byte: a path may have any length.
#[derive(Default)]
struct Line {
    part: u32,
    /// start, end, rights, offset, major, minor, inode
    values: [u64; 7],
}

impl Line {
    fn take(&mut self, byte: u8) -> Option<(core::ops::Range<u64>, Mapped)> {
        if byte == b'\n' {
            let [start, end, _, _, major, minor, inode] = core::mem::take(self).values;
            return Some((start..end, Mapped { major, minor, inode }));
        }
        let at = usize::try_from(self.part).unwrap_or(usize::MAX);
        let ends = matches!((at, byte), (0, b'-') | (4, b':') | (1 | 2 | 3 | 5 | 6, b' '));
        if ends {
            self.part += 1;
            return None;
        }
        let base = if at == 6 { 10 } else { 16 };
        if let (Some(value), Some(digit)) = (self.values.get_mut(at), char::from(byte).to_digit(base)) {
            *value = value.wrapping_mul(u64::from(base)).wrapping_add(u64::from(digit));
        }
        None
    }
}

/// This process's pid namespace; 0 where it is unknown.
pub(crate) fn namespace() -> u64 {
    sys::inode(c"/proc/self/ns/pid").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_whatever_the_name_of_the_process() {
        let line = |name: &str, state: &str, threads: u32| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 8675309 1 2 3\n")
        };
        let state = |line: String| parse_facts(line.as_bytes()).map(Facts::state);
        let living = Some(State::Living(Start(8_675_309)));
        assert_eq!(state(line("sh", "R", 1)), living);
        assert_eq!(state(line("a) Z 1 (", "S", 1)), living);
        assert_eq!(state(line("sh", "Z", 1)), Some(State::Gone));
        assert_eq!(state(line("sh", "Z", 3)), Some(State::Hidden));
        assert_eq!(parse_facts(b"7 (sh"), None);
        assert_eq!(parse_facts(b""), None);
    }

    #[test]
    fn own_process_lives_and_an_unused_number_does_not() {
        let own = Pid(std::process::id());
        assert_eq!(look(own), State::Living(own_start().unwrap()));
        assert_eq!(look(Pid(4_000_000_000)), State::Gone);
        assert!(namespace() > 0);
        let mut path = [0; 32];
        assert_eq!(path_of(Pid(4_294_967_295), b"/stat", &mut path), Some(c"/proc/4294967295/stat"));
    }

    #[test]
    fn process_maps_its_own_program_only() {
        static HERE: u8 = 7;
        let address = (&raw const HERE).addr();
        assert_eq!(maps(Pid(std::process::id()), address), Some(true));
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // The child is a copy of this process until it is the other program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while maps(Pid(other.id()), address) != Some(false) && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(maps(Pid(other.id()), address), Some(false));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(maps(Pid(other.id()), address), None);
        assert_eq!(look(Pid(other.id())), State::Gone);
    }

    #[test]
    fn lines_of_maps_are_read_whatever_their_paths() {
        let mut line = Line::default();
        let text = b"00400000-0040b000 r-xp 00001000 fe:0a 1234 /a b/c-d:e\n7f00-7f01 rw-p 0 00:00 0\n";
        let found: Vec<_> = text.iter().filter_map(|byte| line.take(*byte)).collect();
        assert_eq!(
            found,
            [
                (0x40_0000..0x40_b000, Mapped { major: 0xfe, minor: 0x0a, inode: 1234 }),
                (0x7f00..0x7f01, Mapped { major: 0, minor: 0, inode: 0 }),
            ]
        );
    }
}
