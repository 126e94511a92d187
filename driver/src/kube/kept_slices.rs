//! Slices as text, for an agent that keeps them published while it does not see the cards.

use aliquot_core::dra::ResourceSlice;
use serde_json::{Value, json};

use crate::manifest::{self, Object};

/// These slices as a list of the API.
#[must_use]
pub fn text(slices: &[ResourceSlice]) -> String {
    let items: Vec<Value> = slices.iter().map(|slice| Object::Slice(slice).json()).collect();
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// The slices of such a text; what cannot be read is left out.
#[must_use]
pub fn read(text: &str) -> Vec<ResourceSlice> {
    manifest::read("kept slices", text).0.slices
}
