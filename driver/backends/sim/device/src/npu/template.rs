//! What a chip can be cut into: the tables of the catalogue, read as the vendor's driver would have them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{GROUPS, NpuError, VNPUS_MAX, Vnpu};

/// The catalogue's Ascend models.
const MODELS: [&str; 14] = [
    include_str!("../../../../../../core/catalogue/huawei-310p-24gb.toml"),
    include_str!("../../../../../../core/catalogue/huawei-310p-48gb.toml"),
    include_str!("../../../../../../core/catalogue/huawei-310p-duo-24gb.toml"),
    include_str!("../../../../../../core/catalogue/huawei-310p-duo-48gb.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910a-30c.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910a-32c.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910b1.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910b2.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910b2c.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910b3.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910b4.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910b4-1.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910c-20c.toml"),
    include_str!("../../../../../../core/catalogue/huawei-910c-24c.toml"),
];

/// Amounts by counter; memory in MiB.
pub type Amounts = BTreeMap<String, u64>;

/// What a chip has and can be cut into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateTable {
    /// Product family, such as `ascend-310p`.
    pub family: String,
    /// All of the chip, without groups.
    pub totals: Amounts,
    /// Templates under the names of the machine's driver.
    pub templates: Vec<NpuTemplate>,
    /// Whether vNPUs lie in groups.
    pub grouped: bool,
    /// Most vNPUs at once.
    pub most: u32,
}

/// One template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuTemplate {
    /// Name.
    pub name: String,
    /// What it takes.
    pub consumes: Amounts,
    /// Whether two of it share a group.
    pub pairs: bool,
}

#[derive(Deserialize)]
struct ModelText {
    id: String,
    family: String,
    partitioning: TableText,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct TableText {
    totals: BTreeMap<String, toml::Value>,
    max_partitions: Option<u32>,
    template: Vec<TemplateText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct TemplateText {
    name: String,
    isolation: Option<String>,
    consumes: BTreeMap<String, toml::Value>,
    #[serde(default)]
    aliases: Vec<AliasText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct AliasText {
    name: String,
    drivers_before: Option<String>,
}

/// Whether a model of the catalogue can be simulated.
#[must_use]
pub fn knows_model(id: &str) -> bool {
    let line = format!("\nid = \"{id}\"\n");
    MODELS.iter().any(|text| text.contains(&line))
}

/// The table of a model; `None`: the catalogue has no such model.
pub(super) fn table(model: &str, driver: &str) -> Option<TemplateTable> {
    let read = MODELS.iter().filter_map(|text| toml::from_str::<ModelText>(text).ok());
    let text = read.into_iter().find(|text| text.id == model)?;
    let grouped = text.partitioning.totals.contains_key("vg0");
    let is_older = |alias: &&AliasText| {
        alias.drivers_before.as_deref().is_some_and(|before| major(driver) < major(before))
    };
    let template = |text: &TemplateText| NpuTemplate {
        name: text.aliases.iter().find(is_older).map_or(&text.name, |alias| &alias.name).clone(),
        consumes: amounts(&text.consumes),
        pairs: text.isolation.as_deref() == Some("timeslice"),
    };
    let mut totals = amounts(&text.partitioning.totals);
    totals.retain(|name, _| !name.starts_with("vg"));
    Some(TemplateTable {
        family: text.family,
        totals,
        templates: text.partitioning.template.iter().map(template).collect(),
        grouped,
        most: text.partitioning.max_partitions.unwrap_or(VNPUS_MAX),
    })
}

fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|part| part.parse().ok()).unwrap_or(0)
}

fn amounts(text: &BTreeMap<String, toml::Value>) -> Amounts {
    let amount = |value: &toml::Value| match value {
        toml::Value::Integer(count) => u64::try_from(*count).ok(),
        toml::Value::String(size) => match size.strip_suffix("Gi") {
            Some(count) => count.parse::<u64>().ok().map(|count| count << 10),
            None => size.strip_suffix("Mi")?.parse().ok(),
        },
        _ => None,
    };
    text.iter().filter_map(|(name, value)| Some((name.clone(), amount(value)?))).collect()
}

// === impl TemplateTable ===

impl TemplateTable {
    /// The template of this name.
    #[must_use]
    pub fn template(&self, name: &str) -> Option<&NpuTemplate> {
        self.templates.iter().find(|template| template.name == name)
    }

    /// What vNPUs take together.
    #[must_use]
    pub fn taken(&self, there: &[&Vnpu]) -> Amounts {
        let mut sum = Amounts::new();
        for template in there.iter().filter_map(|vnpu| self.template(&vnpu.template)) {
            for (name, amount) in &template.consumes {
                *sum.entry(name.clone()).or_insert(0) += amount;
            }
        }
        sum
    }

    /// Whether one more fits.
    #[must_use]
    pub fn fits(&self, there: &[&Vnpu], template: &NpuTemplate) -> bool {
        let taken = self.taken(there);
        let fits = |(name, amount): (&String, &u64)| {
            let taken = taken.get(name).copied().unwrap_or(0);
            taken + amount <= self.totals.get(name).copied().unwrap_or(0)
        };
        u32::try_from(there.len()).is_ok_and(|count| count < self.most) && template.consumes.iter().all(fits)
    }

    /// How many halves of each group are free.
    #[must_use]
    pub fn free_halves(&self, there: &[&Vnpu]) -> Vec<u32> {
        if !self.grouped {
            return Vec::new();
        }
        let mut free = vec![2_u32; usize::try_from(GROUPS).unwrap_or(0)];
        for vnpu in there {
            let takes =
                if self.template(&vnpu.template).is_some_and(|template| template.pairs) { 1 } else { 2 };
            let group = vnpu.group.and_then(|group| usize::try_from(group).ok());
            if let Some(free) = group.and_then(|group| free.get_mut(group)) {
                *free = free.saturating_sub(takes);
            }
        }
        free
    }

    /// The group of one more: the requested one; else a half-full one for a template that pairs; else the
    /// first empty one.
    ///
    /// # Errors
    /// [`NpuError`] if that group is not free, or there is no such group.
    pub(super) fn group(
        &self,
        there: &[&Vnpu],
        template: &NpuTemplate,
        asked: Option<u32>,
    ) -> Result<Option<u32>, NpuError> {
        if !self.grouped {
            return if asked.is_none() { Ok(None) } else { Err(NpuError::BadParameter) };
        }
        let free = self.free_halves(there);
        let needs = if template.pairs { 1 } else { 2 };
        let first = |halves: u32| free.iter().position(|free| *free == halves);
        let group = match asked {
            Some(group) => {
                let halves = usize::try_from(group).ok().and_then(|group| free.get(group));
                let halves = halves.ok_or(NpuError::BadParameter)?;
                return if *halves >= needs { Ok(Some(group)) } else { Err(NpuError::Occupied) };
            }
            None if template.pairs => first(1).or_else(|| first(2)),
            None => first(2),
        };
        let group = group.and_then(|group| u32::try_from(group).ok());
        group.map(Some).ok_or(NpuError::Occupied)
    }
}
