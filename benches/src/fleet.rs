//! Nodes as Aliquot publishes them, and claims for them.

use aliquot_backend_sim::{Personality, SimNode};
use aliquot_core::allocate::World;
use aliquot_core::catalogue::Catalogue;
use aliquot_core::dra::{
    Access, AllocationMode, DeviceClass, DeviceRequest, ExactRequest, Node, RequestKind, ResourceClaim,
    ResourceSlice,
};
use aliquot_core::id::{NodeName, TemplateName};
use aliquot_core::offer::policy::{Slot, SplitPiece, SplitPlace, SplitRecipe};
use aliquot_core::offer::{Layout, LayoutKind, LayoutPolicy, ServerVersion, ShareTerms, UsageHint};
use aliquot_core::offer::{classes, offers};
use aliquot_core::ports::DeviceBackend;
use aliquot_core::quantity::{Format, Quantity};
use aliquot_core::units::{Bytes, Cores};
use aliquot_driver::manifest::{Object, made_up_uid, yaml_document};
use serde_json::{Value, json};

/// The node that is filled: 8 H100 with 80 GB.
pub const H100_NODE: &str = "h100-8";
/// Cards of [`H100_NODE`].
pub const H100_CARDS: usize = 8;
/// Memory of a requested share.
const SHARE_MEMORY: Bytes = Bytes(8 << 30);
/// Compute of a requested share, and of a slot.
const SHARE_CORES: Cores = match Cores::new(10) {
    Some(cores) => cores,
    None => Cores::NONE,
};
/// Slots on a card.
const SLOTS: u32 = 8;

/// Some nodes and all that they publish.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Nodes in order.
    pub nodes: Vec<Node>,
    /// Slices of all nodes.
    pub slices: Vec<ResourceSlice>,
    /// Classes of what they offer.
    pub classes: Vec<DeviceClass>,
}

/// The request of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A whole card.
    Card,
    /// 8Gi of memory and a tenth of the compute of a card.
    Share,
    /// So many mebibytes of a card.
    Memory(u64),
    /// A MIG partition `1g.10gb`.
    Partition,
    /// A slot of the layout `slots`.
    Slot,
}

// === impl Fleet ===

impl Fleet {
    /// Equal nodes of a built-in personality with every card in one layout, as for Kubernetes 1.36.
    ///
    /// # Errors
    ///
    /// There is no such personality, or the simulated node cannot be made; the message says which.
    pub fn of(personality: &str, layout: LayoutKind, copies: usize) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("{personality}: {error}");
        let found = Personality::named(personality).ok_or_else(|| fail(&"no such personality"))?;
        let file = found.load().map_err(|error| fail(&error))?;
        let sim = SimNode::in_memory(&file, &Catalogue::embedded()).map_err(|error| fail(&error))?;
        let inventory = sim.discover().map_err(|error| fail(&error))?;
        let policy = LayoutPolicy { default: layout_of(layout)?, ..LayoutPolicy::default() };
        let server = ServerVersion::with_default_gates(36, 3);
        let named = |copy: usize| NodeName::new(format!("node-{copy:05}")).map_err(|error| fail(&error));
        let first = named(0)?;
        let offered = offers(&first, &inventory, &policy, server, &UsageHint::default());
        let mut fleet = Self { nodes: Vec::new(), slices: Vec::new(), classes: classes(&offered.slices) };
        for copy in 0..copies {
            let name = named(copy)?;
            fleet.slices.extend(offered.slices_on(&inventory, &first, &name));
            fleet.nodes.push(Node { name: name.to_string(), labels: sim.labels().clone() });
        }
        Ok(fleet)
    }

    /// A world of it in which nothing is held.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with it.
    pub fn world(self) -> Result<World, String> {
        let (world, problems) = World::new(self.slices, self.classes, self.nodes);
        problems.first().map_or(Ok(world), |problem| Err(problem.to_string()))
    }

    /// Nodes as upstream reads them.
    #[must_use]
    pub fn nodes_json(&self) -> Vec<Value> {
        let node = |node: &Node| json!({"metadata": {"name": node.name, "labels": node.labels}});
        self.nodes.iter().map(node).collect()
    }

    /// Slices as upstream reads them.
    #[must_use]
    pub fn slices_json(&self) -> Vec<Value> {
        self.slices.iter().map(|slice| Object::Slice(slice).json()).collect()
    }

    /// Classes as upstream reads them.
    #[must_use]
    pub fn classes_json(&self) -> Vec<Value> {
        self.classes.iter().map(|class| Object::Class(class).json()).collect()
    }

    /// Slices, classes and claims as one YAML text, as written for `kubectl`.
    #[must_use]
    pub fn yaml(&self, claims: &[ResourceClaim]) -> String {
        yaml(self.objects(claims))
    }

    /// The same as one list in JSON, as `kubectl get` prints it.
    #[must_use]
    pub fn json(&self, claims: &[ResourceClaim]) -> String {
        let items: Vec<Value> = self.objects(claims).collect();
        format!("{:#}", serde_json::json!({"apiVersion": "v1", "items": items, "kind": "List"}))
    }

    fn objects(&self, claims: &[ResourceClaim]) -> impl Iterator<Item = Value> {
        let claims = claims.iter().map(|claim| Object::Claim(claim).json());
        self.slices_json().into_iter().chain(self.classes_json()).chain(claims)
    }
}

