//! HTTP: paths and queries to the store, answers back, watches as streams.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::state::{Shared, State};
use super::store::{Key, Refusal};
use super::{Effect, Request, slices};

/// Largest request body.
const BODY_MAX: usize = 3 << 20;
/// Longest watch.
const WATCH_MAX: Duration = Duration::from_secs(300);

/// A request's target.
struct Target {
    /// `resource.k8s.io/v1`, `v1`.
    api: String,
    resource: String,
    /// `None`: of all namespaces.
    namespace: Option<String>,
    name: String,
    subresource: String,
    query: BTreeMap<String, String>,
}

pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let router = Router::new().fallback(move |request: axum::extract::Request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(shared, request).await) }
    });
    let _until_the_runtime_ends = axum::serve(listener, router).await;
}

async fn answer(shared: Arc<Shared>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, BODY_MAX).await else { return broken() };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let target = target(parts.uri.path(), parts.uri.query().unwrap_or_default());
    let noted = noted(&parts.method, parts.uri.path(), &target);
    let effect = {
        let mut state = shared.state();
        state.requests.push(noted.clone());
        state.faults.strike(&noted)
    };
    match effect {
        Some(Effect::Break) => return broken(),
        Some(Effect::Status(code)) => return refused(&Refusal::new(code, "Injected", "an injected fault")),
        Some(Effect::Delay(delay)) => tokio::time::sleep(delay).await,
        Some(Effect::LoseAnswer) | None => {}
    }
    if noted.verb == "watch" {
        return watch(shared, &target);
    }
    let outcome = {
        let mut state = shared.state();
        carry_out(&mut state, noted.verb, &target, body)
    };
    shared.announce();
    if effect == Some(Effect::LoseAnswer) {
        return broken();
    }
    match outcome {
        Ok(value) => {
            let created = noted.verb == "create";
            reply(if created { StatusCode::CREATED } else { StatusCode::OK }, &value)
        }
        Err(refusal) => refused(&refusal),
    }
}

fn reply(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", axum::http::HeaderValue::from_static("application/json"));
    response
}

fn refused(refusal: &Refusal) -> Response {
    reply(StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &refusal.status())
}

/// An answer with an error at the end of its body: the connection is closed.
fn broken() -> Response {
    let end = futures::stream::once(async { Err::<Vec<u8>, _>(std::io::Error::other("injected")) });
    Response::new(Body::from_stream(end))
}

fn target(path: &str, query: &str) -> Target {
    let mut segments: Vec<String> =
        path.split('/').filter(|segment| !segment.is_empty()).map(decoded).collect();
    let api_parts = match segments.first().map(String::as_str) {
        Some("api") => 2,
        Some("apis") => 3,
        _ => segments.len(),
    };
    let rest = segments.split_off(api_parts.min(segments.len()));
    let api = segments.get(1..).unwrap_or_default().join("/");
    let in_namespace = rest.first().is_some_and(|first| first == "namespaces") && rest.len() > 2;
    let (namespace, rest) =
        if in_namespace { (Some(rest[1].clone()), &rest[2..]) } else { (None, rest.as_slice()) };
    let part = |index: usize| rest.get(index).cloned().unwrap_or_default();
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    Target {
        api,
        resource: part(0),
        namespace,
        name: part(1),
        subresource: part(2),
        query: query.map(|(key, value)| (decoded(key), decoded(value))).collect(),
    }
}

/// Percent-decoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let code = std::str::from_utf8(&digits).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
                bytes.extend(code);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn noted(method: &Method, path: &str, target: &Target) -> Request {
    let one = !target.name.is_empty();
    let watches = target.query.get("watch").is_some_and(|value| value == "true" || value == "1");
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if one => "delete",
        Method::DELETE => "deletecollection",
        _ if watches => "watch",
        _ if one || target.resource.is_empty() => "get",
        _ => "list",
    };
    let resource = match (target.resource.as_str(), target.subresource.as_str()) {
        ("", _) => path.to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, subresource) => format!("{resource}/{subresource}"),
    };
    Request { verb, resource, name: target.name.clone(), dry_run: target.query.contains_key("dryRun") }
}

fn carry_out(state: &mut State, verb: &str, target: &Target, body: Value) -> Result<Value, Refusal> {
    if target.resource.is_empty() {
        let (minor, patch) = state.version;
        return Ok(json!({
            "major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.{patch}"),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        }));
    }
    let key = Key::new(&target.resource, target.namespace.as_deref().unwrap_or_default(), &target.name);
    let absent = || {
        let message = format!("{} \"{}\" not found", target.resource, target.name);
        Refusal::new(404, "NotFound", message).of(&target.name)
    };
    match verb {
        "get" => state.store.get(&key).cloned().ok_or_else(absent),
        "list" => list(state, target),
        "create" => create(state, target, body),
        "update" => {
            let old = state.store.get(&key).cloned().ok_or_else(absent)?;
            replace(state, target, &key, &old, body)
        }
        "patch" => {
            let old = state.store.get(&key).cloned().ok_or_else(absent)?;
            let mut merged = old.clone();
            if target.subresource == "status" {
                merge(&mut merged["status"], &body["status"]);
            } else {
                merge(&mut merged, &body);
            }
            merged["metadata"]["resourceVersion"] = match &body["metadata"]["resourceVersion"] {
                Value::Null => old["metadata"]["resourceVersion"].clone(),
                stated => stated.clone(),
            };
            replace(state, target, &key, &old, merged)
        }
        "delete" => {
            let old = state.store.get(&key).ok_or_else(absent)?;
            for field in ["uid", "resourceVersion"] {
                let wanted = &body["preconditions"][field];
                if !wanted.is_null() && *wanted != old["metadata"][field] {
                    return Err(conflict(target, "the precondition does not hold"));
                }
            }
            state.store.delete(&key).ok_or_else(absent)
        }
        _ => {
            let selected: Vec<Value> = selected(state, target);
            for object in &selected {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                state.store.delete(&Key::new(&target.resource, &key.namespace, name));
            }
            Ok(json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
        }
    }
}

