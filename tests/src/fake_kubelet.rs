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
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a socket.
const APPEAR: Duration = Duration::from_secs(20);

/// A kubelet with directories of its own.
#[derive(Debug)]
pub struct FakeKubelet {
    root: tempfile::TempDir,
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
        Self { root: tempfile::Builder::new().prefix("k").tempdir().unwrap() }
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
        let began = Instant::now();
        loop {
            let found = self.registrations();
            if let Some(socket) = found.first()
                && let Ok(plugin) = Self::accept(socket).await
            {
                return plugin;
            }
            assert!(began.elapsed() < APPEAR, "no plugin registers: {found:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn accept(socket: &Path) -> Result<Plugin, String> {
        let text = |error: &dyn std::error::Error| format!("{error}: {:?}", error.source());
        let authority = socket.display().to_string().replace('/', "%2F");
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(|e| text(&e))?;
        let origin = format!("http://{authority}").parse().map_err(|e| text(&e))?;
        let channel = endpoint.origin(origin).connect().await.map_err(|e| text(&e))?;
        let mut client = registration::registration_client::RegistrationClient::new(channel);
        let info = client.get_info(registration::InfoRequest {}).await.map_err(|e| text(&e))?.into_inner();
        let channel = Endpoint::try_from(format!("unix://{}", info.endpoint)).map_err(|e| text(&e))?;
        let channel = channel.connect().await.map_err(|e| text(&e))?;
        let status = registration::RegistrationStatus { plugin_registered: true, error: String::new() };
        client.notify_registration_status(status).await.map_err(|e| text(&e))?;
        Ok(Plugin { info, channel })
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
