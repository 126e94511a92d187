//! The developer's commands: steps of `tests/run`, which tests each part has, and the hooks of git.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use aliquot_tests::simulated::root;

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn run_of_an_unknown_step_lists_the_steps() {
    let place = tempfile::tempdir().unwrap();
    let run = |steps: &[&str]| {
        let output = Command::new(root().join("tests/run"))
            .args(steps)
            .env("CARGO_TARGET_DIR", place.path())
            .output()
            .unwrap();
        (output.status.code(), text(&output))
    };
    // Nothing runs before, not even a step that exists.
    let (code, said) = run(&["format", "lint"]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(
        said,
        "tests/run: there is no step \"lint\"; steps are: format lints advisories judge aarch64 glibc release tests \
         cluster docs benches fuzz demo, or quick [CRATE...]\n"
    );
}

#[test]
fn run_executes_each_test_in_one_part_alone() {
    // What stands for a test binary lists its tests, as libtest would with the filters that the runner passes on.
    let place = tempfile::tempdir().unwrap();
    let tests = ["share::a", "bills::b", "held::c", "memory::d", "quota::e", "live::f"];
    let lists = r#"#!/bin/sh
skipped=; wanted=
while [ $# -gt 0 ]; do
  case $1 in --skip) skipped="$skipped $2"; shift ;; --*) ;; *) wanted="$wanted $1" ;; esac
  shift
done
for test in TESTS; do
  for word in $skipped; do case $test in *$word*) continue 2 ;; esac; done
  [ -n "$wanted" ] || echo "$test"
  for word in $wanted; do case $test in *$word*) echo "$test" ;; esac; done
done
"#;
    for binary in ["shim-1", "runs-1", "agent-1", "node-1", "repository-1", "aliquot_core-1", "unheard_of-1"]
    {
        let path = place.path().join(binary);
        fs::write(&path, lists.replace("TESTS", &tests.join(" "))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let ran = |part: Option<&str>| {
            let output = runner(&path, part).output().unwrap();
            String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut all: Vec<_> =
            ["waiting", "computing", "measuring"].iter().flat_map(|part| ran(Some(part))).collect();
        all.sort();
        let expected: BTreeSet<_> = tests.iter().map(|test| (*test).to_owned()).collect();
        assert_eq!(all, expected.into_iter().collect::<Vec<_>>(), "{binary}");
        assert_eq!(ran(None).len(), tests.len(), "{binary}");
    }
}

fn runner(binary: &Path, part: Option<&str>) -> Command {
    let mut runner = Command::new(root().join("tests/threads"));
    runner.arg(binary).arg("--show-output").env_remove("ALIQUOT_TESTS");
    if let Some(part) = part {
        runner.env("ALIQUOT_TESTS", part);
    }
    runner
}

#[test]
fn hook_refuses_titles_that_name_no_component() {
    let place = tempfile::tempdir().unwrap();
    let message = place.path().join("message");
    let hook = |text: &str| {
        fs::write(&message, text).unwrap();
        let output = Command::new(root().join("tests/hooks/commit-msg")).arg(&message).output().unwrap();
        (output.status.success(), self::text(&output))
    };
    for good in [
        "shim: charge graphs once\n",
        "shim: charge graphs once\n\nThe driver keeps them.\n",
        "tests/run: list steps\n# a comment of git\n",
        "Merge branch 'x'\n",
    ] {
        assert_eq!(hook(good), (true, String::new()), "{good}");
    }
    let long = format!("shim: {}\n", "x".repeat(70));
    for (bad, why) in [
        ("Fix things\n", "expected \"component: imperative\""),
        (long.as_str(), "76 characters"),
        ("shim: charge graphs\nonce\n", "leave it empty"),
        ("", "expected"),
    ] {
        let (passed, said) = hook(bad);
        assert!(!passed && said.contains(why), "{bad}: {said}");
    }
}
