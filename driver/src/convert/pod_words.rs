//! Words of a Pod beside its resources: annotations, labels, labels of nodes, variables.
//!
//! All are read first. Once it is known what became of the containers, a word that their requests have goes; one that
//! they have no place for stays and is named. While one container stays as it is, so do all words of its Pod.

use serde_json::{Map, Value};

use super::asker::{ALONE, Asker, Became};
use super::vocabulary::{ANNOTATIONS, NODE_LABELS, System, VARIABLES};
use super::wishes::{Aspect, Fate, Wishes};
use super::{Conversion, Place, scalar};

/// A word that was read.
pub(super) struct ReadWord {
    at: WordAt,
    aspect: Aspect,
    field: String,
    value: String,
}

/// Where a word is.
pub(super) enum WordAt {
    /// In a map of the Pod, `parent.map`.
    Key { parent: &'static str, map: &'static str, key: String },
    /// A label of the Pod: it stays, as a selector may name it.
    Label,
    /// A variable of a container, by its place.
    Variable(usize),
}

/// Whether requests have what a word asks for.
enum Has {
    Yes,
    /// It makes no difference there; the text says what the container got.
    Moot(&'static str),
    /// The text is the reason.
    No(&'static str),
}

const REMEDY: &str = "it stays as it is; ask for it in a claim, or remove it";

impl Conversion<'_> {
    /// Reads annotations, labels and labels of nodes.
    pub(super) fn words_of_pod(
        &mut self,
        pod: &Map<String, Value>,
        place: &Place<'_>,
    ) -> (Wishes, Vec<ReadWord>) {
        let (mut wishes, mut read) = (Wishes::default(), Vec::new());
        for (parent, map, path, table) in [
            ("metadata", "annotations", "metadata.annotations", &ANNOTATIONS[..]),
            ("metadata", "labels", "metadata.labels", &ANNOTATIONS[..]),
            ("spec", "nodeSelector", "spec.nodeSelector", &NODE_LABELS[..]),
        ] {
            let words = pod.get(parent).and_then(|parent| parent.get(map)).and_then(Value::as_object);
            for (key, value) in words.into_iter().flatten() {
                let value = scalar(value);
                let Some((_, system, wish)) = table.iter().find(|(known, ..)| known == key) else {
                    match map {
                        "nodeSelector" => self.unknown_label(place, key, &value),
                        "annotations" => self.unknown_annotation(place, key, &value),
                        _ => {}
                    }
                    continue;
                };
                if self.settings.from.is_some_and(|only| only != *system && *system != System::Nvidia) {
                    continue;
                }
                let field = place.field(&format!("{path}[{key}]"));
                if wish.is_amount() {
                    wishes.amounts_of = Some(*system);
                    wishes.amounts_at = (field.clone(), value.clone());
                }
                if self.wish(&mut wishes, *wish, &field, &value) == Fate::Taken {
                    let at = match map {
                        "labels" => WordAt::Label,
                        _ => WordAt::Key { parent, map, key: key.clone() },
                    };
                    read.push(ReadWord { at, aspect: wish.aspect(&value), field, value });
                }
            }
        }
        (wishes, read)
    }

    fn unknown_label(&mut self, place: &Place<'_>, label: &str, value: &str) {
        let system = match label {
            _ if label.starts_with("nvidia.com/") => System::Nvidia,
            _ if label.starts_with("cloud.google.com/gke-gpu") => System::Gke,
            _ => return,
        };
        if self.settings.from.is_some_and(|only| only != system) {
            return;
        }
        self.lose(
            place.field(&format!("spec.nodeSelector[{label}]")),
            value,
            "the label is of another system's node discovery, and stays",
            "keep that discovery, or select the card in the claim",
        );
    }

    /// Reads the variables of a container.
    pub(super) fn variables(
        &mut self,
        pod: &Map<String, Value>,
        asker: &Asker,
        at: &Place<'_>,
        wishes: &mut Wishes,
    ) -> Vec<ReadWord> {
        let container = pod.get("spec").and_then(|spec| spec.get(asker.list)?.get(asker.index));
        let variables = container.and_then(|container| container.get("env")).and_then(Value::as_array);
        let mut read = Vec::new();
        for (index, variable) in variables.into_iter().flatten().enumerate() {
            let text = |key| variable.get(key).and_then(Value::as_str).unwrap_or_default();
            let (name, value) = (text("name"), text("value"));
            // vgpu-manager numbers its variables.
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
            let known = VARIABLES.iter().find(|(known, ..)| *known == name || *known == stem);
            let Some((_, system, wish)) = known else { continue };
            if self.settings.from.is_some_and(|only| only != *system && *system != System::Nvidia) {
                continue;
            }
            let field = at.field(&format!("env[{name}]"));
            if self.wish(wishes, *wish, &field, value) == Fate::Taken {
                let (at, value) = (WordAt::Variable(index), value.to_owned());
                read.push(ReadWord { at, aspect: wish.aspect(&value), field, value });
            }
        }
        read
    }

    /// Names the words that the results have no place for; the others go, and are returned.
    pub(super) fn settled(&mut self, words: Vec<ReadWord>, became: &[Became]) -> Vec<WordAt> {
        let converted: Vec<Became> = became.iter().copied().filter(|one| *one != Became::Left).collect();
        let some_left = converted.len() < became.len();
        let mut gone = Vec::new();
        for ReadWord { at, aspect, field, value } in words {
            let (mut stays, mut reason, mut moot) = (some_left || converted.is_empty(), None, None);
            for one in &converted {
                match one.has(aspect) {
                    Has::Yes => {}
                    Has::Moot(got) => {
                        stays |= one.is_class();
                        moot = Some(got);
                    }
                    Has::No(why) => reason = Some(why),
                }
            }
            match (reason, moot) {
                (Some(reason), _) => self.lose(field, &value, reason, REMEDY),
                (None, Some(got)) => self.note(&field, &value, got),
                (None, None) => {}
            }
            if !stays && reason.is_none() {
                gone.push(at);
            }
        }
        gone
    }
}

/// Removes words from a Pod, or from the container at `asker`, with the maps and lists that are empty then.
pub(super) fn remove(pod: &mut Map<String, Value>, asker: Option<&Asker>, gone: &[WordAt]) {
    let mut variables = Vec::new();
    for word in gone {
        match word {
            WordAt::Label => {}
            WordAt::Variable(index) => variables.push(*index),
            WordAt::Key { parent, map, key } => {
                let Some(Value::Object(outer)) = pod.get_mut(*parent) else { continue };
                let Some(Value::Object(words)) = outer.get_mut(*map) else { continue };
                words.remove(key);
                if words.is_empty() {
                    outer.remove(*map);
                }
            }
        }
    }
    let Some(asker) = asker.filter(|_| !variables.is_empty()) else { return };
    let container = pod.get_mut("spec").and_then(|spec| spec.get_mut(asker.list)?.get_mut(asker.index));
    let Some(Value::Object(container)) = container else { return };
    let Some(Value::Array(env)) = container.get_mut("env") else { return };
    let mut index = 0;
    env.retain(|_| {
        index += 1;
        // Places are in ascending order.
        variables.binary_search(&(index - 1)).is_err()
    });
    if env.is_empty() {
        container.remove("env");
    }
}

// === impl Became ===

impl Became {
    const fn has(self, aspect: Aspect) -> Has {
        use Aspect::{Amount, Card, Compute, Nothing, NumaNode, Priority, Profile};
        match (self, aspect) {
            (_, Nothing) | (Self::Left, _) => Has::Yes,
            (Self::Chips, _) => Has::No("it is about GPUs, and the container asks for NPUs"),
            (Self::Slots, _) => Has::No("a class under the old name has no such setting"),
            (Self::Cards | Self::ClassOfCards, Compute | Priority) => Has::Moot(ALONE),
            (Self::Instances | Self::SeveralProfiles | Self::ClassesOfInstances, Compute | Priority) => {
                Has::Moot("a MIG instance, whose compute is its own")
            }
            (Self::ClassesOfInstances, NumaNode) => {
                Has::No("each profile is a request of its own, and a constraint holds in one request")
            }
            (Self::ClassOfCards | Self::ClassesOfInstances, Card | Profile | NumaNode | Amount) => {
                Has::No("a class under the old name selects no card")
            }
            (Self::Shares | Self::Cards, Profile) => {
                Has::No("the container asks for an amount, and a MIG profile has its own")
            }
            (Self::SeveralProfiles, NumaNode) => {
                Has::No("each profile is a claim of its own, and a constraint holds in one claim")
            }
            (Self::Instances | Self::SeveralProfiles | Self::Shares | Self::Cards, _) => Has::Yes,
        }
    }

    const fn is_class(self) -> bool {
        matches!(self, Self::ClassOfCards | Self::ClassesOfInstances | Self::Slots)
    }
}
