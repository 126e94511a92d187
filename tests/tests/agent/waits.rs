//! For what the kubelet's calls wait, and for how long: the API server, an overlap, processes of a claim, a deadline. What a claim
//! waits for in a task that it shares with others.

use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_abi::layout::usage::SLOTS;
use aliquot_driver::agent::pace::AgentPace;
use aliquot_driver::region::USAGE;
use aliquot_tests::node::Want;
use aliquot_tests::running_agent::PACE;

use super::kubelet_protocol::{Bench, REST, SHARE, eventually};

/// A process that takes the first process slot of a usage file, as a tenant's does, and lives until its input ends.
pub(super) const HOLDER: &str = "import fcntl, os, struct, sys
usage, slot = os.open(sys.argv[1], os.O_RDWR), int(sys.argv[2])
os.pwrite(usage, struct.pack('<Q', os.getpid()), slot)
fcntl.lockf(usage, fcntl.LOCK_EX, 1, slot)
print(flush=True)
sys.stdin.read()";

#[tokio::test(flavor = "multi_thread")]
async fn api_server_away_for_a_moment_fails_no_prepare() {
    let pace = AgentPace { read: AgentPace::SERVICE.read, ..PACE };
    let bench = Bench::paced("mixed", &[("a", &[SHARE]), ("b", &[SHARE])], pace).await;
    bench.cluster.set_away(true);
    let mut early = Box::pin(bench.prepare("a"));
    let waits = tokio::time::timeout(Duration::from_millis(500), early.as_mut()).await;
    assert!(waits.is_err(), "{waits:?}");
    bench.cluster.set_away(false);
    early.as_mut().await.unwrap();
    drop(early);
    // A server that stays away is given up before the kubelet gives up the call.
    bench.cluster.set_away(true);
    let began = Instant::now();
    let error = bench.prepare("b").await.unwrap_err();
    assert!(error.starts_with("not yet: ") && error.contains("away"), "{error}");
    assert!(began.elapsed() < pace.read, "{:?}", began.elapsed());
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_past_its_deadline_goes_on_and_answers_the_next() {
    let claims: &[(&str, &[Want])] = &[("holder", &[REST]), ("next", &[REST])];
    let pace = AgentPace { call: Duration::from_millis(700), ..PACE };
    let bench = Bench::paced("mixed", claims, pace).await;
    bench.prepare("holder").await.unwrap();
    let began = Instant::now();
    let error = bench.prepare("next").await.unwrap_err();
    assert!(error.contains("still in progress after"), "{error}");
    assert!((700..5_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!(bench.unprepare("holder").await, "");
    assert_eq!(bench.prepare("next").await.unwrap().len(), 1);
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlap_waits_for_the_holder_to_leave() {
    let bench = Bench::new("mixed", &[("holder", &[REST]), ("next", &[REST])]).await;
    bench.prepare("holder").await.unwrap();
    let mut next = Box::pin(bench.prepare("next"));
    let early = tokio::time::timeout(Duration::from_millis(300), next.as_mut()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(bench.unprepare("holder").await, "");
    let waited = Instant::now();
    next.as_mut().await.unwrap();
    drop(next);
    assert!(waited.elapsed() < Duration::from_secs(5));
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_with_live_processes_is_not_given_back() {
    let pace = AgentPace { overlap: Duration::from_millis(600), ..PACE };
    let bench = Bench::paced("mixed", &[("a", &[SHARE])], pace).await;
    bench.prepare("a").await.unwrap();
    let grants = bench.world.state().join("grants/a");
    let share = fs::read_dir(&grants).unwrap().flatten().find(|entry| entry.path().is_dir()).unwrap();
    let usage = share.path().join(USAGE);
    let mut holder = Command::new("python3")
        .args(["-c", HOLDER, usage.to_str().unwrap(), &SLOTS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let error = bench.unprepare("a").await;
    assert!(error.starts_with("not yet: ") && error.contains(&holder.id().to_string()), "{error}");
    assert!(usage.exists(), "its limits are gone");
    // It ends while the next call waits.
    let (released, ()) = tokio::join!(bench.unprepare("a"), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(holder.stdin.take());
        holder.wait().unwrap();
    });
    assert_eq!(released, "");
    assert!(!grants.exists());
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlap_that_outlasts_a_call_is_delayed_not_refused() {
    let pace = AgentPace { overlap: Duration::from_millis(200), ..PACE };
    let bench = Bench::paced("mixed", &[("holder", &[REST]), ("next", &[REST])], pace).await;
    bench.prepare("holder").await.unwrap();
    // As after a deletion by force: the Pod is gone, and the kubelet gives its claim back later than it starts the next one.
    let error = bench.prepare("next").await.unwrap_err();
    assert!(error.starts_with("not yet: ") && error.contains("held by claim holder"), "{error}");
    let advice = "test/claim-holder ends with its Pods; the kubelet tries again";
    assert!(error.ends_with(advice), "{error}");
    eventually(|| {
        let events = bench.cluster.events.lock();
        events.iter().any(|e| e.reason == "PrepareDelayed" && e.message.ends_with(advice)).then_some(())
    })
    .await;
    assert_eq!(bench.unprepare("holder").await, "");
    bench.prepare("next").await.unwrap();
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_an_overlap_ends_with_the_agent() {
    let bench = Bench::new("mixed", &[("holder", &[REST]), ("next", &[REST])]).await;
    bench.prepare("holder").await.unwrap();
    let plugin = bench.plugin.clone();
    let mut next = tokio::spawn(async move { plugin.prepare(&[("test", "claim-next", "next")]).await });
    let waiting = tokio::time::timeout(Duration::from_secs(1), &mut next).await;
    assert!(waiting.is_err(), "the call waits for the holder: {waiting:?}");
    let began = Instant::now();
    bench.agent.stop().await;
    let refused = next.await.unwrap().remove("next").unwrap().unwrap_err();
    assert!(refused.contains("holder"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// Longest time until a report that nothing delays: a few looks, on a loaded machine.
const REPORTED: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn short_lived_claims_delay_no_event_and_status() {
    let short = ["s0", "s1", "s2", "s3"];
    let wants: &[(&str, &[Want])] =
        &[("s0", &[SHARE]), ("s1", &[SHARE]), ("s2", &[SHARE]), ("s3", &[SHARE]), ("good", &[SHARE])];
    let bench = Bench::new("mixed", wants).await;
    // Each is released before the next look at the node shows it.
    for uid in short {
        bench.prepare(uid).await.unwrap();
        assert_eq!(bench.unprepare(uid).await, "");
    }
    let began = Instant::now();
    bench.prepare("unknown").await.unwrap_err();
    bench.prepare("good").await.unwrap();
    eventually(|| {
        let events = bench.cluster.events.lock();
        events.iter().any(|event| event.reason == "PrepareRefused").then_some(())
    })
    .await;
    eventually(|| bench.cluster.statuses.lock().contains_key("good").then_some(())).await;
    assert!(began.elapsed() < REPORTED, "{:?}", began.elapsed());
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_status_delays_no_event_and_status() {
    let bench = Bench::new("mixed", &[("a", &[SHARE]), ("b", &[SHARE])]).await;
    bench.cluster.never_answer("a");
    bench.prepare("a").await.unwrap();
    let began = Instant::now();
    bench.prepare("b").await.unwrap();
    bench.prepare("unknown").await.unwrap_err();
    eventually(|| bench.cluster.statuses.lock().contains_key("b").then_some(())).await;
    eventually(|| (!bench.cluster.events.lock().is_empty()).then_some(())).await;
    assert!(began.elapsed() < REPORTED, "{:?}", began.elapsed());
    bench.agent.stop().await;
}
