//! Files of a crate that use each other in a circle. A file is one module; `imports` says what counts as use.
//!
//! - A parent that declares and re-exports its children uses none of them. A parent whose code names a child, while
//!   the child names what the parent defines, is a circle of two files: what both need belongs in a file of its own.
//! - Modules directly below a crate's root, each with its folder, form no circle either.
//!
//! `circles.txt` lists the circles of files that are left, one file a line, an empty line between circles. It may only
//! shrink: a listed circle that is gone, smaller or larger fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::imports::{Arrows, Modules};
use super::{none, root, rust_files};

const LIST: &str = "tests/tests/repository/tidy/circles.txt";

/// Crates whose modules below the root are one flat piece: simulated drivers.
const FLAT: &[&str] = &["driver/backends/sim/cuda/src/", "driver/backends/sim/device/src/"];

type Circle = BTreeSet<String>;

/// Everything that lies behind a file.
fn reached(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        let next = arrows.get(file).into_iter().flat_map(BTreeMap::keys);
        open.extend(next.filter(|used| found.insert((*used).clone())).map(String::as_str));
    }
    found
}

/// The strongly connected components of two files and more.
fn circles(arrows: &Arrows) -> BTreeSet<Circle> {
    let behind: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|file| (file, reached(arrows, file))).collect();
    let around = |file: &String| -> Circle {
        let back = |other: &&String| behind.get(other).is_some_and(|behind| behind.contains(file));
        behind[file].iter().filter(back).cloned().collect()
    };
    arrows.keys().map(around).filter(|circle| circle.len() > 1).collect()
}

/// Arrows between the modules directly below the root, each with its folder.
fn folded(crate_root: &str, arrows: &Arrows) -> Arrows {
    let module = |file: &str| {
        let inside = file.strip_prefix(crate_root)?;
        let name = inside.split('/').next()?.trim_end_matches(".rs");
        (name != "lib").then(|| format!("{crate_root}{name}"))
    };
    let mut between = Arrows::new();
    for (from, used) in arrows {
        for (to, names) in used {
            let (Some(from), Some(to)) = (module(from), module(to)) else { continue };
            if from != to {
                between.entry(from).or_default().entry(to).or_default().extend(names.iter().cloned());
            }
        }
    }
    between
}

/// A circle with its arrows, each with up to three names.
fn shown(circle: &Circle, arrows: &Arrows) -> String {
    let mut text = format!("circle of {}:", circle.len());
    for from in circle {
        for (to, names) in arrows[from].iter().filter(|(to, _)| circle.contains(*to)) {
            let names: Vec<&str> = names.iter().take(3).map(String::as_str).collect();
            text += &format!("\n      {from} -> {to} ({})", names.join(", "));
        }
    }
    text
}

fn listed(text: &str) -> BTreeSet<Circle> {
    let circles = text.split("\n\n").map(|part| part.lines().map(str::to_owned).collect::<Circle>());
    circles.filter(|circle| !circle.is_empty()).collect()
}

/// Where circles and list differ.
fn differences(arrows: &Arrows, listed: &BTreeSet<Circle>) -> Vec<String> {
    let found = circles(arrows);
    let new = found.difference(listed).map(|circle| shown(circle, arrows));
    let gone = listed.difference(&found).map(|circle| {
        let left = found.iter().filter(|other| other.is_subset(circle)).flatten().count();
        let names = Vec::from_iter(circle.iter().map(String::as_str)).join(", ");
        format!("listed in circles.txt, but {left} of {} files are left in a circle: {names}", circle.len())
    });
    new.chain(gone).collect()
}

fn crates(files: &[(String, String)]) -> BTreeMap<String, Arrows> {
    let roots = files.iter().filter_map(|(file, _)| Some(file.strip_suffix("lib.rs")?.to_owned()));
    let roots = roots.filter(|root| root.ends_with("/src/"));
    roots.map(|root| (root.clone(), Modules::read(&root, files).arrows())).collect()
}

#[test]
fn no_circle_of_files_outside_the_list() {
    let crates = crates(&rust_files());
    assert!(crates.len() > 10, "{:?}", crates.keys());
    let arrows: Arrows = crates.into_values().flatten().collect();
    let listed = listed(&fs::read_to_string(root().join(LIST)).unwrap());
    none("circles of files (what is left is listed in circles.txt)", &differences(&arrows, &listed));
}

