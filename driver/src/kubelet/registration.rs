//! Registration: the kubelet asks for the plugin's name and endpoint, and says whether it accepted them.

use std::path::PathBuf;

use aliquot_core::offer::DRIVER;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::proto::pluginregistration_v1 as wire;

/// Services in the order of preference; the kubelet uses the first one that it knows.
pub const SERVICES: [&str; 4] =
    ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// Whether the kubelet accepted the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationOutcome {
    /// The kubelet has not answered.
    #[default]
    Waiting,
    /// It calls this plugin.
    Accepted,
    /// It refused, with its reason.
    Refused(String),
}

/// The registration service.
#[derive(Debug)]
pub struct RegistrationService {
    endpoint: PathBuf,
    registered: watch::Sender<RegistrationOutcome>,
}

// === impl RegistrationService ===

impl RegistrationService {
    /// A service that sends the kubelet to this endpoint, and reports its answer.
    #[must_use]
    pub const fn new(endpoint: PathBuf, registered: watch::Sender<RegistrationOutcome>) -> Self {
        Self { endpoint, registered }
    }
}

#[tonic::async_trait]
impl wire::registration_server::Registration for RegistrationService {
    async fn get_info(&self, _: Request<wire::InfoRequest>) -> Result<Response<wire::PluginInfo>, Status> {
        Ok(Response::new(wire::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<wire::RegistrationStatus>,
    ) -> Result<Response<wire::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let registered = if status.plugin_registered {
            tracing::info!("the kubelet registered the plugin");
            RegistrationOutcome::Accepted
        } else {
            let reason: String = status.error.chars().take(1024).collect();
            tracing::error!(reason = reason.escape_debug().to_string(), "the kubelet refused the plugin");
            RegistrationOutcome::Refused(reason)
        };
        self.registered.send_replace(registered);
        Ok(Response::new(wire::RegistrationStatusResponse {}))
    }
}
