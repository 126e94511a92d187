//! A state directory is what it says, or it is refused before anything in it is touched.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use aliquot_backend_sim::{NodeFile, Personality};
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, OpenError};
use aliquot_tests::node::{Want, World, claim};

const SHARE: Want = Want { card: 0, part: "card", memory_mib: Some(1024), cores: 10 };

/// Opens the node for changes and says why not.
fn refused(world: &World) -> String {
    match world.try_open(None) {
        Err(error @ OpenError::NotADirectory { .. }) => error.to_string(),
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("opened"),
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn links_in_place_of_its_directories_are_not_followed() {
    for name in ["cdi", "grants", "lib"] {
        let world = World::new("t4-2", "");
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(world.state()).unwrap();
        symlink(&target, world.state().join(name)).unwrap();
        let message = refused(&world);
        let link = world.state().join(name).display().to_string();
        for word in
            [link.as_str(), "symbolic link", &target.display().to_string(), "expected a directory", "move it"]
        {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
        assert!(
            matches!(world.look(), Err(OpenError::NotADirectory { .. })),
            "{name} is followed to look at it"
        );
        assert_eq!((fs::read_dir(&target).unwrap().count(), mode(&target)), (0, 0o755), "{name} was touched");
        assert!(!world.state().join("journal").exists(), "refused, and yet a journal was begun");
        // The advice helps.
        fs::remove_file(world.state().join(name)).unwrap();
        let mut node = world.open();
        node.prepare(&claim(&node, "a", &[SHARE])).unwrap();
        node.invariants().unwrap();
    }
}

#[test]
fn files_in_place_of_its_directories_are_kept_and_named() {
    let world = World::new("t4-2", "");
    fs::create_dir(world.state()).unwrap();
    fs::write(world.state().join("cdi"), "mine").unwrap();
    let message = refused(&world);
    assert!(message.contains("cdi is a file; expected a directory"), "{message}");
    assert_eq!(fs::read_to_string(world.state().join("cdi")).unwrap(), "mine");
}

#[test]
fn a_directory_of_cdi_files_that_somebody_names_may_be_a_link() {
    let world = World::new("t4-2", "");
    let elsewhere = tempfile::tempdir().unwrap();
    let (target, link) = (elsewhere.path().join("run"), elsewhere.path().join("var-run"));
    fs::create_dir(&target).unwrap();
    symlink(&target, &link).unwrap();
    let dirs = Dirs { state: world.state(), cdi: Some(link) };
    let (mut node, _) = Node::open(world.parts(Disk::default()), &dirs, Access::ChangeNow).unwrap();
    node.prepare(&claim(&node, "a", &[SHARE])).unwrap();
    node.invariants().unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
}

#[test]
fn the_promises_of_another_node_are_refused_and_kept() {
    let file = |name: &str| {
        let text = Personality::named("t4-2")
            .unwrap()
            .text
            .replace("name = \"t4-2\"", &format!("name = \"{name}\""));
        NodeFile::parse(&text).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let (mine, other) =
        (World::at(dir.path(), file("rack-1"), ""), World::at(dir.path(), file("rack-2"), ""));
    // A directory without claims belongs to no node.
    drop(mine.open());
    drop(other.open());
    let mut node = mine.open();
    node.prepare(&claim(&node, "a", &[SHARE])).unwrap();
    drop(node);
    let before = mine.files();
    for refusal in [other.try_open(None).err(), other.look().err()] {
        let refusal @ OpenError::OtherNode { .. } = refusal.unwrap() else {
            panic!("refused for another reason")
        };
        let message = refusal.to_string();
        for word in
            ["belongs to node rack-1", "claim test/claim-a", "expected node rack-2", "name another directory"]
        {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    }
    assert_eq!(mine.files(), before, "refused, and yet something changed");
    mine.open().invariants().unwrap();
}