fn conflict(target: &Target, why: &str) -> Refusal {
    let message = format!("Operation cannot be fulfilled on {} \"{}\": {why}", target.resource, target.name);
    Refusal::new(409, "Conflict", message)
}

fn create(state: &mut State, target: &Target, mut body: Value) -> Result<Value, Refusal> {
    let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let key = Key::new(&target.resource, target.namespace.as_deref().unwrap_or_default(), &name);
    if state.store.get(&key).is_some() {
        let message = format!("{} \"{name}\" already exists", target.resource);
        return Err(Refusal::new(409, "AlreadyExists", message));
    }
    if target.resource == "resourceslices" {
        slices::admit(state.gates, state.store.version(), None, &mut body)?;
    }
    if target.query.contains_key("dryRun") {
        return Ok(body);
    }
    Ok(state.store.put(key, body))
}

fn replace(
    state: &mut State,
    target: &Target,
    key: &Key,
    old: &Value,
    mut body: Value,
) -> Result<Value, Refusal> {
    let stated = &body["metadata"]["resourceVersion"];
    if !stated.is_null() && *stated != old["metadata"]["resourceVersion"] {
        return Err(conflict(
            target,
            "the object has been modified; please apply your changes to the latest version",
        ));
    }
    let stated = &body["metadata"]["uid"];
    if !stated.is_null() && *stated != old["metadata"]["uid"] {
        return Err(conflict(target, "the UID in the precondition does not match"));
    }
    if target.subresource == "status" {
        let mut object = old.clone();
        object["status"] = body["status"].clone();
        body = object;
    } else if target.resource == "resourceslices" {
        slices::admit(state.gates, state.store.version(), Some(old), &mut body)?;
    }
    Ok(state.store.put(key.clone(), body))
}

/// JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(fields) = target.as_object_mut() {
                fields.remove(key);
            }
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn selected(state: &State, target: &Target) -> Vec<Value> {
    let mut objects = state.store.list(&target.resource, target.namespace.as_deref());
    objects.retain(|object| passes(object, target.query.get("fieldSelector")));
    objects
}

/// Whether an object passes `path=value,path!=value`.
fn passes(object: &Value, selector: Option<&String>) -> bool {
    let terms = selector.into_iter().flat_map(|selector| selector.split(',')).filter(|term| !term.is_empty());
    terms.filter_map(|term| term.split_once('=')).all(|(path, value)| {
        let (path, is_equal) = path.strip_suffix('!').map_or((path, true), |path| (path, false));
        let pointer = format!("/{}", path.replace('.', "/"));
        (object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default() == value) == is_equal
    })
}

/// A page of a list, as a real server writes it: the items without kind and version.
fn list(state: &State, target: &Target) -> Result<Value, Refusal> {
    let all = selected(state, target);
    let number = |field: &str| target.query.get(field).and_then(|value| value.parse::<usize>().ok());
    let limit = number("limit").filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let first = match target.query.get("continue") {
        Some(token) if token.starts_with("expired") => {
            return Err(Refusal::new(410, "Expired", "The provided continue parameter is too old"));
        }
        Some(token) => token.parse().unwrap_or(0),
        None => 0,
    };
    let kind = all.first().and_then(|object| object["kind"].as_str()).unwrap_or("Unknown").to_owned();
    let mut items: Vec<Value> = all.iter().skip(first).take(limit).cloned().collect();
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        item.remove("kind");
        item.remove("apiVersion");
    }
    let next = first.saturating_add(items.len());
    let token = if next < all.len() { next.to_string() } else { String::new() };
    Ok(json!({
        "kind": format!("{kind}List"), "apiVersion": target.api,
        "metadata": { "resourceVersion": state.store.version().to_string(), "continue": token },
        "items": items,
    }))
}

fn watch(shared: Arc<Shared>, target: &Target) -> Response {
    let number = |field: &str| target.query.get(field).and_then(|value| value.parse::<u64>().ok());
    let mut seen = number("resourceVersion").unwrap_or(0);
    let limit = number("timeoutSeconds").map_or(WATCH_MAX, Duration::from_secs);
    let resource = target.resource.clone();
    let selector = target.query.get("fieldSelector").cloned();
    let (sender, receiver) = mpsc::channel::<Result<String, std::io::Error>>(64);
    let mut changed = shared.changed.subscribe();
    let mut cut = shared.cut.subscribe();
    cut.borrow_and_update();
    tokio::spawn(async move {
        let end = tokio::time::sleep(limit);
        tokio::pin!(end);
        loop {
            changed.borrow_and_update();
            let news = shared.state().store.since(&resource, seen);
            match news {
                Err(refusal) => {
                    let event = json!({ "type": "ERROR", "object": refusal.status() });
                    let _gone = sender.send(Ok(format!("{event}\n"))).await;
                    return;
                }
                Ok(changes) => {
                    for change in changes {
                        seen = change.version;
                        let event = json!({ "type": change.kind, "object": change.object });
                        let wanted = passes(&change.object, selector.as_ref());
                        if wanted && sender.send(Ok(format!("{event}\n"))).await.is_err() {
                            return;
                        }
                    }
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = cut.changed() => {}
                () = sender.closed() => return,
                () = &mut end => return,
            }
        }
    });
    Response::new(Body::from_stream(ReceiverStream::new(receiver)))
}
