//! Device selectors: compiling one, looking at a device, and evaluating one against the other.
//!
//! The promise is less than 2 µs for an evaluation of two attributes and the driver.

use std::hint::black_box;

use aliquot_core::cel::{DeviceView, Selector};
use aliquot_core::dra::{AttributeValue, Device, DeviceCapacity, DeviceDescription, Sharing};
use criterion::{Criterion, criterion_group, criterion_main};

const DRIVER: &str = "aliquot.dev";

const SELECTORS: [(&str, &str); 6] = [
    (
        "driver and two attributes",
        "device.driver == 'aliquot.dev' && device.attributes['aliquot.dev'].model == 'H100' && \
         device.attributes['aliquot.dev'].type == 'card'",
    ),
    ("capacity", "device.capacity['aliquot.dev'].memory.compareTo(quantity('10Gi')) >= 0"),
    ("version", "device.attributes['aliquot.dev'].driverVersion.isGreaterThan(semver('550.0.0'))"),
    ("bind", "cel.bind(d, device.attributes['aliquot.dev'], d.type == 'card' && d.vendor == 'nvidia')"),
    ("pattern", "device.attributes['aliquot.dev'].productName.matches('^NVIDIA H[0-9]+')"),
    ("walk", "device.attributes.exists(d, 'model' in device.attributes[d])"),
];

fn device() -> Device {
    let text = |value: &str| AttributeValue::String(value.to_owned());
    let attributes = [
        ("vendor", text("nvidia")),
        ("model", text("H100")),
        ("productName", text("NVIDIA H100 80GB HBM3")),
        ("type", text("card")),
        ("uuid", text("GPU-6f1a2f0e-0000-4000-8000-000000000001")),
        ("profile", text("whole")),
        ("fraction", text("1")),
        ("isolation", text("cooperative")),
        ("architecture", text("Hopper")),
        ("driverVersion", AttributeValue::Version("580.82.7".to_owned())),
        ("numaNode", AttributeValue::Int(1)),
        ("resource.kubernetes.io/pcieRoot", text("pci0000:17")),
        ("resource.kubernetes.io/pciBusID", text("0000:18:00.0")),
    ];
    let capacity = [("memory", "80Gi"), ("cores", "100")];
    DeviceDescription {
        attributes: attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        capacity: capacity
            .into_iter()
            .filter_map(|(name, value)| {
                Some((name.to_owned(), DeviceCapacity { value: value.parse().ok()?, policy: None }))
            })
            .collect(),
        sharing: Sharing::Shareable,
        ..DeviceDescription::named("card-0")
    }
    .into()
}

fn selectors(criterion: &mut Criterion) {
    let device = device();
    let view = DeviceView::new(DRIVER, &device);
    let mut compile = criterion.benchmark_group("compile");
    for (name, text) in SELECTORS {
        compile.bench_function(name, |bencher| bencher.iter(|| Selector::compile(black_box(text))));
    }
    compile.finish();
    let mut evaluate = criterion.benchmark_group("evaluate");
    for (name, text) in SELECTORS {
        let Ok(selector) = Selector::compile(text) else { continue };
        assert_eq!(selector.matches(&view), Ok(true), "{name}");
        evaluate.bench_function(name, |bencher| bencher.iter(|| selector.matches(black_box(&view))));
    }
    evaluate.finish();
    criterion.bench_function("view", |bencher| bencher.iter(|| DeviceView::new(DRIVER, black_box(&device))));
}

criterion_group!(benches, selectors);
criterion_main!(benches);
