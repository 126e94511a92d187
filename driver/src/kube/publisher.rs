//! The publisher: keeps the server's ResourceSlices equal to the desired ones.
//!
//! ```text
//!  desired (watch channel) ──┐             ┌─▶ delete, PUT, create ──▶ answer ─┐
//!                            ▼             │                                   │ read-back: dropped fields
//!  watch of own slices ──▶ copies ──▶ plan ┘   Publication (watch channel) ◀───┘
//! ```
//!
//! One task does everything, one write at a time. It waits for desired slices, for events of the watch and for its
//! alarm (a retry, or the end of a pause). A failure of any kind sets the alarm; each step plans from what is there, so
//! an interrupted step leaves nothing to clean up.
//!
//! - A restart without a change writes nothing: names are deterministic, and content is compared, not remembered.
//! - A watch can be silent about changes, as after a restore of the server's database: from time to time the copies are compared
//!   with a list, and the watch starts anew where they differ.
//! - The kubelet deletes the slices of its node when it starts; each deletion is seen by the watch and undone.
//! - Until the agent says what it wants (`None` in the channel), nothing is written or deleted.

mod compare;
mod copies;
mod counting;
mod execute;
mod plan;
pub(super) mod probe;
mod readback;
mod server;
mod slice_owner;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ::kube::runtime::{WatchStreamExt, watcher};
use ::kube::{Api, Client};
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{NodeSelection, ResourceSlice};
use aliquot_core::id::NodeName;
use aliquot_core::offer::validate::violations;
use aliquot_core::offer::{CounterNodes, CounterStance, DRIVER, ServerVersion, Support};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::resource::v1 as api;
use tokio::sync::watch;

use self::copies::{Seen, ServerCopies};
use self::plan::{AcceptedWrite, Situation, Write, plan};
use self::readback::Losses;
use self::slice_owner::SliceOwner;
use super::backoff::Backoff;
use super::client::Connection;
use super::failure::ApiCall;
use crate::clock;
use crate::ports::{AgentError, DesiredSlices, Publication};

/// Plans of one step; a conflict needs a second, lost fields a third.
const PLANS_MAX: usize = 6;
/// Violations that a message names.
const VIOLATIONS_NAMED: usize = 2;
/// Different errors that are logged until the slices are in sync again.
const TOLD_MAX: usize = 16;

/// Waiting times of the publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Delay after the first failure; later ones double it.
    pub first_retry: Duration,
    /// Longest delay after a failure.
    pub longest_retry: Duration,
    /// Longest duration of one request.
    pub request: Duration,
    /// Pause after a change by others, so that several become one step; repeated changes double it.
    pub settle: Duration,
    /// Longest such pause.
    pub longest_settle: Duration,
    /// Age at which the answer to "which fields does the server keep" is asked for again.
    pub probe_age: Duration,
    /// Time between two counts of the nodes with counters, before 1.37.
    pub count_age: Duration,
    /// Time between two comparisons of the slices that the watch told of with a list.
    pub compare_age: Duration,
    /// Time for which no older server may answer before a newer version counts. While control planes are updated one after the
    /// other, servers of both versions answer in turn, and offers for the newer one must not come and go.
    pub upgrade: Duration,
}

/// Publishes the slices of one node.
pub struct Publisher {
    client: Client,
    node: NodeName,
    timing: Timing,
}

/// The latest failure of the watch.
struct WatchError {
    error: AgentError,
    at: Instant,
}

/// Whether the watch goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchState {
    /// It goes on by itself, after errors as well.
    Goes,
    /// It starts anew, with a list.
    StartsAnew,
}

/// The publisher at work.
struct PublisherTask {
    client: Client,
    slices: Api<api::ResourceSlice>,
    node: NodeName,
    timing: Timing,
    copies: ServerCopies,
    accepted: BTreeMap<String, AcceptedWrite>,
    /// What the server changed in the present slices, by slice.
    losses: BTreeMap<String, Losses>,
    owner: SliceOwner,
    /// The slice that says what its node makes of counters.
    label: Option<(String, CounterStance)>,
    server: Option<ServerVersion>,
    /// When the server was asked for its fields; `None`: it must be asked.
    probed: Option<Instant>,
    /// Since when only servers newer than `server` answer.
    newer_since: Option<Instant>,
    /// The nodes with counters; `None`: not counted yet.
    counter_nodes: Option<CounterNodes>,
    /// When they were counted.
    counted: Option<Instant>,
    /// Whether the last count gave another verdict.
    recounts: bool,
    listed: bool,
    /// When the copies were last the same as a list; `None`: they are to be compared.
    compared: Option<Instant>,
    /// Whether the watch is to start anew, with a list.
    watch: WatchState,
    /// How often the server's state was found to be older than before.
    restores: u64,
    writes: u64,
    error: Option<AgentError>,
    /// Failure of the watch, until an event, an answer or time shows that the server is back.
    watch_error: Option<WatchError>,
    /// Errors that were logged since the slices were last in sync.
    told: BTreeSet<String>,
    in_sync: bool,
    /// Since when slices that are wanted have not been in sync.
    behind: Option<Instant>,
    retry: Backoff,
    settle: Backoff,
    last_change: Option<Instant>,
    alarm: Option<Instant>,
}

