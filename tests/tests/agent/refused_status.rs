//! Status of claims that the API server refuses: for a while, or for good.

use aliquot_core::disposition::Disposition;
use aliquot_tests::running_agent::PACE;

use super::kubelet_protocol::{Bench, SHARE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_status_is_written_once_it_is_allowed() {
    let bench = Bench::new("mixed", &[("a", &[SHARE])]).await;
    bench.cluster.refuse_statuses(Some(Disposition::Broken));
    bench.prepare("a").await.unwrap();
    eventually(|| (bench.cluster.refusals() == 1).then_some(())).await;
    // Not at each look.
    tokio::time::sleep(PACE.refused / 2).await;
    assert_eq!(bench.cluster.refusals(), 1);
    eventually(|| (bench.cluster.refusals() >= 2).then_some(())).await;
    bench.cluster.refuse_statuses(None);
    eventually(|| bench.cluster.statuses.lock().contains_key("a").then_some(())).await;
    bench.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_refused_for_good_is_not_repeated() {
    let bench = Bench::new("mixed", &[("a", &[SHARE])]).await;
    bench.cluster.refuse_statuses(Some(Disposition::Refuse));
    bench.prepare("a").await.unwrap();
    eventually(|| (bench.cluster.refusals() >= 1).then_some(())).await;
    // The first look may find another enforcement than the prepare did.
    tokio::time::sleep(PACE.look * 2).await;
    let before = bench.cluster.refusals();
    tokio::time::sleep(PACE.refused * 2).await;
    assert_eq!(bench.cluster.refusals(), before);
    bench.agent.stop().await;
}
