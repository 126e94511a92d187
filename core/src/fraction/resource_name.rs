//! Names under which device plugins and HAMi advertise partitions: `nvidia.com/mig-1g.10gb`, `huawei.com/Ascend310P-2c`.
//!
//! ```text
//!   nvidia.com/mig-<template>, a plus as a dot     nvidia.com/mig-1g.10gb.me             1g.10gb+me
//!   huawei.com/<chip>-<cores>c                     huawei.com/Ascend310P-2c              vir02
//!      [.<AI CPUs>cpu][.<GiB>g][.dvpp | .ndvpp]    huawei.com/Ascend910-10c.4cpu.16g.dvpp  vir10_4c_16g_m
//!   with the number of the Pod's limits behind a colon or an equals sign:
//!   huawei.com/<chip>-memory: <MiB>                huawei.com/Ascend310P-memory: 6144    6Gi of an Ascend310P
//!   huawei.com/npu-core: <cores>                   huawei.com/npu-core: 2                vir02
//! ```

use super::{Ask, AskedPart};
use crate::catalogue::{CardModel, plain_name};
use crate::units::Bytes;

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

/// The part that a resource and its number in the limits of a Pod stand for; `None` for other names.
///
/// # Errors
/// The resource is known, and its number is absent or stands for no part of a card.
pub(super) fn with_number(text: &str) -> Result<Option<Ask>, &'static str> {
    let (name, number) = match text.split_once([':', '=']) {
        Some((name, number)) => (name.trim(), Some(number.trim().trim_matches(['"', '\'']))),
        None => (text, None),
    };
    let Some((domain, resource)) = name.split_once('/') else { return Ok(None) };
    let (domain, small) = (domain.to_ascii_lowercase(), resource.to_ascii_lowercase());
    let number = || match number {
        None => Err("a resource without its number in the limits: write it behind a colon"),
        Some(number) => match number.parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            Ok(_) | Err(_) => Err("a resource with a number that is no whole one above 0"),
        },
    };
    let of_mebibytes = |mebibytes: u32| AskedPart::Memory(Bytes(u64::from(mebibytes) * Bytes::MIB.0));
    let ask = match (domain.as_str(), small.as_str()) {
        ("huawei.com", "npu-core") => {
            Ask { model: None, part: AskedPart::Named(format!("vir{:02}", number()?)) }
        }
        ("nvidia.com", "gpumem" | "gpucores" | "gpumem-percentage") => {
            return Err("a resource for compute or memory alone: ask for a part such as `25%` or `8Gi`");
        }
        ("huawei.com", small) => {
            match small.strip_suffix("-memory").and_then(|chip| resource.get(..chip.len())) {
                None => return Ok(None),
                Some(chip) => Ask { model: Some(chip.to_owned()), part: of_mebibytes(number()?) },
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(ask))
}

/// `10c.4cpu.16g.dvpp` as `vir10_4c_16g_m`.
fn vnpu_template(size: &str) -> Option<String> {
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
        }
        for size in ["", "c", "2", "2c.", "2c.x", "999c", "+2c", "2c.1cpu.vpp"] {
            assert_eq!(vnpu_template(size), None, "{size}");
        }
    }
}
