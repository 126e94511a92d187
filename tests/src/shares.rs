//! Shares of a card's time, measured on the card's side.

#![expect(clippy::panic, reason = "a share that does not come has failed the test that waits for it")]

use std::time::Duration;

use aliquot_sim_device::Card;
use aliquot_sim_device::processor::Lack;

/// In which shares are measured.
const WINDOW: Duration = Duration::from_millis(500);
/// Windows in which a share may become what it is to be.
const WINDOWS: usize = 24;
/// The first of them, in which it is on its way there.
const LEARNING: usize = 4;

/// Waits until a process has this part of the card's time, in percent, in a window of half a second. Where the machine is too
/// busy for that, most windows miss it by no more than the part of them in which a tenant or a governor had no processor.
///
/// # Panics
/// It has not, and the machine is not to blame.
pub fn share_becomes(card: &Card, pid: u32, from: u64, to: u64) {
    let mut missed = Vec::new();
    for _ in 0..WINDOWS {
        let before = card.moment();
        let lack = Lack::of(before.processes.iter().flat_map(|process| [process.pid, parent(process.pid)]));
        std::thread::sleep(WINDOW);
        let after = card.moment();
        let had = after.device_nanos(pid).saturating_sub(before.device_nanos(pid)) * 100;
        let share = had / (after.at - before.at);
        if (from..=to).contains(&share) {
            return;
        }
        let off = from.saturating_sub(share).max(share.saturating_sub(to));
        missed.push((share, off, lack.most().as_millis() * 100 / WINDOW.as_millis()));
    }
    let explained = |(_, off, lacked): &(u64, u64, u128)| u128::from(*off) <= *lacked;
    if missed.iter().skip(LEARNING).filter(|window| explained(window)).count() > (WINDOWS - LEARNING) / 2 {
        return println!("stood aside: the machine is too busy to show {from} to {to} %: {missed:?}");
    }
    panic!(
        "process {pid} has not {from} to {to} % of the card's time; had, off by, without processor: {missed:?}"
    );
}

/// Its parent: the supervisor, and so perhaps the governor.
fn parent(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
