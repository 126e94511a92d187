//! Records of limits as an honest agent writes them, and their checksum, for [`crate`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_abi::layout::{limits, record};
use aliquot_abi::limits::{ComputePolicy, FailMode, Limits, ManagedPolicy, MemoryLimit, Text};
use aliquot_enforce::memory::FREEZE;

use crate::feed::Feed;

/// What an honest agent may write.
pub(crate) fn some_limits(feed: &mut Feed<'_>) -> Limits {
    let (generation, kinds) = (u64::from(feed.byte()).max(1), feed.byte());
    let ppm = |byte: u8| u32::from(byte) * 1_000_000 / 255;
    let card: [u8; 40] = std::array::from_fn(|at| b'-' + (at as u8 ^ kinds) % 64);
    let card = str::from_utf8(&card[..usize::from(kinds) % 41]).unwrap_or_default();
    let mut limits = least();
    limits.generation = generation;
    limits.memory = match feed.size() {
        bytes if bytes & FREEZE == 0 => MemoryLimit::Bytes(bytes),
        _ => MemoryLimit::Unlimited,
    };
    limits.share_ppm = ppm(feed.byte());
    limits.granted_ppm = ppm(feed.byte());
    limits.policy = match kinds % 4 {
        0 => ComputePolicy::Cap,
        1 => ComputePolicy::Burst,
        2 => ComputePolicy::BestEffort,
        _ => ComputePolicy::Unlimited,
    };
    limits.priority = u32::from(feed.byte());
    limits.fail_mode = if kinds & 4 == 0 { FailMode::Closed } else { FailMode::Open };
    limits.managed = if kinds & 8 == 0 { ManagedPolicy::Charge } else { ManagedPolicy::Free };
    limits.card = Text::new(card).expect("at most 40 bytes");
    limits.claim = Text::new(&card[..card.len().min(8)]).expect("at most 8 bytes");
    limits
}

/// The record in which every field is zero but those that must not be: fields that come later need no change here.
pub(crate) fn least() -> Limits {
    let mut words = [0; record::CHECKSUM / 8];
    words[record::GENERATION / 8] = 1;
    let words = words.map(AtomicU64::new);
    let mut bytes = [0; limits::RECORD_BYTES];
    bytes[record::GENERATION] = 1;
    bytes[record::CHECKSUM..].copy_from_slice(&checksum(&words).to_le_bytes());
    Limits::decode(&bytes).expect("a field that an older writer left out reads as zero")
}

/// FNV-1a, written a second time, so that hostile fields come under a right checksum.
pub(crate) fn checksum(words: &[AtomicU64]) -> u64 {
    let step = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        let [a, b, c, d, e, f, g, h] = word.load(Relaxed).to_le_bytes();
        step(step(step(step(step(step(step(step(sum, a), b), c), d), e), f), g), h)
    })
}
