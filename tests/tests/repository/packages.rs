//! What `deploy/release` made: a tarball, packages of two systems, the list of what they contain. `ALIQUOT_RELEASE` names the
//! directory; without it these tests stand aside.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aliquot_tests::simulated::{built, root};
use serde_json::Value;

/// Oldest C library that programs of a release run on.
const GLIBC: (u32, u32) = (2, 28);
/// What the standard library can do without. Some linkers forget that its references are weak.
const WEAK: [&str; 2] = ["gettid", "posix_spawn_file_actions_addchdir_np"];

/// The directory of the packages, or none, which is said.
fn release() -> Option<PathBuf> {
    let named = std::env::var_os("ALIQUOT_RELEASE").map(PathBuf::from);
    if named.is_none() {
        println!("stood aside: ALIQUOT_RELEASE does not name what deploy/release made");
    }
    named
}

/// The packages of this processor whose names end so.
fn package(directory: &Path, ending: &str) -> Option<PathBuf> {
    let mine = [std::env::consts::ARCH, if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }];
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found = files.filter(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        name.ends_with(ending) && mine.iter().any(|architecture| name.contains(architecture))
    });
    let first = found.next();
    assert_eq!(found.next(), None, "two packages that end in {ending}");
    first
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// A tarball, unpacked: the directory of its files.
fn unpacked(tarball: &Path, into: &Path) -> PathBuf {
    done(Command::new("tar").arg("-xzf").arg(tarball).arg("-C").arg(into));
    let name = tarball.file_name().unwrap().to_str().unwrap();
    into.join(name.strip_suffix(".tar.gz").unwrap())
}

#[test]
fn checksums_are_those_of_all_packages() {
    let Some(release) = release() else { return };
    done(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&release));
    let sums = fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    let summed: BTreeSet<&str> = sums.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let files =
        fs::read_dir(&release).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: BTreeSet<String> = files.filter(|name| name != "SHA256SUMS").collect();
    assert_eq!(summed, files.iter().map(String::as_str).collect());
}

/// At another time, in another directory, of the same program and commit.
#[test]
fn second_run_makes_packages_of_the_same_bytes() {
    let Some(release) = release() else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = unpacked(&package(&release, "-linux.tar.gz").unwrap(), dir.path()).join("aliquot");
    let again = dir.path().join("again");
    let mut command = Command::new(root().join("deploy/release"));
    command.arg("--program").arg(program).arg("--output").arg(&again);
    done(command.env("CARGO_TARGET_DIR", built().parent().unwrap()));
    let sums = |of: &Path| fs::read_to_string(of.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&again), sums(&release), "packages of one commit differ");
}

#[test]
fn tarball_has_a_program_that_runs_and_its_documents() {
    let Some(release) = release() else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = unpacked(&package(&release, "-linux.tar.gz").unwrap(), dir.path());
    let answer = done(Command::new(files.join("aliquot")).args(["version", "-o", "json"]).env_clear());
    let facts: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    for (file, content) in [
        ("LICENSE", "Apache License"),
        ("THIRD-PARTY-NOTICES", "\nkube-client "),
        ("completions/aliquot.bash", "complete -F _aliquot"),
        ("completions/_aliquot", "#compdef aliquot"),
        ("completions/aliquot.fish", "complete -c aliquot"),
        ("completions/aliquot.elv", "edit:completion:arg-completer[aliquot]"),
        ("completions/_aliquot.ps1", "Register-ArgumentCompleter"),
        ("man/man1/aliquot.1", ".TH aliquot 1"),
        ("man/man1/aliquot-explain.1", "aliquot\\-explain"),
        ("systemd/aliquot-agent.service", "ExecStart=/usr/bin/aliquot plugin"),
    ] {
        let text = fs::read_to_string(files.join(file)).expect(file);
        assert!(text.contains(content), "{file}: found no \"{content}\"");
    }
    let notices = fs::read_to_string(files.join("THIRD-PARTY-NOTICES")).unwrap();
    assert!(!notices.contains("\nproptest "), "a crate of the tests is not in the program");
    for entry in fs::read_dir(files.join("man/man1")).unwrap() {
        let name = entry.unwrap().file_name();
        assert_ne!(name, "aliquot-demo-tenant.1", "a command that is for no person has no page");
    }
}

