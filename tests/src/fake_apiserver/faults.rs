//! Faults as data: which request, how often, with which effect.

use std::time::Duration;

/// A request as the server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'static str,
    /// Resource, with its subresource after a `/`; a path such as `/version` where there is none.
    pub resource: String,
    /// Name of the object; empty for a list.
    pub name: String,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
}

/// What happens to a request instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// This status code; nothing is done.
    Status(u16),
    /// The connection breaks; nothing is done.
    Break,
    /// The request is carried out, and the connection breaks before the answer.
    LoseAnswer,
    /// The answer comes this much later.
    Delay(Duration),
}

/// An effect on the requests that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Verb; `None` for any.
    pub verb: Option<&'static str>,
    /// Resource; `None` for any.
    pub resource: Option<&'static str>,
    /// How many requests it hits.
    pub times: u32,
    /// What happens.
    pub effect: Effect,
}

/// All faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    table: Vec<Fault>,
    seed: u64,
    permille: u32,
}

// === impl Request ===

impl Request {
    /// Whether it changes something.
    #[must_use]
    pub fn is_write(&self) -> bool {
        !self.dry_run && !matches!(self.verb, "get" | "list" | "watch")
    }
}

// === impl Fault ===

impl Fault {
    /// One fault for one request.
    #[must_use]
    pub fn once(verb: &'static str, resource: &'static str, effect: Effect) -> Self {
        Self { verb: Some(verb), resource: Some(resource), times: 1, effect }
    }

    fn hits(&self, request: &Request) -> bool {
        self.times > 0
            && self.verb.is_none_or(|verb| verb == request.verb)
            && self.resource.is_none_or(|resource| resource == request.resource)
    }
}

// === impl Faults ===

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.table.push(fault);
    }

    pub(super) fn disturb(&mut self, seed: u64, permille: u32) {
        self.seed = seed;
        self.permille = permille;
    }

    /// The effect on this request, if any.
    pub(super) fn strike(&mut self, request: &Request) -> Option<Effect> {
        if let Some(fault) = self.table.iter_mut().find(|fault| fault.hits(request)) {
            fault.times -= 1;
            return Some(fault.effect);
        }
        if self.permille == 0 || u64::from(self.permille) <= self.draw() % 1_000 {
            return None;
        }
        Some(match self.draw() % 8 {
            0 => Effect::Status(500),
            1 => Effect::Status(503),
            2 => Effect::Status(409),
            3 => Effect::Status(429),
            4 | 5 => Effect::LoseAnswer,
            6 => Effect::Delay(Duration::from_millis(self.draw() % 20)),
            _ => Effect::Break,
        })
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
