//! Memory that the agent needed for a while, given back once it serves and then once a minute.
//!
//! A start runs through most of the program once: options, driver libraries to install, catalogue, TLS, the first publication.
//! A burst of Pods does so again. The kernel maps the file in large pieces and keeps them mapped until memory is short. The pages of
//! a mapping that nothing wrote are the file's; the next use maps them again, from the page cache or else from the disk. The C
//! library keeps what was freed for each thread that asked, until it is told to give it back. With an arena for each thread, what a
//! burst left is spread over all of them, and little of it makes whole pages.

#![expect(unsafe_code, reason = "kernel and C library are told what this program does not need")]

use std::ffi::c_void;
use std::fs;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::time::Duration;

use nix::sys::mman::{MmapAdvise, madvise};
use tokio::sync::watch;

use crate::ports::Publication;

/// Time between two times.
const PAUSE: Duration = Duration::from_secs(60);

/// Arenas of the C library.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Has all threads allocate from few arenas; before there are threads.
pub(super) fn share_arenas() {
    // SAFETY: sets a number of the allocator, which guards it by its own lock.
    #[cfg(target_env = "gnu")]
    let _is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
}

/// Waits until the server has the slices, then gives memory back for as long as the agent runs.
pub(super) async fn release_from_time_to_time(mut publication: watch::Receiver<Publication>) {
    if publication.wait_for(|observed| observed.in_sync).await.is_err() {
        return;
    }
    loop {
        match tokio::task::spawn_blocking(release).await {
            Ok(Ok(mappings)) => tracing::trace!(mappings, "unused pages are given back"),
            Ok(Err(error)) => return tracing::debug!("unused pages stay: {error}"),
            Err(_) => return,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Gives back what was freed, and unmaps what the program's file can restore; from how many mappings.
fn release() -> io::Result<usize> {
    trim();
    unmap()
}

/// Has the C library give back what was freed.
fn trim() {
    // SAFETY: the call takes the allocator's own locks, and touches no memory in use.
    #[cfg(target_env = "gnu")]
    let _was_any = unsafe { libc::malloc_trim(0) };
}

/// Unmaps what this program's file alone can restore; from how many mappings.
fn unmap() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let (program, smaps) = (program.display().to_string(), fs::read_to_string("/proc/self/smaps")?);
    let mappings = unwritten(&smaps, &program);
    for mapping in &mappings {
        let Some(at) = NonNull::new(std::ptr::without_provenance_mut::<c_void>(mapping.start)) else {
            continue;
        };
        // SAFETY: a private mapping of the running program, not writable and without a page of its own in memory or in swap, so
        // that each page is the file's and is mapped again from there. Relocated data has pages of its own and is left out.
        unsafe { madvise(at, mapping.len(), MmapAdvise::MADV_DONTNEED) }?;
    }
    Ok(mappings.len())
}

/// Mappings of a program in the text of `smaps` that are not writable and have no page of their own.
fn unwritten(smaps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found: Vec<(Range<usize>, u32)> = Vec::new();
    let mut of_program = false;
    for line in smaps.lines() {
        if let Some((range, permissions, path)) = header(line) {
            of_program = path == program && !permissions.contains('w') && permissions.ends_with('p');
            if of_program {
                found.push((range, 0));
            }
        } else if of_program
            && let Some(("Anonymous" | "Swap", "0 kB")) =
                line.split_once(':').map(|(key, text)| (key, text.trim()))
            && let Some((_, absent)) = found.last_mut()
        {
            *absent += 1;
        }
    }
    // Neither in memory nor in swap: a mapping without one of the two lines is left alone.
    found.into_iter().filter(|(_, absent)| *absent == 2).map(|(range, _)| range).collect()
}

/// Range, permissions and path of a mapping's first line.
fn header(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let permissions = words.next()?;
    // Offset, device and inode.
    let path = words.nth(3).unwrap_or_default();
    Some((address(start)?..address(end)?, permissions, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_with_pages_of_their_own_are_left_out() {
        let smaps = "\
            55d0c0000000-55d0c0400000 r--p 00000000 fe:00 42 /usr/bin/aliquot\n\
            Rss: 4096 kB\nPrivate_Dirty: 0 kB\nAnonymous:             0 kB\nSwap: 0 kB\nVmFlags: rd mr mw me sd\n\
            55d0c0400000-55d0c1000000 r-xp 00400000 fe:00 42 /usr/bin/aliquot\n\
            Anonymous:             0 kB\nSwap: 0 kB\n\
            55d0c1000000-55d0c1080000 r--p 01000000 fe:00 42 /usr/bin/aliquot\n\
            Anonymous:          512 kB\nSwap: 0 kB\n\
            55d0c1080000-55d0c1100000 r--p 01080000 fe:00 42 /usr/bin/aliquot\n\
            Anonymous:             0 kB\nSwap: 512 kB\n\
            55d0c1100000-55d0c1200000 rw-p 01100000 fe:00 42 /usr/bin/aliquot\n\
            Anonymous:             0 kB\nSwap: 0 kB\n\
            7f0000000000-7f0000001000 r-xp 00000000 fe:00 43 /usr/lib/libc.so.6\n\
            Anonymous:             0 kB\n";
        let expected = [0x55d0_c000_0000..0x55d0_c040_0000, 0x55d0_c040_0000..0x55d0_c100_0000];
        assert_eq!(unwritten(smaps, "/usr/bin/aliquot"), expected);
    }

    #[test]
    fn program_goes_on_without_its_pages() {
        assert!(release().unwrap() >= 2);
        assert!(release().unwrap() >= 2);
    }
}
