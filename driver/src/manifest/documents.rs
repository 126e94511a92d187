//! Documents → objects: the kind, origin and name of each.

use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::ClaimUid;

use super::field::{Context, Origin, Path};
use super::meta::{Meta, Version};
use super::tree::YamlNode;
use super::{
    ClaimTemplate, Pod, Reader, allocation, claim, class, made_up_uid, name, node, pod, slice, taint,
    workload,
};
use workload::PodCount;

/// Pods that replicas of all files together may make; ten times the largest cluster that Kubernetes supports.
const PODS_MAX: usize = 1_500_000;

/// Kinds without a namespace.
const CLUSTER_WIDE: [&str; 5] = ["Node", "Namespace", "DeviceClass", "DeviceTaintRule", "ResourceSlice"];

const META_FIELDS: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "labels",
    "annotations",
    "generateName",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "selfLink",
];

/// The parts of an object that every kind has.
struct ObjectParts<'n, 'a> {
    root: Path<'n>,
    spec: Option<(&'n YamlNode<'a>, Path<'n>)>,
    status: Option<(&'n YamlNode<'a>, Path<'n>)>,
    meta: Meta,
}

impl Reader {
    /// Takes one document: an object, or a list of objects.
    pub(super) fn document(&mut self, node: &YamlNode<'_>) {
        self.objects += 1;
        self.object(node, Origin::Manifest);
    }

    /// Takes one item of a list, before the list.
    pub(super) fn item(&mut self, node: &YamlNode<'_>) {
        self.object(node, Origin::Dump);
    }

    fn object(&mut self, node: &YamlNode<'_>, origin: Origin) {
        let text = |key| node.get(key).and_then(YamlNode::text).unwrap_or_default();
        let (api, kind) = (text("apiVersion"), text("kind"));
        let written_by_server = node.get("metadata").is_some_and(|m| m.get("resourceVersion").is_some());
        self.cx.origin = if written_by_server { Origin::Dump } else { origin };
        kind.clone_into(&mut self.cx.kind);
        self.cx.object.clear();
        let root = Path::root(node.line);
        if api.is_empty() || kind.is_empty() {
            let found = node.describe();
            let what = if matches!(found.as_str(), "a map") { "an object" } else { found.as_str() };
            let of_plugin = ["mig-configs", "sharing"].iter().any(|key| node.get(key).is_some());
            let advice = match of_plugin {
                true => "; `aliquot convert` reads configurations of device plugins and of mig-parted",
                false => "",
            };
            let message = format!("found {what} without apiVersion and kind, expected an API object{advice}");
            self.cx.fault(&root, message);
            return;
        }
        match node.get("items") {
            Some(items) if kind.ends_with("List") => {
                for item in self.cx.items(items, &root) {
                    self.object(item, Origin::Dump);
                }
            }
            None if kind == "List" => {}
            _ => self.known(node, api, kind),
        }
    }

    fn known(&mut self, node: &YamlNode<'_>, api: &str, kind: &str) {
        let taint_rule = ["resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3"];
        if kind == "DeviceTaintRule" && taint_rule.contains(&api) {
            return self.read(node, kind, Version::V1);
        }
        let version = match api {
            "resource.k8s.io/v1" | "resource.k8s.io/v1beta2" => Version::V1,
            "resource.k8s.io/v1beta1" => Version::V1Beta1,
            _ => {
                return match (api, kind) {
                    ("v1", "Pod" | "Node" | "Namespace" | "ReplicationController")
                    | ("apps/v1", "Deployment" | "StatefulSet" | "ReplicaSet" | "DaemonSet")
                    | ("batch/v1", "Job" | "CronJob") => self.read(node, kind, Version::V1),
                    (api, kind) if api.starts_with("resource.k8s.io/") && is_device_kind(kind) => {
                        let message = format!(
                            "apiVersion {api} is not read; expected resource.k8s.io/v1, v1beta2 or v1beta1: \
                             kubectl convert, or kubectl get, gives one of them"
                        );
                        self.cx.error(&Path::root(node.line), message);
                    }
                    _ => *self.manifests.ignored.entry(format!("{kind} ({api})")).or_default() += 1,
                };
            }
        };
        if is_device_kind(kind) {
            self.read(node, kind, version);
        } else {
            *self.manifests.ignored.entry(format!("{kind} ({api})")).or_default() += 1;
        }
    }

    fn read(&mut self, node: &YamlNode<'_>, kind: &str, version: Version) {
        let before = self.cx.problems.errors();
        let root = Path::root(node.line);
        let named = |key| node.get("metadata").and_then(|m| m.get(key)).and_then(YamlNode::text);
        let namespace = named("namespace").unwrap_or("default").to_owned();
        let name = match (named("name"), named("generateName")) {
            (Some(name), _) => name.to_owned(),
            (None, Some(stem)) => self.generated_name(kind, stem),
            (None, None) => String::new(),
        };
        let cluster_wide = CLUSTER_WIDE.contains(&kind);
        self.cx.object = if cluster_wide { name.clone() } else { format!("{namespace}/{name}") };
        let mut parts = ObjectParts { root, spec: None, status: None, meta: Meta::default() };
        for entry in self.cx.entries(node, &root) {
            let at = Path::root(entry.line);
            match entry.key.as_ref() {
                "apiVersion" | "kind" => {}
                "metadata" => parts.meta = meta(&mut self.cx, &entry.value, &at.missing("metadata")),
                "spec" => parts.spec = Some((&entry.value, at)),
                "status" => parts.status = Some((&entry.value, at)),
                _ if matches!(kind, "Pod" | "Node" | "Namespace") => {}
                _ => self.cx.unknown(&root.key(entry), &["apiVersion", "kind", "metadata", "spec", "status"]),
            }
        }
        parts.meta.namespace = namespace;
        if parts.meta.name.is_empty() && named("name").is_none() {
            if name.is_empty() {
                self.cx.required(&root.missing("metadata"), "name", "a name, or generateName");
            }
            parts.meta.name = name;
        }
        self.first_of_its_name(kind, &root);
        self.dispatch(kind, version, parts, before);
    }

    /// The server puts random letters behind the name's stem, we a number: the same manifest is the same plan.
    fn generated_name(&mut self, kind: &str, stem: &str) -> String {
        let count = self.generated.entry(format!("{kind} {stem}")).or_default();
        *count += 1;
        format!("{stem}{count:05}")
    }

    /// The same kind and name twice is an error that names the first place.
    fn first_of_its_name(&mut self, kind: &str, root: &Path<'_>) {
        let key = format!("{kind} {}", self.cx.object);
        let here = format!("{}:{}", self.cx.file, root.line());
        match self.seen.get(&key) {
            Some(first) => {
                let message = format!("appears twice; the first is at {first}. Remove one or rename it");
                self.cx.fault(root, message);
            }
            None => {
                self.seen.insert(key, here);
            }
        }
    }

    fn dispatch(&mut self, kind: &str, version: Version, parts: ObjectParts<'_, '_>, before: usize) {
        let ObjectParts { root, spec, status, meta } = parts;
        let spec_step = root.missing("spec");
        let spec = spec.as_ref().map(|(node, at)| (*node, spec_step.on_line(at)));
        let status_step = root.missing("status");
        let status = status.as_ref().map(|(node, at)| (*node, status_step.on_line(at)));
        let spec_of = spec.as_ref().map(|(node, path)| (*node, path));
        let status_of = status.as_ref().map(|(node, path)| (*node, path));
        let cx = &mut self.cx;
        match kind {
            "Node" => {
                let node = node::node(cx, spec_of, status_of, meta);
                self.manifests.add_node(node);
            }
            "Namespace" => {
                self.manifests.namespaces.insert(meta.name, meta.labels);
            }
            "DeviceClass" => {
                let class = class::class(cx, spec_of, meta);
                keep(&mut self.manifests.classes, Some(class), cx, before);
            }
            "DeviceTaintRule" => {
                let rule = spec_of.and_then(|(node, path)| taint::rule(cx, node, path, &meta.name));
                spec_is_there(cx, spec_of, &root);
                keep(&mut self.manifests.taint_rules, rule, cx, before);
            }
            "ResourceSlice" => {
                let slice = spec_of.and_then(|(node, path)| slice::slice(cx, node, path, meta, version));
                spec_is_there(cx, spec_of, &root);
                keep(&mut self.manifests.slices, slice, cx, before);
            }
            "ResourceClaim" => {
                let claim = read_claim(cx, spec_of, status_of, meta, version);
                spec_is_there(cx, spec_of, &root);
                keep(&mut self.manifests.claims, claim, cx, before);
            }
            "ResourceClaimTemplate" => {
                let template = spec_of.map(|(node, path)| read_template(cx, node, path, meta, version));
                spec_is_there(cx, spec_of, &root);
                keep(&mut self.manifests.templates, template, cx, before);
            }
            "Pod" => {
                let pod = pod::pod(cx, spec_of, status_of, meta);
                keep(&mut self.manifests.pods, Some(pod), cx, before);
            }
            // A dump of a cluster has the Pods themselves.
            _ if cx.origin == Origin::Dump => {}
            _ => {
                let Some((node, path)) = spec_of else {
                    spec_is_there(cx, spec_of, &root);
                    return;
                };
                let (made, copies) = workload::pods(cx, kind, node, path, meta);
                match copies {
                    PodCount::Number(copies) => self.replicate(&made, copies, &root, before),
                    PodCount::OnEveryNode => keep(&mut self.manifests.daemons, Some(made), cx, before),
                }
            }
        }
    }

    fn replicate(&mut self, pod: &Pod, replicas: u32, root: &Path<'_>, before: usize) {
        let wanted = usize::try_from(replicas).unwrap_or(usize::MAX);
        if self.manifests.pods.len().saturating_add(wanted) > PODS_MAX {
            let message = format!("makes {replicas} Pods; at most {PODS_MAX} are planned at once");
            self.cx.error(root, message);
        }
        if self.cx.problems.errors() == before {
            let numbered = (0..replicas).map(|i| Pod { name: format!("{}-{i}", pod.name), ..pod.clone() });
            self.manifests.pods.extend(numbered);
        }
    }
}

fn is_device_kind(kind: &str) -> bool {
    matches!(kind, "ResourceClaim" | "ResourceClaimTemplate" | "DeviceClass" | "ResourceSlice")
}

/// Keeps an object that read without an error.
fn keep<T>(list: &mut Vec<T>, object: Option<T>, cx: &Context, before: usize) {
    if cx.problems.errors() == before {
        list.extend(object);
    }
}

fn spec_is_there(cx: &mut Context, spec: Option<(&YamlNode<'_>, &Path<'_>)>, root: &Path<'_>) {
    if spec.is_none() {
        cx.required(root, "spec", "what the object is about");
    }
}

fn meta(cx: &mut Context, value: &YamlNode<'_>, path: &Path<'_>) -> Meta {
    let mut meta = Meta::default();
    for entry in cx.entries(value, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "name" => meta.name = name::subdomain(cx, &entry.value, &at).unwrap_or_default(),
            "namespace" => name::namespace(cx, &entry.value, &at),
            "uid" => meta.uid = cx.string(&entry.value, &at),
            "labels" => meta.labels = node::object_labels(cx, &entry.value, &at),
            "annotations" => meta.annotations = node::annotations(cx, &entry.value, &at),
            "deletionTimestamp" => meta.deleted = entry.value.text().is_some(),
            known if META_FIELDS.contains(&known) => {}
            _ => cx.unknown(&at, META_FIELDS),
        }
    }
    meta
}

fn read_claim(
    cx: &mut Context,
    spec: Option<(&YamlNode<'_>, &Path<'_>)>,
    status: Option<(&YamlNode<'_>, &Path<'_>)>,
    meta: Meta,
    version: Version,
) -> Option<ResourceClaim> {
    let (node, path) = spec?;
    let spec = claim::spec(cx, node, path, version);
    let allocation = status.and_then(|(node, path)| allocation::status(cx, node, path));
    if meta.deleted && allocation.is_none() {
        cx.warn(path, "is being deleted and holds nothing; it is left out");
        return None;
    }
    let uid = match meta.uid {
        None => made_up_uid(&meta.namespace, &meta.name),
        Some(uid) => match ClaimUid::new(uid) {
            Ok(uid) => uid.as_str().to_owned(),
            Err(error) => {
                cx.error(&path.missing("metadata.uid"), error.to_string());
                return None;
            }
        },
    };
    Some(spec.claim(meta.namespace, meta.name, uid, allocation))
}

fn read_template(
    cx: &mut Context,
    node: &YamlNode<'_>,
    path: &Path<'_>,
    meta: Meta,
    version: Version,
) -> ClaimTemplate {
    let mut template =
        ClaimTemplate { namespace: meta.namespace, name: meta.name, spec: super::ClaimSpec::default() };
    for entry in cx.entries(node, path) {
        let at = path.key(entry);
        match entry.key.as_ref() {
            "spec" => template.spec = claim::spec(cx, &entry.value, &at, version),
            "metadata" => node::template_metadata(cx, &entry.value, &at),
            "devices" => cx.error(&at, "belongs one level deeper in a template: spec.spec.devices"),
            _ => cx.unknown(&at, &["metadata", "spec"]),
        }
    }
    if node.get("spec").is_none() && node.get("devices").is_none() {
        cx.required(path, "spec", "the spec of the claims that the template makes");
    }
    template
}
