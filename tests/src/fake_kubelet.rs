//! A kubelet's side of the plugin protocol: it finds the registration socket, gets the plugin's info, and
//! calls the service.
//!
//! It sends what a real one sends: the registration call carries the percent-encoded socket path as `:authority`.

#![expect(clippy::unwrap_used, reason = "a kubelet that cannot call fails the test that wants it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aliquot_driver::kubelet::proto::{
    dra_v1, dra_v1beta1, health_v1, health_v1alpha1, pluginregistration_v1 as registration,
};
use parking_lot::Mutex;
use serde_json::json;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a socket.
const APPEAR: Duration = Duration::from_secs(20);

/// A kubelet with directories of its own.
#[derive(Debug)]
pub struct FakeKubelet {
    root: tempfile::TempDir,
    /// Plugins in the order of their registration, by socket.
    plugins: Mutex<Vec<(PathBuf, Plugin)>>,
}

/// A plugin that was asked for its name, and waits for the kubelet's decision.
#[derive(Debug)]
pub struct Candidate {
    plugin: Plugin,
    registration: registration::registration_client::RegistrationClient<Channel>,
}

/// A plugin that it has registered.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// What the plugin said of itself.
    pub info: registration::PluginInfo,
    channel: Channel,
}

/// A claim as the kubelet names it: namespace, name, UID.
pub type Named<'n> = (&'n str, &'n str, &'n str);

/// Devices or the error, by UID.
pub type Prepared = BTreeMap<String, Result<Vec<dra_v1::Device>, String>>;

// === impl FakeKubelet ===

impl Default for FakeKubelet {
    fn default() -> Self {
        let root = tempfile::Builder::new().prefix("k").tempdir().unwrap();
        Self { root, plugins: Mutex::default() }
    }
}

