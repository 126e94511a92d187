//! Everything that Aliquot publishes is valid in Kubernetes, and its classes select what they say.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_core::cel::{DeviceView, Selector};
use aliquot_core::dra::{Device, ResourceSlice};
use aliquot_driver::manifest::Object;
use aliquot_tests::oracle::Oracle;
use aliquot_tests::scenes::{Scene, scenes};
use aliquot_tests::simulated::root;
use serde_json::{Value, json};

/// Differences that a failure shows in full.
const SHOWN: usize = 8;

#[test]
fn slices_and_classes_of_every_node_and_layout_are_valid() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let mut questions = Vec::new();
    for scene in scenes().unwrap() {
        for slice in &scene.slices {
            let object = Object::Slice(slice).json();
            questions.push((
                scene.name.clone(),
                json!({"op": "validate", "kind": "ResourceSlice", "object": object}),
            ));
        }
        for class in &scene.classes {
            let object = Object::Class(class).json();
            questions.push((
                scene.name.clone(),
                json!({"op": "validate", "kind": "DeviceClass", "object": object}),
            ));
        }
    }
    let answers = oracle.ask_all(questions.iter().map(|(_, question)| question.clone())).unwrap();
    let refused: Vec<String> = questions
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer["errors"] != json!([]))
        .map(|((scene, question), answer)| {
            format!("{scene}: {} {}", question["object"]["metadata"]["name"], answer["errors"])
        })
        .collect();
    let shown = refused.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n");
    assert!(refused.is_empty(), "{} of {} objects are refused:\n{shown}", refused.len(), questions.len());
    assert!(questions.len() > 200, "only {} objects: are there nodes?", questions.len());
}

#[test]
fn classes_select_the_same_devices_here_and_upstream() {
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return };
    let mut seen = BTreeSet::new();
    let mut subjects = Vec::new();
    for scene in scenes().unwrap() {
        for slice in &scene.slices {
            let rendered = Object::Slice(slice).json();
            let devices = rendered["spec"]["devices"].as_array().cloned().unwrap_or_default();
            for (device, json) in slice.devices.iter().zip(devices) {
                let (view, part) = (DeviceView::new(&slice.driver, device), part(&json));
                for text in scene.classes.iter().flat_map(|class| &class.selectors) {
                    if seen.insert((part.clone(), text.clone())) {
                        let ours = Selector::compile(text).unwrap().matches(&view);
                        let question =
                            json!({"op": "cel", "driver": slice.driver, "expression": text, "device": json});
                        subjects.push((ours, question));
                    }
                }
            }
        }
    }
    let answers = oracle.ask_all(subjects.iter().map(|(_, question)| question.clone())).unwrap();
    let mut selected = 0;
    for ((ours, question), answer) in subjects.iter().zip(&answers) {
        assert!(answer["compileError"].is_null() && answer["runtimeError"].is_null(), "{question}\n{answer}");
        assert_eq!(ours.as_ref().ok(), answer["result"].as_bool().as_ref(), "{question}\n{answer}");
        selected += usize::from(*ours == Ok(true));
    }
    assert!(selected > 50 && subjects.len() > 500, "{selected} of {} pairs match", subjects.len());
}

#[test]
fn selectors_answer_alike_for_driver_attributes_and_capacity() {
    let written = written_selectors();
    assert!(written.len() > 40, "{written:?}");
    let mut selected = 0;
    let mut seen = BTreeSet::new();
    for scene in scenes().unwrap() {
        let own = scene.classes.iter().flat_map(|class| &class.selectors).cloned();
        let texts: BTreeSet<String> = own.chain(written.iter().cloned()).collect();
        let selectors: Vec<Selector> = texts.iter().map(|text| Selector::compile(text).unwrap()).collect();
        for slice in &scene.slices {
            for (device, json) in slice.devices.iter().zip(devices(&Object::Slice(slice).json())) {
                if !seen.insert((part(&json), texts.clone())) {
                    continue;
                }
                let reduced = reduced(device);
                for selector in &selectors {
                    let all = selector.matches(&DeviceView::new(&slice.driver, device));
                    let few = selector.matches(&DeviceView::new(&slice.driver, &reduced));
                    assert_eq!(few, all, "{}: {}: {}", scene.name, device.name, selector.text());
                    selected += usize::from(all == Ok(true));
                }
            }
        }
    }
    assert!(selected > 100, "{selected} devices are selected");
}

#[test]
fn share_class_passes_over_devices_without_the_attribute() {
    let scene = scenes().unwrap().into_iter().find(|scene| !share_selectors(scene).is_empty()).unwrap();
    let selector = Selector::compile(&share_selectors(&scene)[0]).unwrap();
    let mut shared = 0;
    for (slice, device) in scene.slices.iter().flat_map(|s| s.devices.iter().map(move |device| (s, device))) {
        let answer = selector.matches(&DeviceView::new(&slice.driver, device));
        shared += usize::from(answer == Ok(true));
        let mut older = device.clone();
        let others = device.attributes.iter().filter(|(name, _)| *name != "shareable");
        let others: BTreeMap<_, _> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
        older.attributes = others.into();
        assert_eq!(selector.matches(&DeviceView::new(&slice.driver, &older)), Ok(false), "{}", device.name);
    }
    assert!(shared > 0, "{}", scene.name);
}

