//! Another driver of the same cards is reported when it comes and when it goes.

use std::fs;
use std::os::unix::net::UnixListener;

use aliquot_driver::ports::{EventObject, EventSeverity};
use aliquot_tests::running_agent::FakeCluster;

use super::kubelet_protocol::{Bench, eventually};

/// The message of the last Event for this reason.
fn message(cluster: &FakeCluster, reason: &str) -> Option<(EventSeverity, String)> {
    let events = cluster.events.lock();
    let event = events.iter().rfind(|event| event.reason == reason)?;
    assert_eq!(event.about, EventObject::Node);
    Some((event.severity, event.message.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn another_driver_of_the_cards_is_an_event() {
    let bench = Bench::new("mixed", &[]).await;
    let plugins = bench.kubelet.device_plugins();
    fs::create_dir_all(&plugins).unwrap();
    let socket = UnixListener::bind(plugins.join("nvidia-gpu.sock")).unwrap();
    let (severity, found) = eventually(|| message(&bench.cluster, "OtherDriverFound")).await;
    assert_eq!(severity, EventSeverity::Warning);
    assert!(found.contains("NVIDIA's device plugin (device-plugins/nvidia-gpu.sock)"), "{found}");
    // Its socket stays behind, and no process listens.
    drop(socket);
    eventually(|| message(&bench.cluster, "OtherDriverGone")).await;
    let events = bench.cluster.events.lock().clone();
    assert_eq!(
        events.iter().filter(|event| event.reason.starts_with("OtherDriver")).count(),
        2,
        "{events:?}"
    );
    bench.agent.stop().await;
}
