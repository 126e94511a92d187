//! An API server in this process: objects, watches, limits and faults, over real HTTP.
//!
//! ```text
//!  client ──HTTP──▶ serve: paths, fault table ──▶ store: versions, conflicts, watches ──▶ history
//!                                                   └─ slices: dropped fields, limits, taint times
//! ```
//!
//! It knows no Aliquot code. Objects live as JSON, so a field that it does not know stays as sent; what a real server
//! drops is a setting ([`Gates`]). Stopping it closes every connection and keeps the objects, as a restart of a real
//! server over its database does.

#![expect(clippy::unwrap_used, reason = "a test world that cannot be made fails the test that wants it")]

mod faults;
mod serve;
mod slices;
mod state;
mod store;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

pub use faults::{Effect, Fault, Request};
pub use slices::{Gate, Gates};

use state::{Shared, State};
use store::{Key, Store};

/// Longest wait for something that a test expects.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on a port of its own. Dropping it ends it.
pub struct FakeApiServer {
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

/// All objects at one moment, as a backup of a server's database has them.
pub struct Snapshot(Store);

// === impl FakeApiServer ===

impl FakeApiServer {
    /// Starts a server of version 1.36.3 that has one Node, `n1`.
    #[must_use]
    pub fn start() -> Self {
        let state = State {
            store: Store::new(),
            gates: Gates::default(),
            version: (36, 3),
            faults: faults::Faults::default(),
            requests: Vec::new(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            cut: watch::Sender::new(0),
        });
        let directory = tempfile::tempdir().unwrap();
        let mut server = Self { shared, runtime: None, address: ([127, 0, 0, 1], 0).into(), directory };
        server.resume();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": format!("http://{}", server.address)}}],
            "users": [{"name": "fake", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        });
        std::fs::write(server.kubeconfig(), kubeconfig.to_string()).unwrap();
        server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        server
    }

    /// A kubeconfig with this server as the context `fake`.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// A directory that exists as long as the server.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Closes the port and every connection; objects stay.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A runtime's end blocks, which the threads of a test's own runtime must not.
            let ended = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(1))).join();
            assert!(ended.is_ok(), "the server's runtime ends");
        }
    }

    /// Opens the port again, the same as before.
    pub fn resume(&mut self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shared = Arc::clone(&self.shared);
        let address = self.address;
        let listener = std::net::TcpListener::bind(address).unwrap();
        self.address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        {
            let _entered = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            runtime.spawn(serve::serve(listener, shared));
        }
        self.runtime = Some(runtime);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Which fields of slices are kept from now on.
    pub fn set_gates(&self, gates: Gates) {
        self.state().gates = gates;
    }

    /// Minor and patch version from now on.
    pub fn set_version(&self, minor: u32, patch: u32) {
        self.state().version = (minor, patch);
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.add(fault);
    }

    /// From now on, this many of a thousand requests fail in a way drawn from the seed; 0 ends it.
    pub fn disturb(&self, seed: u64, permille: u32) {
        self.state().faults.disturb(seed, permille);
    }

    /// Ends all watches; `Expired` ones must list again.
    pub fn expire_watches(&self) {
        self.state().store.forget_history();
        self.shared.cut.send_modify(|number| *number += 1);
    }

    /// The objects and their version now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.state().store.clone())
    }

    /// Restores a snapshot while watches go on, as a database behind a running server does: objects and their version are those
    /// of the snapshot. Later changes get versions that were in use before, so a watch from a version beyond says nothing until
    /// that is reached.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.state().store.restore(&snapshot.0);
        self.shared.announce();
    }

    /// Every request since the start or the last [`Self::forget_requests`].
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    /// Requests that changed or tried to change slices; dry runs are not among them.
    #[must_use]
    pub fn slice_writes(&self) -> Vec<Request> {
        let is_write = |request: &Request| request.is_write() && request.resource == "resourceslices";
        self.requests().into_iter().filter(is_write).collect()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.state().requests.clear();
    }

    /// Creates or replaces an object, as another client would.
    pub fn put(&self, object: Value) -> Value {
        let key = Key::of(&object);
        let stored = self.state().store.put(key, object);
        self.shared.announce();
        stored
    }

    /// The objects of a resource, such as `resourceslices`, in the order of their names.
    #[must_use]
    pub fn objects(&self, resource: &str) -> Vec<Value> {
        self.state().store.list(resource, None)
    }

    /// Deletes one object, as another client would.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let key = Key::new(resource, namespace, name);
        self.state().store.delete(&key);
        self.shared.announce();
    }

    /// Deletes one object behind the back of all watches, as behind a proxy that lost the server.
    pub fn delete_unseen(&self, resource: &str, namespace: &str, name: &str) {
        self.state().store.delete_unseen(&Key::new(resource, namespace, name));
        self.shared.announce();
    }

    /// Deletes all slices, as the kubelet does when it starts.
    pub fn wipe_slices(&self) {
        for slice in self.objects("resourceslices") {
            let name = slice["metadata"]["name"].as_str().unwrap_or_default();
            self.delete("resourceslices", "", name);
        }
    }

    /// Waits until the objects of a resource are as expected; panics after 30 s.
    pub async fn wait_for(&self, resource: &str, expected: impl Fn(&[Value]) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let found = async {
            loop {
                changed.borrow_and_update();
                if expected(&self.objects(resource)) {
                    return;
                }
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        let waited = tokio::time::timeout(PATIENCE, found).await;
        assert!(waited.is_ok(), "{resource} are not as expected: {:#?}", self.objects(resource));
    }
}

impl Drop for FakeApiServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Shared ===
