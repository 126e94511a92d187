//! Directories that another user can change: the agent refuses to start, and names each with its remedy.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::local::aliquot;

/// Directories of the agent below the test's own.
const DIRECTORIES: [&str; 4] = ["state", "cdi", "kubelet/plugins_registry", "kubelet/plugins/aliquot.dev"];
/// Another user than root.
const OTHER: u32 = 65_534;

fn start(server: &FakeApiServer, place: &Path) -> Output {
    let mut plugin = Command::new(aliquot());
    plugin.args(["plugin", "--node", "t4-2", "--node-name", "n1", "--metrics-address", "none"]);
    plugin.arg("--kubeconfig").arg(server.kubeconfig()).arg("--state").arg(place.join("state"));
    plugin.arg("--cdi-dir").arg(place.join("cdi")).arg("--kubelet-root").arg(place.join("kubelet"));
    plugin.output().unwrap()
}

/// The agent's refusal of a directory that was changed like this.
fn refused(directory: &str, change: impl FnOnce(&Path)) -> String {
    let (server, place) = (FakeApiServer::start(), tempfile::tempdir().unwrap());
    for directory in DIRECTORIES {
        fs::create_dir_all(place.path().join(directory)).unwrap();
    }
    let path = place.path().join(directory);
    change(&path);
    let output = start(&server, place.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{directory}: {said}");
    assert!(said.contains(&path.display().to_string()), "{directory} is not named: {said}");
    assert!(server.slice_writes().is_empty(), "{directory}: slices were published");
    said
}

#[test]
fn directory_that_others_may_write_is_refused() {
    for directory in DIRECTORIES {
        let said =
            refused(directory, |path| fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap());
        assert!(said.contains("777") && said.contains("chmod"), "{directory}: {said}");
    }
}

#[test]
fn directory_of_another_user_is_refused() {
    let probe = tempfile::tempdir().unwrap();
    if chown(probe.path(), Some(OTHER), None).is_err() {
        println!("stands aside: this user may give no directory away");
        return;
    }
    for directory in DIRECTORIES {
        let said = refused(directory, |path| chown(path, Some(OTHER), None).unwrap());
        assert!(said.contains(&OTHER.to_string()), "{directory}: {said}");
    }
}
