//! The two gRPC servers, with the order in which they start and stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Router;

use super::dra::{ClaimHandler, DraService};
use super::health::{HealthList, HealthService};
use super::proto::{dra_v1, dra_v1beta1, health_v1, health_v1alpha1, pluginregistration_v1};
use super::registration::{RegistrationOutcome, RegistrationService};
use super::sockets::{SocketError, SocketPaths, bind, remove};

/// Longest wait for calls in progress at a stop: the kubelet repeats those that are cut off a minute later.
const DRAIN: Duration = Duration::from_secs(30);

/// What the kubelet reaches.
pub struct Services {
    /// Prepares and unprepares.
    pub handler: Arc<dyn ClaimHandler>,
    /// Health of every device.
    pub health: watch::Receiver<HealthList>,
    /// Where the kubelet's answer to the registration goes.
    pub registered: watch::Sender<RegistrationOutcome>,
}

/// Both servers, running.
#[derive(Debug)]
pub struct KubeletServer {
    paths: SocketPaths,
    service: RunningServer,
    registration: RunningServer,
}

#[derive(Debug)]
struct RunningServer {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

// === impl KubeletServer ===

impl KubeletServer {
    /// Binds and serves both sockets, the service first.
    ///
    /// # Errors
    /// [`SocketError`]; nothing is served then.
    pub fn start(paths: SocketPaths, services: Services) -> Result<Self, SocketError> {
        let (handler, health) = (services.handler, services.health);
        let (stop, stopped) = watch::channel(false);
        let router = Server::builder()
            .add_service(dra_v1::dra_plugin_server::DraPluginServer::new(DraService::new(Arc::clone(
                &handler,
            ))))
            .add_service(dra_v1beta1::dra_plugin_server::DraPluginServer::new(DraService::new(handler)))
            .add_service(health_v1::dra_resource_health_server::DraResourceHealthServer::new(
                HealthService::new(health.clone(), stopped.clone()),
            ))
            .add_service(health_v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(
                HealthService::new(health, stopped),
            ));
        let service = RunningServer::start(bind(&paths.service)?, router, stop);
        let endpoint = paths.service.clone();
        let registration = RegistrationService::new(endpoint, services.registered);
        let router = Server::builder()
            .add_service(pluginregistration_v1::registration_server::RegistrationServer::new(registration));
        let registration =
            RunningServer::start(bind(&paths.registration)?, router, watch::Sender::new(false));
        Ok(Self { paths, service, registration })
    }

    /// Stops both: registration first. Calls in progress have a few seconds to end.
    ///
    /// # Errors
    /// A socket file cannot be removed; both servers are stopped nevertheless.
    pub async fn stop(self) -> Result<(), SocketError> {
        let registration = remove(&self.paths.registration);
        self.registration.stop().await;
        let service = remove(&self.paths.service);
        self.service.stop().await;
        registration.and(service)
    }

    /// Removes both sockets without waiting for calls.
    ///
    /// # Errors
    /// A socket file cannot be removed.
    pub fn abandon(self) -> Result<(), SocketError> {
        let registration = remove(&self.paths.registration);
        let service = remove(&self.paths.service);
        self.registration.task.abort();
        self.service.task.abort();
        registration.and(service)
    }

    /// Waits until one of the servers ends by itself.
    pub async fn failed(&mut self) -> String {
        let (which, result) = tokio::select! {
            result = &mut self.service.task => ("service", result),
            result = &mut self.registration.task => ("registration", result),
        };
        match result {
            Ok(Ok(())) => format!("the {which} server ended"),
            Ok(Err(error)) => format!("the {which} server ended: {error}"),
            Err(error) => format!("the {which} server ended: {error}"),
        }
    }
}

// === impl RunningServer ===

impl RunningServer {
    fn start(listener: UnixListener, router: Router, stop: watch::Sender<bool>) -> Self {
        let stopped = stop.subscribe();
        let incoming = UnixListenerStream::new(listener);
        let task = tokio::spawn(router.serve_with_incoming_shutdown(incoming, until(stopped)));
        Self { stop, task }
    }

    async fn stop(mut self) {
        self.stop.send_replace(true);
        if tokio::time::timeout(DRAIN, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    drop(stopped.wait_for(|stop| *stop).await);
}
