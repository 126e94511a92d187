//! Prepare and release, for one owner of the state or for many threads that share it.
//!
//! ```text
//!   claim's turn ─▶ look at the cards ─▶ state: decide, journal `Preparing`, line up ─▶ cards' turn ─▶ steps
//!                                                                                        │ failed: undo
//!   answer ◀─ state: journal `Prepared` ◀────────────────────────────────────────────────┘
//!
//!   claim's turn ─▶ state: journal `Releasing`, line up ─▶ cards' turn ─▶ inverse steps ─▶ state: journal without the claim
//! ```
//!
//! The state is never locked while a device or a file of a claim is worked on. A decision counts from its journal entry on, so
//! what is decided meanwhile finds it in the ledger. The steps of plans on one card run one after the other, in the order of
//! their decisions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::card::Inventory;
use aliquot_core::dra::{DeviceId, ResourceClaim};
use aliquot_core::grant::Grant;
use aliquot_core::id::{CardUuid, ClaimUid};
use aliquot_core::offer::{OfferedPart, Offers};
use aliquot_core::partition::Part;
use aliquot_core::plan::{ClaimRequest, Plan, PlanRefusal, Step, Undo, plan, undo};
use aliquot_core::ports::{BackendError, LivePartition, PartitionAt};

use super::site::Site;
use super::state::{State, StateAccess, offers_of};
use super::turns::{QueuePlace, Subject};
use crate::checkpoint::{Change, ClaimKind, ClaimRecord, JournalEntry, PartitionProgress, Phase};
use crate::prepare::{
    PrepareError, PrepareOutcome, PreparedClaim, ReleaseOutcome, decode, remove_files, run_steps, run_undo,
};

/// Most looks at cards of which partitions end meanwhile, for one decision.
const LOOKS_MAX: usize = 64;

/// One operation on a node.
pub(super) struct NodeOperation<'s, O> {
    pub(super) site: &'s Site,
    pub(super) owner: O,
    /// What people are to be told.
    pub(super) notes: Vec<String>,
}

/// What is decided for a claim.
enum Decision {
    /// A plan that is journalled; these partitions of it are in the journal since then.
    New(BTreeSet<PartitionAt>),
    /// The claim is prepared like that: what is absent is made again.
    Repair,
    /// The claim is prepared with other limits.
    Amend(Box<Plan>),
}

/// Partitions that a claim is the first one to plan: what is found at their places is foreign.
pub(super) type NewPartitions = BTreeSet<PartitionAt>;

impl<'s, O: StateAccess> NodeOperation<'s, O> {
    pub(super) const fn new(site: &'s Site, owner: O) -> Self {
        Self { site, owner, notes: Vec::new() }
    }

    /// Makes a claim ready.
    pub(super) fn prepare(
        &mut self,
        claim: &ResourceClaim,
        kind: ClaimKind,
    ) -> Result<PreparedClaim, PrepareError> {
        let request = decode::decode(claim)?;
        let uid = request.uid.clone();
        let hardware = |name: &str| {
            let claim = name.to_owned();
            move |source| PrepareError::Hardware { claim, source: Box::new(source) }
        };
        let site = self.site;
        let turn = site.turns.line_up([Subject::Claim(uid.clone())]);
        turn.wait();
        let phase = self.owner.with(|state| state.claim(&uid).map(|record| record.phase));
        if phase.is_some_and(|phase| phase != Phase::Prepared) {
            self.undo_claim(&uid)?;
        }
        let offers = self.offers().map_err(hardware(&request.name))?;
        let decided = self.decide(&request, kind, &offers);
        let (decision, cards, place) = decided.map_err(|error| self.cause(error, kind))?;
        place.wait();
        let mut cards = Some(cards);
        match decision {
            Decision::New(fresh) => match self.make_whole(&uid, &fresh, &mut cards) {
                Ok(outcome) => Ok(outcome.prepared),
                Err(error) => {
                    // What cannot be undone now stays in the journal, for the next call or the next start.
                    match self.undo_in_turn(&uid) {
                        Ok(()) | Err(_) => Err(error),
                    }
                }
            },
            Decision::Repair => Ok(self.make_whole(&uid, &NewPartitions::new(), &mut cards)?.prepared),
            Decision::Amend(plan) => self.amend(*plan, &cards.unwrap_or_default()),
        }
    }

