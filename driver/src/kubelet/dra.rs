//! `DRAPlugin`, v1 and v1beta1, over one handler: claims in, one entry for each of them out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use aliquot_core::disposition::Disposition;
use tonic::{Request, Response, Status};

use super::proto::{dra_v1, dra_v1beta1};
use crate::ports::{AgentError, BoxFuture};

/// A claim as the kubelet wrote it: nothing is checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireClaim {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A device of a claim as the kubelet reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireDevice {
    /// Base request.
    pub request: String,
    /// Pool.
    pub pool: String,
    /// Device.
    pub device: String,
    /// Qualified CDI name.
    pub cdi: String,
    /// Share, exactly as the allocation has it.
    pub share: Option<String>,
}

/// Results by claim UID; one entry for each claim of the request.
pub type ByClaim<T> = BTreeMap<String, Result<T, AgentError>>;

/// What answers the kubelet.
pub trait ClaimHandler: Send + Sync + 'static {
    /// Makes claims ready. Equal UIDs get one answer.
    fn prepare(&self, claims: Vec<WireClaim>) -> BoxFuture<'_, ByClaim<Vec<WireDevice>>>;

    /// Gives claims back.
    fn unprepare(&self, claims: Vec<WireClaim>) -> BoxFuture<'_, ByClaim<()>>;
}

/// Both versions of the service.
pub struct DraService(Arc<dyn ClaimHandler>);

// === impl DraService ===

impl DraService {
    /// The service over this handler.
    #[must_use]
    pub fn new(handler: Arc<dyn ClaimHandler>) -> Self {
        Self(handler)
    }
}

/// The error as the kubelet puts it into the Pod's Event: what comes of it, then the message. The kubelet itself always tries again.
fn text_of<T>(result: &Result<T, AgentError>) -> String {
    let Err(error) = result else { return String::new() };
    let what = match error.disposition {
        Disposition::Retry => "not yet",
        Disposition::Refuse => "refused",
        Disposition::Broken => "broken node",
    };
    format!("{what}: {error}")
}

/// One version of the service; the versions differ in `share_id` alone.
macro_rules! service {
    ($wire:ident, $device:expr) => {
        #[tonic::async_trait]
        impl $wire::dra_plugin_server::DraPlugin for DraService {
            async fn node_prepare_resources(
                &self,
                request: Request<$wire::NodePrepareResourcesRequest>,
            ) -> Result<Response<$wire::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims = claims.map(|c| WireClaim { namespace: c.namespace, name: c.name, uid: c.uid });
                let results = self.0.prepare(claims.collect()).await;
                let entry = |(uid, result): (String, Result<Vec<WireDevice>, AgentError>)| {
                    let error = text_of(&result);
                    let devices = result.unwrap_or_default().into_iter().map($device).collect();
                    (uid, $wire::NodePrepareResourceResponse { devices, error })
                };
                let claims: HashMap<_, _> = results.into_iter().map(entry).collect();
                Ok(Response::new($wire::NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$wire::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$wire::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims.into_iter();
                let claims = claims.map(|c| WireClaim { namespace: c.namespace, name: c.name, uid: c.uid });
                let results = self.0.unprepare(claims.collect()).await;
                let entry = |(uid, result): (String, Result<(), AgentError>)| {
                    (uid, $wire::NodeUnprepareResourceResponse { error: text_of(&result) })
                };
                let claims: HashMap<_, _> = results.into_iter().map(entry).collect();
                Ok(Response::new($wire::NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

service!(dra_v1, |device: WireDevice| dra_v1::Device {
    request_names: vec![device.request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: vec![device.cdi],
    share_id: device.share,
});

service!(dra_v1beta1, |device: WireDevice| dra_v1beta1::Device {
    request_names: vec![device.request],
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: vec![device.cdi],
});
