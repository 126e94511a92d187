//! Names under which device plugins and HAMi advertise partitions: `nvidia.com/mig-1g.10gb`, `huawei.com/Ascend310P-2c`.
//!
//! ```text
//!   nvidia.com/mig-<template>, a plus as a dot     nvidia.com/mig-1g.10gb.me             1g.10gb+me
//!   huawei.com/<chip>-<cores>c                     huawei.com/Ascend310P-2c              vir02
//!      [.<AI CPUs>cpu][.<GiB>g][.dvpp | .ndvpp]    huawei.com/Ascend910-10c.4cpu.16g.dvpp  vir10_4c_16g_m
//!   with the number of the Pod's limits behind a colon or an equals sign:
//!   nvidia.com/gpu, huawei.com/npu: <count>        nvidia.com/gpu: 2                     2 whole cards of the vendor
//!   huawei.com/<chip>-memory: <MiB>                huawei.com/Ascend310P-memory: 4096    vir02, the smallest with 4Gi
//!   huawei.com/npu-core: <cores>                   huawei.com/npu-core: 2                vir02
//!   memory in the plugin's unit, such as           aliyun.com/gpu-mem: 3                 a share of 3Gi
//!   percent of a card's memory, such as            nvidia.com/gpumem-percentage: 25      a share of 25% of each card
//!   percent of a card's compute, such as           nvidia.com/gpucores: 30               a share of all memory and 30%
//!   any other name: <count>                        nvidia.com/mig-1g.10gb: 1             the name, as often
//! ```
//!
//! The domain may be left out before a name that says enough, and quotes and a comma of YAML or JSON do not count.

use super::ask::{Ask, AskedPart};
use crate::catalogue::{CardModel, plain_name};
use crate::quantity::Quantity;
use crate::units::{Bytes, Cores, Fraction};

/// What a resource without a size of its own is refused with.
const NO_PART: &str = "a resource that says no size by itself: ask for a part such as `25%` or `8Gi`";
/// MiB in a unit of memory of a device plugin.
const MIB: u32 = 1;
const GIB: u32 = 1 << 10;
/// Memory that Tencent's plugin counts in.
const VCUDA_BLOCK: u32 = 256;

/// A resource name taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResourceName {
    /// A MIG profile, with dots for the plus signs.
    Mig(String),
    /// A vNPU template of a chip or of a family of chips.
    Vnpu { chip: String, template: String },
}

// === impl ResourceName ===

impl ResourceName {
    /// The parts of a resource name; the domain may be left out.
    pub(super) fn of(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let (domain, name) = text.split_once('/').map_or((None, text.as_str()), |(d, n)| (Some(d), n));
        if matches!(domain, None | Some("nvidia.com"))
            && let Some(profile) = name.strip_prefix("mig-")
        {
            return Some(Self::Mig(profile.to_owned()));
        }
        if !matches!(domain, None | Some("huawei.com")) {
            return None;
        }
        let (chip, size) = name.rsplit_once('-')?;
        let chip = plain_name(chip);
        let chip = if chip.starts_with("ascend") { chip } else { format!("ascend{chip}") };
        Some(Self::Vnpu { chip, template: vnpu_template(size)? })
    }

    /// Whether the name may be of a partition of this model.
    pub(super) fn is_about(&self, model: &CardModel) -> bool {
        match self {
            Self::Mig(_) => model.vendor.as_str() == "nvidia",
            // `Ascend910` covers every chip with a name that begins like that.
            Self::Vnpu { chip, .. } => {
                model.vendor.as_str() == "huawei"
                    && (model.goes_by(chip) || plain_name(&model.family).starts_with(chip.as_str()))
            }
        }
    }

    /// Whether this is the template that the name stands for.
    pub(super) fn is_template(&self, name: &str) -> bool {
        match self {
            Self::Mig(profile) => name.replace('+', ".").eq_ignore_ascii_case(profile),
            Self::Vnpu { template, .. } => name.eq_ignore_ascii_case(template),
        }
    }
}