#[test]
fn no_circle_of_modules_below_a_root() {
    let crates = crates(&rust_files());
    let wrong: Vec<String> = crates
        .iter()
        .filter(|(root, _)| !FLAT.contains(&root.as_str()))
        .flat_map(|(root, arrows)| {
            let between = folded(root, arrows);
            circles(&between).iter().map(|circle| shown(circle, &between)).collect::<Vec<_>>()
        })
        .collect();
    none("modules that use each other in a circle", &wrong);
}

/// The circles of these files of a crate, as `a b` for `x/src/a.rs` and `x/src/b.rs`.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<(String, String)> =
        files.iter().map(|(name, text)| (format!("x/src/{name}.rs"), (*text).to_owned())).collect();
    let names = |circle: &Circle| {
        let names = circle.iter().map(|file| file.trim_start_matches("x/src/").trim_end_matches(".rs"));
        names.collect::<Vec<_>>().join(" ")
    };
    circles(&Modules::read("x/src/", &files).arrows()).iter().map(names).collect()
}

#[test]
fn circles_of_files_are_found() {
    const TWO: &str = "low/one low/two";
    for (one, two, low, circle) in [
        ("use super::two::B;", "use super::one::A;", "mod one;", &[TWO] as &[&str]),
        ("use crate::low::{B as C};", "fn f(_: super::A) {}", "pub use one::A; pub use two::B;", &[TWO]),
        ("use super::*; type T = B;", "use super::one::A;", "pub use two::*;", &[TWO]),
        ("use super::two; type T = two::B;", "use super::one::{self, A};", "", &[TWO]),
        ("use super::two;", "use super::one::A;", "", &[]),
        ("use super::two::B;", "// super::one::A\nstatic S: &str = \"super::one::A\";", "", &[]),
        ("use super::two::B;", "#[cfg(test)]\nmod tests {\n use super::super::one::A;\n}", "", &[]),
        ("use super::two::B;", "#[cfg(test)]\nuse super::one::A;", "pub use one::A;", &[]),
        ("use super::Own;", "", "pub(crate) use one::A; pub struct Own;", &[]),
        ("use super::Own;", "", "pub(crate) use one::A; pub struct Own(A);", &["low low/one"]),
        ("use super::Own;", "", "use one::A; pub struct Own;", &["low low/one"]),
        ("use super::Own; pub fn one() {}", "", "mod one; pub use one::one; pub struct Own;", &[]),
        ("const X: &[char] = &['\"']; use super::two::B;", "use super::one::A;", "", &[TWO]),
    ] {
        let files = [
            ("lib", "mod low;"),
            ("low", low),
            ("low/one", &format!("{one} pub struct A;")),
            ("low/two", &format!("{two} pub struct B;")),
            ("low/tests", "use super::one::A;"),
        ];
        assert_eq!(found(&files), circle, "{one} | {two} | {low}");
    }
}

#[test]
fn circles_of_folded_modules_are_found() {
    let file = |name: &str, text: &str| (format!("x/src/{name}.rs"), text.to_owned());
    let files = [
        file("lib", "pub use high::H;"),
        file("low", "mod other; pub mod part;"),
        file("low/part", "pub struct P;"),
        file("low/other", "use crate::H;"),
        file("high", "use crate::low::part::P; pub struct H;"),
    ];
    let arrows = Modules::read("x/src/", &files).arrows();
    assert_eq!(circles(&arrows), BTreeSet::new());
    let circle = BTreeSet::from(["x/src/high".to_owned(), "x/src/low".to_owned()]);
    assert_eq!(circles(&folded("x/src/", &arrows)), BTreeSet::from([circle]));
}

#[test]
fn list_of_circles_may_only_shrink() {
    let name = |name: &str| BTreeSet::from([name.to_owned()]);
    let to = |to: &str| BTreeMap::from([(to.to_owned(), name("N"))]);
    let arrows = Arrows::from([("a".to_owned(), to("b")), ("b".to_owned(), to("a"))]);
    let differences = |text: &str| differences(&arrows, &listed(text));
    assert_eq!(differences("a\nb\n"), Vec::<String>::new());
    assert_eq!(differences(""), ["circle of 2:\n      a -> b (N)\n      b -> a (N)"]);
    let smaller = "listed in circles.txt, but 2 of 3 files are left in a circle: a, b, c";
    assert_eq!(differences("a\nb\nc\n")[1..], [smaller]);
    let gone = "listed in circles.txt, but 0 of 2 files are left in a circle: c, d";
    assert_eq!(differences("a\nb\n\nc\nd\n"), [gone]);
}
