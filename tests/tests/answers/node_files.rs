//! Node files are read strictly: each kind of wrong text has a message that names what to mend, and makes no node.

#![expect(clippy::panic, reason = "a text that should be refused and is not fails its test")]

use std::process::Command;

use aliquot_backend_sim::{NodeFile, OpenError, Personality, SimNode};
use aliquot_core::catalogue::Catalogue;
use aliquot_tests::local::{Local, aliquot};

/// Why the text is no node.
fn refusal(text: &str) -> String {
    let made = NodeFile::parse(text).map(|file| SimNode::in_memory(&file, &Catalogue::embedded()));
    match made {
        Err(error) | Ok(Err(error)) => error.to_string(),
        Ok(Ok(node)) => panic!("{text}\nmakes the node {}", node.name()),
    }
}

/// A node of one group of cards.
fn group(lines: &str) -> String {
    format!("schema = 1\nname = \"lab\"\n[[card]]\nmodel = \"nvidia-t4-16gb\"\n{lines}\n")
}

#[test]
fn a_wrong_node_file_is_refused_by_name() {
    let cases = [
        (group("colour = \"red\""), ["colour", "line 5"]),
        (group("[card.topology]\nring = [\"a\"]"), ["ring", "unknown field"]),
        (group("count = -1"), ["count", "-1"]),
        (group("count = 1.5"), ["count", "1.5"]),
        (group("count = 0"), ["cards", "mend `count`"]),
        (group("count = 5000"), ["5000 cards", "4096"]),
        (group("memory = \"-16Gi\""), ["`memory`", "-16Gi"]),
        (group("memory = \"0\""), ["`memory`", "1Mi or more"]),
        (group("memory = \"1.5\""), ["`memory`", "whole number"]),
        (group("memory = \"much\""), ["`memory`", "much"]),
        (group("count = 2\nuuid = [\"GPU-1\", \"GPU-1\"]"), ["GPU-1", "two cards"]),
        (group("count = 2\nuuid = [\"GPU-1\"]"), ["`uuid`", "1 entries"]),
        (group("count = 3\nnuma = [0, 1]"), ["`numa`", "2 entries"]),
        (group("uuid = [\"../../etc/passwd\"]"), ["`uuid`", "letters, digits"]),
        (group("pci = [\"81:00.0\"]"), ["`pci`", "0000:81:00.0"]),
        (group("health = [{ card = 1, unhealthy = \"x\" }]"), ["`health.card`", "counted from 0"]),
        (group("found = [{ card = 0, template = \"1g.10gb\", placement = \"0\" }]"), ["`found`", "1g.10gb"]),
        (
            "schema = 2\nname = \"lab\"\n[[card]]\nmodel = \"nvidia-t4-16gb\"\n".to_owned(),
            ["`schema` is 2", "1"],
        ),
        (
            "schema = 1\nname = \"La b\"\n[[card]]\nmodel = \"nvidia-t4-16gb\"\n".to_owned(),
            ["`name`", "La b"],
        ),
        ("schema = 1\nname = \"lab\"\n".to_owned(), ["card", "missing"]),
        ("schema = 1\nname = \"lab\"\n[[card]]\nmodel = \"acme-9\"\n".to_owned(), ["`acme-9`", "[[model]]"]),
        ("schema = 1\nname = \"lab\"\n[[card]]\nmodel = \"H100\"\n".to_owned(), ["`H100`", "may be"]),
        ("not toml at all".to_owned(), ["node file", "line 1"]),
        (String::new(), ["schema", "missing"]),
    ];
    for (text, words) in cases {
        let message = refusal(&text);
        for word in words {
            assert!(message.contains(word), "{text}\n`{word}` is not in: {message}");
        }
    }
}

#[test]
fn partitions_that_cannot_exist_together_are_not_found() {
    let text = r#"
schema = 1
name = "lab"
[[card]]
model = "nvidia-h100-80gb-sxm"
found = [{ card = 0, template = "7g.80gb", placement = "0" }, { card = 0, template = "1g.10gb", placement = "0" }]
"#;
    let message = refusal(text);
    assert!(message.contains("does not fit") && message.contains("1g.10gb"), "{message}");
}

#[test]
fn a_node_file_may_describe_a_model_that_no_catalogue_has() {
    let embedded = Catalogue::embedded();
    let known = include_str!("../../../core/catalogue/nvidia-t4-16gb.toml");
    let own = known.replace("nvidia-t4-16gb", "acme-t4").replace("names = [", "names = [\"acme\", ");
    let table: toml::Table = own.parse().unwrap();
    let mut file = toml::Table::new();
    let card: toml::Table = "model = \"acme-t4\"".parse().unwrap();
    file.insert("schema".to_owned(), 1.into());
    file.insert("name".to_owned(), "lab".into());
    file.insert("card".to_owned(), vec![toml::Value::Table(card)].into());
    file.insert("model".to_owned(), vec![toml::Value::Table(table)].into());
    let node = SimNode::in_memory(&NodeFile::parse(&file.to_string()).unwrap(), &embedded).unwrap();
    assert_eq!(node.name().as_str(), "lab");

    let broken = format!("{}\n[[model]]\nid = \"acme-t5\"\n", group(""));
    let message = refusal(&broken);
    assert!(message.contains("[[model]]"), "{message}");
}

#[test]
fn state_directory_without_a_parent_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("no").join("such");
    let file = Personality::named("t4-2").unwrap().load().unwrap();
    let error = SimNode::open(&file, &Catalogue::embedded(), &state).unwrap_err();
    let OpenError::State(error) = error else { panic!("{error}") };
    assert!(error.to_string().contains("cannot make") && error.to_string().contains("no/such"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Whatever way the cards of a node are described, a run's command finds its card.
#[test]
fn a_command_finds_the_card_of_a_node_that_is_no_built_in_one() {
    let local = Local::new("2xt4");
    let tenant = local.tenant(&["--memory", "1Gi"], &["work", "1000000"]);
    assert!(local.card().facts().uuid.starts_with("GPU-"));
    assert!(local.card().processes().iter().any(|process| process.pid == tenant.pid));
    tenant.end();
}

#[test]
fn a_run_on_a_card_that_no_program_could_find_is_refused() {
    let local = Local::new("t4-2");
    let file = local.dir().join("node.toml");
    std::fs::write(&file, group("uuid-prefix = \"CARD-\"")).unwrap();
    let run = || {
        let mut command = Command::new(aliquot());
        command.args(["run", "--memory", "1Gi", "--node"]).arg(&file).arg("--state").arg(local.state());
        command.args(["--", "echo", "began"]).output().unwrap()
    };
    // Twice: the part of the first is given back.
    for output in [run(), run()] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), b"".as_slice()), "{said}");
        assert!(said.contains("CARD-") && said.contains("`uuid-prefix`"), "{said}");
    }
    assert_eq!(local.records(), 0);
}
