//! Claims, read when the kubelet asks for them.

use std::time::Duration;

use ::kube::Client;
use ::kube::core::Status;
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::ResourceClaim;
use aliquot_core::orphans::Knowledge;

use serde::Deserialize;

use super::client::Connection;
use super::convert;
use super::failure::{ApiCall, code, printable};
use crate::ports::{AgentError, BoxFuture, ClaimReader, ClaimReference};

/// Time that one GET may take; the kubelet waits 45 s for the whole call.
const GET_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest name of a namespace or an object.
const NAME_MAX: usize = 253;

/// Reads claims with one GET each.
#[derive(Clone)]
pub struct ApiClaims {
    client: Client,
}

// === impl ApiClaims ===

impl ApiClaims {
    /// A reader over this connection.
    #[must_use]
    pub fn new(connection: &Connection) -> Self {
        Self { client: connection.client.clone() }
    }

    async fn get(&self, claim: &ClaimReference) -> Result<ResourceClaim, AgentError> {
        let text = get_claim(&self.client, claim).await?;
        let refuse = |message: String| AgentError { message, disposition: Disposition::Refuse };
        let object = format!("claim {}/{}", claim.namespace, claim.name);
        let found = convert::claim(&text)
            .map_err(|faults| {
                refuse(format!("{object}: the server's object cannot be read: {}", printable(&faults)))
            })?
            .ok_or_else(|| {
                refuse(format!("{object}: found a claim in deletion, expected an allocated one"))
            })?;
        if found.uid != claim.uid.as_str() {
            return Err(refuse(format!(
                "{object}: found UID {}, expected {}; the claim was deleted and another one has its name",
                found.uid, claim.uid
            )));
        }
        if found.allocation.is_none() {
            return Err(refuse(format!(
                "{object}: found no status.allocation, expected one; the scheduler has not allocated the claim"
            )));
        }
        Ok(found)
    }
}

/// What is read of a claim to find it.
#[derive(Deserialize)]
struct FoundClaim {
    metadata: FoundMetadata,
}

#[derive(Deserialize)]
struct FoundMetadata {
    uid: String,
}

/// Whether an answer is the API server's word that it has no such claim. A proxy, or a server that does not serve the resource yet,
/// answers 404 without naming the claim.
fn is_absence(error: &::kube::Error, claim: &ClaimReference) -> bool {
    let ::kube::Error::Api(status) = error else { return false };
    let names = |status: &Status| status.details.as_ref().is_some_and(|details| details.name == claim.name);
    status.code == 404 && status.reason == "NotFound" && names(status)
}

impl ApiClaims {
    async fn find_claim(&self, claim: &ClaimReference) -> Result<Knowledge, AgentError> {
        let object = format!("{}/{}", claim.namespace, claim.name);
        let call = ApiCall { verb: "get", resource: "resourceclaims.resource.k8s.io", object: &object };
        let request = self.client.request_text(get_request(claim)?);
        let found: FoundClaim = match tokio::time::timeout(GET_TIMEOUT, request).await {
            Err(_elapsed) => return Err(call.timed_out(GET_TIMEOUT)),
            Ok(Err(error)) if is_absence(&error, claim) => return Ok(Knowledge::Absent),
            Ok(answer) => {
                let text = answer.map_err(|error| call.failed(&error))?;
                serde_json::from_str(&text).map_err(|error| AgentError {
                    message: format!("claim {object}: the server's object cannot be read: {error}"),
                    disposition: Disposition::Broken,
                })?
            }
        };
        // The claim was deleted, and another one has its name.
        let is_same = found.metadata.uid == claim.uid.as_str();
        Ok(if is_same { Knowledge::Known } else { Knowledge::Absent })
    }
}

impl ClaimReader for ApiClaims {
    fn read<'a>(&'a self, claim: &'a ClaimReference) -> BoxFuture<'a, Result<ResourceClaim, AgentError>> {
        Box::pin(self.get(claim))
    }

    fn find<'a>(&'a self, claim: &'a ClaimReference) -> BoxFuture<'a, Result<Knowledge, AgentError>> {
        Box::pin(self.find_claim(claim))
    }
}

/// The claim's path under the API server; names from outside are checked before they become part of it.
pub(super) fn path(claim: &ClaimReference) -> Result<String, AgentError> {
    let legal = |name: &str| {
        let bytes = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        !name.is_empty()
            && name.len() <= NAME_MAX
            && name.bytes().all(bytes)
            && !name.starts_with(['.', '-'])
            && !name.contains("..")
    };
    if !legal(&claim.namespace) || !legal(&claim.name) {
        let found = printable(&format!("{}/{}", claim.namespace, claim.name));
        return Err(AgentError {
            message: format!("claim: found the name `{found}`, expected a namespace and an object name"),
            disposition: Disposition::Refuse,
        });
    }
    let ClaimReference { namespace, name, .. } = claim;
    Ok(format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"))
}

fn get_request(claim: &ClaimReference) -> Result<http::Request<Vec<u8>>, AgentError> {
    http::Request::get(path(claim)?).body(Vec::new()).map_err(|error| AgentError {
        message: format!(
            "claim {}/{}: no request can be made of it: {error}",
            printable(&claim.namespace),
            printable(&claim.name)
        ),
        disposition: Disposition::Refuse,
    })
}

/// The claim as JSON text.
pub(super) async fn get_claim(client: &Client, claim: &ClaimReference) -> Result<String, AgentError> {
    let object = format!("{}/{}", claim.namespace, claim.name);
    let call = ApiCall { verb: "get", resource: "resourceclaims.resource.k8s.io", object: &object };
    match tokio::time::timeout(GET_TIMEOUT, client.request_text(get_request(claim)?)).await {
        Err(_elapsed) => Err(call.timed_out(GET_TIMEOUT)),
        Ok(Err(error)) if code(&error) == Some(404) => Err(AgentError {
            message: format!(
                "claim {object}: found nothing, expected a claim with UID {}; it was deleted",
                claim.uid
            ),
            disposition: Disposition::Refuse,
        }),
        Ok(result) => result.map_err(|error| call.failed(&error)),
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::id::ClaimUid;

    use super::*;

    #[test]
    fn hostile_names_never_reach_a_path() {
        let claim = |namespace: &str, name: &str| ClaimReference {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: ClaimUid::new("u1").unwrap(),
        };
        assert_eq!(
            path(&claim("a", "b.c-1")).unwrap(),
            "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/b.c-1"
        );
        let long = "a".repeat(NAME_MAX + 1);
        for name in ["", "..", "a/b", "a?b", "a%2fb", "a b", "A", "a\n", "../../nodes", ".a", &long] {
            let error = path(&claim("a", name)).unwrap_err();
            assert_eq!(error.disposition, Disposition::Refuse);
            path(&claim(name, "a")).unwrap_err();
        }
    }
}
