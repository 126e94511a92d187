//! A live cluster as manifests: what `kubectl get … -A -o json` would give, page by page.

use std::time::Duration;

use ::kube::Client;
use aliquot_core::offer::ServerVersion;
use serde_json::Value;

use super::client::Connection;
use super::failure::{ApiCall, code, printable};
use super::version;
use crate::manifest::Reader;
use crate::ports::AgentError;

/// Objects of one page; the size that kubectl asks for.
const PAGE: usize = 500;
/// Longest duration of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Listings of one resource: a page token that expires begins it again.
const LISTINGS_MAX: usize = 3;

/// A resource, under each API version that may serve it, best first.
struct Resource {
    name: &'static str,
    /// As RBAC names it.
    full: &'static str,
    prefixes: &'static [&'static str],
    presence: Presence,
    /// Without a namespace in its path there is one list for all.
    reach: ResourceReach,
}

/// Whether objects of a resource lie in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResourceReach {
    Cluster,
    Namespaces,
}

/// Which namespaces are to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceScope {
    /// All that may be read: without the right for all, this one, or that of the kubeconfig's context.
    #[default]
    Readable,
    /// As before, with this one.
    Named(String),
    /// All, or the read fails.
    All,
}

/// What was not read, for want of a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Resource, as RBAC names it.
    pub resource: &'static str,
    /// The one namespace in which it was read; `None`: it was not read at all.
    pub only: Option<String>,
}

/// Whether a cluster must serve a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Required,
    /// Not every version serves it; without the right to list it some questions stay open.
    Optional,
    /// Without the right to list it some questions stay open.
    Helpful,
}

const DEVICE_PREFIXES: &[&str] =
    &["/apis/resource.k8s.io/v1", "/apis/resource.k8s.io/v1beta2", "/apis/resource.k8s.io/v1beta1"];

const RESOURCES: &[Resource] = &[
    Resource::devices("resourceslices", SLICES),
    Resource::devices("deviceclasses", "deviceclasses.resource.k8s.io"),
    Resource { reach: ResourceReach::Namespaces, ..Resource::devices("resourceclaims", CLAIMS) },
    Resource {
        reach: ResourceReach::Namespaces,
        presence: Presence::Helpful,
        ..Resource::devices("resourceclaimtemplates", TEMPLATES)
    },
    Resource::of_core(NODES),
    Resource::of_core("namespaces"),
    Resource { reach: ResourceReach::Namespaces, ..Resource::of_core(PODS) },
    Resource {
        name: "devicetaintrules",
        full: TAINT_RULES,
        prefixes: &[
            "/apis/resource.k8s.io/v1",
            "/apis/resource.k8s.io/v1beta2",
            "/apis/resource.k8s.io/v1alpha3",
        ],
        presence: Presence::Optional,
        reach: ResourceReach::Cluster,
    },
];

const SLICES: &str = "resourceslices.resource.k8s.io";
const CLAIMS: &str = "resourceclaims.resource.k8s.io";
const TEMPLATES: &str = "resourceclaimtemplates.resource.k8s.io";
const TAINT_RULES: &str = "devicetaintrules.resource.k8s.io";
const NODES: &str = "nodes";
const PODS: &str = "pods";

/// Why a cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// A request failed.
    #[error("cluster {server}: {error}")]
    Request {
        /// Address of the API server.
        server: String,
        /// The request's error.
        error: AgentError,
    },
    /// The credentials may not list these resources.
    #[error(
        "cluster {server}: listing is forbidden: found no verb `list` on {}, expected it on all of them; \
         ask an administrator for a ClusterRole with it, such as `aliquot-viewer` of the chart",
        resources.join(", ")
    )]
    Forbidden {
        /// Address of the API server.
        server: String,
        /// Resources as RBAC names them.
        resources: Vec<&'static str>,
    },
    /// The server has no device API.
    #[error(
        "cluster {server}: found no {resource} (Kubernetes {version}), expected resource.k8s.io in v1, v1beta2 or \
         v1beta1; dynamic resource allocation needs Kubernetes 1.34, or its feature gate"
    )]
    NotServed {
        /// Address of the API server.
        server: String,
        /// Resource as RBAC names it.
        resource: &'static str,
        /// The server's version, as it states it.
        version: String,
    },
}

/// What is known of the cluster besides its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingSummary {
    /// Address of the API server.
    pub server: String,
    /// Its version; `None` if it states none that is understood.
    pub version: Option<ServerVersion>,
    /// Objects read.
    pub objects: usize,
    /// What may not be listed, and is done without.
    pub unread: Vec<Unread>,
}

