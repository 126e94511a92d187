//! What packages are made of: the program's version, its manual pages, its name as a plugin of kubectl.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;

use aliquot_tests::command_line::{Ran, ran};
use serde_json::Value;

fn aliquot(words: &[&str]) -> Ran {
    ran(words.iter().map(OsString::from))
}

/// The commands that help names.
fn named_commands() -> BTreeSet<String> {
    let help = aliquot(&["aliquot", "--help"]).out;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let begins =
        list.lines().filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    begins
        .filter_map(|line| line.split(' ').next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn version_as_json_names_version_commit_and_shim() {
    let answer = aliquot(&["aliquot", "version", "-o", "json"]);
    assert_eq!((answer.code, answer.err.as_str()), (0, ""));
    let facts: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(facts["architecture"], std::env::consts::ARCH);
    assert_eq!(facts["shim"].as_str().map(str::len), Some(16), "{facts}");
    // Only packages name a commit.
    assert!(facts["commit"].is_null() || facts["commit"].as_str().is_some_and(|c| c.len() >= 40), "{facts}");
}

#[test]
fn manual_has_a_page_for_each_command_that_help_names() {
    let commands = named_commands();
    assert!(commands.contains("explain") && !commands.contains("demo-tenant"), "{commands:?}");
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let answer = aliquot(&["aliquot", "man", pages.to_str().unwrap()]);
    assert_eq!(answer, Ran { code: 0, out: String::new(), err: String::new() });
    let names = fs::read_dir(&pages).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
    let expected = commands.iter().map(|name| format!("aliquot-{name}.1")).chain(["aliquot.1".to_owned()]);
    assert_eq!(names.collect::<BTreeSet<_>>(), expected.collect());
    let whole = fs::read_to_string(pages.join("aliquot.1")).unwrap();
    assert!(!whole.contains("demo\\-tenant") && !whole.contains("hold\\-context"), "{whole}");
    assert!(whole.contains("aliquot\\-explain(1)"), "{whole}");
}

#[test]
fn manual_into_a_file_in_the_way_is_refused_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("man1");
    fs::write(&file, "").unwrap();
    let answer = aliquot(&["aliquot", "man", file.to_str().unwrap()]);
    assert_eq!((answer.code, answer.out.as_str()), (3, ""));
    assert!(answer.err.contains(file.to_str().unwrap()), "{}", answer.err);
}

#[test]
fn kubectl_plugin_is_called_as_its_user_called_it() {
    let help = |name| aliquot(&[name, "explain", "--help"]).out;
    assert!(help("/opt/krew/bin/kubectl-aliquot").contains("Usage: kubectl aliquot explain "));
    assert!(help("/usr/bin/aliquot").contains("Usage: aliquot explain "));
    let wrong = aliquot(&["kubectl-aliquot", "explain", "--nod"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("kubectl aliquot explain"), "{}", wrong.err);
}
