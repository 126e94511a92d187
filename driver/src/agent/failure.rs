//! Why the agent does not run, or stopped by itself.

use std::net::SocketAddr;

use crate::kubelet::sockets::SocketError;
use crate::node::OpenError;

/// Why the agent does not run, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentFailure {
    /// A socket or its directory.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The address of the metrics.
    #[error("metrics address {address}: cannot listen there; name another --metrics-address")]
    Metrics {
        /// Address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The node cannot be opened.
    #[error(transparent)]
    Node(#[from] OpenError),
    /// The thread that opens the node ended without an answer.
    #[error("the node was not opened; please report this with the agent's log")]
    NotOpened,
    /// A server ended.
    #[error("kubelet sockets: {0}; start the agent again")]
    Ended(String),
}
