//! The directory: files are replaced whole, and foreign files are kept.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;
use crate::claim::ClaimSpecBuilder;
use crate::edits::Edit;
use crate::owners::Owner;

fn uid(text: &str) -> ClaimUid {
    text.parse().unwrap()
}

fn claim_spec(claim: &str, value: &str) -> ClaimSpec {
    let mut builder = ClaimSpecBuilder::new(uid(claim));
    let edit = Edit::Env("A".parse().unwrap(), value.parse().unwrap());
    builder.device(&"gpu".parse().unwrap(), &"0".parse().unwrap(), &Owner::new("test"), &[edit]).unwrap();
    builder.build().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn store() -> (TempDir, CdiDir) {
    let temp = TempDir::new().unwrap();
    let store = CdiDir::new(temp.path().join("cdi"));
    (temp, store)
}

#[test]
fn a_file_is_written_replaced_and_removed() {
    let (_temp, store) = store();
    assert_eq!(store.remove(&uid("c1")).unwrap(), Removal::Absent);
    assert_eq!(store.remove_temps().unwrap(), 0, "a missing directory is an empty one");

    for value in ["first", "second", "second"] {
        let claim_spec = claim_spec("c1", value);
        store.write(&claim_spec).unwrap();
        assert_eq!(names(store.dir()), ["aliquot.dev-claim-c1.json"]);
        assert_eq!(fs::read_to_string(store.path(&uid("c1"))).unwrap(), claim_spec.text());
    }
    let mode = fs::metadata(store.path(&uid("c1"))).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o644);

    assert_eq!(store.remove(&uid("c1")).unwrap(), Removal::Removed);
    assert_eq!(store.remove(&uid("c1")).unwrap(), Removal::Absent);
    assert!(names(store.dir()).is_empty());
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_and_not_followed() {
    let (temp, store) = store();
    fs::create_dir(store.dir()).unwrap();
    let elsewhere = temp.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    symlink(&elsewhere, store.path(&uid("c1"))).unwrap();
    store.write(&claim_spec("c1", "x")).unwrap();
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
    assert!(fs::symlink_metadata(store.path(&uid("c1"))).unwrap().is_file());
}

#[test]
fn a_write_that_cannot_take_its_place_leaves_nothing() {
    let (_temp, store) = store();
    let path = store.path(&uid("c1"));
    fs::create_dir_all(&path).unwrap();
    let error = store.write(&claim_spec("c1", "x")).unwrap_err();
    assert!(matches!(error, StoreError::Write { step: DiskStep::Rename, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!(
            "CDI file {} was not written: renaming the temp file failed; the earlier file is untouched; free space or mend the directory, then prepare again",
            path.display()
        )
    );
    assert_eq!(names(store.dir()), ["aliquot.dev-claim-c1.json"]);
    assert!(path.is_dir());
    assert!(matches!(store.remove(&uid("c1")).unwrap_err(), StoreError::Disk { step: DiskStep::Unlink, .. }));
}

#[test]
fn a_directory_that_is_a_file_is_an_error_for_every_operation() {
    let (temp, _) = store();
    let file = temp.path().join("file");
    fs::write(&file, "kept").unwrap();
    let store = CdiDir::new(&file);
    assert!(matches!(
        store.write(&claim_spec("c1", "x")).unwrap_err(),
        StoreError::Write { step: DiskStep::MakeDirectory, .. }
    ));
    let step = |error| match error {
        StoreError::Disk { step, .. } => step,
        other => panic!("{other:?}"),
    };
    assert_eq!(step(store.remove(&uid("c1")).unwrap_err()), DiskStep::Unlink);
    assert_eq!(step(store.remove_temps().unwrap_err()), DiskStep::ReadDirectory);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn only_temp_files_of_interrupted_writes_are_removed() {
    let (_temp, store) = store();
    store.write(&claim_spec("c1", "x")).unwrap();
    let others = [
        "nvidia.json",
        "aliquot.dev-claim-broken.json",
        "aliquot.dev-other-c1.json",
        ".aliquot.dev-claim-c1.json.x.tmp",
        "a.tmp",
    ];
    for name in others {
        fs::write(store.dir().join(name), "not ours").unwrap();
    }
    let before = names(store.dir());
    for claim in ["c2", "c7"] {
        drop(store.create_temp(&uid(claim)).unwrap());
    }
    let like_a_temp = store.create_temp(&uid("c8")).unwrap().0;
    fs::remove_file(&like_a_temp).unwrap();
    fs::create_dir(&like_a_temp).unwrap();
    assert_eq!(store.remove_temps().unwrap(), 2);
    fs::remove_dir(&like_a_temp).unwrap();
    assert_eq!((names(store.dir()), store.remove_temps().unwrap()), (before, 0));
}