#[test]
fn devices_say_where_their_card_is_in_every_spelling() {
    let names = ["resource.kubernetes.io/pcieRoot", "dra.net/numaNode", "numaNode"];
    let mut found = BTreeSet::new();
    for scene in scenes().unwrap() {
        for device in scene.slices.iter().flat_map(|slice| devices(&Object::Slice(slice).json())) {
            let attributes = &device["attributes"];
            let [root, shared, own] = names.map(|name| &attributes[name]);
            assert_eq!(shared, own, "{}: {}", scene.name, device["name"]);
            let standard = &attributes["resource.kubernetes.io/numaNode"];
            assert!(standard.is_null() || standard == own, "{}: {}", scene.name, device["name"]);
            let kind = attributes["type"]["string"].as_str().unwrap().to_owned();
            if !root.is_null() && !own.is_null() {
                found.insert((kind, device["allowMultipleAllocations"] == json!(true)));
            }
        }
    }
    let kinds = [("card", false), ("card", true), ("partition", false), ("partition", true), ("slot", false)];
    let kinds = kinds.map(|(kind, shareable)| (kind.to_owned(), shareable));
    let absent: Vec<_> = kinds.iter().filter(|kind| !found.contains(*kind)).collect();
    assert!(absent.is_empty(), "{absent:?}");
}

/// What the cluster autoscaler demands of a pool, to know a new node's by one of its devices.
#[test]
fn everything_in_a_pool_has_one_shape() {
    let (mut alike, mut counted, mut several) = (0, 0, 0);
    for scene in scenes().unwrap() {
        let mut pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in &scene.slices {
            pools.entry(&slice.pool.name).or_default().push(slice);
        }
        if scene.slices.iter().all(|slice| slice.devices.is_empty()) {
            continue;
        }
        several += usize::from(pools.len() > 1);
        for (pool, slices) in pools {
            let sets = slices.iter().flat_map(|slice| slice.shared_counters.iter());
            let sets: BTreeSet<String> = sets.map(|set| format!("{:?}", set.counters)).collect();
            let devices = slices.iter().flat_map(|slice| devices(&Object::Slice(slice).json()));
            let shapes: BTreeSet<String> = devices.map(|device| part(&device)).collect();
            let kinds = if sets.is_empty() { &shapes } else { &sets };
            assert_eq!(kinds.len(), 1, "{}: {pool}: {kinds:?}", scene.name);
            alike += usize::from(sets.is_empty());
            counted += usize::from(!sets.is_empty());
        }
    }
    assert!(
        alike > 50 && counted > 20 && several > 5,
        "{alike} of one kind, {counted} counted, {several} nodes"
    );
}

fn share_selectors(scene: &Scene) -> Vec<String> {
    let shares = scene.classes.iter().filter(|class| class.name == "share.aliquot.dev");
    shares.flat_map(|class| class.selectors.clone()).collect()
}

fn devices(slice: &Value) -> Vec<Value> {
    slice["spec"]["devices"].as_array().cloned().unwrap_or_default()
}

/// A device as readers see it that know attributes and capacities alone.
fn reduced(device: &Device) -> Device {
    let mut reduced = Device::named(device.name.clone());
    reduced.attributes = device.attributes.clone();
    reduced.capacity = device.capacity.clone();
    reduced
}

/// Device selectors of the chart, the examples and the pages for users.
fn written_selectors() -> BTreeSet<String> {
    let mut folders = vec![root().join("deploy"), root().join("docs/user")];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.iter().flat_map(|file| selectors_of(file)).collect()
}

fn selectors_of(file: &Path) -> Vec<String> {
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some((before, written)) = line.split_once("expression: ") else { continue };
        let mut written = written.trim().trim_end_matches('}').to_owned();
        if written == ">-" {
            let depth = before.len() - before.trim_start().len();
            let inside = |line: &&str| line.len() - line.trim_start().len() > depth;
            written = String::new();
            while let Some(more) = lines.next_if(|line| inside(line)) {
                written = format!("{written} {}", more.trim());
            }
        }
        found.push(written.trim().trim_matches('\'').to_owned());
    }
    found.retain(|text| text.starts_with("device."));
    found
}

/// What classes tell devices apart by: the same part of another card of the model is the same question.
fn part(device: &Value) -> String {
    let told_by = ["vendor", "model", "type", "profile", "fraction", "isolation"];
    let attributes = told_by.map(|name| device["attributes"][name].to_string()).join(" ");
    format!("{attributes} {} {}", device["allowMultipleAllocations"], device["capacity"])
}
