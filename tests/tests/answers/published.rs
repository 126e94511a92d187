//! Everything that Aliquot publishes is valid in Kubernetes, and its classes select what they say.

use std::collections::BTreeSet;

use aliquot_core::cel::{DeviceView, Selector};
use aliquot_driver::manifest::Object;
use aliquot_tests::oracle::Oracle;
use aliquot_tests::scenes::scenes;
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

/// What classes tell devices apart by: the same part of another card of the model is the same question.
fn part(device: &Value) -> String {
    let told_by = ["vendor", "model", "type", "profile", "fraction", "isolation"];
    let attributes = told_by.map(|name| device["attributes"][name].to_string()).join(" ");
    format!("{attributes} {} {}", device["allowMultipleAllocations"], device["capacity"])
}
