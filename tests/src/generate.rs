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
mod random;

use serde_json::{Value, json};

pub use expressions::{SELECTOR_DRIVER, selector_device, selectors};
pub use mutations::mutate;
use random::set;
pub use random::{KnownDefects, Random};

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

/// The version of the device API.
const API_VERSION: &str = "resource.k8s.io/v1";

/// An object with its version and kind.
fn named(object: &Value, version: &str, kind: &str) -> Value {
    let mut object = object.clone();
    set(&mut object, "apiVersion", json!(version));
    set(&mut object, "kind", json!(kind));
    object
}

#[cfg(test)]
mod tests;
