//! Why claims are not placed.

use crate::dra::DeviceId;
use crate::quantity::Quantity;

/// Most results that one claim's allocation can hold (`AllocationResultsMaxSize` of the API).
pub const RESULTS_MAX: usize = 32;

/// Why a set of claims is not placed. What is the same for every node says so in [`PlacementRefusal::reach`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefusal {
    /// No combination of devices serves all requests.
    #[error("no combination of devices on {} serves all requests", NodesTriedText(.nodes))]
    NoFit {
        /// Names of the nodes that were tried, or how many.
        nodes: NodesTried,
    },
    /// As `NoFit`, on a node that sees a pool with inconsistent contents.
    #[error("no combination of devices on {node} serves all requests, and pool {pool} is not used: {fault}")]
    InvalidPool {
        /// The node.
        node: String,
        /// The pool, as driver/name.
        pool: String,
        /// What is wrong with it.
        fault: Box<super::PoolFault>,
    },
    /// A request names a class that does not exist.
    #[error("claim {claim}, request `{request}`: device class `{class}` does not exist")]
    MissingClass {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The class it names.
        class: String,
    },
    /// A selector does not compile, or cannot be evaluated on a device that the search reached.
    #[error(transparent)]
    Selector(Box<SelectorFailure>),
    /// A claim needs more results than an allocation can hold.
    #[error(
        "claim {claim} needs at least {needed} devices; an allocation holds at most {RESULTS_MAX}. Split the claim"
    )]
    TooManyDevices {
        /// The claim, as namespace/name.
        claim: String,
        /// The fewest it could take.
        needed: usize,
    },
    /// An amount that is negative or beyond 2^63 - 1 units on a device that the search reached (from 1.37).
    #[error(
        "claim {claim}, request `{request}`: found an amount that is negative or beyond 2^63 - 1 on device {device}, expected \
         one that its policy can round; correct capacity.requests"
    )]
    OutOfRange {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The device.
        device: Box<DeviceId>,
    },
    /// Mode `All` cannot be answered while a pool that the node sees cannot be read.
    #[error(
        "claim {claim}, request `{request}` asks for all devices, but pool {pool} cannot be used: {fault}"
    )]
    AllOfUnusablePool {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// The pool, as driver/name.
        pool: String,
        /// What is wrong with it.
        fault: Box<super::PoolFault>,
    },
    /// Mode `All` includes a device that a constraint of the claim excludes.
    #[error(
        "claim {claim}, request `{request}` asks for all devices, but constraint {constraint} excludes {device}"
    )]
    AllAgainstConstraint {
        /// The claim, as namespace/name.
        claim: String,
        /// The request, or `request/subrequest`.
        request: String,
        /// Which constraint, from 0.
        constraint: usize,
        /// The device that it excludes.
        device: Box<DeviceId>,
    },
    /// A chosen device has a node selector with several terms, which no allocation can express.
    #[error("device {device} has a node selector with {terms} terms; exactly one can be used")]
    SeveralTerms {
        /// The device.
        device: DeviceId,
        /// Terms found.
        terms: usize,
    },
    /// The search was given up.
    #[error(
        "the search was given up after {steps} steps without an answer. Ask for fewer devices in one Pod, or narrow the selectors"
    )]
    SearchBound {
        /// Steps taken.
        steps: u64,
    },
    /// The list of nodes for the claims is empty.
    #[error("there is no node to place the claims on")]
    NoNodes,
    /// The node number is not one of this world's.
    #[error("there is no node of that number")]
    UnknownNode,
}

/// A selector that does not compile, or cannot be evaluated on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "claim {claim}, request `{request}`: {origin} `{}` fails on device {device}: {message}; it keeps the Pod off every \
     node", short(.expression)
)]
pub struct SelectorFailure {
    /// The claim, as namespace/name.
    pub claim: String,
    /// The request, or `request/subrequest`.
    pub request: String,
    /// The object the selector belongs to.
    pub origin: SelectorOrigin,
    /// The selector.
    pub expression: String,
    /// The device on which it failed.
    pub device: DeviceId,
    /// What the evaluator says.
    pub message: String,
}

/// Characters of an expression that a message shows.
const EXPRESSION_SHOWN: usize = 400;

/// An expression as a message shows it.
fn short(expression: &str) -> std::borrow::Cow<'_, str> {
    match expression.char_indices().nth(EXPRESSION_SHOWN) {
        None => expression.into(),
        Some((end, _)) => format!("{}…", &expression[..end]).into(),
    }
}

/// Which nodes a refusal speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodesTried {
    /// One.
    One(String),
    /// So many.
    Several(usize),
}

/// Whether trying another node is of any use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Another node may do.
    ThisNode,
    /// The claim or the class is at fault: the scheduler gives up on the Pod.
    EveryNode,
}

/// The object a selector belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SelectorOrigin {
    /// The device class's.
    Class {
        /// Name of the class.
        class: String,
        /// Which of its selectors, from 0.
        index: usize,
    },
    /// The request's own.
    Request {
        /// Which of its selectors, from 0.
        index: usize,
    },
}

/// One amount against another, both with their units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// What is needed.
    pub asked: Quantity,
    /// What is left.
    pub left: Quantity,
}

struct NodesTriedText<'a>(&'a NodesTried);

impl std::fmt::Display for NodesTriedText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            NodesTried::One(name) => write!(f, "node {name}"),
            NodesTried::Several(count) => write!(f, "any of {count} nodes"),
        }
    }
}

impl std::fmt::Display for SelectorOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Class { class, index } => write!(f, "selector {index} of class `{class}`"),
            Self::Request { index } => write!(f, "selector {index} of the request"),
        }
    }
}

// === impl PlacementRefusal ===

impl PlacementRefusal {
    /// Whether another node could still do.
    #[must_use]
    pub const fn reach(&self) -> Reach {
        match self {
            Self::NoFit { .. } | Self::InvalidPool { .. } => Reach::ThisNode,
            Self::MissingClass { .. }
            | Self::Selector(_)
            | Self::TooManyDevices { .. }
            | Self::OutOfRange { .. }
            | Self::AllOfUnusablePool { .. }
            | Self::AllAgainstConstraint { .. }
            | Self::SeveralTerms { .. }
            | Self::SearchBound { .. }
            | Self::NoNodes
            | Self::UnknownNode => Reach::EveryNode,
        }
    }
}
