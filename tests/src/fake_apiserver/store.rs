//! Objects with versions, and the history that watches read.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// One change.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    /// `ADDED`, `MODIFIED`, `DELETED`.
    pub(super) kind: &'static str,
    pub(super) key: Key,
    pub(super) object: Value,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    version: u64,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    /// Objects made so far, in every state: no two of them have one UID.
    made: u64,
    objects: BTreeMap<Key, Value>,
    history: Vec<Change>,
}

/// Why a request is not carried out.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Name of the object; empty if there is none.
    pub(super) object: String,
}

// === impl Key ===

impl Key {
    pub(super) fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The key of an object that states its kind.
    pub(super) fn of(object: &Value) -> Self {
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        let resource = if kind.ends_with("class") { format!("{kind}es") } else { format!("{kind}s") };
        let meta = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let namespaced =
            ["resourceclaims", "resourceclaimtemplates", "pods", "events"].contains(&resource.as_str());
        let namespace =
            if namespaced && meta("namespace").is_empty() { "default".to_owned() } else { meta("namespace") };
        Self { resource, namespace, name: meta("name") }
    }
}

// === impl Refusal ===

impl Refusal {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), object: String::new() }
    }

    /// The same, of an object with this name.
    pub(super) fn of(self, object: &str) -> Self {
        Self { object: object.to_owned(), ..self }
    }

    pub(super) fn status(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
            "details": { "name": self.object },
        })
    }
}

// === impl Store ===

impl Store {
    pub(super) fn new() -> Self {
        // Versions of a real server are never small.
        Self { version: 1_000, ..Self::default() }
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// Objects of a resource, of one namespace if given.
    pub(super) fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Value> {
        let wanted = |key: &&Key| key.resource == resource && namespace.is_none_or(|n| n == key.namespace);
        self.objects.iter().filter(|(key, _)| wanted(key)).map(|(_, object)| object.clone()).collect()
    }

    /// Creates or replaces. An equal object keeps its version.
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Value {
        let old = self.objects.get(&key);
        if let Some(old) = old {
            for field in ["uid", "creationTimestamp", "resourceVersion", "generation"] {
                object["metadata"][field] = old["metadata"][field].clone();
            }
            if *old == object {
                return object;
            }
        }
        self.version += 1;
        self.made += u64::from(old.is_none());
        let spec_changed = old.is_none_or(|old| old["spec"] != object["spec"]);
        let meta = &mut object["metadata"];
        if old.is_none() {
            if meta["uid"].is_null() {
                meta["uid"] = format!("00000000-0000-4000-8000-{:012}", self.made).into();
            }
            meta["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            if !key.namespace.is_empty() {
                meta["namespace"] = key.namespace.clone().into();
            }
            meta["generation"] = 1.into();
        } else if spec_changed {
            let generation = meta["generation"].as_u64().unwrap_or(1) + 1;
            meta["generation"] = generation.into();
        }
        meta["resourceVersion"] = self.version.to_string().into();
        let kind = if old.is_none() { "ADDED" } else { "MODIFIED" };
        self.objects.insert(key.clone(), object.clone());
        self.history.push(Change { version: self.version, kind, key, object: object.clone() });
        object
    }

    pub(super) fn delete(&mut self, key: &Key) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let (version, key) = (self.version, key.clone());
        self.history.push(Change { version, kind: "DELETED", key, object: object.clone() });
        Some(object)
    }

    /// Changes of a resource after a version.
    ///
    /// # Errors
    /// 410 if the history does not reach back that far.
    pub(super) fn since(&self, resource: &str, version: u64) -> Result<Vec<Change>, Refusal> {
        if version < self.forgotten {
            let message = format!("too old resource version: {version} ({})", self.forgotten);
            return Err(Refusal::new(410, "Expired", message));
        }
        let first = self.history.partition_point(|change| change.version <= version);
        let later = self.history[first..].iter();
        Ok(later.filter(|change| change.key.resource == resource).cloned().collect())
    }

    /// Objects, history and version are those of an earlier state.
    pub(super) fn restore(&mut self, earlier: &Self) {
        *self = Self { made: self.made, ..earlier.clone() };
    }

    /// Deletes an object of which no watch tells.
    pub(super) fn delete_unseen(&mut self, key: &Key) {
        self.objects.remove(key);
        self.version += 1;
    }

    /// Forgets all changes: watches that are behind expire. The version grows, as other objects of a cluster change.
    pub(super) fn forget_history(&mut self) {
        self.version += 10;
        self.forgotten = self.version;
        self.history.clear();
    }
}