// === impl Unread ===

impl Unread {
    /// What stays open without it, in words; `None`: nothing does.
    #[must_use]
    pub fn hides(&self) -> Option<&'static str> {
        Some(match (self.resource, &self.only) {
            (CLAIMS, _) => "which devices claims of other namespaces hold",
            (NODES, _) => "labels, taints, free CPU and memory of nodes",
            (PODS, Some(_)) => {
                "CPU, memory and ports that Pods of other namespaces use, and affinity to them"
            }
            (PODS, None) => "which Pods use the claims, and what they want of nodes",
            (TEMPLATES, Some(_)) => return None,
            (TEMPLATES, None) => "claims that Pods get from templates",
            (TAINT_RULES, _) => "taints that rules put on devices",
            _ => "what depends on labels of namespaces",
        })
    }
}

// === impl Resource ===

impl Resource {
    const fn devices(name: &'static str, full: &'static str) -> Self {
        let (prefixes, presence) = (DEVICE_PREFIXES, Presence::Required);
        Self { name, full, prefixes, presence, reach: ResourceReach::Cluster }
    }

    const fn of_core(name: &'static str) -> Self {
        let (prefixes, presence) = (&["/api/v1"], Presence::Helpful);
        Self { name, full: name, prefixes, presence, reach: ResourceReach::Cluster }
    }
}

/// Names of the resources that a cluster is read from.
pub fn resources() -> impl Iterator<Item = &'static str> {
    RESOURCES.iter().map(|resource| resource.name)
}

/// Reads slices, classes, claims, templates, nodes, Pods, namespaces and taint rules into the reader, as far as they are served and
/// may be listed. What lies in namespaces is read of one where the right ends there.
/// `progress` is called with the number of resources that are read, and of all.
///
/// # Errors
/// [`ListError::Forbidden`] names every resource without which nothing can be said, at once.
pub async fn read(
    connection: &Connection,
    scope: &NamespaceScope,
    reader: &mut Reader,
    mut progress: impl FnMut(usize, usize),
) -> Result<ListingSummary, ListError> {
    let server = connection.server().to_owned();
    let request = |error: AgentError| ListError::Request { server: server.clone(), error };
    let client = &connection.client;
    let call = ApiCall { verb: "get", resource: "/version", object: "" };
    let info = match tokio::time::timeout(REQUEST_TIMEOUT, client.apiserver_version()).await {
        Err(_elapsed) => return Err(request(call.timed_out(REQUEST_TIMEOUT))),
        Ok(info) => info.map_err(|error| request(call.failed(&error)))?,
    };
    let namespace = match scope {
        NamespaceScope::Readable => Some(connection.namespace()),
        NamespaceScope::Named(name) => Some(name.as_str()),
        NamespaceScope::All => None,
    };
    let (mut forbidden, mut unread, mut objects) = (Vec::new(), Vec::new(), 0);
    for (number, resource) in RESOURCES.iter().enumerate() {
        progress(number, RESOURCES.len());
        match list_readable(client, resource, namespace).await {
            Ok(ReadPages { pages: Some(pages), only }) => {
                for page in pages {
                    objects += page.objects;
                    reader.text(&format!("{server} {}", resource.name), &page.text);
                }
                unread.extend(only.map(|only| Unread { resource: resource.full, only: Some(only) }));
            }
            Ok(ReadPages { pages: None, .. }) if resource.presence != Presence::Required => {}
            Ok(ReadPages { pages: None, .. }) => {
                let version = printable(&info.git_version);
                return Err(ListError::NotServed { server, resource: resource.full, version });
            }
            Err(ListFailure::Forbidden) if resource.presence == Presence::Required => {
                forbidden.push(resource.full);
            }
            Err(ListFailure::Forbidden) => unread.push(Unread { resource: resource.full, only: None }),
            Err(ListFailure::Failed(error)) => return Err(request(error)),
        }
    }
    // A right that ends at one namespace is none for all of them.
    if *scope == NamespaceScope::All {
        let lying = RESOURCES.iter().filter(|resource| resource.reach == ResourceReach::Namespaces);
        let names: Vec<&str> = lying.map(|resource| resource.full).collect();
        forbidden.extend(unread.iter().map(|one| one.resource).filter(|name| names.contains(name)));
    }
    if !forbidden.is_empty() {
        return Err(ListError::Forbidden { server, resources: forbidden });
    }
    let version = version::server_version(&info.major, &info.minor, &info.git_version);
    Ok(ListingSummary { server, version, objects, unread })
}

