//! The kubelet's side of the agent: two sockets, three services.
//!
//! ```text
//!  <root>/plugins_registry/aliquot.dev@reg.sock   Registration: name, endpoint, versions
//!  <root>/plugins/aliquot.dev/dra.sock            DRAPlugin v1, v1beta1; DRAResourceHealth v1, v1alpha1
//!  <root>/dra_manager_state                       the kubelet's record of claims, which is read
//!  <root>/{device-plugins,plugins_registry}       sockets of other drivers, which are looked for
//! ```
//!
//! Start: service socket first, then registration. Stop: registration first, so that the kubelet sends nothing to a socket
//! that closes. [`dra`] and [`health`] translate between the wire and [`crate::agent`]; they decide nothing.

pub mod claim_state;
pub mod dra;
pub mod health;
pub mod proto;
pub mod registration;
pub mod server;
pub mod sockets;
