//! Pods in any object: what their containers ask for as claims, or as classes under the old names.

use aliquot_core::dra::DeviceClass;
use serde_json::{Map, Value, json};

use super::asker::{Asker, Became};
use super::claims::Asked;
use super::names::Names;
use super::pod_words::remove;
use super::vocabulary::{ANNOTATIONS, OF_ONE_CONTAINER, SCHEDULERS, System, Unit};
use super::wishes::Wishes;
use super::words::{self, Word};
use super::{Conversion, Owner, Place, object_name};

/// What is to be done with a container.
pub(super) enum Outcome {
    /// It stays, and these classes serve its resources.
    Unchanged(Vec<DeviceClass>, Became),
    /// Requests take the place of its resources.
    Claim(Vec<Asked>, Became),
    /// It stays, and what is missing was said.
    Left,
}

const LISTS: [(&str, &str); 2] =
    [("initContainers", "spec.initContainers"), ("containers", "spec.containers")];
/// What to do about a container that was left as it is.
pub(super) const STAYS: &str = "correct it; the container stays as it is";

impl Conversion<'_> {
    /// Converts every Pod and every template of Pods in an object.
    pub(super) fn pods_in(&mut self, object: &mut Map<String, Value>, place: &Place<'_>, owner: &Owner<'_>) {
        if object.get("spec").and_then(|spec| spec.get("containers")).is_some_and(Value::is_array) {
            self.pod(object, place, owner);
            return;
        }
        for (key, value) in object.iter_mut() {
            self.pods_below(value, &place.below(key), owner);
        }
    }

    fn pods_below(&mut self, value: &mut Value, place: &Place<'_>, owner: &Owner<'_>) {
        match value {
            Value::Object(object) => self.pods_in(object, place, owner),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.pods_below(item, &place.item("", index), owner);
                }
            }
            _ => {}
        }
    }

    fn pod(&mut self, pod: &mut Map<String, Value>, place: &Place<'_>, owner: &Owner<'_>) {
        let (mut askers, mut became) = self.askers(pod, place);
        let by_annotation = asks_by_annotation(pod) && self.reads(System::Kai, System::TensorFusion);
        if askers.is_empty() && !by_annotation {
            return;
        }
        let (wishes, words) = self.words_of_pod(pod, place);
        if wishes.amounts_of.is_some() {
            self.ask_by_annotation(pod, place, &wishes, &mut askers);
        }
        let mut claims = claims_of(pod);
        for asker in &askers {
            let at = place.item(asker.path, asker.index);
            let mut own = wishes.clone();
            let variables = self.variables(pod, asker, &at, &mut own);
            let got = match self.container(asker, &mut own, &at) {
                Outcome::Left => Became::Left,
                Outcome::Unchanged(classes, got) => {
                    classes.into_iter().for_each(|class| self.class(class));
                    got
                }
                Outcome::Claim(requests, got) => {
                    self.put_claims(pod, asker, &requests, &mut claims, owner);
                    got
                }
            };
            let gone = self.settled(variables, &[got]);
            remove(pod, Some(asker), &gone);
            became.push(got);
        }
        if !became.is_empty() && !became.contains(&Became::Left) {
            self.scheduler(pod, place);
        }
        let gone = self.settled(words, &became);
        remove(pod, None, &gone);
        self.affinity(pod, place);
    }

    /// Whether words of one of these are read.
    fn reads(&self, one: System, other: System) -> bool {
        self.settings.from.is_none_or(|only| only == one || only == other)
    }

    /// The containers that ask for cards, and a mark for each that contradicts itself.
    fn askers(&mut self, pod: &Map<String, Value>, place: &Place<'_>) -> (Vec<Asker>, Vec<Became>) {
        let (mut askers, mut left) = (Vec::new(), Vec::new());
        for (list, path) in LISTS {
            let containers = pod.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
            for (index, container) in containers.into_iter().flatten().enumerate() {
                let Some(container) = container.as_object() else { continue };
                match words::of_container(container, self.settings.from) {
                    Ok(words) if words.is_empty() => {}
                    Ok(words) => {
                        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
                        askers.push(Asker { list, path, index, name: name.to_owned(), words });
                    }
                    Err(wrong) => {
                        let field = place.item(path, index).limit(&wrong.name);
                        self.lose(field, &wrong.value, wrong.reason, STAYS);
                        left.push(Became::Left);
                    }
                }
            }
        }
        (askers, left)
    }

    /// Gives the Pod's amounts to the container that they are for.
    fn ask_by_annotation(
        &mut self,
        pod: &Map<String, Value>,
        place: &Place<'_>,
        wishes: &Wishes,
        askers: &mut Vec<Asker>,
    ) {
        let containers = pod.get("spec").and_then(|spec| spec.get("containers")).and_then(Value::as_array);
        let names: Vec<&str> = containers
            .into_iter()
            .flatten()
            .map(|container| container.get("name").and_then(Value::as_str).unwrap_or_default())
            .collect();
        let wanted = wishes.container.clone();
        let index = match &wanted {
            Some(wanted) => names.iter().position(|name| name == wanted),
            None => Some(0),
        };
        let system = wishes.amounts_of.map(|system| system.to_string()).unwrap_or_default();
        match (index, askers.first()) {
            (None, _) => {
                let value = wanted.unwrap_or_default();
                let field = place.field("metadata.annotations");
                self.lose(field, &value, "the Pod has no container of this name", "correct the name");
                askers.clear();
            }
            (_, Some(asker)) => {
                let (field, value) = (asker.words.first().map(|word| word.name.clone()), "");
                let field = place.field(&format!("spec.{}: {}", asker.list, field.unwrap_or_default()));
                let reason =
                    format!("the Pod's annotations ask for a part as well ({system}): two vocabularies");
                self.lose(field, value, reason, "keep one of them; the containers stay as they are");
                askers.clear();
            }
            (Some(index), None) if !wishes.torn => {
                let name = names.get(index).copied().unwrap_or_default().to_owned();
                let [_, (list, path)] = LISTS;
                askers.push(Asker { list, path, index, name, words: Vec::new() });
            }
            (Some(_), None) => {}
        }
    }

    fn container(&mut self, asker: &Asker, wishes: &mut Wishes, at: &Place<'_>) -> Outcome {
        let mut known = Vec::new();
        for word in &asker.words {
            match word.unit {
                Unit::Nothing(reason) => {
                    let remedy = "see what runs there, or ask for a part that `aliquot classes` prints";
                    self.lose(at.limit(&word.name), &word.value, reason, remedy);
                }
                Unit::Zero => {}
                _ => known.push(word.clone()),
            }
        }
        if known.is_empty() && wishes.amounts_of.is_none() {
            return Outcome::Left;
        }
        let of_chips = |word: &Word| matches!(word.unit, Unit::Chips | Unit::ChipMemory | Unit::ChipCores);
        let (chips, gpus): (Vec<Word>, Vec<Word>) = known.into_iter().partition(of_chips);
        if !chips.is_empty() && !gpus.is_empty() {
            let first = &gpus[0];
            let reason = "the container asks for GPUs and NPUs at once";
            self.lose(at.limit(&first.name), &first.value, reason, STAYS);
            return Outcome::Left;
        }
        let name = request_name(&asker.name);
        if !chips.is_empty() {
            return self.chips(&chips, wishes, at, &name);
        }
        if gpus.iter().any(|word| word.unit == Unit::MigInstances) {
            return self.instances(&gpus, wishes, at, &name);
        }
        self.gpus(&gpus, wishes, at, &name)
    }

    /// Puts the claims where the resources were.
    fn put_claims(
        &mut self,
        pod: &mut Map<String, Value>,
        asker: &Asker,
        requests: &[Asked],
        names: &mut Names,
        owner: &Owner<'_>,
    ) {
        let mut templates = Vec::new();
        for request in requests {
            let template = self.free_name(owner, &request.name);
            self.done.documents.push(request.template(owner, &template));
            templates.push((&request.name, template));
        }
        let Some(Value::Object(spec)) = pod.get_mut("spec") else { return };
        let claims = spec.entry("resourceClaims").or_insert_with(|| json!([]));
        let mut in_pod = Vec::new();
        if let Value::Array(claims) = claims {
            for (name, template) in templates {
                let free = names.free(name);
                claims.push(json!({ "name": free, "resourceClaimTemplateName": template }));
                in_pod.push(json!({ "name": free }));
            }
        }
        let container = spec.get_mut(asker.list).and_then(|list| list.get_mut(asker.index));
        let Some(Value::Object(container)) = container else { return };
        let resources = container.entry("resources").or_insert_with(|| json!({}));
        let Value::Object(resources) = resources else { return };
        for list in ["limits", "requests"] {
            let Some(Value::Object(amounts)) = resources.get_mut(list) else { continue };
            for word in asker.words.iter().filter(|word| !matches!(word.unit, Unit::Nothing(_))) {
                amounts.remove(&word.name);
            }
            if amounts.is_empty() {
                resources.remove(list);
            }
        }
        match resources.entry("claims").or_insert_with(|| json!([])) {
            Value::Array(claims) => claims.extend(in_pod),
            other => *other = Value::Array(in_pod),
        }
    }

    /// The scheduler of the old system would not place what the Pod asks for now.
    fn scheduler(&mut self, pod: &mut Map<String, Value>, place: &Place<'_>) {
        let Some(Value::Object(spec)) = pod.get_mut("spec") else { return };
        let name = spec.get("schedulerName").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_read = |of: Option<System>| of.zip(self.settings.from).is_none_or(|(of, only)| of == only);
        if SCHEDULERS.iter().any(|(known, of)| *known == name && is_read(*of)) {
            spec.remove("schedulerName");
            let reason = "Kubernetes' own scheduler places claims";
            self.lose(
                place.field("spec.schedulerName"),
                &name,
                reason,
                "set it again if that scheduler places claims (DRA) and does more for the Pod",
            );
        }
    }

    fn affinity(&mut self, pod: &Map<String, Value>, place: &Place<'_>) {
        let Some(affinity) = pod.get("spec").and_then(|spec| spec.get("affinity")) else { return };
        let text = affinity.to_string();
        if ["\"nvidia.com/", "\"cloud.google.com/gke-gpu"].iter().any(|label| text.contains(label)) {
            self.lose(
                place.field("spec.affinity"),
                &text,
                "it names labels of another system's node discovery, and stays",
                "keep that discovery, or select the card in the claim",
            );
        }
    }
}

/// Whether annotations of the Pod ask for a part.
fn asks_by_annotation(pod: &Map<String, Value>) -> bool {
    let annotations = pod.get("metadata").and_then(|m| m.get("annotations")).and_then(Value::as_object);
    let asks = |key: &String| {
        key.starts_with(OF_ONE_CONTAINER)
            || ANNOTATIONS.iter().any(|(known, _, wish)| known == key && wish.is_amount())
    };
    annotations.is_some_and(|annotations| annotations.keys().any(asks))
}

/// Names of the claims that a Pod has.
fn claims_of(pod: &Map<String, Value>) -> Names {
    let mut names = Names::default();
    let claims = pod.get("spec").and_then(|spec| spec.get("resourceClaims")).and_then(Value::as_array);
    for claim in claims.into_iter().flatten() {
        names.take(claim.get("name").and_then(Value::as_str).unwrap_or_default());
    }
    names
}

/// The container's name as that of a claim: a DNS label.
fn request_name(container: &str) -> String {
    let name: String = object_name(container).chars().take(56).collect();
    name.trim_end_matches('-').to_owned()
}
