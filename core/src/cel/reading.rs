//! What a selector reads of a device, where that is a few values that it names: found without a look at the others.

use aliquot_cel::Expression;

use crate::dra::{AttributeValue, Device, Sharing};
use crate::quantity::Format;

/// Values of a device that decide a selector's answer, besides the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    attributes: Vec<ReadName>,
    capacities: Vec<ReadName>,
}

/// An attribute or capacity as selectors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReadName {
    domain: String,
    bare: String,
    qualified: String,
}

// === impl Reading ===

impl Reading {
    /// `None`: it reads a whole domain, or all of the device.
    pub(crate) fn of(expression: &Expression) -> Option<Self> {
        let mut reading = Self { attributes: Vec::new(), capacities: Vec::new() };
        for path in expression.paths() {
            match path?.as_slice() {
                ["driver" | "allowMultipleAllocations", ..] => {}
                ["attributes", domain, bare, ..] => reading.attributes.push(ReadName::of(domain, bare)),
                ["capacity", domain, bare, ..] => reading.capacities.push(ReadName::of(domain, bare)),
                _ => return None,
            }
        }
        Some(reading)
    }

    /// Writes what is read of a device: of two devices with equal bytes the answer is the same.
    pub(crate) fn write(&self, driver: &str, device: &Device, bytes: &mut Vec<u8>) {
        text(driver, bytes);
        bytes.push(u8::from(device.sharing == Sharing::Shareable));
        for name in &self.attributes {
            for spelling in name.spellings(driver) {
                attribute(device.attributes.get(spelling), bytes);
            }
        }
        for name in &self.capacities {
            for spelling in name.spellings(driver) {
                let Some(capacity) = device.capacity.get(spelling) else {
                    bytes.push(0);
                    continue;
                };
                bytes.push(match capacity.value.format() {
                    Format::DecimalExponent => 1,
                    Format::BinarySi => 2,
                    Format::DecimalSi => 3,
                });
                bytes.extend(capacity.value.nanos().to_le_bytes());
            }
        }
    }
}

// === impl ReadName ===

impl ReadName {
    fn of(domain: &str, bare: &str) -> Self {
        Self { domain: domain.to_owned(), bare: bare.to_owned(), qualified: format!("{domain}/{bare}") }
    }

    /// The names that a driver may publish it under.
    fn spellings(&self, driver: &str) -> impl Iterator<Item = &str> {
        let bare = (self.domain == driver).then_some(self.bare.as_str());
        std::iter::once(self.qualified.as_str()).chain(bare)
    }
}

fn attribute(value: Option<&AttributeValue>, bytes: &mut Vec<u8>) {
    match value {
        None => bytes.push(0),
        Some(AttributeValue::Int(value)) => {
            bytes.push(1);
            bytes.extend(value.to_le_bytes());
        }
        Some(AttributeValue::Bool(value)) => bytes.push(if *value { 2 } else { 3 }),
        Some(AttributeValue::String(value)) => {
            bytes.push(4);
            text(value, bytes);
        }
        Some(AttributeValue::Version(value)) => {
            bytes.push(5);
            text(value, bytes);
        }
        Some(list) => {
            bytes.push(6);
            text(&format!("{list:?}"), bytes);
        }
    }
}

fn text(text: &str, bytes: &mut Vec<u8>) {
    bytes.extend(text.len().to_le_bytes());
    bytes.extend(text.as_bytes());
}