#[test]
fn texts_of_packages_name_no_path_of_their_machine() {
    let Some(release) = release() else { return };
    let dir = tempfile::tempdir().unwrap();
    let files = unpacked(&package(&release, "-linux.tar.gz").unwrap(), dir.path());
    let own = root().canonicalize().unwrap().display().to_string();
    for entry in ["THIRD-PARTY-NOTICES", "man/man1/aliquot.1", "completions/aliquot.bash"] {
        let text = fs::read_to_string(files.join(entry)).unwrap();
        assert!(!text.contains(&own), "{entry} names {own}");
    }
}

/// krew unpacks the files that the manifest names, and links the program as `kubectl-aliquot`.
#[test]
fn manifest_for_krew_names_the_tarball_and_its_files() {
    let Some(release) = release() else { return };
    let manifest = fs::read_to_string(release.join("aliquot-krew.yaml")).unwrap();
    let tarball = package(&release, "-linux.tar.gz").unwrap();
    let sums = fs::read_to_string(release.join("SHA256SUMS")).unwrap();
    let name = tarball.file_name().unwrap().to_str().unwrap();
    let sum = sums.lines().find_map(|line| line.strip_suffix(name)).unwrap().trim();
    let value = |key: &str| manifest.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
    assert!(value("uri: ").ends_with(name), "{manifest}");
    assert_eq!(value("sha256: "), sum);
    assert_eq!(value("version: "), concat!("v", env!("CARGO_PKG_VERSION")));
    let listed = done(Command::new("tar").arg("-tzf").arg(&tarball));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<&str> =
        manifest.lines().filter_map(|line| line.split("from: \"").nth(1)?.split('"').next()).collect();
    assert!(files.iter().any(|file| file.ends_with(&format!("/{}", value("bin: ")))), "{files:?}");
    for file in files {
        assert!(listed.lines().any(|line| line == file), "{file} is not in {name}");
    }
}

/// A package, installed, used and removed on a copy of this machine.
fn install_on_a_copy(kind: &str) {
    let Some(release) = release() else { return };
    let Some(package) = package(&release, kind) else {
        return println!("stood aside: deploy/release could make no .{kind} here");
    };
    let check = root().join("tests/programs/packages.sh");
    let output = Command::new(check).arg(kind).arg(package).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(4) {
        return println!("stood aside: {}", said.trim());
    }
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(concat!("\"version\": \"", env!("CARGO_PKG_VERSION"), "\"")), "{said}");
}

#[test]
fn deb_is_installed_used_and_removed() {
    install_on_a_copy("deb");
}

#[test]
fn rpm_is_installed_used_and_removed() {
    install_on_a_copy("rpm");
}

/// podman with storage of its own, in a mount namespace, where no container may raise limits. crun does not run where a
/// version 2 hierarchy of cgroups is inside a version 1 one; the container needs none, so they are covered.
const PODMAN: &str = r#"
own=$1; archive=$2
[ ! -d /sys/fs/cgroup/unified ] || mount -t tmpfs none /sys/fs/cgroup
contained() {
  podman --root "$own/root" --runroot "$own/run" --tmpdir "$own/tmp" --storage-driver vfs --events-backend none \
    --cgroup-manager cgroupfs --runtime crun "$@"
}
contained load --quiet --input "$archive" >/dev/null
image=$(contained images --format '{{.Repository}}:{{.Tag}}')
run() {
  contained run --rm --cgroups disabled --network none --log-driver none --read-only --security-opt seccomp=unconfined \
    --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 "$@"
}
set -e
contained image inspect --format '{{json .Labels}}' "$image"
contained image inspect --format '{{len .RootFS.Layers}}' "$image"
run "$image" version -o json | tr -d '\n'; echo
run "$image" devices --node mixed >/dev/null
if run --entrypoint /bin/sh "$image" -c true 2>/dev/null; then echo "there is a shell"; exit 1; fi
"#;