/// Pages of a resource.
struct ReadPages {
    /// `None`: no version of the API serves it.
    pages: Option<Vec<Page>>,
    /// The one namespace that they are of; `None`: of all.
    only: Option<String>,
}

/// All pages of a resource, or those of this namespace where no more may be listed.
async fn list_readable(
    client: &Client,
    resource: &Resource,
    namespace: Option<&str>,
) -> Result<ReadPages, ListFailure> {
    match (list(client, resource, None).await, namespace) {
        (Err(ListFailure::Forbidden), Some(only)) if resource.reach == ResourceReach::Namespaces => {
            let pages = list(client, resource, Some(only)).await?;
            Ok(ReadPages { pages, only: Some(only.to_owned()) })
        }
        (pages, _) => Ok(ReadPages { pages: pages?, only: None }),
    }
}

/// One page, as a list that the manifest reader takes.
struct Page {
    text: String,
    objects: usize,
    next: Option<String>,
}

enum ListFailure {
    Forbidden,
    Failed(AgentError),
}

/// All pages of a resource, of one namespace or of all; `None`: no version of the API serves it.
async fn list(
    client: &Client,
    resource: &Resource,
    namespace: Option<&str>,
) -> Result<Option<Vec<Page>>, ListFailure> {
    let within = namespace.map(|name| format!("/namespaces/{}", encoded(name))).unwrap_or_default();
    for prefix in resource.prefixes {
        let (mut listings, path) = (0, format!("{prefix}{within}/{}", resource.name));
        loop {
            match pages(client, &path).await {
                Ok(pages) => return Ok(Some(pages)),
                Err(error) => match code(&error) {
                    Some(404) => break,
                    Some(403) => return Err(ListFailure::Forbidden),
                    // A page token lives some minutes only.
                    Some(410) if listings + 1 < LISTINGS_MAX => listings += 1,
                    _ => {
                        let call = ApiCall { verb: "list", resource: resource.full, object: "" };
                        return Err(ListFailure::Failed(call.failed(&error)));
                    }
                },
            }
        }
    }
    Ok(None)
}

async fn pages(client: &Client, path: &str) -> Result<Vec<Page>, ::kube::Error> {
    let mut pages: Vec<Page> = Vec::new();
    loop {
        let next = pages.last().and_then(|page| page.next.as_deref());
        let token = next.map(|token| format!("&continue={}", encoded(token))).unwrap_or_default();
        let request = http::Request::get(format!("{path}?limit={PAGE}{token}"))
            .body(Vec::new())
            .map_err(::kube::Error::HttpError)?;
        let text = match tokio::time::timeout(REQUEST_TIMEOUT, client.request_text(request)).await {
            Ok(text) => text?,
            Err(elapsed) => return Err(::kube::Error::Service(elapsed.into())),
        };
        let page = page(&text).map_err(::kube::Error::SerdeError)?;
        let last = page.next.is_none();
        pages.push(page);
        if last {
            return Ok(pages);
        }
    }
}

/// A server's page: its items carry neither kind nor version, which the list states once for all.
fn page(text: &str) -> Result<Page, serde_json::Error> {
    let mut list: Value = serde_json::from_str(text)?;
    let kind = list["kind"].as_str().unwrap_or_default();
    let kind = kind.strip_suffix("List").unwrap_or(kind).to_owned();
    let api = list["apiVersion"].as_str().unwrap_or_default().to_owned();
    let next = list["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
    let mut items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.insert("kind".to_owned(), kind.clone().into());
        item.insert("apiVersion".to_owned(), api.clone().into());
        if let Some(meta) = item.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
    }
    let objects = items.len();
    let text = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
    Ok(Page { text, objects, next })
}

/// A token as part of a query.
fn encoded(token: &str) -> String {
    let mut out = String::new();
    for byte in token.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_a_page_get_their_kind() {
        let text = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":"a+/="},
            "items":[{"metadata":{"name":"n1","resourceVersion":"1","managedFields":[{}]}}]}"#;
        let page = page(text).unwrap();
        assert_eq!((page.objects, page.next.as_deref()), (1, Some("a+/=")));
        let (manifests, problems) = crate::manifest::read("x", &page.text);
        assert_eq!((manifests.nodes.len(), problems.len()), (1, 0));
        assert!(!page.text.contains("managedFields"));
        assert_eq!(encoded("a+/=\u{e9}"), "a%2B%2F%3D%C3%A9");
    }
}