/// Objects as one YAML text.
pub fn yaml(objects: impl IntoIterator<Item = Value>) -> String {
    let documents: Vec<String> = objects.into_iter().map(|object| yaml_document(&object)).collect();
    documents.join("---\n")
}

/// A claim, unlike all others of other numbers in name and UID.
#[must_use]
pub fn claim(number: usize, ask: Ask) -> ResourceClaim {
    let (class, capacity) = match ask {
        Ask::Card => ("card.aliquot.dev", Vec::new()),
        Ask::Share => {
            ("share.aliquot.dev", vec![("memory", SHARE_MEMORY.quantity()), ("cores", percent(SHARE_CORES))])
        }
        Ask::Memory(mib) => {
            let memory = Bytes::from_mib(mib).unwrap_or(Bytes::MIB);
            ("share.aliquot.dev", vec![("memory", memory.quantity())])
        }
        Ask::Partition => ("mig-1g-10gb.aliquot.dev", Vec::new()),
        Ask::Slot => ("slot-tenth.aliquot.dev", Vec::new()),
    };
    let request = ExactRequest {
        device_class: class.to_owned(),
        selectors: Vec::new(),
        mode: AllocationMode::ExactCount(1),
        access: Access::Normal,
        tolerations: Vec::new(),
        capacity: capacity.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect(),
    };
    let (namespace, name) = ("default".to_owned(), format!("claim-{number:06}"));
    ResourceClaim {
        uid: made_up_uid(&namespace, &name),
        namespace,
        name,
        requests: vec![DeviceRequest { name: "gpu".to_owned(), kind: RequestKind::Exactly(request) }],
        constraints: Vec::new(),
        config: Vec::new(),
        allocation: None,
    }
}

/// Claims as upstream reads them, with their UIDs.
#[must_use]
pub fn claims_json(claims: &[ResourceClaim]) -> Vec<Value> {
    let with_uid = |claim: &ResourceClaim| {
        let mut object = Object::Claim(claim).json();
        object["metadata"]["uid"] = json!(claim.uid);
        object
    };
    claims.iter().map(with_uid).collect()
}

/// A claim's request that fits the layout; in layout `dynamic` shares and partitions in turn.
#[must_use]
pub fn ask_for(layout: LayoutKind, number: usize) -> Ask {
    match layout {
        LayoutKind::Whole => Ask::Card,
        LayoutKind::Split => Ask::Partition,
        LayoutKind::Slots => Ask::Slot,
        LayoutKind::Dynamic if number % 2 == 1 => Ask::Partition,
        LayoutKind::Shared | LayoutKind::Dynamic | LayoutKind::Auto => Ask::Share,
    }
}

fn percent(cores: Cores) -> Quantity {
    Quantity::from_units(i64::from(cores.percent()), Format::DecimalSi)
}

/// A layout of cards with MIG: seven `1g.10gb` where it is split, eight parts where it is in slots.
fn layout_of(kind: LayoutKind) -> Result<Layout, String> {
    let terms = ShareTerms::default();
    Ok(match kind {
        LayoutKind::Auto => Layout::Auto(terms),
        LayoutKind::Whole => Layout::Whole,
        LayoutKind::Shared => Layout::Shared(terms),
        LayoutKind::Dynamic => Layout::Dynamic(terms),
        LayoutKind::Split => {
            let template = TemplateName::new("1g.10gb").map_err(|error| error.to_string())?;
            let piece = SplitPiece { template, place: SplitPlace::Anywhere { copies: 7 } };
            Layout::Split { recipe: Some(SplitRecipe { pieces: vec![piece] }), terms }
        }
        LayoutKind::Slots => {
            let name = "tenth".to_owned();
            Layout::Slots(vec![Slot { name, memory: SHARE_MEMORY, cores: SHARE_CORES, copies: SLOTS }])
        }
    })
}
