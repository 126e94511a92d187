//! The limits of one grant, and the bytes of a record.

use crate::layout::{limits, record};

/// Bytes of device memory assumed for a context of unknown size. No vendor publishes the size; issue trackers
/// report "hundreds of MiB" for NVIDIA's.
pub const CONTEXT_BYTES_PRESUMED: u64 = 512 << 20;

/// What one container may use of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Grows with each change; at least 1.
    pub generation: u64,
    /// Device memory.
    pub memory: MemoryLimit,
    /// Guaranteed share of the card's time, parts per million, at most 1,000,000; 0 is best effort.
    pub share_ppm: u32,
    /// Share granted now, parts per million, at most 1,000,000.
    pub granted_ppm: u32,
    /// Of the time in which the tenant had work on the card, the part in which the card worked for it: parts per million,
    /// 1 to 1,000,000.
    pub own_ppm: u32,
    /// How compute is limited.
    pub policy: ComputePolicy,
    /// Smaller goes first.
    pub priority: u32,
    /// What happens when the region cannot be used.
    pub fail_mode: FailMode,
    /// How managed memory is charged.
    pub managed: ManagedPolicy,
    /// Bytes of device memory that one context takes on this card, as the driver showed the host; 0: unknown, then
    /// [`CONTEXT_BYTES_PRESUMED`].
    pub context_bytes: u64,
    /// Pages of device memory.
    pub pages: Pages,
    /// UUID of the card.
    pub card: Text<{ record::UUID_MAX }>,
    /// UID of the claim.
    pub claim: Text<{ record::CLAIM_MAX }>,
}

/// In which pages a driver hands out device memory of a card: powers of two; 0 is not measured, then [`PAGE_BITS_ASSUMED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    pointers: u8,
    arrays: u8,
}

/// 2 MiB: the page of every card since Pascal.
pub const PAGE_BITS_ASSUMED: u8 = 21;
/// The least and the greatest page that a driver may have: 512 bytes, to which it aligns addresses, and 1 GiB.
pub const PAGE_BITS: core::ops::RangeInclusive<u8> = 9..=30;

/// A bound on device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// At most this many bytes.
    Bytes(u64),
    /// The whole card: nothing is hooked for memory.
    Unlimited,
}

/// How compute is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputePolicy {
    /// Never more than the granted share.
    Cap,
    /// The guaranteed share, and more only while others are idle.
    Burst,
    /// Idle time alone, no guarantee.
    BestEffort,
    /// All of it: no launch is hooked.
    Unlimited,
}

/// What happens when the region cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Allocations are refused.
    Closed,
    /// Calls pass unchecked.
    Open,
}

/// How managed (unified) memory is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagedPolicy {
    /// Its full size, like any allocation.
    Charge,
    /// Not at all; the driver's pages may leave the card.
    Free,
}

/// Text of at most `N` bytes without an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<const N: usize> {
    length: usize,
    bytes: [u8; N],
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// Fewer bytes than a record has.
    Short {
        /// Bytes found.
        found: usize,
    },
    /// The checksum does not match: torn or foreign.
    Checksum,
    /// Generation 0: never written.
    Unwritten,
    /// A field holds a value that no writer of a known version writes.
    Field(&'static str),
}

impl core::fmt::Display for RecordFault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short { found } => {
                write!(f, "limits record: {found} bytes found, {} expected", limits::RECORD_BYTES)
            }
            Self::Checksum => {
                f.write_str("limits record: the checksum does not match; it is torn or foreign")
            }
            Self::Unwritten => f.write_str("limits record: never written"),
            Self::Field(field) => write!(f, "limits record: {field} holds an unknown value"),
        }
    }
}