    /// Why a card is not healthy, where that is what containers lack on the host.
    fn cause(&self, error: PrepareError, kind: ClaimKind) -> PrepareError {
        let PrepareError::Refused(refusal) = &error else { return error };
        let PlanRefusal::Unhealthy { claim, card, .. } = refusal.as_ref() else { return error };
        if kind == ClaimKind::Run {
            return error;
        }
        match self.site.parts.backend.access(card, &Part::Card) {
            Err(source @ BackendError::NotOnHost { .. }) => {
                PrepareError::Hardware { claim: claim.clone(), source: Box::new(source) }
            }
            Ok(_) | Err(_) => error,
        }
    }

    /// Decides on cards that are as they were looked at, and lines up for them.
    fn decide(
        &mut self,
        request: &ClaimRequest,
        kind: ClaimKind,
        offers: &Offers,
    ) -> Result<(Decision, Inventory, QueuePlace<'s>), PrepareError> {
        let hardware =
            |source| PrepareError::Hardware { claim: request.name.clone(), source: Box::new(source) };
        let site = self.site;
        let parts = |device| offers.parts.get(device).or_else(|| offers.other_parts.get(device));
        let named = request.devices.iter().filter_map(|ask| parts(&ask.device));
        let named: BTreeSet<CardUuid> = named.map(|part| part.card.clone()).collect();
        let mut looks = 0;
        loop {
            looks += 1;
            let (ended, held) = self.owner.with(|state| (state.ended, state.claim(&request.uid).cloned()));
            let found = site.look_at(&named).map_err(hardware)?;
            let cards = match &held {
                Some(record) => site.as_held(found.clone(), &record.plan, &mut self.notes),
                None => found.clone(),
            };
            let decided = self.owner.with(|state| {
                if state.ended != ended && looks < LOOKS_MAX {
                    return None;
                }
                let parts = state.parts_for(request, offers);
                let planned = state.without(site, &found, &named, &request.uid, |ledger| {
                    plan(request, &parts, &cards, ledger).map_err(Box::new)
                });
                let decision = planned
                    .map_err(|refusal| state.kept(&request.uid, refusal.into()))
                    .and_then(|plan| state.adopt(plan, kind));
                Some(decision.map(|(decision, plan)| (decision, site.turns.line_up(cards_of(&plan)))))
            });
            if let Some(decided) = decided {
                return decided.map(|(decision, place)| (decision, cards, place));
            }
        }
    }

    /// What is published, made once.
    pub(super) fn offers(&mut self) -> Result<Arc<Offers>, BackendError> {
        if let Some(offers) = self.owner.with(|state| state.offers.get().cloned()) {
            return Ok(offers);
        }
        let (cards, server, usage) =
            self.with_cards(|state, found| (state.without_ours(found), state.server, state.usage()))?;
        let made = offers_of(self.site, &cards, server, &usage);
        Ok(self.owner.with(|state| Arc::clone(state.offers.get_or_init(|| made))))
    }

