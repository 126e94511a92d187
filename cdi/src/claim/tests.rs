//! The builder: bytes and refusals.

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::edits::{DeviceNode, Mount, PlainPath};

fn path(text: &str) -> PlainPath {
    text.parse().unwrap()
}

fn env(name: &str, value: &str) -> Edit {
    Edit::Env(name.parse().unwrap(), value.parse().unwrap())
}

fn mount(container: &str, host: &str) -> Edit {
    Edit::Mount(Mount::read_only(path(container), path(host)))
}

fn node(at: &str, minor: u32) -> Edit {
    Edit::Node(DeviceNode::new(path(at), path(at), (195, minor)).unwrap())
}

fn builder() -> ClaimSpecBuilder {
    ClaimSpecBuilder::new("c1aa".parse().unwrap())
}

fn device(
    builder: &mut ClaimSpecBuilder,
    request: &str,
    share: &str,
    edits: &[Edit],
) -> Result<(), BuildError> {
    let owner = Owner::new(format!("request {request}, share {share}"));
    builder.device(&request.parse().unwrap(), &share.parse().unwrap(), &owner, edits)
}

const GOLDEN: &str = r#"{
  "cdiVersion": "0.3.0",
  "kind": "aliquot.dev/claim",
  "devices": [
    {
      "name": "c1aa-gpu-0",
      "containerEdits": {
        "env": [
          "A=1",
          "B=2"
        ],
        "deviceNodes": [
          {
            "path": "/dev/card0",
            "type": "c",
            "major": 195,
            "minor": 0,
            "permissions": "rw"
          }
        ],
        "mounts": [
          {
            "hostPath": "/var/lib/aliquot/lib/1/libaliquot.so",
            "containerPath": "/usr/lib/libaliquot.so",
            "options": [
              "ro",
              "nosuid",
              "nodev",
              "bind"
            ]
          }
        ]
      }
    },
    {
      "name": "c1aa-npu.big-0",
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/card1",
            "type": "c",
            "major": 195,
            "minor": 1,
            "permissions": "rw"
          }
        ]
      }
    }
  ]
}
"#;

#[test]
fn a_claim_has_these_bytes_in_whatever_order_its_grants_came() {
    let shim = mount("/usr/lib/libaliquot.so", "/var/lib/aliquot/lib/1/libaliquot.so");
    let mut first = builder();
    device(&mut first, "gpu", "0", &[env("A", "1"), env("B", "2"), node("/dev/card0", 0), shim.clone()])
        .unwrap();
    device(&mut first, "npu/big", "0", &[node("/dev/card1", 1)]).unwrap();
    let mut second = builder();
    device(&mut second, "npu/big", "0", &[node("/dev/card1", 1)]).unwrap();
    device(&mut second, "gpu", "0", &[node("/dev/card0", 0), env("B", "2")]).unwrap();
    device(&mut second, "gpu", "0", &[env("A", "1")]).unwrap();
    device(&mut second, "gpu", "0", &[shim]).unwrap();
    assert_eq!(first.build().unwrap().text(), GOLDEN);
    assert_eq!(second.build().unwrap().text(), GOLDEN);
}

#[test]
fn conflict_between_devices_names_owners_and_adds_nothing() {
    let mut builder = builder();
    device(&mut builder, "gpu", "0", &[env("A", "1")]).unwrap();
    let error = device(&mut builder, "npu", "0", &[env("B", "1"), env("A", "2")]).unwrap_err();
    assert_eq!(error.to_string(), "claim c1aa: two grants contradict each other");
    assert_eq!(
        std::error::Error::source(&error).unwrap().to_string(),
        r#"environment variable A: request gpu, share 0 set the value "1", request npu, share 0 asks for the value "2"; one container cannot have both"#
    );
    device(&mut builder, "npu", "1", &[env("B", "2")]).unwrap();
    let names: Vec<_> = builder.build().unwrap().qualified_names().map(ToString::to_string).collect();
    assert_eq!(names, ["aliquot.dev/claim=c1aa-gpu-0", "aliquot.dev/claim=c1aa-npu-1"]);
}