#[test]
fn image_runs_commands_without_rights_and_a_shell() {
    let Some(release) = release() else { return };
    let Some(archive) = image(&release) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut podman = Command::new("unshare");
    podman.args(["--mount", "--", "bash", "-c", PODMAN, "podman"]).arg(dir.path()).arg(&archive);
    let output = podman.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare failed") {
        return println!("stood aside: only root has a mount namespace here: {errors}");
    }
    assert!(output.status.success(), "{said}{errors}");
    let lines: Vec<&str> = said.lines().collect();
    let [labels, layers, version] = lines[..] else { unreachable!("{said}") };
    let labels: Value = serde_json::from_str(labels).unwrap();
    assert_eq!(labels["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(labels["org.opencontainers.image.revision"].as_str().map(str::len), Some(40), "{labels}");
    assert_eq!(layers, "2", "the base, and one layer with the program");
    let version: Value = serde_json::from_str(version).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn image_has_nothing_that_runs_but_the_program_and_its_loader() {
    let Some(release) = release() else { return };
    let Some(archive) = image(&release) else { return };
    let dir = tempfile::tempdir().unwrap();
    done(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()));
    let manifest = fs::read_to_string(dir.path().join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let mut programs = BTreeSet::new();
    let mut bytes = Vec::new();
    for layer in manifest[0]["Layers"].as_array().unwrap() {
        let layer = dir.path().join(layer.as_str().unwrap());
        bytes.push(fs::metadata(&layer).unwrap().len());
        let listed = done(Command::new("tar").arg("-tvf").arg(layer)).stdout;
        for line in String::from_utf8(listed).unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[0].starts_with('-') && words[0].contains('x') {
                programs.insert(words[5].rsplit('/').next().unwrap().to_owned());
            }
        }
    }
    // The C library prints its version if it is run.
    let loader = if cfg!(target_arch = "aarch64") { "ld-linux-aarch64.so.1" } else { "ld-linux-x86-64.so.2" };
    let expected = ["aliquot", "libc.so.6", loader].map(str::to_owned);
    assert_eq!(programs, BTreeSet::from(expected));
    assert!(bytes[0] < 12 << 20, "the base has {} bytes", bytes[0]);
}

/// The image of this processor, or none, which is said.
fn image(release: &Path) -> Option<PathBuf> {
    let name = if cfg!(target_arch = "aarch64") { "arm64.tar" } else { "amd64.tar" };
    let archive = package(release, name);
    if archive.is_none() {
        println!("stood aside: deploy/release could make no image here");
    }
    archive
}

#[test]
fn list_of_contents_has_each_linked_crate_with_its_checksum() {
    let Some(release) = release() else { return };
    let list = fs::read_to_string(package(&release, ".cdx.json").unwrap()).unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["bomFormat"], &list["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    assert_eq!(list["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut named = BTreeSet::new();
    for component in list["components"].as_array().unwrap() {
        let (name, version) = (component["name"].as_str().unwrap(), component["version"].as_str().unwrap());
        assert_eq!(component["purl"], format!("pkg:cargo/{name}@{version}"));
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        let (_, entry) = lock.split_once(&entry).expect(name);
        let entry = entry.split("\n\n").next().unwrap();
        match component["hashes"][0]["content"].as_str() {
            Some(sum) => assert!(entry.contains(&format!("checksum = \"{sum}\"")), "{name}"),
            None => assert!(name.starts_with("aliquot_"), "{name} has no checksum"),
        }
        assert!(component["licenses"][0]["expression"].is_string(), "{name} has no licence");
        named.insert(name);
    }
    for name in ["aliquot_driver", "aliquot_shim", "aliquot_sim_cuda", "kube-client", "libc"] {
        assert!(named.contains(name), "{name} is linked");
    }
    for name in ["proptest", "serde_derive", "tempfile"] {
        assert!(!named.contains(name), "{name} is not linked");
    }
    let references: BTreeSet<&str> =
        list["dependencies"].as_array().unwrap().iter().map(|entry| entry["ref"].as_str().unwrap()).collect();
    assert_eq!(
        references.len(),
        named_with_versions(&list) + 1,
        "each component and the program have their uses"
    );
}

fn named_with_versions(list: &Value) -> usize {
    let components = list["components"].as_array().unwrap();
    components.iter().map(|component| component["purl"].as_str().unwrap()).collect::<BTreeSet<_>>().len()
}

#[test]
fn release_of_a_changed_tree_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    done(Command::new("git").args(["clone", "--quiet", "--shared"]).arg(root()).arg(&copy));
    fs::write(copy.join("deploy/left-behind"), "").unwrap();
    let target = dir.path().join("target");
    let output = Command::new(copy.join("deploy/release")).env("CARGO_TARGET_DIR", &target).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the tree differs from its commit"), "{said}");
    assert!(!target.exists(), "nothing was begun");
}

/// Each symbol that the program needs, unless it can do without, is in the old C library in a version that is old enough. So a
/// release, which is linked against that version, links, whatever C library this build was linked against.
#[test]
fn program_needs_nothing_that_glibc_2_28_lacks() {
    let Some(old) = std::env::var_os("ALIQUOT_OLD_GLIBC").map(PathBuf::from) else {
        return println!("stood aside: ALIQUOT_OLD_GLIBC does not name what tests/glibc/build made");
    };
    let libraries = old.join("system/lib/x86_64-linux-gnu");
    let mut offered = BTreeSet::new();
    for library in ["libc", "libm", "libdl", "libpthread", "librt", "libutil", "ld-linux-x86-64", "libgcc_s"]
    {
        let numbers = ["1", "2", "6", "0"].map(|number| libraries.join(format!("{library}.so.{number}")));
        let file = numbers.iter().find(|file| file.exists()).expect(library);
        for line in symbols(&["-D", "--defined-only"], file).lines() {
            let name = line.split_whitespace().last().unwrap_or_default();
            let (name, version) = name.split_once('@').unwrap_or((name, ""));
            if is_old(version.trim_start_matches('@')) {
                offered.insert(name.to_owned());
            }
        }
    }
    // Linked into the program itself, of each C library.
    let inside = old.join("system/usr/lib/x86_64-linux-gnu/libc_nonshared.a");
    let inside = symbols(&["--defined-only"], &inside);
    offered.extend(inside.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned));
    let needed = symbols(&["-D", "--undefined-only"], aliquot_tests::local::aliquot());
    // The compiler's own functions come with the release's linker.
    let strong = needed.lines().filter_map(|line| line.trim_start().strip_prefix("U "));
    let strong = strong.filter(|name| !name.contains("@GCC_"));
    let names: BTreeSet<&str> = strong.map(|name| name.split('@').next().unwrap()).collect();
    assert!(names.contains("malloc") && names.len() > 100, "{names:?}");
    let missing: Vec<&&str> =
        names.iter().filter(|name| !offered.contains(**name) && !WEAK.contains(name)).collect();
    assert!(missing.is_empty(), "glibc {GLIBC:?} has no {missing:?}");
}

fn symbols(arguments: &[&str], file: &Path) -> String {
    let output = done(Command::new("nm").args(arguments).arg(file));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a symbol's version is no newer than the oldest C library; other libraries than that have versions of their own.
fn is_old(version: &str) -> bool {
    let Some(numbers) = version.strip_prefix("GLIBC_") else { return true };
    let mut numbers = numbers.split('.').map(|number| number.parse::<u32>().unwrap_or(u32::MAX));
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(0)) <= GLIBC
}