/// A resource of a device plugin, the number of which is more than a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PluginResource<'t> {
    /// Whole cards of a vendor.
    Cards { vendor: &'static str },
    /// Cores of a vNPU.
    NpuCores,
    /// MiB of a chip, rounded up to a template.
    ChipMemory { chip: &'t str },
    /// Memory of a GPU in units of so many MiB.
    ShareMemory { mebibytes: u32 },
    /// Memory of a GPU as a quantity of bytes.
    ShareQuantity,
    /// Percent of a GPU: of what, and whether multiples of 100 are as many GPUs.
    SharePercent(PercentOf, Above100),
}

/// What a percentage is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PercentOf {
    Memory,
    Compute,
    Both,
}

/// What a percentage above 100 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above100 {
    Refused,
    /// As many GPUs, if it is a multiple of 100.
    Cards,
}

/// A pasted line as name and number.
pub(super) fn split(text: &str) -> (&str, Option<&str>) {
    let quotes = ['"', '\''];
    match text.split_once([':', '=']) {
        // `1:4` is a mistyped fraction and no count.
        Some((name, number)) if name.bytes().any(|b| b.is_ascii_alphabetic()) => {
            let number = number.trim().trim_end_matches(',').trim_end();
            (name.trim().trim_matches(quotes).trim(), Some(number.trim_matches(quotes).trim()))
        }
        _ => (text.trim_matches(quotes).trim(), None),
    }
}

/// A whole number above 0.
///
/// # Errors
/// The text is something else.
pub(super) fn whole_number(text: &str) -> Result<u32, &'static str> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number > 0);
    number.ok_or("a resource with a number that is no whole one above 0")
}

// === impl PluginResource ===

