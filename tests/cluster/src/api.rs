//! The API server, by plain JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt, StreamExt};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout_at};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request has no answer that can be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The API server answered with an error.
    #[error("{request}: the API server refused it: found status {code}, expected success: {message}")]
    Refused {
        /// Method and path.
        request: String,
        /// The HTTP status.
        code: u16,
        /// The message of the API server.
        message: String,
    },
    /// The API server did not answer, or not in JSON.
    #[error("{request}: no answer: {message}")]
    Silent {
        /// Method and path.
        request: String,
        /// The failure.
        message: String,
    },
    /// A condition did not become true in time.
    #[error("{path}: waited {} s for {condition}; found {found}", waited.as_secs())]
    Late {
        /// The objects that were watched.
        path: String,
        /// The condition.
        condition: String,
        /// How long it was waited for.
        waited: Duration,
        /// The objects at the end.
        found: String,
    },
}

impl ApiError {
    /// The HTTP status of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A connection to an API server. Copies share it.
#[derive(Clone)]
pub struct Api {
    client: Client,
    runtime: Arc<Runtime>,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Api")
    }
}

impl Api {
    /// Connects with the rights of a kubeconfig. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ApiError::Silent`] if the file cannot be used.
    pub fn connect(kubeconfig: &Path) -> Result<Self, ApiError> {
        let failed = |error: &dyn std::fmt::Display| ApiError::Silent {
            request: kubeconfig.display().to_string(),
            message: error.to_string(),
        };
        // A second installation of the same provider is refused and harmless.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| failed(&error))?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig).map_err(|error| failed(&error))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            Client::try_from(config.map_err(|error| failed(&error))?).map_err(|error| failed(&error))
        })?;
        Ok(Self { client, runtime: Arc::new(runtime) })
    }

    /// Reads an object, a list or any other document.
    ///
    /// # Errors
    /// [`ApiError::Refused`] and [`ApiError::Silent`].
    pub fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.json("GET", path, "", &Value::Null)
    }

    /// Reads a document as text: health, metrics.
    ///
    /// # Errors
    /// [`ApiError::Refused`] and [`ApiError::Silent`].
    pub fn text(&self, path: &str) -> Result<String, ApiError> {
        self.runtime.block_on(self.send("GET", path, "", &Value::Null))
    }

    /// Creates an object in a collection.
    ///
    /// # Errors
    /// [`ApiError::Refused`] and [`ApiError::Silent`].
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value, ApiError> {
        self.json("POST", collection, "application/json", object)
    }

    /// Creates many objects, so many at a time, each as (collection, object).
    ///
    /// # Errors
    /// The first failure.
    pub fn create_all(&self, objects: &[(String, Value)], at_once: usize) -> Result<(), ApiError> {
        self.runtime.block_on(async {
            let requests =
                objects.iter().map(|(path, object)| self.send("POST", path, "application/json", object));
            let mut answers = futures::stream::iter(requests).buffer_unordered(at_once);
            while let Some(answer) = answers.next().await {
                answer?;
            }
            Ok(())
        })
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// [`ApiError::Refused`] and [`ApiError::Silent`].
    pub fn put(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.json("PUT", path, "application/json", object)
    }

    /// Merges fields into an object.
    ///
    /// # Errors
    /// [`ApiError::Refused`] and [`ApiError::Silent`].
    pub fn merge(&self, path: &str, fields: &Value) -> Result<Value, ApiError> {
        self.json("PATCH", path, "application/merge-patch+json", fields)
    }

    /// Deletes an object or a collection; an absent one is no failure.
    ///
    /// # Errors
    /// [`ApiError::Refused`] and [`ApiError::Silent`].
    pub fn delete(&self, path: &str, grace_seconds: Option<u32>) -> Result<(), ApiError> {
        let options = grace_seconds.map_or(json!({}), |seconds| json!({"gracePeriodSeconds": seconds}));
        match self.json("DELETE", path, "application/json", &options) {
            Err(ApiError::Refused { code: 404, .. }) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn json(&self, method: &str, path: &str, kind: &str, body: &Value) -> Result<Value, ApiError> {
        let text = self.runtime.block_on(self.send(method, path, kind, body))?;
        serde_json::from_str(&text).map_err(|error| ApiError::Silent {
            request: format!("{method} {path}"),
            message: error.to_string(),
        })
    }

    async fn send(&self, method: &str, path: &str, kind: &str, body: &Value) -> Result<String, ApiError> {
        let named = format!("{method} {path}");
        let silent = |message: String| ApiError::Silent { request: named.clone(), message };
        let request = request(method, path, kind, body).map_err(|error| silent(error.to_string()))?;
        let late = Instant::now() + PATIENCE;
        match timeout_at(late, self.client.request_text(request)).await {
            Ok(answered) => answered.map_err(|error| refusal(&named, error)),
            Err(_) => Err(silent(format!("{} s went by", PATIENCE.as_secs()))),
        }
    }

    /// Waits until the objects of a collection, by `namespace/name`, satisfy a condition, and returns its result. The
    /// path may carry a query (`?labelSelector=…`). A connection that breaks meanwhile is made again.
    ///
    /// # Errors
    /// [`ApiError::Late`] when the condition is still false after `patience`.
    pub fn wait<T>(
        &self,
        collection: &str,
        condition: &str,
        patience: Duration,
        mut holds: impl FnMut(&BTreeMap<String, Value>) -> Option<T>,
    ) -> Result<T, ApiError> {
        let until = Instant::now() + patience;
        let mut objects = BTreeMap::new();
        let found = self.runtime.block_on(async {
            loop {
                let watched = self.watch(collection, &mut objects, &mut holds);
                match timeout_at(until, watched).await {
                    Ok(Ok(result)) => return Some(result),
                    // The server went away or ended the watch; there is nothing else to wait on than time.
                    Ok(Err(_)) if Instant::now() < until => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    _ => return None,
                }
            }
        });
        found.ok_or_else(|| ApiError::Late {
            path: collection.to_owned(),
            condition: condition.to_owned(),
            waited: patience,
            found: statuses(&objects),
        })
    }

    /// Lists and watches once.
    async fn watch<T>(
        &self,
        collection: &str,
        objects: &mut BTreeMap<String, Value>,
        holds: &mut impl FnMut(&BTreeMap<String, Value>) -> Option<T>,
    ) -> Result<T, String> {
        let text = self.send("GET", collection, "", &Value::Null).await.map_err(|error| error.to_string())?;
        let list: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        objects.clear();
        for item in list["items"].as_array().into_iter().flatten() {
            objects.insert(key(item), item.clone());
        }
        if let Some(result) = holds(objects) {
            return Ok(result);
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let joint = if collection.contains('?') { '&' } else { '?' };
        let path = format!("{collection}{joint}watch=true&resourceVersion={version}");
        let request = request("GET", &path, "", &Value::Null).map_err(|error| error.to_string())?;
        let stream = self.client.request_stream(request).await.map_err(|error| error.to_string())?;
        let mut lines = std::pin::pin!(stream.lines());
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_str(&line.map_err(|error| error.to_string())?)
                .map_err(|error| error.to_string())?;
            let object = &event["object"];
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => drop(objects.insert(key(object), object.clone())),
                Some("DELETED") => drop(objects.remove(&key(object))),
                other => {
                    return Err(format!("found an event {other:?}, expected ADDED, MODIFIED or DELETED"));
                }
            }
            if let Some(result) = holds(objects) {
                return Ok(result);
            }
        }
        Err("the watch ended".to_owned())
    }
}

fn request(method: &str, path: &str, kind: &str, body: &Value) -> Result<Request<Vec<u8>>, http::Error> {
    let mut builder = Request::builder().method(method).uri(path).header("Accept-Encoding", "identity");
    if !kind.is_empty() {
        builder = builder.header("Content-Type", kind);
    }
    builder.body(if body.is_null() { Vec::new() } else { body.to_string().into_bytes() })
}

fn refusal(request: &str, error: kube::Error) -> ApiError {
    let request = request.to_owned();
    match error {
        kube::Error::Api(status) => {
            ApiError::Refused { request, code: status.code, message: status.message.clone() }
        }
        other => ApiError::Silent { request, message: other.to_string() },
    }
}

/// `namespace/name`, or the name alone.
fn key(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The names and statuses of objects, cut to a length that can be read.
fn statuses(objects: &BTreeMap<String, Value>) -> String {
    let all: Vec<String> =
        objects.iter().map(|(name, object)| format!("{name}: {}", object["status"])).collect();
    let text = if all.is_empty() { "nothing".to_owned() } else { all.join("; ") };
    text.chars().take(3_000).collect()
}
