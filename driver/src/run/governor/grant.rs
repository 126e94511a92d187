//! One grant on the card of a governor: what its tenant used, and the limits that are written for it.

use std::sync::atomic::Ordering;

use aliquot_abi::limits::{ComputePolicy, Limits, MemoryLimit};
use aliquot_abi::view::UsageView;
use aliquot_enforce::rounding::Rounding;
use aliquot_enforce::share::{BorrowPolicy, MeasuredWindow, Sample, Tenant, Terms};
use aliquot_enforce::term::LoanExpiry;
use aliquot_enforce::units::{Nanos, Ppm};

use super::super::cards::Window;
use super::owners::Owners;
use super::residue::GrantLooks;
use super::unshimmed::UnshimmedProcesses;
use crate::clock::monotonic;
use crate::region::{LimitsWritten, Live, UsageFile, wake};

/// A grant of the card.
#[derive(Debug)]
pub(super) struct GovernedGrant {
    pub(super) limits: Live,
    pub(super) usage: UsageFile,
    /// `None`: its compute is not limited.
    pub(super) tenant: Option<Tenant>,
    /// Processes that its card time is measured by, if its compute is limited.
    pub(super) owners: Owners,
    /// Those of them without the shim.
    pub(super) unshimmed: UnshimmedProcesses,
    /// When a process began to use it, or may have.
    pub(super) since: Nanos,
    /// What looks at its memory remember.
    pub(super) looks: GrantLooks,
}

/// How long a share is served at least after it was touched.
const SERVED: Nanos = Nanos::from_millis(1_000);

impl GovernedGrant {
    /// The grant's own part of the card while other tenants work.
    pub(super) fn own(&self) -> Ppm {
        self.tenant.map_or(Ppm::ALL, |tenant| tenant.own())
    }

    /// Reads the terms again from the limits file.
    pub(super) fn renew(&mut self) {
        if let (Some(tenant), Ok(limits)) = (&mut self.tenant, self.limits.read()) {
            terms(&limits).into_iter().for_each(|terms| tenant.terms = terms);
        }
    }

    /// Whether memory of exited processes must be released. Limits that cannot be read count as limiting memory.
    pub(super) fn limits_memory(&self) -> bool {
        !self.limits.read().is_ok_and(|now| now.memory == MemoryLimit::Unlimited)
    }

    /// Whether no process uses it, or did so lately.
    pub(super) fn is_quiet(&self, now: Nanos) -> bool {
        now.minus(self.since) >= SERVED
            && self.owners.is_empty()
            && self.unshimmed.is_empty()
            && !self.usage.is_used()
    }

    /// Leaves the limits as they are to be while no step concerns them: the guarantee, and a governor that is missed once a launch
    /// waits, so that its process touches the file.
    pub(super) fn leave(&mut self) {
        if let Some(tenant) = self.tenant {
            self.publish(Tenant::new(tenant.terms));
            self.lend(LoanExpiry::behind(monotonic()));
        }
        self.forget_residue();
    }

    pub(super) fn word(&self) -> u32 {
        self.usage.view().map_or(0, |view| view.demand().load(Ordering::SeqCst))
    }

    pub(super) fn sample(&self) -> Sample {
        let Ok(view) = self.usage.view() else { return Sample::default() };
        Sample {
            device: Nanos(view.device_nanos().load(Ordering::Acquire)),
            interval: Nanos(view.interval_nanos().load(Ordering::Acquire)),
            active_until: Nanos(view.active_until().load(Ordering::Acquire)),
            limited_until: Nanos(view.limited_until().load(Ordering::Acquire)),
            credit: view.credit_nanos().load(Ordering::Acquire),
        }
    }

    /// Records the owners of the slots, if card time is measured.
    pub(super) fn note_owners(&mut self, now: Nanos) {
        if self.tenant.is_some() {
            let unshimmed = &mut self.unshimmed;
            let slots = self.usage.owners().inspect(|(pid, _)| unshimmed.has_slot(*pid));
            self.owners.see(now, slots);
        }
    }

    /// Card time of this grant's processes in the driver's last window.
    pub(super) fn measured(&self, window: &Window, rounding: &Rounding) -> MeasuredWindow {
        let length = window.length;
        let idle = window.busy_percent.map_or(Nanos::ZERO, |card| Rounding::idle(card, length));
        let mut measured = MeasuredWindow { length, idle, own: Nanos::ZERO, doubt: Nanos::ZERO };
        for spent in window.processes.iter().filter(|spent| self.owners.have(spent.pid)) {
            measured.own = measured.own.plus(rounding.time(spent.percent, length));
            measured.doubt = measured.doubt.plus(rounding.doubt(spent.percent, length));
        }
        measured
    }

    /// Publishes when borrowed time expires. Limits that cannot be written now keep their value. If the previous expiry has passed,
    /// the tenant waits by its guarantee and is woken: at one percent of the card its wait may last a second.
    pub(super) fn lend(&mut self, until: LoanExpiry) {
        let was_over = self.limits.lent_until().is_ok_and(|until| until.is_over(monotonic()));
        match self.limits.lend(until) {
            Ok(()) | Err(_) => {}
        }
        if let (true, Ok(view)) = (was_over, self.usage.view()) {
            wake_tenant(view);
        }
    }

    /// Writes the tenant's grant if it changed, and wakes its waiting launches. If the terms in the limits changed since they were
    /// read, those limits stay until the next step.
    pub(super) fn publish(&mut self, tenant: Tenant) {
        let (granted_ppm, own_ppm) = (tenant.granted().parts(), tenant.own().parts());
        let change = |now: &Limits| {
            let same = now.granted_ppm == granted_ppm && now.own_ppm == own_ppm;
            (!same && terms(now) == Some(tenant.terms)).then_some(Limits { granted_ppm, own_ppm, ..*now })
        };
        let same = self.limits.read().is_ok_and(|now| change(&now).is_none());
        // Limits that cannot be written now stay as they are, and the next step tries again.
        let changed =
            if same { LimitsWritten::No } else { self.limits.change(change).unwrap_or(LimitsWritten::No) };
        let Ok(view) = self.usage.view() else { return };
        if tenant.correction() != 0 {
            view.credit_nanos().fetch_add(tenant.correction(), Ordering::AcqRel);
        }
        if changed == LimitsWritten::Yes {
            wake_tenant(view);
        }
    }
}

/// Wakes waiting launches, which then read their limits again.
fn wake_tenant(view: UsageView<'_>) {
    view.wake().fetch_add(1, Ordering::AcqRel);
    wake(view.wake());
}

/// The terms in a tenant's limits; `None`: its compute is unlimited.
pub(super) fn terms(limits: &Limits) -> Option<Terms> {
    let lending = match limits.policy {
        ComputePolicy::Cap => BorrowPolicy::Cap,
        ComputePolicy::Burst => BorrowPolicy::Burst,
        ComputePolicy::BestEffort => BorrowPolicy::BestEffort,
        ComputePolicy::Unlimited => return None,
    };
    Some(Terms { guaranteed: Ppm::new(limits.share_ppm), lending, priority: limits.priority })
}