impl<'t> PluginResource<'t> {
    /// The resource of this name; `None` for a name whose number is a count.
    ///
    /// # Errors
    /// The resource is known and stands for no part of a card.
    pub(super) fn of(name: &'t str) -> Result<Option<Self>, &'static str> {
        let (domain, resource) = name.split_once('/').unwrap_or(("", name));
        let (domain, small) = (domain.to_ascii_lowercase(), resource.to_ascii_lowercase());
        if let Some(found) = Self::of_share(&domain, &small) {
            return Ok(Some(found));
        }
        let found = match (domain.as_str(), small.as_str()) {
            ("nvidia.com", "gpu") => Self::Cards { vendor: "nvidia" },
            ("huawei.com", "npu") => Self::Cards { vendor: "huawei" },
            ("" | "huawei.com", "npu-core") => Self::NpuCores,
            ("nvidia.com" | "volcano.sh", "vgpu-number") | ("volcano.sh", "gpu-number") => {
                Self::Cards { vendor: "nvidia" }
            }
            ("" | "nvidia.com" | "koordinator.sh", "gpu.shared")
            | ("", "vgpu-number")
            | ("nvidia.com", "priority")
            | ("aliyun.com" | "tencent.com" | "tke.cloud.tencent.com" | "koordinator.sh", _) => {
                return Err(NO_PART);
            }
            ("" | "huawei.com", small) => match small.strip_suffix("-memory") {
                Some(chip) if !chip.is_empty() => {
                    Self::ChipMemory { chip: resource.get(..chip.len()).unwrap_or(resource) }
                }
                _ if domain == "huawei.com" && small.ends_with("-core") => return Err(NO_PART),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(Some(found))
    }

    /// Resources that are a share of a GPU, each by the rule of the plugin that owns it.
    fn of_share(domain: &str, name: &str) -> Option<Self> {
        use Above100::{Cards, Refused};
        use PercentOf::{Both, Compute, Memory};
        Some(match (domain, name) {
            ("" | "nvidia.com", "gpumem")
            | ("" | "nvidia.com" | "volcano.sh", "vgpu-memory")
            | ("volcano.sh", "gpu-memory") => Self::ShareMemory { mebibytes: MIB },
            ("aliyun.com", "gpu-mem") | ("tke.cloud.tencent.com", "qgpu-memory") => {
                Self::ShareMemory { mebibytes: GIB }
            }
            ("tencent.com", "vcuda-memory") => Self::ShareMemory { mebibytes: VCUDA_BLOCK },
            ("koordinator.sh", "gpu-memory") => Self::ShareQuantity,
            ("" | "nvidia.com", "gpumem-percentage") | ("" | "volcano.sh", "vgpu-memory-percentage") => {
                Self::SharePercent(Memory, Refused)
            }
            ("koordinator.sh", "gpu-memory-ratio") => Self::SharePercent(Memory, Cards),
            ("" | "nvidia.com", "gpucores")
            | ("" | "nvidia.com" | "volcano.sh", "vgpu-cores")
            | ("aliyun.com", "gpu-core.percentage") => Self::SharePercent(Compute, Refused),
            ("tencent.com", "vcuda-core")
            | ("tke.cloud.tencent.com", "qgpu-core")
            | ("koordinator.sh", "gpu-core") => Self::SharePercent(Compute, Cards),
            ("koordinator.sh", "gpu") => Self::SharePercent(Both, Cards),
            _ => return None,
        })
    }

    /// The part that the resource and its number stand for.
    ///
    /// # Errors
    /// The number is absent, or stands for no part of a card.
    pub(super) fn ask(self, number: Option<&str>) -> Result<Ask, &'static str> {
        if let (Self::Cards { vendor }, None) = (self, number) {
            return Ok(Ask { vendor: Some(vendor), ..Ask::one(AskedPart::Fraction(Fraction::WHOLE)) });
        }
        let number = number.ok_or("a resource without its number in the limits: write it behind a colon")?;
        if self == Self::ShareQuantity {
            let bytes =
                number.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.units_rounded_up()).ok());
            let bytes = bytes.filter(|bytes| *bytes >= Bytes::MIB.0);
            return Ok(share_of_gpu(Bytes(
                bytes.ok_or("a resource whose number is no quantity from 1Mi on")?,
            )));
        }
        let number = whole_number(number)?;
        let memory = Bytes(u64::from(number) * Bytes::MIB.0);
        Ok(match self {
            Self::Cards { vendor } => {
                let whole = Ask::one(AskedPart::Fraction(Fraction::WHOLE));
                Ask { vendor: Some(vendor), count: number, ..whole }
            }
            Self::NpuCores => Ask::one(AskedPart::Named(format!("vir{number:02}"))),
            Self::ChipMemory { chip } => {
                Ask { model: Some(chip.to_owned()), ..Ask::one(AskedPart::Nominal(memory)) }
            }
            Self::ShareMemory { mebibytes } => share_of_gpu(Bytes(memory.0 * u64::from(mebibytes))),
            Self::ShareQuantity => share_of_gpu(memory),
            Self::SharePercent(of, above) => percent_of_gpu(number, of, above)?,
        })
    }
}

fn share_of_gpu(memory: Bytes) -> Ask {
    Ask { vendor: Some("nvidia"), ..Ask::one(AskedPart::Share { memory, cores: Cores::NONE }) }
}

/// A percentage of a GPU; 100 percent of anything is the whole GPU.
fn percent_of_gpu(percent: u32, of: PercentOf, above: Above100) -> Result<Ask, &'static str> {
    let count = match (percent, above) {
        (..=100, _) => 1,
        (_, Above100::Refused) => return Err("a percentage above 100"),
        (_, Above100::Cards) if percent.is_multiple_of(100) => percent / 100,
        (_, Above100::Cards) => return Err("a percentage above 100 that is no number of whole cards"),
    };
    let cores = u8::try_from(percent).ok().and_then(Cores::new);
    let memory = Fraction::new(percent, 100);
    let part = match (percent, of, memory, cores) {
        (..100, PercentOf::Memory, Some(memory), _) => AskedPart::ShareOf { memory, cores: Cores::NONE },
        (..100, PercentOf::Compute, _, Some(cores)) => AskedPart::ShareOf { memory: Fraction::WHOLE, cores },
        (..100, PercentOf::Both, Some(memory), Some(cores)) => AskedPart::ShareOf { memory, cores },
        _ => AskedPart::Fraction(Fraction::WHOLE),
    };
    Ok(Ask { vendor: Some("nvidia"), count, ..Ask::one(part) })
}