#[test]
fn claims_without_effect_and_ambiguous_names_are_refused() {
    assert_eq!(
        builder().build().unwrap_err().to_string(),
        "claim c1aa has no device, expected one for each share: add the devices before building"
    );
    let mut empty = builder();
    device(&mut empty, "gpu", "0", &[]).unwrap();
    assert_eq!(
        empty.build().unwrap_err().to_string(),
        "claim c1aa: device c1aa-gpu-0 has no edits of its own, expected at least one (runtimes refuse such a device)"
    );
    let mut ambiguous = builder();
    device(&mut ambiguous, "gpu", "a-0", &[env("A", "1")]).unwrap();
    assert_eq!(
        device(&mut ambiguous, "gpu-a", "0", &[env("A", "1")]).unwrap_err().to_string(),
        "claim c1aa: request gpu share a-0 and request gpu-a share 0 have the same device name c1aa-gpu-a-0, expected different ones: rename a request"
    );
}

#[test]
fn the_version_rises_only_with_what_is_used() {
    let build = |uid: &str, edit: Edit| {
        let mut builder = ClaimSpecBuilder::new(uid.parse().unwrap());
        device(&mut builder, "gpu", "0", &[edit]).unwrap();
        let text = builder.build().unwrap().text().to_owned();
        text.lines().nth(1).unwrap().trim().to_owned()
    };
    let elsewhere = DeviceNode::new(path("/dev/card0"), path("/dev/card7"), (8, 1)).unwrap();
    let [first, later] = ["0.3.0", "0.5.0"].map(|version| format!("\"cdiVersion\": \"{version}\","));
    assert_eq!(build("c1aa", node("/dev/card0", 0)), first);
    assert_eq!(build("c1aa", mount("/a", "/b")), first);
    assert_eq!(build("4ee7", mount("/a", "/b")), later);
    assert_eq!(build("c1aa", Edit::Node(elsewhere)), later);
}

/// Edits in slots of their own, so that any choice of them merges.
fn all_edits() -> Vec<Edit> {
    let mut edits = Vec::new();
    for n in 0..4_u32 {
        edits.push(env(&format!("VALUE_{n}"), &format!("{n} \"quoted\" \\ ü")));
        edits.push(mount(&format!("/run/aliquot/{n}"), &format!("/var/lib/aliquot/ ü{n}")));
        edits.push(node(&format!("/dev/card{n}"), n));
        edits.push(Edit::Node(
            DeviceNode::new(
                path(&format!("/dev/other{n}")),
                path(&format!("/dev/host{n}")),
                (u32::MAX, u32::MAX - n),
            )
            .unwrap(),
        ));
    }
    edits
}

fn some_edits() -> impl Strategy<Value = Vec<Edit>> {
    subsequence(all_edits(), 1..16).prop_shuffle()
}

proptest! {
    #[test]
    fn order_of_edits_and_devices_changes_no_byte(
        uid in "[a-f0-9]{8}-[a-f0-9]{4}",
        devices in prop::collection::btree_map(("[a-z]{1,4}(/[a-z]{1,2})?", "[0-9]{1,2}"), some_edits(), 1..4),
    ) {
        let mut forward = ClaimSpecBuilder::new(uid.parse().unwrap());
        for ((request, share), edits) in &devices {
            device(&mut forward, request, share, edits).unwrap();
        }
        let mut backward = ClaimSpecBuilder::new(uid.parse().unwrap());
        for ((request, share), edits) in devices.iter().rev() {
            for edit in edits.iter().rev() {
                device(&mut backward, request, share, std::slice::from_ref(edit)).unwrap();
            }
        }
        let built = forward.build().unwrap();
        let backward = backward.build().unwrap();
        prop_assert_eq!(built.text(), backward.text());
        prop_assert_eq!(built.qualified_names().count(), devices.len());
        let needs_0_5 = uid.starts_with(|c: char| c.is_ascii_digit()) || built.text().contains("hostPath\": \"/dev");
        prop_assert_eq!(built.text().contains("\"0.5.0\""), needs_0_5);
    }
}
