//! A namespace of a cluster: manifests are applied in it as `kubectl` does, its Pods are waited for, and it is deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Client, ClusterError, Output};

/// How long a Pod may take to start or end; many times what it takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// A namespace with an account, so that Pods can be created at once.
#[derive(Debug)]
pub struct Namespace<'a> {
    client: &'a Client,
    name: String,
}

impl<'a> Namespace<'a> {
    /// Creates a namespace.
    ///
    /// # Errors
    /// There is one of that name, or the API server refuses.
    pub fn create(client: &'a Client, name: &str, labels: &Value) -> Result<Self, ClusterError> {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
        });
        client.api().create("/api/v1/namespaces", &object)?;
        let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let account = format!("{name}/default");
        client.api().wait(&path, "the default account exists", PATIENCE, |accounts| {
            accounts.contains_key(&account).then_some(())
        })?;
        Ok(Self { client, name: name.to_owned() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of a core resource: `pods`, `events`.
    #[must_use]
    pub fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.name)
    }

    /// The path of the device API's resources: `resourceclaims`, `resourceclaimtemplates`.
    #[must_use]
    pub fn devices(&self, resource: &str) -> String {
        format!("/apis/resource.k8s.io/v1/namespaces/{}/{resource}", self.name)
    }

    /// The path of a resource of batch work: `jobs`.
    #[must_use]
    pub fn batch(&self, resource: &str) -> String {
        format!("/apis/batch/v1/namespaces/{}/{resource}", self.name)
    }

    /// Runs kubectl in the namespace.
    ///
    /// # Errors
    /// It ends with an exit code other than 0.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, ClusterError> {
        let words: Vec<&str> = ["-n", &self.name].into_iter().chain(arguments.iter().copied()).collect();
        self.client.kubectl(&words, input)
    }

    /// Creates the objects of a manifest.
    ///
    /// # Errors
    /// kubectl refuses the manifest.
    pub fn apply(&self, manifest: &str) -> Result<(), ClusterError> {
        self.kubectl(&["apply", "-f", "-"], manifest).map(drop)
    }

    /// Creates an object of a collection that [`Self::core`] or [`Self::devices`] names.
    ///
    /// # Errors
    /// The API server refuses it.
    pub fn create_object(&self, collection: &str, object: &Value) -> Result<Value, ClusterError> {
        Ok(self.client.api().create(collection, object)?)
    }

    /// A Pod by its name.
    ///
    /// # Errors
    /// There is none.
    pub fn pod(&self, name: &str) -> Result<Value, ClusterError> {
        Ok(self.client.api().get(&format!("{}/{name}", self.core("pods")))?)
    }

    /// Waits until so many Pods with this name prefix are ready, and returns their names.
    ///
    /// # Errors
    /// They are not ready in time; the message has their conditions and Events.
    pub fn running(
        &self,
        beginning: &str,
        count: usize,
        patience: Duration,
    ) -> Result<Vec<String>, ClusterError> {
        let condition = format!("{count} Pods {beginning}* run");
        let waited = self.client.api().wait(&self.core("pods"), &condition, patience, |pods| {
            let ready: Vec<String> = pods.values().filter(|pod| is_ready(pod)).map(name).collect();
            let ready: Vec<String> = ready.into_iter().filter(|name| name.starts_with(beginning)).collect();
            (ready.len() == count).then_some(ready)
        });
        waited.map_err(|error| {
            let events = self.kubectl(&["get", "events"], "").unwrap_or_default();
            ClusterError::failed(&self.name, format!("{error}\n{events}"))
        })
    }

    /// Waits for the scheduler's refusal of a Pod and returns its message.
    ///
    /// # Errors
    /// The Pod was placed, or there is no decision in time.
    pub fn unschedulable(&self, pod: &str) -> Result<String, ClusterError> {
        let path = format!("{}?fieldSelector=metadata.name={pod}", self.core("pods"));
        let decided = self.client.api().wait(&path, "the scheduler decides", PATIENCE, |pods| {
            let pod = pods.values().next()?;
            if let Some(node) = pod["spec"]["nodeName"].as_str() {
                return Some(Err(format!("found it placed on {node}, expected it to wait")));
            }
            let refused = condition(pod, "PodScheduled").filter(|found| found["status"] == json!("False"))?;
            Some(Ok(refused["message"].as_str().unwrap_or_default().to_owned()))
        })?;
        decided.map_err(|message| ClusterError::failed(pod, message))
    }

    /// Runs a command in a Pod to its end.
    ///
    /// # Errors
    /// kubectl cannot be run. An exit code is part of the output.
    pub fn exec(&self, pod: &str, command: &[&str]) -> Result<Output, ClusterError> {
        let words: Vec<&str> =
            ["-n", &self.name, "exec", pod, "--"].into_iter().chain(command.iter().copied()).collect();
        self.client.kubectl_output(&words, "")
    }

    /// Deletes a Pod and waits until it is gone.
    ///
    /// # Errors
    /// It stays.
    pub fn delete_pod(&self, pod: &str, grace_seconds: Option<u32>) -> Result<(), ClusterError> {
        self.client.api().delete(&format!("{}/{pod}", self.core("pods")), grace_seconds)?;
        let path = format!("{}?fieldSelector=metadata.name={pod}", self.core("pods"));
        Ok(self
            .client
            .api()
            .wait(&path, "the Pod is gone", PATIENCE, |pods| pods.is_empty().then_some(()))?)
    }

    /// Deletes a claim and waits until it is gone.
    ///
    /// # Errors
    /// It stays.
    pub fn delete_claim(&self, claim: &str) -> Result<(), ClusterError> {
        self.client.api().delete(&format!("{}/{claim}", self.devices("resourceclaims")), None)?;
        let path = format!("{}?fieldSelector=metadata.name={claim}", self.devices("resourceclaims"));
        Ok(self
            .client
            .api()
            .wait(&path, "the claim is gone", PATIENCE, |all| all.is_empty().then_some(()))?)
    }

    /// Waits until no claim is left: templates' claims go some time after their Pods.
    ///
    /// # Errors
    /// One stays.
    pub fn wait_without_claims(&self) -> Result<(), ClusterError> {
        let path = self.devices("resourceclaims");
        Ok(self.client.api().wait(&path, "no claim is left", PATIENCE, |all| all.is_empty().then_some(()))?)
    }

    /// Waits until no claim of a template is left.
    fn wait_without_claims_of_pods(&self) -> Result<(), ClusterError> {
        let of_a_pod = |claim: &Value| !claim["metadata"]["ownerReferences"].is_null();
        let path = self.devices("resourceclaims");
        Ok(self.client.api().wait(&path, "no claim of a Pod is left", PATIENCE, |all| {
            (!all.values().any(of_a_pod)).then_some(())
        })?)
    }

    /// The devices of all claims: `claim name → [driver's results]`. Names of a template's claims begin with their Pod's.
    ///
    /// # Errors
    /// The API server does not answer.
    pub fn allocations(&self) -> Result<BTreeMap<String, Vec<Value>>, ClusterError> {
        let list = self.client.api().get(&self.devices("resourceclaims"))?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let results = |claim: &Value| {
            claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default()
        };
        Ok(items.iter().map(|claim| (name(claim), results(claim))).collect())
    }

    /// Deletes the namespace with all that is in it and waits until it is gone.
    ///
    /// # Errors
    /// It stays.
    pub fn delete(&self) -> Result<(), ClusterError> {
        let api = self.client.api();
        // The namespace's controller looks for what is left only every few seconds.
        for makers in ["deployments", "replicasets"] {
            api.delete(&format!("/apis/apps/v1/namespaces/{}/{makers}", self.name), None)?;
        }
        api.delete(&self.core("pods"), None)?;
        api.wait(&self.core("pods"), "no Pod is left", PATIENCE, |pods| pods.is_empty().then_some(()))?;
        self.wait_without_claims_of_pods()?;
        api.delete(&format!("/api/v1/namespaces/{}", self.name), None)?;
        let path = format!("/api/v1/namespaces?fieldSelector=metadata.name={}", self.name);
        Ok(api.wait(&path, "the namespace is gone", PATIENCE, |all| all.is_empty().then_some(()))?)
    }
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// A condition of a Pod by its type.
fn condition<'v>(pod: &'v Value, kind: &str) -> Option<&'v Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == json!(kind))
}

fn is_ready(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
        && condition(pod, "Ready").is_some_and(|ready| ready["status"] == json!("True"))
}