// === impl Timing ===

impl Default for Timing {
    fn default() -> Self {
        Self {
            first_retry: Duration::from_millis(200),
            longest_retry: Duration::from_secs(30),
            request: Duration::from_secs(15),
            settle: Duration::from_millis(20),
            longest_settle: Duration::from_secs(5),
            probe_age: Duration::from_secs(600),
            count_age: Duration::from_secs(60),
            compare_age: Duration::from_secs(60),
            upgrade: Duration::from_secs(900),
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// A publisher for the slices of this node.
    #[must_use]
    pub fn new(connection: &Connection, node: NodeName) -> Self {
        Self { client: connection.client.clone(), node, timing: Timing::default() }
    }

    /// The same with other waiting times.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Publishes until the sender of `desired` is dropped. Published slices stay when it ends: the kubelet removes them
    /// 30 s after the driver's socket is gone.
    pub async fn run(
        self,
        mut desired: watch::Receiver<Option<DesiredSlices>>,
        publication: watch::Sender<Publication>,
    ) {
        let mut task = PublisherTask::new(self);
        // The end of a silent connection is noticed five seconds after this timeout.
        let config = watcher::Config::default().fields(&task.own_slices()).timeout(60);
        let backoff = Backoff::new(task.timing.first_retry, task.timing.longest_retry);
        let slices = task.slices.clone();
        let watch = || watcher(slices.clone(), config.clone()).backoff(backoff.clone());
        let mut events = std::pin::pin!(watch());
        task.wake(Duration::ZERO);
        loop {
            let alarm = task.alarm;
            tokio::select! {
                changed = desired.changed() => match changed {
                    Ok(()) => task.wake(Duration::ZERO),
                    Err(_closed) => return,
                },
                event = events.next() => match event {
                    Some(event) => task.observe(event),
                    None => return,
                },
                () = until(alarm) => {}
            }
            while let Some(Some(event)) = events.next().now_or_never() {
                task.observe(event);
            }
            if task.alarm.is_some_and(|alarm| alarm <= clock::now()) {
                task.alarm = None;
                let wanted = desired.borrow_and_update().clone();
                task.step(wanted.as_ref()).await;
            }
            if std::mem::replace(&mut task.watch, WatchState::Goes) == WatchState::StartsAnew {
                events.set(watch());
            }
            task.note_behind(desired.borrow().as_ref());
            task.report(&publication);
        }
    }
}

async fn until(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => tokio::time::sleep_until(alarm.into()).await,
        None => std::future::pending().await,
    }
}

// === impl PublisherTask ===

impl PublisherTask {
    fn new(publisher: Publisher) -> Self {
        let Publisher { client, node, timing } = publisher;
        Self {
            slices: Api::all(client.clone()),
            client,
            copies: ServerCopies::new(DRIVER, node.as_str()),
            node,
            accepted: BTreeMap::new(),
            losses: BTreeMap::new(),
            owner: SliceOwner::Unknown,
            label: None,
            server: None,
            probed: None,
            newer_since: None,
            counter_nodes: None,
            counted: None,
            recounts: false,
            listed: false,
            compared: None,
            watch: WatchState::Goes,
            restores: 0,
            writes: 0,
            error: None,
            watch_error: None,
            told: BTreeSet::new(),
            in_sync: false,
            behind: None,
            retry: Backoff::new(timing.first_retry, timing.longest_retry),
            settle: Backoff::new(timing.settle, timing.longest_settle),
            last_change: None,
            alarm: None,
            timing,
        }
    }

    /// Sets the alarm, unless it rings earlier already.
    fn wake(&mut self, after: Duration) {
        let at = clock::now() + after;
        self.alarm = Some(self.alarm.map_or(at, |alarm| alarm.min(at)));
    }

    fn fail(&mut self, error: AgentError) {
        // A server that is away fails in several ways in turn, for hours: each is said once.
        if self.told.len() < TOLD_MAX && self.told.insert(error.message.clone()) {
            tracing::warn!(error = %error, disposition = %error.disposition, "slices are not published");
        }
        let refused = error.disposition != Disposition::Retry;
        self.error = Some(error);
        self.in_sync = false;
        // What a person must repair is tried seldom; new desired slices are tried at once.
        let delay = self.retry.delay();
        self.wake(if refused { delay.max(self.timing.longest_retry) } else { delay });
    }

