//! The host's part while tenants share a card: the node's own rule, tick by tick, over the grants of one measurement.

use aliquot_abi::limits::{ComputePolicy, Limits};
use aliquot_driver::region::{self, GrantPaths, UsageFile};
use aliquot_enforce::share::{BorrowPolicy, Sample, Tenant, Terms, step};
use aliquot_enforce::units::{Nanos, Ppm};
use aliquot_tests::preload::GrantFiles;
use nix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two steps, as the rule requires while a tenant is limited.
const TICK: Duration = Duration::from_nanos(aliquot_enforce::share::TICK.0);

/// A governor at work until dropped.
#[derive(Debug)]
pub(crate) struct Governor {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One grant as the governor has it.
struct Governed {
    place: GrantPaths,
    usage: UsageFile,
}

fn terms(limits: &Limits) -> Terms {
    let lending = match limits.policy {
        ComputePolicy::Burst => BorrowPolicy::Burst,
        ComputePolicy::BestEffort => BorrowPolicy::BestEffort,
        ComputePolicy::Cap | ComputePolicy::Unlimited => BorrowPolicy::Cap,
    };
    Terms { guaranteed: Ppm::new(limits.share_ppm), lending, priority: limits.priority }
}

fn now() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Governed {
    fn of(dir: &Path) -> Result<Self, String> {
        let place = GrantPaths { dir: dir.to_owned(), lock: dir.join("lock") };
        let usage = UsageFile::open(&place.usage()).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Self { place, usage })
    }

    fn sample(&self) -> Sample {
        let read = |view: aliquot_abi::view::UsageView<'_>| Sample {
            device: Nanos(view.device_nanos().load(Ordering::Acquire)),
            interval: Nanos(view.interval_nanos().load(Ordering::Acquire)),
            active_until: Nanos(view.active_until().load(Ordering::Acquire)),
            limited_until: Nanos(view.limited_until().load(Ordering::Acquire)),
            credit: view.credit_nanos().load(Ordering::Acquire),
        };
        self.usage.view().map_or(Sample::default(), read)
    }

    /// Puts the rule's result in force; a grant without files is over.
    fn grant(&self, tenant: &Tenant) {
        let (granted, own) = (tenant.granted().parts(), tenant.own().parts());
        let changed = self.place.change(|now| {
            let now = now?;
            let next = Limits { granted_ppm: granted, own_ppm: own.max(1), ..*now };
            (next != *now).then_some(next)
        });
        drop(changed);
        // A tenant that cut its file short is not corrected.
        if let Ok(view) = self.usage.view()
            && tenant.correction() != 0
        {
            view.credit_nanos().fetch_add(tenant.correction(), Ordering::AcqRel);
        }
    }
}

impl Governor {
    /// Governs these grants.
    ///
    /// # Errors
    /// Their files cannot be read.
    pub(crate) fn over<'a>(grants: impl Iterator<Item = &'a GrantFiles>) -> Result<Self, String> {
        let governed = grants.map(|files| Governed::of(files.dir())).collect::<Result<Vec<_>, _>>()?;
        let limits =
            governed.iter().map(|one| region::read(&one.place.limits()).map_err(|error| error.to_string()));
        let mut tenants =
            limits.map(|limits| Ok(Tenant::new(terms(&limits?)))).collect::<Result<Vec<_>, String>>()?;
        let ended = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                let samples: Vec<Sample> = governed.iter().map(Governed::sample).collect();
                step(now(), &mut tenants, &samples);
                governed.iter().zip(&tenants).for_each(|(one, tenant)| one.grant(tenant));
                std::thread::sleep(TICK);
            }
        });
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // It panics never; and if it did, the measurement shows it.
            drop(thread.join());
        }
    }
}
