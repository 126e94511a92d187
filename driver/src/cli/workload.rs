//! Units of placement: a Pod with its claims, or a claim that no Pod names.
//!
//! ```text
//!   Pod ── resourceClaims ── claim by name ─────────────▶ shared: the first Pod places it, the others follow
//!     │                 └─── template ──────────────────▶ a claim of its own, `<pod>-<name>`
//!     └─ limits ── extended resource ── class by name ──▶ one claim, `<pod>-extended-resources`
//! ```
//!
//! Pods come in the order of the manifests, then claims that no Pod names. A Pod that has ended asks for nothing; the
//! claims that hold an allocation hold it.
//!
//! A resource that no class stands for is a device plugin's. A Pod without a node that asks for one which no node serves
//! has no place; where it asks for claims as well, that holds for resources of accelerators alone.

mod hints;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use aliquot_core::dra::{
    Access, AllocatedConfig, AllocationMode, ConfigSource, DeviceClass, DeviceRequest, ExactRequest,
    RequestConfig, RequestKind, ResourceClaim,
};
use aliquot_core::offer::DRIVER;
use aliquot_core::quantity::{Format as QuantityFormat, Quantity};

use crate::convert::is_about_cards;
use crate::manifest::{ClaimSpec, Manifests, Pod, PodClaimSource, made_up_uid};

use super::output::Terminal;

use hints::Compared;

pub(super) use hints::Hints;

/// Prefix of the resource name that every class has without being given one.
const IMPLICIT_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// Resource that the class of shares would have.
const SHARE_RESOURCE: &str = "aliquot.dev/share";
/// Files that advice names at most.
const FILES_NAMED: usize = 4;

/// Domains of resources that stand for accelerators or parts of them.
const ACCELERATOR_DOMAINS: [&str; 21] = [
    "aliquot.dev",
    "aliyun.com",
    "amd.com",
    "aws.amazon.com",
    "birentech.com",
    "cambricon.com",
    "deviceclass.resource.kubernetes.io",
    "enflame.com",
    "google.com",
    "gpu.intel.com",
    "habana.ai",
    "huawei.com",
    "hygon.com",
    "iluvatar.ai",
    "kunlunxin.com",
    "metax-tech.com",
    "mthreads.com",
    "nvidia.com",
    "tencent.com",
    "vastaitech.com",
    "volcano.sh",
];

/// Everything to be placed, and the claims it needs.
#[derive(Debug, Default)]
pub(super) struct Workload {
    /// All claims: those of the manifests, then those made for Pods.
    pub(super) claims: Vec<ResourceClaim>,
    /// In the order in which they are placed.
    pub(super) units: Vec<Unit>,
    /// Extended resources that no class stands for, with the number of Pods that ask for each: a matter of device
    /// plugins.
    pub(super) foreign_resources: BTreeMap<String, usize>,
    /// Near names of missing objects.
    pub(super) hints: Hints,
}

/// Claims that are placed together on one node, or not at all.
#[derive(Debug)]
pub(super) struct Unit {
    /// Source of the claims.
    pub(super) owner: UnitOwner,
    /// By place in [`Workload::claims`].
    pub(super) claims: Vec<usize>,
    /// Missing objects; a unit with any cannot be placed.
    pub(super) missing: Vec<String>,
}

/// The source of a unit's claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitOwner {
    /// A Pod, by place in the manifests.
    Pod(usize),
    /// The claim itself, without a Pod.
    Claim,
}

struct Maker<'m> {
    files: &'m [String],
    served: &'m BTreeSet<String>,
    templates: HashMap<(&'m str, &'m str), &'m ClaimSpec>,
    classes: ExtendedResources<'m>,
    by_name: HashMap<(String, String), usize>,
    workload: Workload,
}

/// Classes by the resource name that stands for them.
struct ExtendedResources<'m>(BTreeMap<String, &'m DeviceClass>);

/// Computes the units to place of these claims of the manifests.
pub(super) fn workload(
    manifests: &Manifests,
    claims: Vec<ResourceClaim>,
    classes: &[DeviceClass],
) -> Workload {
    let given = claims.len();
    let key = |c: &ResourceClaim| (c.namespace.clone(), c.name.clone());
    let mut maker = Maker {
        files: &manifests.files,
        served: &manifests.plugin_resources,
        templates: manifests
            .templates
            .iter()
            .map(|t| ((t.namespace.as_str(), t.name.as_str()), &t.spec))
            .collect(),
        classes: ExtendedResources::of(classes),
        by_name: claims.iter().enumerate().map(|(i, c)| (key(c), i)).collect(),
        workload: Workload { claims, ..Workload::default() },
    };
    let mut named = BTreeSet::new();
    for (number, pod) in manifests.pods.iter().enumerate() {
        let unit = maker.pod(number, pod);
        named.extend(unit.claims.iter().copied());
        let asks = !unit.claims.is_empty() || !unit.missing.is_empty();
        if asks && !pod.finished {
            maker.workload.units.push(unit);
        }
    }
    for number in 0..given {
        if !named.contains(&number) {
            let unit = Unit { owner: UnitOwner::Claim, claims: vec![number], missing: Vec::new() };
            maker.workload.units.push(unit);
        }
    }
    maker.workload
}

