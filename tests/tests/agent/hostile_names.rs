//! Claims with names from an enemy: nothing of them reaches an answer, an Event, a metric, a path or a CDI file
//! other than escaped and bounded.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::sync::Arc;

use aliquot_core::dra::{AllocatedConfig, ConfigSource, OpaqueConfig, ResourceClaim, ShareId};
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::node::{Want, World, claim};
use aliquot_tests::running_agent::{FakeCluster, RunningAgent};

const SHARE: Want = Want { card: 2, part: "card", memory_mib: Some(512), cores: 1 };
/// Longest text of an error, and room for the words around names.
const MESSAGE_MAX: usize = 1_400;

/// What an enemy writes: terminal codes, line breaks, marks of direction, quotes, paths, a NUL, 64 KiB.
fn hostile() -> Vec<String> {
    let short = [
        "a\u{1b}[2Jb",
        "a\nlevel=error forged",
        "a\u{202e}b\u{200b}",
        "a\"} 1\n# EOF\n",
        "../../etc/cron.d/x",
        "/dev/mem",
        "a\0b",
        "a=b,c{d}",
        "",
    ];
    short.iter().map(|text| (*text).to_owned()).chain(["\u{1b}".repeat(65_536)]).collect()
}

/// A field of a claim, and how a text comes into it.
type Field = (&'static str, fn(&mut ResourceClaim, &str));

fn config(claim: &mut ResourceClaim, driver: &str, parameters: String) {
    let opaque = OpaqueConfig { driver: driver.to_owned(), parameters };
    claim.allocation.as_mut().unwrap().config =
        vec![AllocatedConfig { source: ConfigSource::Claim, requests: Vec::new(), opaque }];
}

const FIELDS: &[Field] = &[
    ("device", |claim, text| claim.allocation.as_mut().unwrap().devices[0].device.device = text.to_owned()),
    ("pool", |claim, text| claim.allocation.as_mut().unwrap().devices[0].device.pool = text.to_owned()),
    ("request", |claim, text| claim.allocation.as_mut().unwrap().devices[0].request = text.to_owned()),
    ("share", |claim, text| {
        claim.allocation.as_mut().unwrap().devices[0].share_id = Some(ShareId(text.to_owned()));
    }),
    ("answered UID", |claim, text| claim.uid = text.to_owned()),
    ("config", |claim, text| config(claim, "aliquot.dev", text.to_owned())),
    ("field of config", |claim, text| {
        let object = serde_json::json!({ "apiVersion": "aliquot.dev/v1", "kind": "ShareConfig", text: 1 });
        config(claim, "aliquot.dev", object.to_string());
    }),
    ("kind of config", |claim, text| {
        let object = serde_json::json!({ "apiVersion": "aliquot.dev/v1", "kind": text });
        config(claim, "aliquot.dev", object.to_string());
    }),
];

/// Whether a terminal, a log or a reader of lines takes it as it looks.
fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'))
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_are_escaped_and_bounded_everywhere() {
    let (world, kubelet) = (World::new("mixed", ""), FakeKubelet::default());
    let cluster = Arc::new(FakeCluster::default());
    let node = world.open();
    let mut cases = Vec::new();
    for (field, put) in FIELDS {
        for text in hostile() {
            let uid = format!("u{}", cases.len());
            let mut made = claim(&node, &uid, &[SHARE]);
            put(&mut made, &text);
            cluster.put(&made);
            cases.push((uid, format!("{field} {}", text.escape_debug().take(40).collect::<String>())));
        }
    }
    let agent = RunningAgent::start(node, &kubelet, &cluster, None);
    let plugin = kubelet.register().await;
    let mut refused = 0;
    for (uid, case) in &cases {
        let name = format!("claim-{uid}");
        let named = [("test", name.as_str(), uid.as_str())];
        match plugin.prepare(&named).await.remove(uid).unwrap() {
            Err(error) => {
                refused += 1;
                assert!(
                    is_plain(&error) && error.len() <= MESSAGE_MAX,
                    "{case}: {} B: {error:?}",
                    error.len()
                );
            }
            Ok(devices) => {
                let names = devices.iter().flat_map(|d| d.request_names.iter().chain(&d.cdi_device_ids));
                assert!(names.clone().all(|name| is_plain(name)), "{case}: {devices:?}");
                let ids = devices.iter().flat_map(|d| &d.cdi_device_ids);
                assert!(ids.clone().all(|id| !id.contains("..") && id.len() < 300), "{case}: {devices:?}");
            }
        }
        for entry in std::fs::read_dir(world.state().join("cdi")).into_iter().flatten() {
            let entry = entry.unwrap();
            let file = entry.file_name().into_string().unwrap();
            assert!(file.starts_with("aliquot.dev-") && is_plain(&file), "{case}: {file:?}");
            let text = std::fs::read_to_string(entry.path()).unwrap();
            assert!(text.lines().all(is_plain) && !text.contains("/dev/mem"), "{case}: {text}");
        }
        assert_eq!(plugin.unprepare(&named).await[uid], "", "{case}");
    }
    assert!(refused >= cases.len() / 2, "{refused} of {} refused", cases.len());
    for event in cluster.events.lock().iter() {
        assert!(is_plain(&event.message) && event.message.len() <= MESSAGE_MAX, "{event:?}");
    }
    agent.stop().await;
    let node = world.open();
    node.invariants().unwrap();
    assert_eq!(node.claims().count(), 0);
}
