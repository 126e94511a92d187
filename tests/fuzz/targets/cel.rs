//! Any text: a selector or an error with its place; evaluation ends within its meter and never panics.

#![no_main]

use std::sync::LazyLock;

use aliquot_core::cel::{DeviceView, Selector};
use aliquot_core::dra::{AttributeValue, Device, DeviceCapacity};
use libfuzzer_sys::fuzz_target;

static DEVICE: LazyLock<DeviceView> = LazyLock::new(|| {
    let mut device = Device::named("card-0");
    for (name, value) in [
        ("model", AttributeValue::String("NVIDIA H100".to_owned())),
        ("index", AttributeValue::Int(3)),
        ("healthy", AttributeValue::Bool(true)),
        ("driverVersion", AttributeValue::Version("580.95.5".to_owned())),
    ] {
        device.attributes.insert(name.to_owned(), value);
    }
    let value = "80Gi".parse().expect("a quantity");
    device.capacity.insert("memory".to_owned(), DeviceCapacity { value, policy: None });
    DeviceView::new("aliquot.dev", &device)
});

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(selector) = Selector::compile(text) else { return };
    assert_eq!(selector.matches(&DEVICE), selector.matches(&DEVICE), "evaluation is deterministic");
});
