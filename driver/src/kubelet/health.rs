//! `DRAResourceHealth`, v1 and v1alpha1: the whole list of devices at once, on every change, and before it expires.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures::Stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::proto::{health_v1, health_v1alpha1};
use crate::ports::{DeviceHealth, HealthWord};

/// After so long without a report the kubelet calls a device's health unknown.
pub const REPORT_VALID: Duration = Duration::from_secs(30);
/// A report is sent again after so long: half of what it is valid for.
const REPORT_AGAIN: Duration = Duration::from_secs(15);
/// Longest message, in bytes, that the kubelet keeps.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Health of every device.
pub type HealthList = Arc<Vec<DeviceHealth>>;

/// Both versions of the service.
#[derive(Clone, Debug)]
pub struct HealthService {
    list: watch::Receiver<HealthList>,
    stopped: watch::Receiver<bool>,
}

type Reports<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

// === impl HealthService ===

impl HealthService {
    /// The service over this list; its streams end once `stopped` is true.
    #[must_use]
    pub const fn new(list: watch::Receiver<HealthList>, stopped: watch::Receiver<bool>) -> Self {
        Self { list, stopped }
    }

    /// The list now, after each change, and before it expires; ends with the agent.
    fn lists(&self) -> impl Stream<Item = HealthList> + Send + 'static {
        let mut first = self.clone();
        first.list.mark_changed();
        futures::stream::unfold(first, |mut service| async move {
            let next = async {
                let changed = tokio::time::timeout(REPORT_AGAIN, service.list.changed()).await;
                !matches!(changed, Ok(Err(_)))
            };
            let goes_on = tokio::select! {
                goes_on = next => goes_on,
                _ = service.stopped.wait_for(|stop| *stop) => false,
            };
            let now = Arc::clone(&service.list.borrow_and_update());
            goes_on.then_some((now, service))
        })
    }
}

fn unix_seconds(health: &DeviceHealth) -> i64 {
    let since = health.observed.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The message as far as the kubelet keeps it, cut between characters.
fn message(health: &DeviceHealth) -> String {
    let mut bytes = 0;
    let fits = |c: &char| {
        bytes += c.len_utf8();
        bytes <= MESSAGE_BYTES_MAX
    };
    health.message.chars().take_while(fits).collect()
}

macro_rules! service {
    ($wire:ident) => {
        #[tonic::async_trait]
        impl $wire::dra_resource_health_server::DraResourceHealth for HealthService {
            type NodeWatchResourcesStream = Reports<$wire::NodeWatchResourcesResponse>;

            async fn node_watch_resources(
                &self,
                _: Request<$wire::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                let device = |health: &DeviceHealth| $wire::DeviceHealth {
                    device: Some($wire::DeviceIdentifier {
                        pool_name: health.device.pool.clone(),
                        device_name: health.device.device.clone(),
                    }),
                    health: match health.health {
                        HealthWord::Healthy => $wire::HealthStatus::Healthy,
                        HealthWord::Unhealthy => $wire::HealthStatus::Unhealthy,
                        HealthWord::Unknown => $wire::HealthStatus::Unknown,
                    }
                    .into(),
                    last_updated_time: unix_seconds(health),
                    health_check_timeout_seconds: i64::try_from(REPORT_VALID.as_secs()).unwrap_or_default(),
                    message: message(health),
                };
                let report = move |list: HealthList| {
                    let devices = list.iter().map(device).collect();
                    Ok($wire::NodeWatchResourcesResponse { devices })
                };
                let reports = futures::StreamExt::map(self.lists(), report);
                Ok(Response::new(Box::pin(reports)))
            }
        }
    };
}

service!(health_v1);
service!(health_v1alpha1);
