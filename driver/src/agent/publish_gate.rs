//! Slices wait for the kubelet: a Pod that the scheduler places before the kubelet knows the plugin fails, and is tried
//! again a minute later.
//!
//! ```text
//!  state ─wanted─▶ gate ─desired─▶ publisher
//!                   ▲ opens once: the kubelet accepted the plugin, or did not answer for `LONGEST`
//! ```
//!
//! While the gate is closed the publisher has no decision: published slices stay as they are. A refusal keeps it closed.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::clock;
use crate::kubelet::registration::RegistrationOutcome;
use crate::ports::DesiredSlices;

/// Longest wait for a kubelet that does not answer; it looks for new sockets every second. Health of devices that were
/// published earlier must reach the cluster even then.
const LONGEST: Duration = Duration::from_secs(15);

/// Passes on what is wanted, once the gate is open; ends with the sender of `wanted`.
pub(super) async fn run(
    mut wanted: watch::Receiver<Option<DesiredSlices>>,
    registration: watch::Receiver<RegistrationOutcome>,
    desired: watch::Sender<Option<DesiredSlices>>,
) {
    tokio::select! {
        () = opened(registration) => {}
        () = closed(wanted.clone()) => return,
    }
    loop {
        desired.send_replace(wanted.borrow_and_update().clone());
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

async fn opened(mut registration: watch::Receiver<RegistrationOutcome>) {
    let deadline: Instant = (clock::now() + LONGEST).into();
    loop {
        let answer = registration.borrow_and_update().clone();
        if answer == RegistrationOutcome::Accepted {
            return;
        }
        tokio::select! {
            changed = registration.changed() => if changed.is_err() {
                // The kubelet's side ends first; the gate then stays closed until the state task ends.
                std::future::pending::<()>().await;
            },
            // After a refusal another answer opens the gate; time does not.
            () = sleep_until(deadline), if answer == RegistrationOutcome::Waiting => {
                tracing::warn!(
                    "the kubelet has not registered the plugin for {} s; slices are published without it",
                    LONGEST.as_secs()
                );
                return;
            }
        }
    }
}

async fn closed(mut wanted: watch::Receiver<Option<DesiredSlices>>) {
    while wanted.changed().await.is_ok() {}
}