    fn observe(&mut self, event: watcher::Result<watcher::Event<api::ResourceSlice>>) {
        match event {
            Ok(event) => {
                let seen = self.copies.observe(event);
                if seen != Seen::Listing {
                    self.watch_error = None;
                }
                match seen {
                    Seen::Known => {}
                    Seen::Listing => self.listed = false,
                    Seen::Listed => {
                        self.listed = true;
                        self.compared = Some(clock::now());
                        self.wake(Duration::ZERO);
                    }
                    Seen::Changed => self.changed_by_others(),
                }
            }
            Err(error) => {
                let call = ApiCall { verb: "watch", resource: "resourceslices.resource.k8s.io", object: "" };
                // The server that answers next may be another one, another version, or have another state.
                self.probed = None;
                self.compared = None;
                let error = watch_error(call, &error);
                self.watch_error = Some(WatchError { error: error.clone(), at: clock::now() });
                self.fail(error);
            }
        }
    }

    fn changed_by_others(&mut self) {
        let now = clock::now();
        if self.last_change.is_some_and(|last| now.duration_since(last) > 2 * self.timing.longest_settle) {
            self.settle.restart();
        }
        self.last_change = Some(now);
        self.in_sync = false;
        // One pause for all changes that come before its end.
        let soon = now + self.timing.longest_settle;
        if self.alarm.is_none_or(|alarm| alarm > soon) {
            let pause = self.settle.delay();
            self.wake(pause);
        }
    }

    /// Brings the server's copies to what is desired, as far as it goes.
    async fn step(&mut self, desired: Option<&DesiredSlices>) {
        let old = self.probed.is_none_or(|at| clock::now().duration_since(at) > self.timing.probe_age);
        if (old || self.newer_since.is_some())
            && let Err(error) = self.ask_server().await
        {
            return self.fail(error);
        }
        if self.listed {
            self.judge_watch_error();
            if let Err(error) = self.compare().await {
                return self.fail(error);
            }
        }
        if self.listed
            && let Err(error) = self.count_nodes().await
        {
            return self.fail(error);
        }
        let Some(desired) = desired.filter(|_| self.listed) else {
            self.error = None;
            return;
        };
        self.find_absent_owner().await;
        for _ in 0..PLANS_MAX {
            let (wanted, broken) = publishable(&desired.slices, self.server, &self.node);
            let frozen: BTreeSet<String> = broken.iter().map(|(pool, _)| pool.clone()).collect();
            let writes = self.plan(&wanted, desired.counter_stance, &frozen);
            if writes.is_empty() {
                return self.settled(&wanted, &broken);
            }
            self.in_sync = false;
            if let Err(error) = self.execute(writes).await {
                return self.fail(error);
            }
        }
        // Others write as fast as this task: the next step comes after a pause.
        let pause = self.settle.delay();
        self.wake(pause);
    }

    /// Forgets the failure of a watch that is resumed. A resumed watch says nothing until a slice changes, but one that fails says
    /// so again after `longest_retry` at the latest.
    fn judge_watch_error(&mut self) {
        let Some(WatchError { error, at }) = &self.watch_error else { return };
        let left = self.long_pause().saturating_sub(clock::now().duration_since(*at));
        if error.disposition == Disposition::Retry || left.is_zero() {
            self.watch_error = None;
        } else {
            self.wake(left);
        }
    }

    /// Twice the longest time between two tries: what failed and is not heard of for so long is over, and what was not found may be
    /// there.
    fn long_pause(&self) -> Duration {
        2 * self.timing.longest_retry
    }

    fn plan(
        &mut self,
        wanted: &[ResourceSlice],
        stance: Option<CounterStance>,
        frozen: &BTreeSet<String>,
    ) -> Vec<Write> {
        let first = wanted.iter().map(|slice| &slice.name).min();
        self.label = stance.and_then(|stance| Some((first?.clone(), stance)));
        plan(&Situation {
            desired: wanted,
            label: self.label.as_ref(),
            copies: &self.copies,
            accepted: &self.accepted,
            owner: self.owner.uid(),
            frozen,
        })
    }

