//! A state directory is what it says, or it is refused before anything in it is touched.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use aliquot_backend_sim::{NodeFile, Personality};
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, OpenError};
use aliquot_tests::local::{Local, aliquot, wait_for};
use aliquot_tests::node::{Want, World, claim};

const SHARE: Want = Want { card: 0, part: "card", memory_mib: Some(1024), cores: 10 };

/// Opens the node for changes and says why not.
fn refused(world: &World) -> String {
    match world.try_open(None) {
        Err(error @ OpenError::StateDir(_)) => error.to_string(),
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
        assert!(matches!(world.look(), Err(OpenError::StateDir(_))), "{name} is followed to look at it");
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
fn named_directory_of_cdi_files_may_be_a_link() {
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

/// Files and directories of a state that a command of root opens.
const FILES: [&str; 7] = ["lock", "journal", "contexts", "health", "health.lock", "limits.lock", "xids"];
const DIRECTORIES: [&str; 8] = ["hardware", "cards", "grants", "lib", "cdi", "runs", "living", "governors"];
/// Exit code of a command that its node refuses.
const REFUSED: Option<i32> = Some(3);
/// A user that does not own the tests.
const OTHER_USER: u32 = 65534;

/// A command that opens the state for changes, bounded: one that hangs ends with code 124.
fn bounded(local: &Local, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "20"]).arg(aliquot()).args(arguments);
    command.args(["--node", "t4-2", "--state"]).arg(local.state()).output().unwrap()
}

/// A state directory with a `name` in it that `put` made; it is refused, named and left as it was.
fn refused_untouched(name: &str, words: &[&str], put: impl Fn(&Path)) {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    let path = local.state().join(name);
    put(&path);
    let entries =
        || fs::read_dir(local.state()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let before = entries();
    for command in [&["release", "--all"][..], &["devices"]] {
        let command = bounded(&local, command);
        let said = String::from_utf8_lossy(&command.stderr).into_owned();
        assert_eq!(command.status.code(), REFUSED, "{name}: {said}");
        for word in words.iter().copied().chain([path.to_str().unwrap()]) {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
        assert_eq!(entries(), before, "{name}: refused, and yet the directory was changed");
    }
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn links_in_place_of_its_files_keep_their_targets() {
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("target");
    for name in FILES {
        fs::write(&target, "precious").unwrap();
        refused_untouched(name, &["symbolic link", "expected a file"], |path| {
            symlink(&target, path).unwrap();
        });
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious", "{name}");
    }
    // A link that leads nowhere makes nothing there.
    fs::remove_file(&target).unwrap();
    refused_untouched("lock", &["symbolic link"], |path| symlink(&target, path).unwrap());
    assert!(!target.exists());
}

#[test]
fn lock_file_with_a_second_name_keeps_its_bytes() {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    let target = local.dir().join("target");
    fs::write(&target, "precious").unwrap();
    fs::hard_link(&target, local.state().join("lock")).unwrap();
    let output = bounded(&local, &["release", "--all"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), REFUSED, "{said}");
    assert!(said.contains("second name"), "{said}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn pipes_in_place_of_its_entries_are_refused_at_once() {
    for (names, expected) in [(&FILES[..], "expected a file"), (&DIRECTORIES[..], "expected a directory")] {
        for name in names {
            refused_untouched(name, &["named pipe", expected], fifo);
        }
    }
}

#[test]
fn devices_in_place_of_its_entries_are_refused() {
    if !is_root() {
        return println!("stood aside: only root can make a device");
    }
    for name in ["lock", "journal", "hardware", "cards"] {
        refused_untouched(name, &["a device"], |path| {
            let made = Command::new("mknod").arg(path).args(["c", "1", "3"]).status().unwrap();
            assert!(made.success(), "a null device");
        });
    }
}

#[test]
fn directory_of_another_user_is_refused_untouched() {
    if !is_root() {
        return println!("stood aside: only root can make a directory another user's");
    }
    let owner = format!("belongs to user {OTHER_USER}");
    for name in ["journal", "lock"] {
        refused_untouched(name, &[&owner], |path| {
            fs::write(path, "").unwrap();
            chown(path, Some(OTHER_USER), None).unwrap();
        });
    }
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    chown(local.state(), Some(OTHER_USER), None).unwrap();
    for command in [&["release", "--all"][..], &["devices"]] {
        let output = bounded(&local, command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), REFUSED, "{said}");
        assert!(said.contains(&owner) && said.contains("--state"), "{said}");
        assert_eq!(fs::read_dir(local.state()).unwrap().count(), 0);
    }
}

#[test]
fn directory_that_every_user_may_write_is_refused() {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    // A directory that is for all users stays so: the remedy is another one.
    for (mode, remedy) in [(0o777, "chmod o-w"), (0o1777, "name a directory below it with --state")] {
        fs::set_permissions(local.state(), fs::Permissions::from_mode(mode)).unwrap();
        let output = bounded(&local, &["release", "--all"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let left = fs::read_dir(local.state()).unwrap().count();
        assert_eq!((output.status.code(), left), (REFUSED, 0), "{said}");
        assert!(said.contains(remedy), "{said}");
    }
}

/// Every entry below a directory with its mode; not below one that others cannot enter.
fn modes(dir: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let there = fs::symlink_metadata(&path).unwrap();
        let mode = there.permissions().mode() & 0o7777;
        found.push((path.clone(), mode));
        if there.is_dir() && mode & 0o077 != 0 {
            modes(&path, found);
        }
    }
}

#[test]
fn umask_of_zero_leaves_nothing_writable_for_others() {
    let local = Local::new("t4-2");
    let run =
        local.run(&["--memory", "1Gi", "--cores", "10", "--", "sh", "-c", "echo ready; read line || true"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 0; exec \"$@\"", "sh"]).arg(run.get_program()).args(run.get_args());
    let mut run = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(run.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(line, "ready");
    let mut found = vec![(local.state(), mode(&local.state()))];
    modes(&local.state(), &mut found);
    for (path, mode) in &found {
        assert_eq!(mode & 0o022, 0, "{}: mode {mode:04o}", path.display());
    }
    for lock in ["lock", "limits.lock", "hardware/hardware.lock"] {
        assert_eq!(mode(&local.state().join(lock)), 0o600, "{lock}");
    }
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
}

#[test]
fn lock_files_of_earlier_versions_are_closed_to_others() {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    drop(local.open());
    let lock = local.state().join("lock");
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    drop(local.open());
    assert_eq!(mode(&lock), 0o600);
}

#[test]
fn wait_for_a_lock_names_its_holder_and_ends() {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    drop(local.open());
    let lock = fs::File::open(local.state().join("lock")).unwrap();
    lock.lock().unwrap();
    let began = Instant::now();
    let release = || {
        let mut command = Command::new(aliquot());
        command.args(["release", "--all", "--node", "t4-2", "--state"]).arg(local.state());
        command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let (mut patient, mut late) = (release(), release());
    let mut lines = BufReader::new(patient.stderr.take().unwrap()).lines();
    let own = std::process::id();
    let name = fs::read_to_string(format!("/proc/{own}/cmdline")).unwrap();
    let line = lines.next().unwrap().unwrap();
    let named = format!("waiting for process {own} ({}", name.split(['\0', '/']).next().unwrap());
    assert!(line.starts_with(&named), "{line}");
    assert!(began.elapsed() > Duration::from_millis(900), "named after {:?}", began.elapsed());
    wait_for("the end of the wait", || late.try_wait().unwrap().is_some());
    let (code, waited) = (late.wait().unwrap().code(), began.elapsed());
    let mut said = String::new();
    late.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(code == REFUSED && waited < Duration::from_secs(45), "{code:?} after {waited:?}: {said}");
    assert!(said.lines().last().unwrap().contains(&format!("process {own} (")), "{said}");
    assert_eq!(patient.wait().unwrap().code(), REFUSED);
    drop(lock);
    let output = release().wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

/// Between an agent's end and the note of the next holder lie moments in which the note is still the agent's.
#[test]
fn note_of_an_agent_that_ended_refuses_no_command() {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    drop(local.open());
    let path = local.state().join("lock");
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    fs::write(&path, format!("{}\nagent\n", ended.id())).unwrap();
    let lock = fs::File::open(&path).unwrap();
    lock.lock().unwrap();
    let mut release = Command::new(aliquot());
    release.args(["release", "--all", "--node", "t4-2", "--state"]).arg(local.state());
    let mut waiting = release.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let line = BufReader::new(waiting.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(line.starts_with(&format!("waiting for process {} (", std::process::id())), "{line}");
    // The holder's own note is believed.
    fs::write(&path, format!("{}\nagent\n", std::process::id())).unwrap();
    let refused = release.output().unwrap();
    assert!(refused.status.code() == REFUSED, "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the node agent (process "), "{refused:?}");
    drop(lock);
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

/// A file of another use in a directory, and what is in it then.
fn foreign_directory(local: &Local) -> impl Fn() -> Vec<PathBuf> {
    let state = local.state();
    fs::create_dir(&state).unwrap();
    fs::write(state.join("passwd"), "precious").unwrap();
    fs::create_dir(state.join("cdi")).unwrap();
    move || {
        let list = |dir: &Path| fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
        [list(&state), list(&state.join("cdi"))].concat()
    }
}

#[test]
fn directory_with_other_use_is_refused_untouched() {
    let local = Local::new("t4-2");
    let entries = foreign_directory(&local);
    let before = entries();
    let share = aliquot_tests::simulated::root().join("tests/golden/input/share.yaml");
    let share = share.to_str().unwrap();
    let run = ["run", "--memory", "1Gi", "--", "true"];
    for words in
        [&["prepare", "-f", share][..], &["devices"], &["release", "--all"], &["stop", "--all"], &run]
    {
        let (first, rest) = words.split_first().unwrap();
        let mut command = Command::new(aliquot());
        command.args([*first, "--node", "t4-2", "--state"]).arg(local.state()).args(rest);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(3 | 125)), "{words:?}: {said}");
        assert!(said.contains("found `passwd` in it and no journal; expected an empty directory"), "{said}");
        assert_eq!(entries(), before, "{words:?}: refused, and yet the directory was changed");
    }
    // The advice helps.
    fs::create_dir(local.state().join("new")).unwrap();
    let mut command = Command::new(aliquot());
    command.args(["prepare", "-f", share, "--node", "t4-2", "--state"]).arg(local.state().join("new"));
    assert_eq!(command.output().unwrap().status.code(), Some(0));
}

#[test]
fn directory_for_all_users_keeps_its_mode() {
    let local = Local::new("t4-2");
    fs::create_dir(local.state()).unwrap();
    fs::set_permissions(local.state(), fs::Permissions::from_mode(0o1777)).unwrap();
    let output = bounded(&local, &["release", "--all"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), REFUSED, "{said}");
    let below = local.state().join("aliquot");
    assert!(said.contains(&format!(
        "for all users: name a directory below it with --state, such as {}",
        below.display()
    )));
    assert!(!said.contains("chmod"), "{said}");
    fs::set_permissions(local.state(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = bounded(&local, &["release", "--all"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("chmod o-w {}", local.state().display())), "{said}");
}