/// The extended resources that a class stands for.
pub(super) fn resources_of(class: &DeviceClass) -> impl Iterator<Item = String> + use<> {
    let implicit = format!("{IMPLICIT_RESOURCE}{}", class.name);
    class.extended_resource_name.clone().into_iter().chain([implicit])
}

/// Whether a claim, a template or a Pod asks for a class of this driver that is not among these.
pub(super) fn lacks_class(manifests: &Manifests, classes: &[DeviceClass]) -> bool {
    let known: BTreeSet<&str> = classes.iter().map(|class| class.name.as_str()).collect();
    let (suffix, resource) = (format!(".{DRIVER}"), format!("{DRIVER}/"));
    let missing = |class: &str| class.ends_with(&suffix) && !known.contains(class);
    let asks = |request: &DeviceRequest| match &request.kind {
        RequestKind::Exactly(exact) => missing(&exact.device_class),
        RequestKind::FirstAvailable(subs) => subs.iter().any(|sub| missing(&sub.request.device_class)),
    };
    let of_pod = |limit: &String| {
        let implicit = limit.strip_prefix(IMPLICIT_RESOURCE);
        let class = limit.strip_prefix(&resource).map(|name| format!("{name}{suffix}"));
        implicit.is_some_and(missing) || class.is_some_and(|class| missing(&class))
    };
    let specs = manifests.templates.iter().flat_map(|template| &template.spec.requests);
    manifests.claims.iter().flat_map(|claim| &claim.requests).chain(specs).any(asks)
        || manifests.pods.iter().flat_map(|pod| &pod.containers).any(|used| used.limits.keys().any(of_pod))
}

// === impl Workload ===

impl Workload {
    /// Adopts the allocations of prepared claims, with the settings that they were prepared with. The claim's present settings
    /// come after those, so that a difference shows.
    pub(super) fn adopt<'c>(&mut self, held: impl Iterator<Item = &'c ResourceClaim>) {
        let held: HashMap<&str, &ResourceClaim> = held.map(|c| (c.uid.as_str(), c)).collect();
        for claim in &mut self.claims {
            if let (None, Some(known)) = (&claim.allocation, held.get(claim.uid.as_str())) {
                let mut allocation = known.allocation.clone();
                if let Some(allocation) = &mut allocation {
                    allocation.config.extend(claim.config.iter().map(from_claim));
                }
                claim.allocation = allocation;
            }
        }
    }

    /// Says where missing names are without a hint; complete once every unit is placed.
    pub(super) fn note_hints(&self, terminal: &mut Terminal<'_>) -> io::Result<()> {
        self.hints.note().map_or(Ok(()), |words| terminal.note(format_args!("note: {words}")))
    }
}

// === impl Maker ===