    /// Nothing is left to write.
    fn settled(&mut self, wanted: &[ResourceSlice], broken: &[(String, String)]) {
        let present: BTreeSet<&str> = wanted.iter().map(|slice| slice.name.as_str()).collect();
        self.accepted.retain(|name, _| present.contains(name.as_str()));
        self.losses.retain(|name, _| present.contains(name.as_str()));
        if let Some((_, first)) = broken.first() {
            let more = broken.iter().skip(1).take(VIOLATIONS_NAMED - 1).map(|(_, text)| format!("; {text}"));
            return self.fail(AgentError {
                message: format!(
                    "slices: {} pools are not published: {first}{}; report this with the output of `aliquot slices`",
                    broken.len(),
                    more.collect::<String>()
                ),
                disposition: Disposition::Broken,
            });
        }
        self.retry.restart();
        self.error = self.losses.iter().next().map(|(name, losses)| AgentError {
            message: format!(
                "slice {name}: the API server dropped {losses}; found them absent after the write, expected them \
                 kept; enable the gate, or accept fewer offers"
            ),
            disposition: Disposition::Broken,
        });
        self.in_sync = self.losses.is_empty();
        if self.in_sync && !self.told.is_empty() {
            tracing::info!("slices are published again");
            self.told.clear();
        }
    }

    /// Selects the slices of this driver and node.
    fn own_slices(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.node)
    }

    fn is_in_sync(&self) -> bool {
        self.in_sync && self.watch_error.is_none()
    }

    /// Nothing is behind before the agent wants something.
    fn note_behind(&mut self, wanted: Option<&DesiredSlices>) {
        let began = self.behind.unwrap_or_else(clock::now);
        self.behind = wanted.filter(|_| !self.is_in_sync()).map(|_| began);
    }

    fn report(&self, publication: &watch::Sender<Publication>) {
        let watch_error = self.watch_error.as_ref().map(|failure| &failure.error);
        let now = Publication {
            server: self.counter_nodes.and_then(|nodes| Some(self.server?.among(nodes))),
            in_sync: self.is_in_sync(),
            behind: self.behind,
            restores: self.restores,
            writes: self.writes,
            error: self.error.as_ref().or(watch_error).cloned(),
        };
        publication.send_if_modified(|last| {
            let modified = *last != now;
            *last = now;
            modified
        });
    }
}

/// Desired slices without what must not be published, and the pools that break a rule of the API, each with the first
/// fault. If the server drops counters, its scheduler would give overlapping partitions to several claims: pools with
/// counters are withheld.
fn publishable(
    slices: &[ResourceSlice],
    server: Option<ServerVersion>,
    node: &NodeName,
) -> (Vec<ResourceSlice>, Vec<(String, String)>) {
    let uses_counters = |slice: &&ResourceSlice| {
        !slice.shared_counters.is_empty() || slice.devices.iter().any(|d| !d.consumes.is_empty())
    };
    let withheld: BTreeSet<&str> = match server {
        Some(ServerVersion { counters: Support::Kept, .. }) => BTreeSet::new(),
        _ => slices.iter().filter(uses_counters).map(|slice| slice.pool.name.as_str()).collect(),
    };
    let mut wanted: Vec<ResourceSlice> =
        slices.iter().filter(|slice| !withheld.contains(slice.pool.name.as_str())).cloned().collect();
    let mut sizes: BTreeMap<String, i64> = BTreeMap::new();
    for slice in &wanted {
        *sizes.entry(slice.pool.name.clone()).or_default() += 1;
    }
    for slice in &mut wanted {
        slice.pool.slice_count = sizes.get(&slice.pool.name).copied().unwrap_or_default();
    }
    let pool_of: BTreeMap<&str, &str> =
        wanted.iter().map(|slice| (slice.name.as_str(), slice.pool.name.as_str())).collect();
    let mut broken: BTreeMap<String, String> = BTreeMap::new();
    for violation in violations(&wanted) {
        let pool = pool_of.get(violation.slice.as_str()).copied().unwrap_or_default();
        broken.entry(pool.to_owned()).or_insert_with(|| violation.to_string());
    }
    for slice in &wanted {
        if slice.driver != DRIVER || slice.node != NodeSelection::Name(node.as_str().to_owned()) {
            let fault = format!(
                "slice `{}`: it belongs to another driver or node than {DRIVER} on {node}",
                slice.name
            );
            broken.entry(slice.pool.name.clone()).or_insert(fault);
        }
    }
    (wanted, broken.into_iter().collect())
}

fn watch_error(call: ApiCall<'_>, error: &watcher::Error) -> AgentError {
    match error {
        watcher::Error::InitialListFailed(error) => ApiCall { verb: "list", ..call }.failed(error),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => call.failed(error),
        watcher::Error::WatchError(status) => call.failed(&::kube::Error::Api(status.clone())),
        watcher::Error::NoResourceVersion => AgentError {
            message:
                "resourceslices: watch failed: found objects without resourceVersion, expected one on each; \
                      check proxies before the API server"
                    .to_owned(),
            disposition: Disposition::Retry,
        },
    }
}
