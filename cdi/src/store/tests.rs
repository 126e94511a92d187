//! The directory: replaced whole, left whole, and strangers kept.

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
fn a_file_is_written_replaced_read_and_removed() {
    let (_temp, store) = store();
    assert_eq!(store.read(&uid("c1")).unwrap(), None);
    assert_eq!(store.remove(&uid("c1")).unwrap(), Removal::Absent);
    assert!(store.list().unwrap().claims.is_empty(), "a missing directory is an empty one");

    for value in ["first", "second", "second"] {
        let claim_spec = claim_spec("c1", value);
        store.write(&claim_spec).unwrap();
        assert_eq!(names(store.dir()), ["aliquot.dev-claim-c1.json"]);
        assert_eq!(fs::read_to_string(store.path(&uid("c1"))).unwrap(), claim_spec.text());
        assert_eq!(store.read(&uid("c1")).unwrap().as_ref(), Some(claim_spec.spec()));
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
    assert_eq!(step(store.list().unwrap_err()), DiskStep::ReadDirectory);
    assert_eq!(step(store.collect(&BTreeSet::new()).unwrap_err()), DiskStep::ReadDirectory);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

/// Files that look like ours and are not, each with why it is kept.
fn put_strangers(dir: &Path) -> Vec<(String, &'static str)> {
    let good = claim_spec("c1", "x").text().to_owned();
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let mut kept = vec![
        (
            put("aliquot.dev-claim-broken.json", r#"{"cdiVersion": "0.3.0", "kin"#),
            "not a CDI file that this version understands; kept",
        ),
        (put("aliquot.dev-claim-empty.json", ""), "not a CDI file that this version understands; kept"),
        (
            put("aliquot.dev-claim-foreign.json", &good.replace("aliquot.dev/claim", "other.com/gpu")),
            "kind is other.com/gpu, expected aliquot.dev/claim; kept",
        ),
        (
            put(
                "aliquot.dev-claim-newer.json",
                &good.replace("\"kind\"", "\"future\": 1, \"kind\"").replace("c1-gpu", "newer-gpu"),
            ),
            "not a CDI file that this version understands; kept",
        ),
        (put("aliquot.dev-claim-swapped.json", &good), "device c1-gpu-0 is not one of claim swapped; kept"),
        (put("aliquot.dev-claim-c9.yaml", &good), "the name is not aliquot.dev-claim-<claim uid>.json; kept"),
        (put("aliquot.dev-claim-.json", &good), "the name is not aliquot.dev-claim-<claim uid>.json; kept"),
    ];
    let path = dir.join("aliquot.dev-claim-bytes.json");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    kept.push((path.display().to_string(), "cannot be read; kept"));
    let path = dir.join("aliquot.dev-claim-huge.json");
    File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
    kept.push((path.display().to_string(), "1048577 bytes, expected at most 1048576; kept"));
    let path = dir.join("aliquot.dev-claim-dir.json");
    fs::create_dir(&path).unwrap();
    kept.push((path.display().to_string(), "not a regular file; kept"));
    let path = dir.join("aliquot.dev-claim-link.json");
    symlink("aliquot.dev-claim-c1.json", &path).unwrap();
    kept.push((path.display().to_string(), "not a regular file; kept"));
    kept.sort();
    kept
}

#[test]
fn collecting_removes_only_what_is_ours_and_not_live() {
    let (_temp, store) = store();
    for claim in ["c1", "c2", "c3"] {
        store.write(&claim_spec(claim, "x")).unwrap();
    }
    let strangers = put_strangers(store.dir());
    let bystanders =
        ["nvidia.json", "aliquot.dev-other-c1.json", ".aliquot.dev-claim-c1.json.x.tmp", "a.tmp"];
    for name in bystanders {
        fs::write(store.dir().join(name), "not ours").unwrap();
    }
    for claim in ["c2", "c7"] {
        let (_, file) = store.create_temp(&uid(claim)).unwrap();
        drop(file);
    }
    let before = names(store.dir());

    let listing = store.list().unwrap();
    assert_eq!(listing.claims, ["c1", "c2", "c3"].map(uid));
    assert_eq!(listing.temps.len(), 2);

    let live = BTreeSet::from(["c2", "c4", "broken"].map(uid));
    let collection = store.collect(&live).unwrap();
    assert_eq!(collection.removed, ["c1", "c3"].map(uid));
    assert_eq!(collection.temps_removed, 2);
    let reasons: Vec<_> = collection.kept.iter().map(ToString::to_string).collect();
    let expected: Vec<_> = strangers.iter().map(|(path, why)| format!("{path}: {why}")).collect();
    assert_eq!(reasons, expected);

    let gone = |name: &String| {
        name.ends_with("c1.json") && !name.contains("other") || name.ends_with("c3.json") || is_temp(name)
    };
    let expected: Vec<_> = before.into_iter().filter(|name| !gone(name)).collect();
    assert_eq!(names(store.dir()), expected);

    let again = store.collect(&live).unwrap();
    assert_eq!((again.removed.len(), again.temps_removed), (0, 0));
    assert_eq!(again.kept.len(), strangers.len());
}

#[test]
fn a_file_that_is_not_ours_is_not_read_as_a_claim() {
    let (_temp, store) = store();
    fs::create_dir(store.dir()).unwrap();
    fs::write(store.path(&uid("c1")), "{").unwrap();
    let error = store.read(&uid("c1")).unwrap_err();
    assert_eq!(error.to_string(), "the file of claim c1 is not usable");
    store.write(&claim_spec("c1", "x")).unwrap();
    assert!(store.read(&uid("c1")).unwrap().is_some());
}