impl FakeKubelet {
    /// Directory of registration sockets.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.root.path().join("plugins_registry")
    }

    /// Directory of the plugin.
    #[must_use]
    pub fn plugin_dir(&self) -> PathBuf {
        self.root.path().join("plugins/aliquot.dev")
    }

    /// Its directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Directory of device plugins; absent until it is made.
    #[must_use]
    pub fn device_plugins(&self) -> PathBuf {
        self.root.path().join("device-plugins")
    }

    /// Its record of claims; absent until it is written.
    #[must_use]
    pub fn claim_state(&self) -> PathBuf {
        self.root.path().join("dra_manager_state")
    }

    /// Writes its record with the claims of these UIDs, as Kubernetes 1.36 does.
    pub fn record(&self, claims: &[&str]) {
        let entry =
            |uid: &&str| json!({"ClaimUID": uid, "ClaimName": format!("claim-{uid}"), "Namespace": "test"});
        let entries: Vec<_> = claims.iter().map(entry).collect();
        let data = json!({
            "kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "Entries": entries,
        });
        let data = data.to_string();
        let sum = data.bytes().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 * (sum & 1)))
        });
        let text = json!({"Data": data, "Checksum": !sum}).to_string();
        let written = self.root.path().join("dra_manager_state.new");
        std::fs::write(&written, text).unwrap();
        std::fs::rename(written, self.claim_state()).unwrap();
    }

    /// Registration sockets that are there now.
    #[must_use]
    pub fn registrations(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.registry()).into_iter().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }

    /// Waits for a registration socket, gets the plugin's info, and accepts the plugin.
    pub async fn register(&self) -> Plugin {
        self.find().await.accept().await
    }

    /// Waits for a registration socket, and asks there.
    pub async fn find(&self) -> Candidate {
        let began = Instant::now();
        loop {
            let found = self.registrations();
            if let Some(socket) = found.first()
                && let Ok(candidate) = Candidate::ask(socket).await
            {
                return candidate;
            }
            assert!(began.elapsed() < APPEAR, "no plugin registers: {found:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// One round of a kubelet's plugin watcher: forgets plugins without a socket, accepts those with new ones.
    pub async fn reconcile(&self) {
        let found = self.registrations();
        self.plugins.lock().retain(|(socket, _)| found.contains(socket));
        for socket in found {
            let known = self.plugins.lock().iter().any(|(of, _)| *of == socket);
            if !known && let Ok(candidate) = Candidate::ask(&socket).await {
                let plugin = candidate.accept().await;
                self.plugins.lock().push((socket, plugin));
            }
        }
    }

    /// The plugin that a kubelet calls: the one that registered last.
    #[must_use]
    pub fn current(&self) -> Option<Plugin> {
        self.plugins.lock().last().map(|(_, plugin)| plugin.clone())
    }
}

// === impl Candidate ===

impl Candidate {
    async fn ask(socket: &Path) -> Result<Self, String> {
        let text = |error: &dyn std::error::Error| format!("{error}: {:?}", error.source());
        let authority = socket.display().to_string().replace('/', "%2F");
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(|e| text(&e))?;
        let origin = format!("http://{authority}").parse().map_err(|e| text(&e))?;
        let channel = endpoint.origin(origin).connect().await.map_err(|e| text(&e))?;
        let mut registration = registration::registration_client::RegistrationClient::new(channel);
        let info =
            registration.get_info(registration::InfoRequest {}).await.map_err(|e| text(&e))?.into_inner();
        let channel = Endpoint::try_from(format!("unix://{}", info.endpoint)).map_err(|e| text(&e))?;
        let channel = channel.connect().await.map_err(|e| text(&e))?;
        Ok(Self { plugin: Plugin { info, channel }, registration })
    }

    /// Its service, which a kubelet would not call yet.
    #[must_use]
    pub const fn plugin(&self) -> &Plugin {
        &self.plugin
    }

    /// Tells the plugin that it is registered.
    pub async fn accept(mut self) -> Plugin {
        let status = registration::RegistrationStatus { plugin_registered: true, error: String::new() };
        self.registration.notify_registration_status(status).await.unwrap();
        self.plugin
    }

    /// Tells the plugin that it is not registered.
    pub async fn refuse(&mut self, error: &str) {
        let status = registration::RegistrationStatus { plugin_registered: false, error: error.to_owned() };
        self.registration.notify_registration_status(status).await.unwrap();
    }
}

fn claims(named: &[Named<'_>]) -> Vec<dra_v1::Claim> {
    let text = |(namespace, name, uid): &Named<'_>| dra_v1::Claim {
        namespace: (*namespace).to_owned(),
        uid: (*uid).to_owned(),
        name: (*name).to_owned(),
    };
    named.iter().map(text).collect()
}

// === impl Plugin ===

impl Plugin {
    /// NodePrepareResources of v1.
    pub async fn prepare(&self, named: &[Named<'_>]) -> Prepared {
        let mut client = dra_v1::dra_plugin_client::DraPluginClient::new(self.channel.clone());
        let request = dra_v1::NodePrepareResourcesRequest { claims: claims(named) };
        let answer = client.node_prepare_resources(request).await.unwrap().into_inner();
        let result = |entry: dra_v1::NodePrepareResourceResponse| match entry.error.is_empty() {
            true => Ok(entry.devices),
            false => Err(entry.error),
        };
        answer.claims.into_iter().map(|(uid, entry)| (uid, result(entry))).collect()
    }

    /// NodePrepareResources of v1beta1: CDI names by UID.
    pub async fn prepare_beta(&self, named: &[Named<'_>]) -> BTreeMap<String, Vec<String>> {
        let mut client = dra_v1beta1::dra_plugin_client::DraPluginClient::new(self.channel.clone());
        let beta = |c: dra_v1::Claim| dra_v1beta1::Claim { namespace: c.namespace, uid: c.uid, name: c.name };
        let claims = claims(named).into_iter().map(beta).collect();
        let request = dra_v1beta1::NodePrepareResourcesRequest { claims };
        let answer = client.node_prepare_resources(request).await.unwrap().into_inner();
        let names = |entry: dra_v1beta1::NodePrepareResourceResponse| {
            entry.devices.into_iter().flat_map(|device| device.cdi_device_ids).collect()
        };
        answer.claims.into_iter().map(|(uid, entry)| (uid, names(entry))).collect()
    }

    /// NodeUnprepareResources of v1: the errors, by UID; empty text is success.
    pub async fn unprepare(&self, named: &[Named<'_>]) -> BTreeMap<String, String> {
        let mut client = dra_v1::dra_plugin_client::DraPluginClient::new(self.channel.clone());
        let request = dra_v1::NodeUnprepareResourcesRequest { claims: claims(named) };
        let answer = client.node_unprepare_resources(request).await.unwrap().into_inner();
        answer.claims.into_iter().map(|(uid, entry)| (uid, entry.error)).collect()
    }

    /// The stream of health reports, v1.
    pub async fn health(&self) -> tonic::Streaming<health_v1::NodeWatchResourcesResponse> {
        let mut client =
            health_v1::dra_resource_health_client::DraResourceHealthClient::new(self.channel.clone());
        client.node_watch_resources(health_v1::NodeWatchResourcesRequest {}).await.unwrap().into_inner()
    }

    /// The stream of health reports, v1alpha1.
    pub async fn health_alpha(&self) -> tonic::Streaming<health_v1alpha1::NodeWatchResourcesResponse> {
        let mut client =
            health_v1alpha1::dra_resource_health_client::DraResourceHealthClient::new(self.channel.clone());
        client.node_watch_resources(health_v1alpha1::NodeWatchResourcesRequest {}).await.unwrap().into_inner()
    }
}
