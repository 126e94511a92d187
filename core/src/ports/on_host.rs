//! A vendor's cards and driver, as a host shows them without a call of the vendor's library.

/// What of a vendor `aliquot doctor` looks for on a host.
#[derive(Debug, PartialEq, Eq)]
pub struct VendorOnHost {
    /// Name for people.
    pub name: &'static str,
    /// PCI vendor, as the kernel writes it.
    pub pci: &'static str,
    /// Prefixes of the PCI classes of its cards.
    pub classes: &'static [&'static str],
    /// Device files below `/dev` that every container needs.
    pub common: &'static [&'static str],
    /// A card's device file without its number.
    pub card: &'static str,
    /// What creates absent device files.
    pub make: &'static str,
    /// The vendor's tool that lists cards.
    pub tool: &'static str,
    /// A word in the name of its container runtime.
    pub runtime: &'static str,
    /// Sockets of its drivers for Kubernetes: directory below the kubelet's, a word in the file's name, name for people.
    pub drivers: &'static [(&'static str, &'static str, &'static str)],
}
