//! What of a slice the server did not keep. Pure.

use std::collections::BTreeSet;
use std::fmt;

use aliquot_core::dra::{Device, ResourceSlice};
use aliquot_core::offer::{ServerVersion, Support};

/// A group of fields that share a feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FieldGroup {
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
pub(super) struct Losses(BTreeSet<FieldGroup>);

// === impl Losses ===

impl Losses {
    /// Compares what was sent with what came back; `None`: what came back cannot be read.
    pub(super) fn between(sent: &ResourceSlice, kept: Option<&ResourceSlice>) -> Self {
        let mut losses = Self::default();
        let Some(kept) = kept else {
            losses.0.insert(FieldGroup::Other);
            return losses;
        };
        losses.note(FieldGroup::Counters, sent.shared_counters != kept.shared_counters);
        losses.note(FieldGroup::Other, sent.devices.len() != kept.devices.len());
        for (sent, kept) in sent.devices.iter().zip(&kept.devices) {
            losses.device(sent, kept);
        }
        losses.note(FieldGroup::Other, losses.0.is_empty() && sent != kept);
        losses
    }

    fn device(&mut self, sent: &Device, kept: &Device) {
        self.note(FieldGroup::Counters, sent.consumes != kept.consumes);
        self.note(FieldGroup::Shares, sent.sharing != kept.sharing || sent.capacity != kept.capacity);
        self.note(FieldGroup::Taints, sent.taints != kept.taints);
        self.note(FieldGroup::Other, sent.name != kept.name || sent.attributes != kept.attributes);
    }

    fn note(&mut self, fields: FieldGroup, differ: bool) {
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
                FieldGroup::Counters => server.counters = Support::Lost,
                FieldGroup::Shares => server.shares = Support::Lost,
                FieldGroup::Taints => server.taints = Support::Lost,
                FieldGroup::Other => {}
            }
        }
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |fields: &FieldGroup| match fields {
            FieldGroup::Counters => "counters (feature gate DRAPartitionableDevices)",
            FieldGroup::Shares => "shares (feature gate DRAConsumableCapacity)",
            FieldGroup::Taints => "taints (feature gate DRADeviceTaints)",
            FieldGroup::Other => "other fields (a mutating webhook?)",
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
        assert_eq!(renamed, Losses(BTreeSet::from([FieldGroup::Other])));
        assert!(!Losses::between(&sent, None).is_empty());
    }
}
