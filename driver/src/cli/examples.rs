//! The files of `deploy/examples/`, as they come with the program.

macro_rules! example {
    ($dir:literal, $name:literal) => {
        ($name, include_str!(concat!("../../../deploy/examples/", $dir, $name)))
    };
}

/// Name and content of each file.
pub(super) const EXAMPLE_FILES: [(&str, &str); 9] = [
    example!("", "ascend-310p-quarter.yaml"),
    example!("", "ascend-310p-four-quarters.yaml"),
    example!("", "mig.yaml"),
    example!("", "shares.yaml"),
    example!("", "share-in-partition.yaml"),
    example!("", "prefer-partition.yaml"),
    example!("", "two-npus.yaml"),
    example!("", "too-large.yaml"),
    example!("nodes/", "pcie-pair.toml"),
];
