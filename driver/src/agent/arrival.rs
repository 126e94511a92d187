//! Cards on a machine that had none when its agent started: no driver yet, one that does not serve, or the only card lost.
//!
//! Such an agent serves the kubelet all the same: claims of earlier cards are released, and a node without accelerators is no
//! node with a fault. Vendors' libraries are opened once a process, so the agent ends when there is a card, and its next start
//! has it.

use std::future::pending;
use std::thread;
use std::time::Duration;

use aliquot_core::catalogue::Catalogue;
use tokio::sync::oneshot;

use crate::clock;
use crate::hardware::open_machine_for_containers;
use crate::hardware::vendors::HostRoots;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// A look that takes longer met a call that hangs, and may have left a thread in it: the time to the next one doubles.
const HANGS: Duration = Duration::from_secs(5);
/// Longest time between two looks.
const SELDOM: Duration = Duration::from_secs(3600);

/// Tells of the first card of a machine that has none; nothing where it had one from the start.
pub(super) struct CardArrival(Option<oneshot::Receiver<()>>);

// === impl CardArrival ===

impl CardArrival {
    /// Nothing is waited for.
    pub(super) const fn not_awaited() -> Self {
        Self(None)
    }

    /// Looks for a card from now on, on a thread of its own: a vendor's library may hang.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub(super) fn watch(catalogue: Catalogue, driver: HostRoots) -> std::io::Result<Self> {
        let (arrives, arrival) = oneshot::channel();
        let look = move || {
            let mut pause = EVERY;
            while !arrives.is_closed() {
                thread::sleep(pause);
                let began = clock::now();
                if open_machine_for_containers(&catalogue, &driver).is_ok() {
                    // Without a receiver the agent has ended.
                    let _unheard = arrives.send(());
                    return;
                }
                pause = if began.elapsed() < HANGS { EVERY } else { (2 * pause).min(SELDOM) };
            }
        };
        thread::Builder::new().name("aliquot-cards".to_owned()).spawn(look)?;
        Ok(Self(Some(arrival)))
    }

    /// Resolves once there is a card.
    pub(super) async fn arrived(self) {
        let told = match self.0 {
            Some(arrival) => arrival.await.is_ok(),
            None => false,
        };
        if !told {
            pending::<()>().await;
        }
    }
}
