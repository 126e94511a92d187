//! The manifests of `deploy/examples/`, as they come with the program.

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Example {
    /// Name in `deploy/examples/`.
    pub(super) name: &'static str,
    /// Its content.
    pub(super) text: &'static str,
}

macro_rules! example {
    ($constant:ident, $name:literal) => {
        pub(super) const $constant: Example =
            Example { name: $name, text: include_str!(concat!("../../../deploy/examples/", $name)) };
    };
}

example!(QUARTER, "ascend-310p-quarter.yaml");
example!(FOUR_QUARTERS, "ascend-310p-four-quarters.yaml");
example!(MIG, "mig.yaml");
example!(SHARES, "shares.yaml");
example!(SHARE_IN_PARTITION, "share-in-partition.yaml");
example!(PREFER_PARTITION, "prefer-partition.yaml");
example!(TWO_NPUS, "two-npus.yaml");
example!(TOO_LARGE, "too-large.yaml");
example!(PCIE_PAIR, "nodes/pcie-pair.toml");