/// The models that one resource of a device plugin stands for, where that is more than a family: `huawei.com/Ascend910`
/// is every chip of that line.
pub(super) fn chips_of_one_resource<'m>(models: &[&'m CardModel], text: &str) -> Vec<&'m CardModel> {
    const LINE: &str = "ascend910";
    if plain_name(text) != LINE {
        return Vec::new();
    }
    let of_line = |model: &&CardModel| plain_name(&model.family).starts_with(LINE);
    models.iter().copied().filter(of_line).collect()
}

/// `10c.4cpu.16g.dvpp` as `vir10_4c_16g_m`.
#[must_use]
pub fn vnpu_template(size: &str) -> Option<String> {
    let number = |text: &str| text.parse::<u8>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let mut words = size.split('.');
    let mut template = format!("vir{:02}", number(words.next()?.strip_suffix('c')?)?);
    let mut has_memory = false;
    for word in words {
        if let Some(cpus) = word.strip_suffix("cpu").and_then(number) {
            template.push_str(&format!("_{cpus}c"));
        } else if let Some(memory) = word.strip_suffix('g').and_then(number) {
            has_memory = true;
            template.push_str(&format!("_{memory}g"));
        } else {
            template.push_str(match (word, has_memory) {
                ("dvpp", false) => "_dvpp",
                ("ndvpp", false) => "_ndvpp",
                ("dvpp", true) => "_m",
                ("ndvpp", true) => "_nm",
                _ => return None,
            });
        }
    }
    Some(template)
}

/// The resource of NVIDIA's plugin for a profile: `nvidia.com/mig-1g.10gb.me` for `1g.10gb+me`.
#[must_use]
pub fn mig_resource(profile: &str) -> String {
    format!("nvidia.com/mig-{}", profile.replace('+', "."))
}

/// A vNPU template as the resources of Huawei's plugin name its size: `10c.4cpu.16g.dvpp` for `vir10_4c_16g_m`. `None` for
/// a name that no resource has.
#[must_use]
pub fn vnpu_resource_size(template: &str) -> Option<String> {
    let mut words = template.strip_prefix("vir")?.split('_');
    let mut size = format!("{}c", words.next()?.parse::<u8>().ok()?);
    for word in words {
        size.push('.');
        match (word, word.strip_suffix('c')) {
            (_, Some(cpus)) => size.push_str(&format!("{cpus}cpu")),
            ("m", _) => size.push_str("dvpp"),
            ("nm", _) => size.push_str("ndvpp"),
            _ => size.push_str(word),
        }
    }
    (vnpu_template(&size).as_deref() == Some(template)).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vnpu_resource_name_gives_its_template() {
        for (size, template) in [
            ("1c", "vir01"),
            ("2c", "vir02"),
            ("2c.1cpu", "vir02_1c"),
            ("4c.3cpu.ndvpp", "vir04_3c_ndvpp"),
            ("4c.4cpu.dvpp", "vir04_4c_dvpp"),
            ("16c", "vir16"),
            ("5c.1cpu.16g", "vir05_1c_16g"),
            ("10c.3cpu.16g.ndvpp", "vir10_3c_16g_nm"),
            ("10c.4cpu.16g.dvpp", "vir10_4c_16g_m"),
        ] {
            assert_eq!(vnpu_template(size).as_deref(), Some(template), "{size}");
            assert_eq!(vnpu_resource_size(template).as_deref(), Some(size), "{template}");
        }
        for size in ["", "c", "2", "2c.", "2c.x", "999c", "+2c", "2c.1cpu.vpp"] {
            assert_eq!(vnpu_template(size), None, "{size}");
        }
    }
}
