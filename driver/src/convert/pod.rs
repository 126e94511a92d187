//! Pods in any object: what their containers ask for as claims, or as classes under the old names.

use aliquot_core::dra::DeviceClass;
use serde_json::{Map, Value, json};

use super::claims::Asked;
use super::vocabulary::{ANNOTATIONS, NODE_LABELS, SCHEDULERS, System, Unit, VARIABLES, Wish};
use super::wishes::{Wishes, Word as Fate};
use super::words::{self, Word};
use super::{Conversion, Owner, Place, object_name, scalar};

/// What becomes of a container.
pub(super) enum Outcome {
    /// It stays, and these classes serve its resources.
    Unchanged(Vec<DeviceClass>),
    /// Requests take the place of its resources.
    Claim(Vec<Asked>),
    /// It stays, and what is missing was said.
    Left,
}

/// A container that asks for cards.
struct Asker {
    list: &'static str,
    index: usize,
    name: String,
    words: Vec<Word>,
}

const LISTS: [&str; 2] = ["initContainers", "containers"];
/// What to do about a container that was left as it is.
pub(super) const STAYS: &str = "correct it; the container stays as it is";

impl Conversion<'_> {
    /// Converts every Pod and every template of Pods in an object.
    pub(super) fn pods_in(&mut self, object: &mut Map<String, Value>, place: &Place, owner: &Owner<'_>) {
        if object.get("spec").and_then(|spec| spec.get("containers")).is_some_and(Value::is_array) {
            self.pod(object, place, owner);
            return;
        }
        for (key, value) in object.iter_mut() {
            self.pods_below(value, &place.below(key), owner);
        }
    }

    fn pods_below(&mut self, value: &mut Value, place: &Place, owner: &Owner<'_>) {
        match value {
            Value::Object(object) => self.pods_in(object, place, owner),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.pods_below(item, &place.below(&index.to_string()), owner);
                }
            }
            _ => {}
        }
    }

    fn pod(&mut self, pod: &mut Map<String, Value>, place: &Place, owner: &Owner<'_>) {
        let askers = self.askers(pod, place);
        let by_annotation = asks_by_annotation(pod) && self.reads(System::Kai, System::TensorFusion);
        if askers.is_empty() && !by_annotation {
            return;
        }
        let mut wishes = self.wishes_of(pod, place);
        let mut askers = askers;
        if wishes.amounts_of.is_some() {
            self.ask_by_annotation(pod, place, &mut wishes, &mut askers);
        }
        let mut some = false;
        for asker in &askers {
            let at = place.below(&format!("spec.{}[{}]", asker.list, asker.index));
            let mut own = wishes.clone();
            let path = format!("/spec/{}/{}", asker.list, asker.index);
            some |= match self.container(asker, &mut own, pod, &path, &at) {
                Outcome::Left => false,
                Outcome::Unchanged(classes) => {
                    classes.into_iter().for_each(|class| self.class(class));
                    true
                }
                Outcome::Claim(requests) => {
                    self.put_claims(pod, asker, &requests, owner);
                    true
                }
            };
        }
        if some {
            self.scheduler(pod, place);
        }
        self.affinity(pod, place);
    }

    /// Whether words of one of these are read.
    fn reads(&self, one: System, other: System) -> bool {
        self.settings.from.is_none_or(|only| only == one || only == other)
    }

    fn askers(&mut self, pod: &Map<String, Value>, place: &Place) -> Vec<Asker> {
        let mut askers = Vec::new();
        for list in LISTS {
            let containers = pod.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
            for (index, container) in containers.into_iter().flatten().enumerate() {
                let Some(container) = container.as_object() else { continue };
                let at = place.below(&format!("spec.{list}[{index}]"));
                match words::of_container(container, self.settings.from) {
                    Ok(words) if words.is_empty() => {}
                    Ok(words) => {
                        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
                        askers.push(Asker { list, index, name: name.to_owned(), words });
                    }
                    Err(wrong) => self.lose(at.limit(&wrong.name), &wrong.value, wrong.reason, STAYS),
                }
            }
        }
        askers
    }

    /// Annotations, labels and labels of nodes; what is taken goes.
    fn wishes_of(&mut self, pod: &mut Map<String, Value>, place: &Place) -> Wishes {
        let mut wishes = Wishes::default();
        for (path, table) in [
            ("metadata.annotations", &ANNOTATIONS[..]),
            ("metadata.labels", &ANNOTATIONS[..]),
            ("spec.nodeSelector", &NODE_LABELS[..]),
        ] {
            let (parent, key) = path.split_once('.').unwrap_or((path, ""));
            let Some(Value::Object(words)) = pod.get(parent).and_then(|parent| parent.get(key)).cloned()
            else {
                continue;
            };
            for (word, value) in &words {
                let value = scalar(value);
                let field = place.field(&format!("{path}[{word}]"));
                let Some((_, system, wish)) = table.iter().find(|(known, ..)| known == word) else {
                    match path {
                        "spec.nodeSelector" => self.unknown_label(&field, word, &value),
                        "metadata.annotations" => self.unknown_annotation(place, word, &value),
                        _ => {}
                    }
                    continue;
                };
                if self.settings.from.is_some_and(|only| only != *system && *system != System::Nvidia) {
                    continue;
                }
                if matches!(wish, Wish::Fraction | Wish::MemoryMebibytes | Wish::MemoryQuantity | Wish::Cores)
                {
                    wishes.amounts_of = Some(*system);
                    wishes.amounts_at = (field.clone(), value.clone());
                }
                let fate = self.wish(&mut wishes, *wish, &field, &value);
                // A selector of the object may name a label.
                if fate == Fate::Taken && path != "metadata.labels" {
                    remove(pod, parent, key, word);
                }
            }
        }
        wishes
    }

    fn unknown_label(&mut self, field: &str, label: &str, value: &str) {
        if label.starts_with("nvidia.com/") || label.starts_with("cloud.google.com/gke-gpu") {
            let reason = "the label is of another system's node discovery, and stays";
            self.lose(
                field.to_owned(),
                value,
                reason,
                "keep that discovery, or select the card in the claim",
            );
        }
    }

    /// Gives the Pod's amounts to the container that they are for.
    fn ask_by_annotation(
        &mut self,
        pod: &Map<String, Value>,
        place: &Place,
        wishes: &mut Wishes,
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
                askers.push(Asker { list: "containers", index, name, words: Vec::new() });
            }
            (Some(_), None) => {}
        }
    }

    /// Variables of the container that are words; what is taken goes.
    fn variables(&mut self, pod: &mut Map<String, Value>, path: &str, at: &Place, wishes: &mut Wishes) {
        let spec = pod.get_mut("spec");
        let relative = path.strip_prefix("/spec").unwrap_or(path);
        let container = spec.and_then(|spec| spec.pointer_mut(relative)).and_then(Value::as_object_mut);
        let Some(container) = container else { return };
        let Some(Value::Array(variables)) = container.get_mut("env") else { return };
        variables.retain(|variable| {
            let text = |key| variable.get(key).and_then(Value::as_str).unwrap_or_default();
            let name = text("name");
            // vgpu-manager numbers its variables.
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
            let Some((.., wish)) = VARIABLES.iter().find(|(known, ..)| *known == name || *known == stem)
            else {
                return true;
            };
            let field = at.field(&format!("env[{name}]"));
            self.wish(wishes, *wish, &field, text("value")) == Fate::Stays
        });
        if variables.is_empty() {
            container.remove("env");
        }
    }

    fn container(
        &mut self,
        asker: &Asker,
        wishes: &mut Wishes,
        pod: &mut Map<String, Value>,
        path: &str,
        at: &Place,
    ) -> Outcome {
        self.variables(pod, path, at, wishes);
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
        owner: &Owner<'_>,
    ) {
        let mut names = Vec::new();
        for request in requests {
            let template = self.free_name(owner, &request.name);
            self.done.documents.push(request.template(owner, &template));
            names.push((request.name.clone(), template));
        }
        let Some(Value::Object(spec)) = pod.get_mut("spec") else { return };
        let claims = spec.entry("resourceClaims").or_insert_with(|| json!([]));
        let mut in_pod = Vec::new();
        if let Value::Array(claims) = claims {
            for (name, template) in names {
                let taken =
                    |name: &str| claims.iter().any(|c| c.get("name").and_then(Value::as_str) == Some(name));
                let mut free = name.clone();
                let mut copy = 2;
                while taken(&free) {
                    free = format!("{name}-{copy}");
                    copy += 1;
                }
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
    fn scheduler(&mut self, pod: &mut Map<String, Value>, place: &Place) {
        let Some(Value::Object(spec)) = pod.get_mut("spec") else { return };
        let name = spec.get("schedulerName").and_then(Value::as_str).unwrap_or_default().to_owned();
        if SCHEDULERS.contains(&name.as_str()) {
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

    fn affinity(&mut self, pod: &Map<String, Value>, place: &Place) {
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
        let of_part = |wish: &Wish| {
            matches!(wish, Wish::Fraction | Wish::MemoryMebibytes | Wish::MemoryQuantity | Wish::Cores)
        };
        ANNOTATIONS.iter().any(|(known, _, wish)| known == key && of_part(wish))
    };
    annotations.is_some_and(|annotations| annotations.keys().any(asks))
}

/// Removes a key below `parent.key`, and what is empty then.
fn remove(pod: &mut Map<String, Value>, parent: &str, key: &str, word: &str) {
    let Some(Value::Object(outer)) = pod.get_mut(parent) else { return };
    let Some(Value::Object(words)) = outer.get_mut(key) else { return };
    words.remove(word);
    if words.is_empty() {
        outer.remove(key);
    }
}

/// The container's name as that of a claim: a DNS label.
fn request_name(container: &str) -> String {
    let name: String = object_name(container).chars().take(56).collect();
    name.trim_end_matches('-').to_owned()
}

// === impl Place ===

impl Place {
    /// The field of a limit of a container.
    pub(super) fn limit(&self, resource: &str) -> String {
        self.field(&format!("resources.limits[{resource}]"))
    }
}