    /// Does something with the state and the cards. No partition of ours has ended since these were looked at, so what is found on
    /// them is ours in the journal, or foreign.
    pub(super) fn with_cards<R>(
        &mut self,
        mut act: impl FnMut(&mut State, Inventory) -> R,
    ) -> Result<R, BackendError> {
        for _ in 1..LOOKS_MAX {
            let ended = self.owner.with(|state| state.ended);
            let found = self.site.look()?;
            let answer = self.owner.with(|state| (state.ended == ended).then(|| act(state, found)));
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        let found = self.site.look()?;
        Ok(self.owner.with(|state| act(state, found)))
    }

    /// Gives everything back that a claim holds.
    pub(super) fn release(&mut self, uid: &ClaimUid) -> Result<ReleaseOutcome, PrepareError> {
        let turn = self.site.turns.line_up([Subject::Claim(uid.clone())]);
        turn.wait();
        if self.owner.with(|state| state.claim(uid).is_none()) {
            return Ok(ReleaseOutcome::Unknown);
        }
        self.undo_claim(uid)?;
        Ok(ReleaseOutcome::Released)
    }

    /// Undoes everything of a claim, and forgets it. The claim's turn is had.
    pub(super) fn undo_claim(&mut self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let begun = match self.begin_release(uid) {
            Err(error) if error.is_for_room() => {
                // The claim's own files are room enough for the journal. After a kill, recovery makes them again.
                let plan = self.owner.with(|state| state.record(uid).map(|record| record.plan.clone()))?;
                remove_files(&self.site.hands(), &plan)?;
                self.begin_release(uid)?
            }
            begun => begun?,
        };
        let Some(place) = begun else { return Ok(()) };
        place.wait();
        self.undo_in_turn(uid)
    }

    /// Journals that a claim is released, and lines up for its cards; `None`: it is unknown.
    fn begin_release(&mut self, uid: &ClaimUid) -> Result<Option<QueuePlace<'s>>, PrepareError> {
        let turns = &self.site.turns;
        self.owner.with(|state| {
            let Some(record) = state.claim(uid) else { return Ok(None) };
            let (phase, subjects) = (record.phase, cards_of(&record.plan));
            if phase == Phase::Prepared {
                state.commit(Change::of([JournalEntry::Phase(uid.clone(), Phase::Releasing)]))?;
            }
            Ok(Some(turns.line_up(subjects)))
        })
    }

    /// As [`NodeOperation::undo_claim`], with the turns of claim and cards had.
    fn undo_in_turn(&mut self, uid: &ClaimUid) -> Result<(), PrepareError> {
        let begun = self.owner.with(|state| {
            let Some(record) = state.claim(uid) else { return Ok(None) };
            let (plan, phase) = (record.plan.clone(), record.phase);
            if phase == Phase::Prepared {
                state.commit(Change::of([JournalEntry::Phase(uid.clone(), Phase::Releasing)]))?;
            }
            let ours = state.ours_of(&plan);
            let undos = undo(&plan, |at| ours.contains_key(at), state.others(uid));
            Ok::<_, PrepareError>(Some((plan, undos, ours)))
        })?;
        let Some((plan, undos, ours)) = begun else { return Ok(()) };
        run_undo(&self.site.hands(), &plan, &undos, &ours)?;
        self.owner.with(|state| {
            // A claim that was decided meanwhile may want the partition that is gone: its own steps make it again.
            let wanted: BTreeSet<PartitionAt> = state.others(uid).filter_map(Grant::partition).collect();
            let mut change = Change::of([JournalEntry::Released(uid.clone())]);
            for undo in undos {
                let Undo::DestroyPartition(at) = undo else { continue };
                change.push(match wanted.contains(&at) {
                    true => JournalEntry::Partition(at, PartitionProgress::Planned),
                    false => JournalEntry::Destroyed(at),
                });
            }
            state.commit(change)
        })
    }

    /// Does what is absent of a claim's plan, and records that it is prepared. `cards` are those that were looked at just before,
    /// also for another plan; this one's are added.
    pub(super) fn make_whole(
        &mut self,
        uid: &ClaimUid,
        fresh: &NewPartitions,
        cards: &mut Option<Inventory>,
    ) -> Result<PrepareOutcome, PrepareError> {
        let (record, before) = self.owner.with(|state| {
            let record = state.record(uid)?.clone();
            let ours = state.ours_of(&record.plan);
            Ok::<_, PrepareError>((record, ours))
        })?;
        let ours = self.forget_vanished(&record.plan, before.clone())?;
        let hands = self.site.hands();
        let outcome = match run_steps(&hands, &record.plan, record.kind, &ours, fresh, cards) {
            Err(error) => {
                self.disown(&error, &before)?;
                return Err(error);
            }
            Ok(outcome) => outcome,
        };
        self.publish_contexts(&record.plan.grants, record.phase)?;
        let made = |live: &LivePartition| {
            JournalEntry::Partition(live.at.clone(), PartitionProgress::Made(live.handle.clone()))
        };
        let mut change = Change::of(outcome.partitions.iter().map(made));
        change.push(JournalEntry::Phase(uid.clone(), Phase::Prepared));
        self.owner.with(|state| state.commit(change))?;
        Ok(outcome)
    }

