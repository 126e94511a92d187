//! Random clusters and selectors, to be put before our allocator and upstream's alike.
//!
//! A [`Case`] is what one scheduling cycle sees, as the JSON of the Kubernetes API: nodes, slices, classes, claims to
//! place and claims that already hold something. It is small, so that thousands are decided in seconds, and its values
//! come from small sets, so that they meet: two devices in the same rack, a request for exactly what is left.
//!
//! ```text
//!  seed ─▶ Random ─▶ inventory: nodes, pools, slices ─▶ demand: classes, claims, what is held ─▶ Case
//! ```
//!
//! Invariants: the same seed gives the same case on every machine; nearly every object passes the API server's
//! validation (a test checks that with the judge).

mod demand;
mod expressions;
mod inventory;
mod mutations;

use serde_json::{Value, json};

pub use expressions::{SELECTOR_DRIVER, selector_device, selectors};
pub use mutations::mutate;

/// Whether cases may touch what upstream 1.36 is known to get wrong: `distinctAttribute` over a request of several
/// devices, admin access beside counters, capacity keys that are qualified with the driver's own name, one attribute
/// under its bare and its qualified name, requests for a binary fraction such as `2.5Gi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownDefects {
    /// Stay away from them: every difference is ours to mend.
    Avoid,
    /// Go there too.
    Touch,
}

/// One scheduling cycle, as objects of the API.
#[derive(Clone, Debug)]
pub struct Case {
    /// What made this case: print it when the case fails.
    pub seed: u64,
    /// The nodes, in the order in which they are tried.
    pub nodes: Vec<Value>,
    /// The slices of all drivers.
    pub slices: Vec<Value>,
    /// The device classes.
    pub classes: Vec<Value>,
    /// The claims to place together, in order.
    pub claims: Vec<Value>,
    /// Claims with an allocation.
    pub allocated: Vec<Value>,
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn from_seed(seed: u64, defects: KnownDefects) -> Self {
        let mut random = Random::new(seed);
        let inventory = inventory::Inventory::draw(&mut random, defects);
        let classes = demand::classes(&mut random, &inventory);
        let claims = demand::claims(&mut random, &inventory, defects);
        let allocated = demand::allocated(&mut random, &inventory);
        Self { seed, nodes: inventory.nodes, slices: inventory.slices, classes, claims, allocated }
    }

    /// The judge's question about this case.
    #[must_use]
    pub fn request(&self) -> Value {
        json!({
            "op": "allocate",
            "nodes": self.nodes,
            "slices": self.slices,
            "classes": self.classes,
            "claims": self.claims,
            "allocated": self.allocated,
        })
    }

    /// All objects with their kinds, as `kubectl get -o json` lists them.
    #[must_use]
    pub fn list(&self) -> Value {
        let kinds = [
            ("v1", "Node", &self.nodes),
            (API_VERSION, "ResourceSlice", &self.slices),
            (API_VERSION, "DeviceClass", &self.classes),
            (API_VERSION, "ResourceClaim", &self.claims),
            (API_VERSION, "ResourceClaim", &self.allocated),
        ];
        let items: Vec<Value> = kinds
            .into_iter()
            .flat_map(|(version, kind, objects)| {
                objects.iter().map(move |object| named(object, version, kind))
            })
            .collect();
        json!({"apiVersion": "v1", "kind": "List", "items": items})
    }

    /// The judge's questions whether the objects of this case are valid, one for each.
    pub fn validations(&self) -> impl Iterator<Item = Value> {
        let kinds = [
            ("ResourceSlice", &self.slices),
            ("DeviceClass", &self.classes),
            ("ResourceClaim", &self.claims),
            ("ResourceClaimStatus", &self.allocated),
        ];
        kinds.into_iter().flat_map(|(kind, objects)| {
            objects.iter().map(move |object| json!({"op": "validate", "kind": kind, "object": object}))
        })
    }
}

/// A small generator of numbers that only have to look random (splitmix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator for a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.bits() % bound).unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of the items.
    ///
    /// # Panics
    ///
    /// When there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Each item with the given chance in a hundred, in order.
    pub fn subset<T: Clone>(&mut self, items: &[T], chance: usize) -> Vec<T> {
        items.iter().filter(|_| self.percent(chance)).cloned().collect()
    }

    /// A random UUID (version 4, lower case).
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.bits(), self.bits());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 48) & 0x3fff,
            low & 0xffff_ffff_ffff
        )
    }
}

/// The version of the device API.
const API_VERSION: &str = "resource.k8s.io/v1";

/// An object with its version and kind.
fn named(object: &Value, version: &str, kind: &str) -> Value {
    let mut object = object.clone();
    set(&mut object, "apiVersion", json!(version));
    set(&mut object, "kind", json!(kind));
    object
}

/// Sets a field of an object that is being built.
fn set(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

#[cfg(test)]
mod tests;
