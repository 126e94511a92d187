//! The builder: bytes, refusals, and what is built reads back the same.

use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::edits::{DeviceNode, Mount, NodeAccess, NodeType, PlainPath};

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
    Edit::Node(DeviceNode::character(path(at), 195, minor).unwrap())
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
  ],
  "containerEdits": {
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
}
"#;

#[test]
fn a_claim_has_these_bytes_in_whatever_order_its_grants_came() {
    let shim = mount("/usr/lib/libaliquot.so", "/var/lib/aliquot/lib/1/libaliquot.so");
    let mut first = builder();
    first.common(&Owner::new("shim"), std::slice::from_ref(&shim)).unwrap();
    device(&mut first, "gpu", "0", &[env("A", "1"), env("B", "2"), node("/dev/card0", 0)]).unwrap();
    device(&mut first, "npu/big", "0", &[node("/dev/card1", 1)]).unwrap();
    let mut second = builder();
    device(&mut second, "npu/big", "0", &[node("/dev/card1", 1)]).unwrap();
    device(&mut second, "gpu", "0", &[node("/dev/card0", 0), env("B", "2")]).unwrap();
    device(&mut second, "gpu", "0", &[env("A", "1")]).unwrap();
    second.common(&Owner::new("shim"), &[shim]).unwrap();
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
    let error = builder.common(&Owner::new("shim"), &[env("A", "3")]).unwrap_err();
    assert!(matches!(error, BuildError::Conflict { .. }));
    device(&mut builder, "npu", "1", &[env("B", "2")]).unwrap();
    let names: Vec<_> = builder.build().unwrap().qualified_names().map(|name| name.to_string()).collect();
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
        builder.build().unwrap().spec().cdi_version
    };
    let elsewhere =
        DeviceNode::new(path("/dev/card0"), path("/dev/card7"), NodeType::Block, (8, 1), NodeAccess::Read);
    assert_eq!(build("c1aa", node("/dev/card0", 0)), SpecVersion::V0_3_0);
    assert_eq!(build("c1aa", mount("/a", "/b")), SpecVersion::V0_3_0);
    assert_eq!(build("4ee7", mount("/a", "/b")), SpecVersion::V0_5_0);
    assert_eq!(build("c1aa", Edit::Node(elsewhere.unwrap())), SpecVersion::V0_5_0);
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
                NodeType::Block,
                (u32::MAX, u32::MAX - n),
                NodeAccess::Read,
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
    fn built_spec_is_valid_static_and_reads_back_equal(
        uid in "[a-f0-9]{8}-[a-f0-9]{4}",
        common in some_edits(),
        devices in prop::collection::btree_map(("[a-z]{1,4}(/[a-z]{1,2})?", "[0-9]{1,2}"), some_edits(), 1..4),
    ) {
        let mut forward = ClaimSpecBuilder::new(uid.parse().unwrap());
        forward.common(&Owner::new("all"), &common).unwrap();
        for ((request, share), edits) in &devices {
            device(&mut forward, request, share, edits).unwrap();
        }
        let mut backward = ClaimSpecBuilder::new(uid.parse().unwrap());
        for ((request, share), edits) in devices.iter().rev() {
            for edit in edits.iter().rev() {
                device(&mut backward, request, share, std::slice::from_ref(edit)).unwrap();
            }
        }
        backward.common(&Owner::new("all"), &common).unwrap();
        let built = forward.build().unwrap();
        let backward = backward.build().unwrap();
        prop_assert_eq!(built.text(), backward.text());

        let read = Spec::parse(built.text()).unwrap();
        prop_assert_eq!(&read, built.spec());
        prop_assert_eq!(&read.render().unwrap(), built.text());
        prop_assert_eq!(read.devices.len(), devices.len());

        let needs_0_5 = uid.starts_with(|c: char| c.is_ascii_digit()) || built.text().contains("hostPath\": \"/dev");
        prop_assert_eq!(read.cdi_version.as_str(), if needs_0_5 { "0.5.0" } else { "0.3.0" });

        let edits = read.devices.iter().map(|device| &device.container_edits).chain([&read.container_edits]);
        for edits in edits {
            prop_assert!(edits.hooks.is_empty() && edits.net_devices.is_empty());
            for mount in &edits.mounts {
                prop_assert_eq!(&mount.options, &["ro", "nosuid", "nodev", "bind"]);
            }
        }
    }
}
