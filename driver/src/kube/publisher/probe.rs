//! Which fields the server keeps: `/version` for a first answer, then dry-run creates, which go through admission, field
//! dropping and validation, and store nothing.
//!
//! A server that drops counters would turn overlapping partitions into independent devices, so the answer must precede
//! the first write. Each feature has a slice of its own: a server that rejects one says nothing about the others.

use std::collections::BTreeMap;

use ::kube::api::PostParams;
use ::kube::{Api, Client};
use aliquot_core::disposition::Disposition;
use aliquot_core::dra::{
    CapacityPolicy, CapacityRestriction, CounterConsumption, CounterSet, Device, DeviceCapacity,
    NodeSelection, Pool, ResourceSlice, Sharing, Taint, TaintEffect,
};
use aliquot_core::offer::{ServerVersion, Support};
use aliquot_core::quantity::{Format, Quantity};
use k8s_openapi::api::resource::v1 as api;

use crate::kube::failure::{ApiCall, code, printable};
use crate::kube::{convert, version};
use crate::ports::AgentError;

/// First minor version that serves `resource.k8s.io/v1`.
const FIRST_MINOR: u32 = 34;
/// Characters of a node's name in the names of probes.
const NAME_PART_MAX: usize = 200;
const RESOURCE: &str = "resourceslices.resource.k8s.io";

/// A feature and the slice that shows whether it is kept.
struct Question {
    slice: ResourceSlice,
    set: fn(&mut ServerVersion, Support),
}

/// Asks the server.
///
/// # Errors
/// The server cannot be reached, is too old, or says nothing that can be read.
pub(in crate::kube) async fn probe(
    client: &Client,
    driver: &str,
    node: &str,
) -> Result<ServerVersion, AgentError> {
    let call = ApiCall { verb: "get", resource: "/version", object: "" };
    let info = client.apiserver_version().await.map_err(|error| call.failed(&error))?;
    let mut server = version::server_version(&info.major, &info.minor, &info.git_version)
        .filter(|server| server.minor >= FIRST_MINOR)
        .ok_or_else(|| AgentError {
            message: format!(
                "API server: found version {}, expected 1.{FIRST_MINOR} or later; devices need resource.k8s.io/v1",
                printable(&info.git_version)
            ),
            disposition: Disposition::Broken,
        })?;
    let slices: Api<api::ResourceSlice> = Api::all(client.clone());
    let questions = questions(driver, node);
    let answers = questions.iter().map(|question| ask(&slices, question));
    for (question, answer) in questions.iter().zip(futures::future::join_all(answers).await) {
        if let Some(support) = answer? {
            (question.set)(&mut server, support);
        }
    }
    Ok(server)
}

/// Whether the feature is kept; `None`: the version's default is all that is known.
async fn ask(slices: &Api<api::ResourceSlice>, question: &Question) -> Result<Option<Support>, AgentError> {
    let call = ApiCall { verb: "create", resource: RESOURCE, object: &question.slice.name };
    let object = convert::to_api(&question.slice).map_err(|error| AgentError {
        message: format!("slice {}: it cannot be written as an object: {error}", question.slice.name),
        disposition: Disposition::Broken,
    })?;
    match slices.create(&PostParams { dry_run: true, field_manager: None }, &object).await {
        Ok(kept) => {
            let kept = convert::from_api(&kept);
            Ok(Some(if kept.as_ref() == Some(&question.slice) { Support::Kept } else { Support::Lost }))
        }
        // A form of the field that this server does not take.
        Err(error) if code(&error) == Some(422) => Ok(Some(Support::Lost)),
        // A webhook or policy that takes no dry runs: the read-back of real writes remains.
        Err(error) if matches!(code(&error), Some(400 | 403 | 409)) => {
            tracing::warn!(error = %call.failed(&error), "the server's fields are taken from its version");
            Ok(None)
        }
        Err(error) => Err(call.failed(&error)),
    }
}

fn questions(driver: &str, node: &str) -> Vec<Question> {
    // Nothing is stored under this name, so a part of a long node name is enough.
    let host: String = node.chars().take(NAME_PART_MAX).collect();
    let host = host.trim_end_matches(['-', '.']);
    let slice = |what: &str, devices: Vec<Device>, shared_counters: Vec<CounterSet>| ResourceSlice {
        name: format!("probe-{what}-{host}"),
        driver: driver.to_owned(),
        pool: Pool { name: "aliquot-0-probe".to_owned(), generation: 1, slice_count: 1 },
        node: NodeSelection::Name(node.to_owned()),
        devices: devices.into(),
        shared_counters: shared_counters.into(),
    };
    let one = Quantity::from_units(1, Format::DecimalSi);
    let counters = || BTreeMap::from([("slices".to_owned(), one)]);
    let mut consuming = Device::named("probe");
    consuming.consumes = vec![CounterConsumption {
        counter_set: "probe".to_owned(),
        counters: counters(),
        compatibility_groups: Vec::new(),
    }]
    .into();
    let mut shared = Device::named("probe");
    shared.sharing = Sharing::Shareable;
    let policy = CapacityPolicy { default: Some(one), restriction: CapacityRestriction::None };
    shared.capacity.insert("memory".to_owned(), DeviceCapacity { value: one, policy: Some(policy) });
    let mut tainted = Device::named("probe");
    let (key, value) = (format!("{driver}/probe"), "true".to_owned());
    tainted.taints = vec![Taint { key, value, effect: TaintEffect::NoSchedule }];
    let set = CounterSet { name: "probe".to_owned(), counters: counters() };
    // The first question decides whether counters are kept; the second can only take that back.
    vec![
        Question { slice: slice("sets", Vec::new(), vec![set]), set: |server, s| server.counters = s },
        Question {
            slice: slice("counters", vec![consuming], Vec::new()),
            set: |server, s| {
                if s == Support::Lost {
                    server.counters = s;
                }
            },
        },
        Question { slice: slice("shares", vec![shared], Vec::new()), set: |server, s| server.shares = s },
        Question { slice: slice("taints", vec![tainted], Vec::new()), set: |server, s| server.taints = s },
    ]
}
