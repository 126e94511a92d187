//! Merging: contradictions name both owners, and the order of owners does not matter.

use proptest::prelude::*;

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

fn node(at: &str, major: u32, minor: u32) -> Edit {
    Edit::Node(DeviceNode::new(path(at), path(at), (major, minor)).unwrap())
}

/// First a, then b; the message, or "merged".
fn merge(a: Edit, b: Edit) -> String {
    let mut merged = MergedEdits::new();
    merged.add(&Owner::new("share 0"), &[a]).unwrap();
    let before = merged.clone();
    let answer = merged.add(&Owner::new("share 1"), &[env("OTHER", "x"), b]);
    merged.invariants();
    match answer {
        Ok(()) => "merged".to_owned(),
        Err(conflict) => {
            assert_eq!(merged, before, "a refused addition changes nothing");
            conflict.to_string()
        }
    }
}

#[test]
fn contradictions_name_both_owners_and_equal_wishes_merge() {
    for (a, b, expected) in [
        (
            env("A", "1"),
            env("A", "2"),
            r#"environment variable A: share 0 set the value "1", share 1 asks for the value "2"; one container cannot have both"#,
        ),
        (
            mount("/run/x", "/a"),
            mount("/run/x", "/b"),
            "container path /run/x: share 0 set a read-only mount of host /a, share 1 asks for a read-only mount of host /b; one container cannot have both",
        ),
        (
            node("/dev/card0", 195, 0),
            node("/dev/card0", 236, 0),
            "container path /dev/card0: share 0 set the character device 195:0 from host /dev/card0, read and write, share 1 asks for the character device 236:0 from host /dev/card0, read and write; one container cannot have both",
        ),
        (
            node("/dev/card0", 195, 0),
            mount("/dev/card0", "/a"),
            "container path /dev/card0: share 0 set the character device 195:0 from host /dev/card0, read and write, share 1 asks for a read-only mount of host /a; one container cannot have both",
        ),
        (env("A", "1"), env("A", "1"), "merged"),
        (env("A", "1"), env("B", "2"), "merged"),
        (mount("/run/x", "/a"), mount("/run/x", "/a"), "merged"),
        (mount("/run/x", "/a"), mount("/run/y", "/a"), "merged"),
        (node("/dev/card0", 195, 0), node("/dev/card0", 195, 0), "merged"),
        (node("/dev/card0", 195, 0), node("/dev/card1", 195, 1), "merged"),
    ] {
        assert_eq!(merge(a, b), expected);
    }
}

#[test]
fn one_owner_that_contradicts_itself_is_refused() {
    let mut merged = MergedEdits::new();
    let conflict = merged.add(&Owner::new("share 0"), &[env("A", "1"), env("A", "2")]).unwrap_err();
    assert_eq!((&conflict.holder, &conflict.asker), (&Owner::new("share 0"), &Owner::new("share 0")));
    assert!(merged.is_empty());
}

#[test]
fn merged_edits_know_all_their_owners() {
    let mut merged = MergedEdits::new();
    for owner in ["share 1", "share 0", "share 1"] {
        merged.add(&Owner::new(owner), &[env("A", "1")]).unwrap();
        merged.invariants();
    }
    let owners: Vec<_> = merged.owners(&env("A", "1").slot()).map(ToString::to_string).collect();
    assert_eq!(owners, ["share 0", "share 1"]);
    assert_eq!(merged.edits().count(), 1);
}

fn any_edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        ("[AB]", "[12]").prop_map(|(name, value)| env(&name, &value)),
        ("/dev/[ab]", 1_u32..3, 0_u32..2).prop_map(|(at, major, minor)| node(&at, major, minor)),
        ("/dev/[ab]", "/h/[ab]").prop_map(|(container, host)| mount(&container, &host)),
    ]
}

proptest! {
    #[test]
    fn agreement_of_two_owners_does_not_depend_on_their_order(
        a in prop::collection::vec(any_edit(), 0..3),
        b in prop::collection::vec(any_edit(), 0..3),
    ) {
        let (owner_a, owner_b) = (Owner::new("a"), Owner::new("b"));
        let (mut ab, mut ba) = (MergedEdits::new(), MergedEdits::new());
        let ab_ok = ab.add(&owner_a, &a).is_ok() & ab.add(&owner_b, &b).is_ok();
        let ba_ok = ba.add(&owner_b, &b).is_ok() & ba.add(&owner_a, &a).is_ok();
        ab.invariants();
        ba.invariants();
        prop_assert_eq!(ab_ok, ba_ok);

        let all: BTreeSet<Edit> = a.iter().chain(&b).cloned().collect();
        let slots: BTreeSet<Slot> = all.iter().map(Edit::slot).collect();
        prop_assert_eq!(ab_ok, all.len() == slots.len(), "agreed exactly when no slot has two edits");
        if ab_ok {
            prop_assert_eq!(&ab, &ba);
            prop_assert_eq!(ab.edits().count(), slots.len());
        }
    }
}
