//! What a failing disk leaves behind: the earlier file whole, no temp file, and a message that says where it failed.
//!
//! Each test starts its own binary again under a limit that only the child has: a tiny file system in a mount
//! namespace of its own, or a bound on the size of a file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};

use aliquot_cdi::edits::ENV_VALUE_BYTES_MAX;
use aliquot_cdi::store::{DiskStep, StoreError};
use aliquot_cdi::{CdiDir, ClaimSpec, ClaimSpecBuilder, ClaimUid, Edit, Owner};

/// In the child's environment: the directory under test.
const DIR: &str = "ALIQUOT_TEST_DIR";

/// Room of the tiny file system; a small spec fits, a large one does not.
const TINY_BYTES: &str = "16k";

/// A spec with `values` environment entries of 4 KiB each.
fn claim_spec(values: usize) -> Result<ClaimSpec, Box<dyn std::error::Error>> {
    let mut builder = ClaimSpecBuilder::new("c1".parse()?);
    let mut edits = vec![Edit::Env("SMALL".parse()?, "1".parse()?)];
    for n in 0..values {
        edits.push(Edit::Env(format!("LARGE_{n}").parse()?, "x".repeat(ENV_VALUE_BYTES_MAX).parse()?));
    }
    builder.device(&"gpu".parse()?, &"0".parse()?, &Owner::new("test"), &edits)?;
    Ok(builder.build()?)
}

/// Starts `test` of this binary again by way of a shell `script`, which ends in `exec "$@"`.
fn again(test: &str, dir: &Path, wrapper: &[&str], script: &str) -> std::io::Result<Output> {
    let me = std::env::current_exe()?;
    let mut words: Vec<&str> = wrapper.to_vec();
    words.extend(["sh", "-c", script, "sh"]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(me).args(["--exact", test, "--nocapture"]).env(DIR, dir).output()
}

/// The names in the directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The directory under test, in the child alone.
fn child_dir() -> Option<CdiDir> {
    std::env::var_os(DIR).map(CdiDir::new)
}

/// Whether `child` ran its one test, and the test passed.
fn passed(child: &Output) -> bool {
    child.status.success() && String::from_utf8_lossy(&child.stdout).contains("1 passed")
}

/// Why there can be no mount namespace, if so.
fn no_mounts() -> Option<String> {
    if !fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0) {
        return Some("it needs root for a mount namespace".to_owned());
    }
    let mut command = Command::new("unshare");
    match command.args(["--mount", "mount", "-t", "tmpfs", "none"]).arg(std::env::temp_dir()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare does not run: {error}")),
    }
}

/// Says that `test` does not run.
fn stand_aside(test: &str, why: &str) {
    println!("{test} stands aside: {why}");
}

#[test]
fn a_full_disk_keeps_the_earlier_file_and_leaves_no_other() {
    const NAME: &str = "a_full_disk_keeps_the_earlier_file_and_leaves_no_other";
    let Some(store) = child_dir() else {
        if let Some(why) = no_mounts() {
            stand_aside(NAME, &why);
        } else {
            let temp = tempfile::tempdir().unwrap();
            let script = format!(r#"mount -t tmpfs -o size={TINY_BYTES} none "${DIR}" && exec "$@""#);
            let child = again(NAME, temp.path(), &["unshare", "--mount"], &script).unwrap();
            assert!(passed(&child), "{child:?}");
        }
        return;
    };
    let claim: ClaimUid = "c1".parse().unwrap();
    let small = claim_spec(0).unwrap();
    store.write(&small).unwrap();
    for _ in 0..3 {
        let error = store.write(&claim_spec(8).unwrap()).unwrap_err();
        let StoreError::Write { step: DiskStep::WriteBytes, source, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(
            error.to_string(),
            format!(
                "CDI file {} was not written: writing the bytes failed; the earlier file is untouched; free space or mend the directory, then prepare again",
                store.path(&claim).display()
            )
        );
        assert_eq!(names(store.dir()), ["aliquot.dev-claim-c1.json"]);
        assert_eq!(fs::read_to_string(store.path(&claim)).unwrap(), small.text());
    }
    store.write(&claim_spec(1).unwrap()).unwrap();
    store.remove(&claim).unwrap();
    assert!(names(store.dir()).is_empty());
}

#[test]
fn a_read_only_directory_keeps_the_earlier_file_and_says_so() {
    const NAME: &str = "a_read_only_directory_keeps_the_earlier_file_and_says_so";
    let Some(store) = child_dir() else {
        if let Some(why) = no_mounts() {
            stand_aside(NAME, &why);
        } else {
            let temp = tempfile::tempdir().unwrap();
            CdiDir::new(temp.path()).write(&claim_spec(0).unwrap()).unwrap();
            let script = format!(
                r#"mount --bind "${DIR}" "${DIR}" && mount -o remount,bind,ro "${DIR}" && cd / && exec "$@""#
            );
            let child = again(NAME, temp.path(), &["unshare", "--mount"], &script).unwrap();
            assert!(passed(&child), "{child:?}");
        }
        return;
    };
    let claim: ClaimUid = "c1".parse().unwrap();
    let error = store.write(&claim_spec(1).unwrap()).unwrap_err();
    let StoreError::Write { step: DiskStep::CreateTemp, source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let error = store.remove(&claim).unwrap_err();
    assert!(matches!(error, StoreError::Disk { step: DiskStep::Unlink, .. }), "{error:?}");
    assert_eq!(names(store.dir()), ["aliquot.dev-claim-c1.json"]);
    assert_eq!(fs::read_to_string(store.path(&claim)).unwrap(), claim_spec(0).unwrap().text());
}

#[test]
fn a_write_cut_short_keeps_the_earlier_file_and_leaves_no_other() {
    const NAME: &str = "a_write_cut_short_keeps_the_earlier_file_and_leaves_no_other";
    let Some(store) = child_dir() else {
        let temp = tempfile::tempdir().unwrap();
        // Files of at most 4 KiB (POSIX counts in halves), and no signal for a process that writes more.
        let script = r#"trap "" XFSZ && ulimit -f 8 && exec "$@""#;
        let child = again(NAME, temp.path(), &[], script).unwrap();
        assert!(passed(&child), "{child:?}");
        return;
    };
    let claim: ClaimUid = "c1".parse().unwrap();
    let small = claim_spec(0).unwrap();
    store.write(&small).unwrap();
    let error = store.write(&claim_spec(2).unwrap()).unwrap_err();
    let StoreError::Write { step: DiskStep::WriteBytes, source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::FileTooLarge);
    assert_eq!(names(store.dir()), ["aliquot.dev-claim-c1.json"]);
    assert_eq!(fs::read_to_string(store.path(&claim)).unwrap(), small.text());
}