    /// Writes down that partitions which hardware has lost are to be made again, before they are: their next handle is
    /// another one, and a kill in between must not make foreign ones of them.
    fn forget_vanished(
        &mut self,
        plan: &Plan,
        mut ours: BTreeMap<PartitionAt, PartitionProgress>,
    ) -> Result<BTreeMap<PartitionAt, PartitionProgress>, PrepareError> {
        let hardware = |source| PrepareError::Hardware { claim: plan.name.clone(), source: Box::new(source) };
        let vanished = self.site.vanished(&ours.keys().cloned().collect()).map_err(hardware)?;
        let planned = |at: &PartitionAt| JournalEntry::Partition(at.clone(), PartitionProgress::Planned);
        let change = Change::of(vanished.iter().map(planned));
        self.owner.with(|state| state.commit(change))?;
        ours.extend(vanished.into_iter().map(|at| (at, PartitionProgress::Planned)));
        Ok(ours)
    }

    /// Writes down that a partition which hardware refused to make is none of ours: whatever lies at its place now, or will,
    /// is not undone with our plan. `before` is what was known of the plan's partitions.
    fn disown(
        &mut self,
        error: &PrepareError,
        before: &BTreeMap<PartitionAt, PartitionProgress>,
    ) -> Result<(), PrepareError> {
        let Some(at) = error.not_made() else { return Ok(()) };
        let entry = match before.get(at) {
            // One that we once had: what is there now is told apart from it.
            Some(made @ PartitionProgress::Made(_)) => JournalEntry::Partition(at.clone(), made.clone()),
            Some(PartitionProgress::Planned) | None => JournalEntry::Destroyed(at.clone()),
        };
        self.owner.with(|state| state.commit(Change::of([entry])))
    }
}

/// What the steps of a plan take turns at.
pub(super) fn cards_of(plan: &Plan) -> BTreeSet<Subject> {
    plan.grants.iter().map(|grant| Subject::Card(grant.card.clone())).collect()
}

// === impl State ===

impl State {
    /// What the node offers, and the devices of a claim that the scheduler allocated just before layout `auto` changed
    /// an idle card. Another claim that came meanwhile decides the card's layout.
    fn parts_for<'o>(
        &self,
        request: &ClaimRequest,
        offers: &'o Offers,
    ) -> Cow<'o, BTreeMap<DeviceId, OfferedPart>> {
        let mut parts = Cow::Borrowed(&offers.parts);
        for ask in request.devices.iter().filter(|ask| !offers.parts.contains_key(&ask.device)) {
            let Some(part) = offers.other_parts.get(&ask.device) else { continue };
            let in_other_layout =
                |grant: &Grant| grant.card == part.card && grant.device.pool != ask.device.pool;
            if !self.others(&request.uid).any(in_other_layout) {
                parts.to_mut().insert(ask.device.clone(), part.clone());
            }
        }
        parts
    }

    /// Journals a plan, unless its claim is prepared already.
    fn adopt(&mut self, plan: Plan, kind: ClaimKind) -> Result<(Decision, Plan), PrepareError> {
        if let Some(record) = self.claim(&plan.claim) {
            let decision = match record.plan.grants == plan.grants {
                true => Decision::Repair,
                false => Decision::Amend(Box::new(plan.clone())),
            };
            return Ok((decision, plan));
        }
        let mut fresh = NewPartitions::new();
        let mut change = Change::default();
        for step in &plan.steps {
            if let Step::CreatePartition(at) = step
                && !self.journal().partitions.contains_key(at)
            {
                fresh.insert(at.clone());
                change.push(JournalEntry::Partition(at.clone(), PartitionProgress::Planned));
            }
        }
        change.push(JournalEntry::Claim(ClaimRecord { plan: plan.clone(), kind, phase: Phase::Preparing }));
        self.commit(change)?;
        Ok((Decision::New(fresh), plan))
    }
}
