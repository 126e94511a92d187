//! Taints and tolerations of devices.

use crate::dra::{Device, Taint, TaintEffect, Toleration, TolerationOperator};

/// The first taint that keeps a request with these tolerations off the device.
pub(super) fn in_the_way<'a>(device: &'a Device, tolerations: &[Toleration]) -> Option<&'a Taint> {
    device.taints.iter().find(|taint| match taint.effect {
        TaintEffect::NoSchedule | TaintEffect::NoExecute => !tolerations.iter().any(|t| t.bears(taint)),
        TaintEffect::None | TaintEffect::Other(_) => false,
    })
}

// === impl Toleration ===

impl Toleration {
    /// Whether it bears a taint, of a device or of a node. An absent or empty key bears every key.
    #[must_use]
    pub fn bears(&self, taint: &Taint) -> bool {
        let effect = self.effect.as_ref().is_none_or(|effect| *effect == taint.effect);
        let key = self.key.as_ref().is_none_or(|key| key.is_empty() || *key == taint.key);
        let value = match &self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal(value) => *value == taint.value,
        };
        effect && key && value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(taint: (&str, &str, TaintEffect), toleration: Option<Toleration>, passes: bool) {
        let mut device = Device::named("d");
        device.taints.push(Taint { key: taint.0.into(), value: taint.1.into(), effect: taint.2 });
        let tolerations: Vec<_> = toleration.into_iter().collect();
        assert_eq!(in_the_way(&device, &tolerations).is_none(), passes, "{device:?} {tolerations:?}");
    }

    fn exists(key: Option<&str>, effect: Option<TaintEffect>) -> Option<Toleration> {
        let key = key.map(str::to_owned);
        Some(Toleration { key, operator: TolerationOperator::Exists, effect, seconds: None })
    }

    fn equal(key: Option<&str>, value: &str) -> Option<Toleration> {
        let (key, operator) = (key.map(str::to_owned), TolerationOperator::Equal(value.into()));
        Some(Toleration { key, operator, effect: None, seconds: Some(30) })
    }

    #[test]
    fn only_scheduling_effects_count_tolerations_match_kubernetes() {
        use TaintEffect::{NoExecute, NoSchedule, None as Informational, Other};
        check(("k", "v", NoSchedule), None, false);
        check(("k", "v", NoExecute), None, false);
        check(("k", "v", Informational), None, true);
        check(("k", "v", Other("Later".into())), None, true);
        check(("k", "v", NoSchedule), exists(Some("k"), None), true);
        check(("k", "v", NoSchedule), exists(None, None), true);
        check(("k", "v", NoSchedule), exists(Some(""), None), true);
        check(("k", "v", NoSchedule), exists(Some("other"), None), false);
        check(("k", "v", NoSchedule), exists(Some("k"), Some(NoExecute)), false);
        check(("k", "v", NoExecute), exists(Some("k"), Some(NoExecute)), true);
        check(("k", "v", NoSchedule), equal(Some("k"), "v"), true);
        check(("k", "v", NoSchedule), equal(Some("k"), "w"), false);
        check(("k", "v", NoSchedule), equal(None, "v"), true);
    }
}
