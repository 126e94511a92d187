//! Labels of the files that containers mount, on a host that says that it has SELinux. No kernel with SELinux judges them here.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::dra::ResourceClaim;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeParts, NodeService};
use aliquot_driver::prepare::PrepareError;
use aliquot_driver::selinux::{ENFORCE, FileLabels, LABEL, Selinux, XattrLabels};
use aliquot_tests::node::{Want, World, claim};

const OTHER: &str = "system_u:object_r:var_lib_t:s0";
const SHARE: Want = Want { card: 0, part: "card", memory_mib: Some(2048), cores: 20 };
const WHOLE: Want = Want { card: 1, part: "1g.10gb at 0", memory_mib: None, cores: 0 };

/// A host with files of another label, which cannot be changed.
struct Fixed(io::ErrorKind);

impl FileLabels for Fixed {
    fn read(&self, _: &Path) -> io::Result<Option<String>> {
        Ok(Some(OTHER.to_owned()))
    }

    fn write(&self, _: &Path, _: &str) -> io::Result<()> {
        Err(self.0.into())
    }
}

/// A node, and the root of its host.
struct Host {
    world: World,
    root: tempfile::TempDir,
}

impl Host {
    /// With this in the file of SELinux; `None`: the file does not exist.
    fn new(enforce: Option<&str>) -> Self {
        let host = Self { world: World::new("h100-8", ""), root: tempfile::tempdir().unwrap() };
        if let Some(enforce) = enforce {
            let path = host.root.path().join(ENFORCE);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, enforce).unwrap();
        }
        host
    }

    fn selinux(&self) -> Selinux {
        Selinux::of_host(self.root.path())
    }

    /// The node as the agent opens it.
    fn open(&self, selinux: Selinux) -> NodeService {
        let parts = NodeParts { selinux, ..self.world.parts(Disk::default()) };
        let dirs = Dirs::in_state(self.world.state());
        Node::open(parts, &dirs, Access::ChangeNow).unwrap().0.into_service()
    }

    fn claim(&self, uid: &str, want: Want) -> ResourceClaim {
        claim(&self.world.open(), uid, &[want])
    }

    fn grants(&self) -> PathBuf {
        self.world.state().join("grants")
    }

    fn cdi(&self, uid: &str) -> PathBuf {
        self.world.state().join(format!("cdi/aliquot.dev-claim-{uid}.json"))
    }
}

fn paths_below(dir: &Path) -> Vec<PathBuf> {
    let mut paths = vec![dir.to_owned()];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => paths.extend(paths_below(&path)),
            false => paths.push(path),
        }
    }
    paths
}

fn labels_below(dir: &Path) -> Vec<(PathBuf, Option<String>)> {
    let label = |path: PathBuf| (path.clone(), XattrLabels.read(&path).unwrap());
    paths_below(dir).into_iter().map(label).collect()
}

fn all_are_labelled(dir: &Path) {
    for (path, label) in labels_below(dir) {
        assert_eq!(label.as_deref(), Some(LABEL), "{}", path.display());
    }
}

/// Whether this user may set labels here; without SELinux that takes root.
fn can_label(dir: &Path) -> bool {
    match XattrLabels.write(dir, OTHER) {
        Ok(()) => true,
        Err(error) => {
            println!("stood aside: security.selinux cannot be set: {error}");
            false
        }
    }
}

#[test]
fn files_of_containers_are_labelled_at_start_and_prepare() {
    for enforce in ["1", "0"] {
        let host = Host::new(Some(enforce));
        let before = host.claim("before", SHARE);
        // Written by an agent that did not label.
        host.open(Selinux::ignored()).prepare(&before).unwrap();
        if !can_label(&host.grants()) {
            return;
        }
        let after = host.claim("after", SHARE);
        let service = host.open(host.selinux());
        all_are_labelled(&host.grants());
        all_are_labelled(&host.world.state().join("shims"));
        service.prepare(&after).unwrap();
        let names: Vec<String> = paths_below(&host.grants().join("after"))
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        for name in ["ld.so.preload", "grant.json", "limits", "usage"] {
            assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
        }
        all_are_labelled(&host.grants());
        // An admin or a tool relabels the directory while the agent runs.
        let list = host.grants().join("after/ld.so.preload");
        XattrLabels.write(&list, OTHER).unwrap();
        service.prepare(&after).unwrap();
        all_are_labelled(&host.grants());
        assert_eq!(XattrLabels.read(&host.world.state().join("journal")).unwrap(), None);
    }
}

#[test]
fn files_without_selinux_are_not_labelled() {
    let host = Host::new(None);
    let request = host.claim("a", SHARE);
    let service = host.open(host.selinux().with_labels(Arc::new(Fixed(io::ErrorKind::PermissionDenied))));
    service.prepare(&request).unwrap();
    assert!(labels_below(&host.grants()).iter().all(|(_, label)| label.is_none()));
}

#[test]
fn share_is_refused_if_enforcing_and_label_cannot_be_set() {
    let host = Host::new(Some("1"));
    let (share, whole) = (host.claim("share", SHARE), host.claim("whole", WHOLE));
    let remedy = "semanage fcontext -a -t container_file_t";
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
        let service = host.open(host.selinux().with_labels(Arc::new(Fixed(kind))));
        let error = service.prepare(&share).unwrap_err();
        assert!(matches!(error, PrepareError::Label { .. }), "{error:?}");
        let (text, dir) = (error.to_string(), host.grants().join("share"));
        let remedy = format!("{remedy} '{0}(/.*)?'` and `restorecon -RF {0}`", host.grants().display());
        for part in [&format!("{}:", dir.display()), &format!("found label {OTHER}"), LABEL, &remedy] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
        assert!(!host.cdi("share").exists() && !dir.exists(), "the refused claim left files");
        assert_eq!(service.claims().len(), 0);
        service.invariants().unwrap();
    }
    let service = host.open(host.selinux().with_labels(Arc::new(Fixed(io::ErrorKind::PermissionDenied))));
    service.prepare(&whole).unwrap();
    assert!(host.cdi("whole").exists(), "a claim without limits is prepared");
}

#[test]
fn share_is_prepared_if_permissive_and_label_cannot_be_set() {
    let host = Host::new(Some("0"));
    let request = host.claim("a", SHARE);
    let service = host.open(host.selinux().with_labels(Arc::new(Fixed(io::ErrorKind::PermissionDenied))));
    service.prepare(&request).unwrap();
    assert!(host.cdi("a").exists());
}

#[test]
fn file_system_without_labels_is_named_as_the_cause() {
    struct Unsupported;
    impl FileLabels for Unsupported {
        fn read(&self, _: &Path) -> io::Result<Option<String>> {
            Ok(None)
        }
        fn write(&self, _: &Path, _: &str) -> io::Result<()> {
            Err(nix::errno::Errno::EOPNOTSUPP.into())
        }
    }
    let host = Host::new(Some("1"));
    let request = host.claim("a", SHARE);
    let service = host.open(host.selinux().with_labels(Arc::new(Unsupported)));
    let text = service.prepare(&request).unwrap_err().to_string();
    assert!(text.contains("found no label") && text.contains("context=\"system_u:object_r:"), "{text}");
}
