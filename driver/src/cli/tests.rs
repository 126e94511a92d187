//! Every command of ours that a message, a help text or a page names is one that this command line understands.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use super::*;

/// Where messages, help texts and pages are, from the root of the repository.
const SOURCES: [&str; 5] = ["core/src", "driver/src", "driver/backends", "docs", "README.md"];

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        let is_text = path.extension().is_some_and(|e| e == "rs" || e == "md");
        found.extend(is_text.then(|| path.to_owned()));
        return;
    }
    for entry in fs::read_dir(path).unwrap() {
        files(&entry.unwrap().path(), found);
    }
}

/// The commands that a line names: between backticks, or as an example that begins the line.
fn commands(line: &str) -> Vec<String> {
    let parts: Vec<&str> = line.split('`').collect();
    // One that goes on in the next line is left out.
    let whole = (parts.len() - 1) / 2;
    let inside = parts.iter().skip(1).step_by(2).take(whole);
    let mut found: Vec<String> =
        inside.filter(|text| text.starts_with("aliquot ")).map(|text| (*text).to_owned()).collect();
    let line = line.trim_start();
    let example = line.strip_prefix("sudo ").unwrap_or(line);
    if example.starts_with("aliquot ") {
        found.push(example.split(" | ").next().unwrap_or(example).to_owned());
    }
    found
}

/// Whether the command line has what a text names; values may be placeholders.
fn is_understood(text: &str) -> Result<(), clap::Error> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        words.push(word.trim_matches(|c| "'\"[];\\".contains(c)).replace(['{', '}'], ""));
    }
    if words.get(1).is_some_and(|word| word == "help")
        && words.get(2).is_some_and(|word| word.chars().all(|c| c.is_ascii_uppercase()))
    {
        words.truncate(2);
    }
    match Cli::command().try_get_matches_from(&words) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => Err(error),
            _ => Ok(()),
        },
    }
}

#[test]
fn commands_in_messages_and_pages_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    SOURCES.iter().for_each(|source| files(&root.join(source), &mut found));
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in found {
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            for command in commands(line) {
                seen += 1;
                // Two blanks, as before an explanation, end an example.
                let command = command.split("  ").next().unwrap_or(&command).to_owned();
                if let Err(error) = is_understood(&command) {
                    wrong.push(format!("{}:{}: {command}: {error}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn commands_that_do_not_exist_are_found() {
    for text in ["aliquot halt local/b", "aliquot release x --hard", "aliquot stop --names x"] {
        assert!(is_understood(text).is_err(), "{text}");
    }
    for text in ["aliquot stop {uid}{options}", "aliquot run --memory 8Gi -- COMMAND", "aliquot devices"] {
        assert!(is_understood(text).is_ok(), "{text}");
    }
}