impl Maker<'_> {
    fn pod(&mut self, number: usize, pod: &Pod) -> Unit {
        let mut unit = Unit { owner: UnitOwner::Pod(number), claims: Vec::new(), missing: Vec::new() };
        for wanted in &pod.claims {
            let existing = match &wanted.source {
                PodClaimSource::Claim(name) => Some(name),
                PodClaimSource::Template(_) => pod.claim_names.get(&wanted.name),
            };
            let found = existing.and_then(|name| self.find(&pod.namespace, name));
            match (found, &wanted.source) {
                (Some(claim), _) => unit.claims.push(claim),
                (None, PodClaimSource::Claim(name)) => {
                    let known = self.by_name.keys().filter(|(namespace, _)| *namespace == pod.namespace);
                    let known = known.map(|(_, name)| name.as_str());
                    let object = format!("ResourceClaim {}/{name}", pod.namespace);
                    let near = self.workload.hints.did_you_mean(&object, name, known);
                    unit.missing.push(format!("{object} does not exist{near}"));
                }
                // An ended Pod's claims are gone; nothing is made for it again.
                (None, PodClaimSource::Template(_)) if pod.finished => {}
                (None, PodClaimSource::Template(template)) => {
                    let spec = self.templates.get(&(pod.namespace.as_str(), template.as_str()));
                    match spec.copied().cloned() {
                        Some(spec) => {
                            let claim = self.make(pod, &wanted.name, spec);
                            unit.claims.push(claim);
                        }
                        None => {
                            let known = self.templates.keys().filter(|(space, _)| *space == pod.namespace);
                            let object = format!("ResourceClaimTemplate {}/{template}", pod.namespace);
                            let known = known.map(|(_, name)| *name);
                            let near = self.workload.hints.did_you_mean(&object, template, known);
                            unit.missing.push(format!("{object} does not exist{near}"));
                        }
                    }
                }
            }
        }
        self.extended(pod, &mut unit);
        unit
    }

    fn find(&self, namespace: &str, name: &str) -> Option<usize> {
        self.by_name.get(&(namespace.to_owned(), name.to_owned())).copied()
    }

    /// A claim for one Pod; Kubernetes puts random letters behind the name, we a number where it is taken.
    fn make(&mut self, pod: &Pod, purpose: &str, spec: ClaimSpec) -> usize {
        let mut name = format!("{}-{purpose}", pod.name);
        let mut copy = 1;
        while self.find(&pod.namespace, &name).is_some() {
            name = format!("{}-{purpose}-{copy}", pod.name);
            copy += 1;
        }
        let number = self.workload.claims.len();
        self.by_name.insert((pod.namespace.clone(), name.clone()), number);
        let uid = made_up_uid(&pod.namespace, &name);
        self.workload.claims.push(spec.claim(pod.namespace.clone(), name, uid, None));
        number
    }

    /// The claim for a Pod's extended resources.
    fn extended(&mut self, pod: &Pod, unit: &mut Unit) {
        let existing = pod.extended_claim.as_ref().and_then(|name| self.find(&pod.namespace, name));
        if let Some(claim) = existing {
            unit.claims.push(claim);
            return;
        }
        if pod.finished {
            return;
        }
        let mut requests = Vec::new();
        let mut foreign: BTreeMap<&str, String> = BTreeMap::new();
        for (container, used) in pod.containers.iter().enumerate() {
            for (number, (resource, amount)) in used.limits.iter().enumerate() {
                match self.classes.class(resource) {
                    Some(class) => {
                        requests.push(request(
                            &format!("container-{container}-request-{number}"),
                            class,
                            *amount,
                        ));
                    }
                    None => {
                        foreign.insert(resource, limit_number(*amount));
                    }
                }
            }
        }
        if !requests.is_empty() {
            let spec = ClaimSpec { requests, ..ClaimSpec::default() };
            let claim = self.make(pod, "extended-resources", spec);
            unit.claims.push(claim);
        }
        self.foreign(pod, &foreign, unit);
    }

    /// What becomes of a Pod's resources that no class stands for, and of annotations that ask for a part of a card.
    fn foreign(&mut self, pod: &Pod, foreign: &BTreeMap<&str, String>, unit: &mut Unit) {
        let alone = unit.claims.is_empty() && unit.missing.is_empty();
        let (nowhere, elsewhere): (Vec<_>, Vec<_>) = foreign.iter().partition(|(resource, _)| {
            let pending = pod.node_name.is_none() && !self.served.contains(**resource);
            pending && (alone || is_of_accelerator(resource) || self.near(resource).is_some())
        });
        for (resource, _) in elsewhere {
            *self.workload.foreign_resources.entry((*resource).to_owned()).or_default() += 1;
        }
        if nowhere.iter().any(|(resource, _)| **resource == SHARE_RESOURCE) {
            unit.missing.push(format!(
                "asks for {SHARE_RESOURCE}: a share has no size there, so no DeviceClass has this resource; ask for \
                 memory and cores in a claim, as `aliquot classes '8Gi 30%'` prints it, or for a whole card"
            ));
        } else if !nowhere.is_empty() {
            // Of another system's words the number says as much as the name.
            let in_words = |(name, amount): &(&&str, &String)| match is_about_cards(name) {
                true => format!("{name}: {amount}"),
                false => (**name).to_owned(),
            };
            let words: Vec<String> = nowhere.iter().map(in_words).collect();
            let known = nowhere.iter().any(|(resource, _)| is_about_cards(resource));
            let convert = if known { self.convert(pod) } else { String::new() };
            let what_to_do = match nowhere.first().and_then(|(first, _)| self.near(first)) {
                Some(near) => format!("did you mean {near}?"),
                None => format!(
                    "expected a claim; {convert}ask for the part as `aliquot classes` prints it, such as for '8Gi 30%' \
                     or for the line of the resource"
                ),
            };
            let found = "found no DeviceClass and no device plugin for it";
            unit.missing.push(format!("asks for {}: {found}, {what_to_do}", words.join(", ")));
        }
        if alone && nowhere.is_empty() && !pod.part_annotations.is_empty() && pod.node_name.is_none() {
            let words = pod.part_annotations.iter().map(|(name, value)| format!("{name}: {value}"));
            let words: Vec<String> = words.collect();
            unit.missing.push(format!(
                "asks by annotation for {}: only another scheduler gives that, expected a claim; {}ask for the part as \
                 `aliquot classes` prints it, such as for '8Gi 30%'",
                words.join(", "),
                self.convert(pod)
            ));
        }
    }

    /// The resource of a class that a mistyped one most likely is.
    fn near(&mut self, resource: &str) -> Option<String> {
        let classes = &self.classes;
        self.workload.hints.near(resource, |compared| classes.near(resource, compared))
    }

    /// The command that turns the Pod into one with claims, and the word before another way.
    fn convert(&self, pod: &Pod) -> String {
        let command = convert_command(self.files, &format!("pods -n {} {}", pod.namespace, pod.name));
        format!("`{command}` makes it one, or ")
    }
}