impl Limits {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; limits::RECORD_BYTES] {
        let mut bytes = [0; limits::RECORD_BYTES];
        let memory = match self.memory {
            MemoryLimit::Bytes(limit) => limit,
            MemoryLimit::Unlimited => u64::MAX,
        };
        put(&mut bytes, record::GENERATION, &self.generation.to_le_bytes());
        put(&mut bytes, record::MEMORY_BYTES, &memory.to_le_bytes());
        put(&mut bytes, record::SHARE_PPM, &self.share_ppm.to_le_bytes());
        put(&mut bytes, record::GRANTED_PPM, &self.granted_ppm.to_le_bytes());
        put(&mut bytes, record::OWN_PPM, &self.own_ppm.to_le_bytes());
        put(&mut bytes, record::POLICY, &self.policy.code().to_le_bytes());
        put(&mut bytes, record::PRIORITY, &self.priority.to_le_bytes());
        put(&mut bytes, record::FAIL_MODE, &u32::from(self.fail_mode == FailMode::Open).to_le_bytes());
        put(&mut bytes, record::MANAGED, &u32::from(self.managed == ManagedPolicy::Free).to_le_bytes());
        put(&mut bytes, record::PAGES, &self.pages.code().to_le_bytes());
        put(&mut bytes, record::CONTEXT_BYTES, &self.context_bytes.to_le_bytes());
        put(&mut bytes, record::UUID_LENGTH, &self.card.length_code().to_le_bytes());
        put(&mut bytes, record::CLAIM_LENGTH, &self.claim.length_code().to_le_bytes());
        put(&mut bytes, record::UUID, self.card.as_bytes());
        put(&mut bytes, record::CLAIM, self.claim.as_bytes());
        let sum = checksum(&bytes[..record::CHECKSUM]);
        put(&mut bytes, record::CHECKSUM, &sum.to_le_bytes());
        bytes
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The bytes are short, torn, never written, or hold a value that is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordFault> {
        let Some(bytes) = bytes.first_chunk::<{ limits::RECORD_BYTES }>() else {
            return Err(RecordFault::Short { found: bytes.len() });
        };
        if word(bytes, record::CHECKSUM) != checksum(&bytes[..record::CHECKSUM]) {
            return Err(RecordFault::Checksum);
        }
        if word(bytes, record::GENERATION) == 0 {
            return Err(RecordFault::Unwritten);
        }
        let ppm = |at, name| match half(bytes, at) {
            ppm @ 0..=1_000_000 => Ok(ppm),
            _ => Err(RecordFault::Field(name)),
        };
        Ok(Self {
            generation: word(bytes, record::GENERATION),
            memory: match word(bytes, record::MEMORY_BYTES) {
                u64::MAX => MemoryLimit::Unlimited,
                // The top bit is the freeze bit of `total`: a limit up there could never be reached.
                limit if limit < 1 << 63 => MemoryLimit::Bytes(limit),
                _ => return Err(RecordFault::Field("memory")),
            },
            share_ppm: ppm(record::SHARE_PPM, "share")?,
            granted_ppm: ppm(record::GRANTED_PPM, "granted share")?,
            own_ppm: match ppm(record::OWN_PPM, "own part")? {
                0 => 1_000_000,
                ppm => ppm,
            },
            policy: ComputePolicy::from_code(half(bytes, record::POLICY))
                .ok_or(RecordFault::Field("policy"))?,
            priority: half(bytes, record::PRIORITY),
            fail_mode: match half(bytes, record::FAIL_MODE) {
                0 => FailMode::Closed,
                1 => FailMode::Open,
                _ => return Err(RecordFault::Field("fail mode")),
            },
            managed: match half(bytes, record::MANAGED) {
                0 => ManagedPolicy::Charge,
                1 => ManagedPolicy::Free,
                _ => return Err(RecordFault::Field("managed memory policy")),
            },
            context_bytes: word(bytes, record::CONTEXT_BYTES),
            pages: Pages::from_code(half(bytes, record::PAGES)).ok_or(RecordFault::Field("page size"))?,
            card: Text::read(bytes, record::UUID, half(bytes, record::UUID_LENGTH))
                .ok_or(RecordFault::Field("card UUID"))?,
            claim: Text::read(bytes, record::CLAIM, half(bytes, record::CLAIM_LENGTH))
                .ok_or(RecordFault::Field("claim UID"))?,
        })
    }
}

impl Pages {
    /// Not measured.
    pub const ASSUMED: Self = Self { pointers: 0, arrays: 0 };

    /// As measured: powers of two, of allocations that have an address and of arrays. `None`: no driver has such pages.
    #[must_use]
    pub fn measured(pointers: u8, arrays: u8) -> Option<Self> {
        let is_page = |bits: &u8| PAGE_BITS.contains(bits);
        (is_page(&pointers) && is_page(&arrays)).then_some(Self { pointers, arrays })
    }

    /// The powers of two as measured, of allocations that have an address and of arrays; 0: not measured.
    #[must_use]
    pub const fn measured_bits(self) -> [u8; 2] {
        [self.pointers, self.arrays]
    }

    /// The power of two of the pages of allocations that have an address.
    #[must_use]
    pub const fn pointer_bits(self) -> u32 {
        Self::bits(self.pointers)
    }

    /// The same of arrays.
    #[must_use]
    pub const fn array_bits(self) -> u32 {
        Self::bits(self.arrays)
    }

    const fn bits(measured: u8) -> u32 {
        (if measured == 0 { PAGE_BITS_ASSUMED } else { measured }) as u32
    }

    const fn code(self) -> u32 {
        u32::from_le_bytes([self.pointers, self.arrays, 0, 0])
    }

    fn from_code(code: u32) -> Option<Self> {
        let [pointers, arrays, 0, 0] = code.to_le_bytes() else { return None };
        let is_page = |bits: u8| bits == 0 || PAGE_BITS.contains(&bits);
        (is_page(pointers) && is_page(arrays)).then_some(Self { pointers, arrays })
    }
}

impl ComputePolicy {
    const fn code(self) -> u32 {
        match self {
            Self::Cap => 0,
            Self::Burst => 1,
            Self::BestEffort => 2,
            Self::Unlimited => 3,
        }
    }

    const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Cap),
            1 => Some(Self::Burst),
            2 => Some(Self::BestEffort),
            3 => Some(Self::Unlimited),
            _ => None,
        }
    }
}

impl<const N: usize> Text<N> {
    /// The text; `None` if it is longer than `N` bytes.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { length: text.len(), bytes })
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn length_code(&self) -> u32 {
        u32::try_from(self.length).unwrap_or(0)
    }

    fn read(record: &[u8; limits::RECORD_BYTES], at: usize, length: u32) -> Option<Self> {
        let length = usize::try_from(length).ok().filter(|length| *length <= N)?;
        Self::new(core::str::from_utf8(record.get(at..at + length)?).ok()?)
    }
}

/// FNV-1a, 64 bits: distinguishes a torn record from a whole one; it is no protection against a forger, the
/// mount is.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn put(bytes: &mut [u8; limits::RECORD_BYTES], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

fn word(bytes: &[u8; limits::RECORD_BYTES], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk::<8>).map_or(0, |b| u64::from_le_bytes(*b))
}

fn half(bytes: &[u8; limits::RECORD_BYTES], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk::<4>).map_or(0, |b| u32::from_le_bytes(*b))
}
