//! What of a slice the server did not keep. Pure.

use std::collections::BTreeSet;
use std::fmt;

use aliquot_core::dra::{Device, ResourceSlice};
use aliquot_core::offer::{ServerVersion, Support};

/// A group of fields that share a feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fields {
    /// Counter sets, and what devices consume of them.
    Counters,
    /// `allowMultipleAllocations`, request policies.
    Shares,
    /// Taints.
    Taints,
    /// Everything else.
    Other,
}

/// Fields that differ between a slice as sent and as returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses(BTreeSet<Fields>);

// === impl Losses ===

impl Losses {
    /// Compares what was sent with what came back; `None`: what came back cannot be read.
    pub(super) fn between(sent: &ResourceSlice, kept: Option<&ResourceSlice>) -> Self {
        let mut losses = Self::default();
        let Some(kept) = kept else {
            losses.0.insert(Fields::Other);
            return losses;
        };
        losses.note(Fields::Counters, sent.shared_counters != kept.shared_counters);
        losses.note(Fields::Other, sent.devices.len() != kept.devices.len());
        for (sent, kept) in sent.devices.iter().zip(&kept.devices) {
            losses.device(sent, kept);
        }
        losses.note(Fields::Other, losses.0.is_empty() && sent != kept);
        losses
    }

    fn device(&mut self, sent: &Device, kept: &Device) {
        self.note(Fields::Counters, sent.consumes != kept.consumes);
        self.note(Fields::Shares, sent.sharing != kept.sharing || sent.capacity != kept.capacity);
        self.note(Fields::Taints, sent.taints != kept.taints);
        self.note(Fields::Other, sent.name != kept.name || sent.attributes != kept.attributes);
    }

    fn note(&mut self, fields: Fields, differ: bool) {
        if differ {
            self.0.insert(fields);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The server's abilities without what it lost.
    pub(super) fn lower(&self, server: &mut ServerVersion) {
        for fields in &self.0 {
            match fields {
                Fields::Counters => server.counters = Support::Lost,
                Fields::Shares => server.shares = Support::Lost,
                Fields::Taints => server.taints = Support::Lost,
                Fields::Other => {}
            }
        }
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |fields: &Fields| match fields {
            Fields::Counters => "counters (feature gate DRAPartitionableDevices)",
            Fields::Shares => "shares (feature gate DRAConsumableCapacity)",
            Fields::Taints => "taints (feature gate DRADeviceTaints)",
            Fields::Other => "other fields (a mutating webhook?)",
        };
        let names: Vec<&str> = self.0.iter().map(name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::dra::{NodeSelection, Pool, Sharing, Taint, TaintEffect};

    use super::*;

    fn slice(change: impl Fn(&mut Device)) -> ResourceSlice {
        let mut device = Device::named("d");
        device.sharing = Sharing::Shareable;
        let (key, value, effect) = ("k".to_owned(), String::new(), TaintEffect::NoSchedule);
        device.taints = vec![Taint { key, value, effect }];
        change(&mut device);
        ResourceSlice {
            name: "s".to_owned(),
            driver: "aliquot.dev".to_owned(),
            pool: Pool { name: "p".to_owned(), generation: 1, slice_count: 1 },
            node: NodeSelection::Name("n".to_owned()),
            devices: vec![device].into(),
            shared_counters: Vec::new().into(),
        }
    }

    #[test]
    fn dropped_fields_lower_what_the_server_supports() {
        let mut server = ServerVersion::with_default_gates(36, 3);
        let sent = slice(|_| {});
        assert!(Losses::between(&sent, Some(&sent)).is_empty());
        let exclusive = slice(|d| d.sharing = Sharing::Exclusive);
        Losses::between(&sent, Some(&exclusive)).lower(&mut server);
        assert_eq!(
            (server.shares, server.taints, server.counters),
            (Support::Lost, Support::Kept, Support::Kept)
        );
        Losses::between(&sent, Some(&slice(|d| d.taints.clear()))).lower(&mut server);
        assert_eq!((server.taints, server.counters), (Support::Lost, Support::Kept));
        let renamed = Losses::between(&sent, Some(&slice(|d| d.name = "x".to_owned())));
        assert_eq!(renamed, Losses(BTreeSet::from([Fields::Other])));
        assert!(!Losses::between(&sent, None).is_empty());
    }
}