/// The command that converts these files, or these objects of the cluster.
pub(super) fn convert_command(files: &[String], objects: &str) -> String {
    let named: Vec<String> = files.iter().take(FILES_NAMED).map(|file| format!(" -f {file}")).collect();
    match named.is_empty() {
        true => format!("kubectl get {objects} -o yaml | aliquot convert --cluster -f -"),
        false => format!("aliquot convert{}", named.concat()),
    }
}

/// A number of a limit as it is usually written: `8000`, not `8k`.
fn limit_number(amount: Quantity) -> String {
    match (amount.format(), amount.as_integer()) {
        (QuantityFormat::DecimalSi, Some(number)) => number.to_string(),
        _ => amount.to_string(),
    }
}

/// Whether a resource is of a domain under which device plugins serve accelerators, or of classes.
fn is_of_accelerator(resource: &str) -> bool {
    let domain = resource.split_once('/').map_or("", |(domain, _)| domain);
    ACCELERATOR_DOMAINS.contains(&domain)
}

/// Configuration as the allocator copies it into an allocation.
fn from_claim(config: &RequestConfig) -> AllocatedConfig {
    AllocatedConfig {
        source: ConfigSource::Claim,
        requests: config.requests.clone(),
        opaque: config.opaque.clone(),
    }
}

fn request(name: &str, class: &DeviceClass, amount: Quantity) -> DeviceRequest {
    let count = u32::try_from(amount.units_rounded_up()).unwrap_or(u32::MAX);
    let exact = ExactRequest {
        device_class: class.name.clone(),
        selectors: Vec::new(),
        mode: AllocationMode::ExactCount(count),
        access: Access::Normal,
        tolerations: Vec::new(),
        capacity: class.extended_resource_capacity.clone(),
    };
    DeviceRequest { name: name.to_owned(), kind: RequestKind::Exactly(exact) }
}

// === impl ExtendedResources ===

impl<'m> ExtendedResources<'m> {
    /// Where several classes share a name, the newest counts; manifests do not tell ages, so the first by name does.
    fn of(classes: &'m [DeviceClass]) -> Self {
        let mut by_resource: BTreeMap<String, &DeviceClass> = BTreeMap::new();
        for class in classes {
            for resource in resources_of(class) {
                let known = by_resource.entry(resource).or_insert(class);
                if class.name < known.name {
                    *known = class;
                }
            }
        }
        Self(by_resource)
    }

    fn class(&self, resource: &str) -> Option<&'m DeviceClass> {
        self.0.get(resource).copied()
    }

    /// The resource of a class that a mistyped one most likely is: of the same domain, or of the same name.
    fn near(&self, resource: &str, compared: &mut Compared) -> Option<String> {
        let (domain, name) = resource.split_once('/')?;
        let alike = |known: &&String| {
            known.split_once('/').is_some_and(|(other, of)| {
                other == domain && compared.nearest(name, &[of]).is_some()
                    || of == name && compared.nearest(domain, &[other]).is_some()
            })
        };
        self.0.keys().find(alike).cloned()
    }
}

// === impl Unit ===

impl Unit {
    /// The Pod that asks.
    pub(super) fn pod<'m>(&self, manifests: &'m Manifests) -> Option<&'m Pod> {
        match self.owner {
            UnitOwner::Pod(number) => manifests.pods.get(number),
            UnitOwner::Claim => None,
        }
    }

    /// The Pod that asks, by place in the manifests.
    pub(super) const fn pod_number(&self) -> Option<usize> {
        match self.owner {
            UnitOwner::Pod(number) => Some(number),
            UnitOwner::Claim => None,
        }
    }

    /// How people call it.
    pub(super) fn label(&self, manifests: &Manifests, claims: &[ResourceClaim]) -> String {
        match self.owner {
            UnitOwner::Pod(number) => manifests
                .pods
                .get(number)
                .map(|p| format!("pod {}/{}", p.namespace, p.name))
                .unwrap_or_default(),
            UnitOwner::Claim => self
                .claims
                .first()
                .and_then(|c| claims.get(*c))
                .map(|c| format!("claim {}/{}", c.namespace, c.name))
                .unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests;
