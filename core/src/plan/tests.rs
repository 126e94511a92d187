use super::*;
use crate::grant::{ComputePolicy, FailMode, SettingWord};
use crate::id::TemplateName;
use crate::partition::{Isolation, PlacementName};

fn partition(name: &str) -> PartitionAt {
    PartitionAt {
        card: CardUuid::new("GPU-1").unwrap(),
        template: TemplateName::new("1g.10gb").unwrap(),
        placement: PlacementName(name.to_owned()),
    }
}

fn grant_of(uid: &str, share: &str, part: Part) -> Grant {
    Grant {
        claim: ClaimUid::new(uid).unwrap(),
        share: ShareName::new(share).unwrap(),
        request: "gpu".to_owned(),
        device: DeviceId { driver: "aliquot.dev".to_owned(), pool: "p".to_owned(), device: "d".to_owned() },
        card: CardUuid::new("GPU-1").unwrap(),
        part,
        sharing: Sharing::Shareable,
        memory: Bytes(1 << 30),
        cores: Cores::NONE,
        settings: ShareSettings::default(),
    }
}

fn sound() -> Plan {
    let at = partition("0");
    let share = ShareName::new("0").unwrap();
    Plan {
        claim: ClaimUid::new("a").unwrap(),
        name: "ns/a".to_owned(),
        grants: vec![grant_of("a", "0", at.part())],
        steps: vec![Step::CreatePartition(at), Step::WriteGrant(share), Step::WriteCdi],
    }
}

#[test]
fn the_linter_names_the_rule_that_a_plan_breaks() {
    assert_eq!(check(&sound()), Ok(()));
    let broken = |change: fn(&mut Plan)| {
        let mut plan = sound();
        change(&mut plan);
        check(&plan).unwrap_err()
    };
    assert_eq!(broken(|p| p.grants.clear()), PlanProblem::Empty);
    assert!(matches!(broken(|p| p.grants.push(p.grants[0].clone())), PlanProblem::SharedName(_)));
    assert!(matches!(broken(|p| p.claim = ClaimUid::new("b").unwrap()), PlanProblem::OtherClaim(_)));
    assert!(matches!(broken(|p| p.grants[0].memory = Bytes(0)), PlanProblem::NoMemory(_)));
    assert!(matches!(broken(|p| p.steps.push(Step::WriteCdi)), PlanProblem::Repeated(_)));
    assert!(matches!(broken(|p| p.steps.swap(0, 1)), PlanProblem::Order(_)));
    assert!(matches!(broken(|p| drop(p.steps.remove(1))), PlanProblem::Unwritten(_)));
    assert!(matches!(broken(|p| drop(p.steps.pop())), PlanProblem::NoCdi));
    let unused = |p: &mut Plan| p.steps[0] = Step::CreatePartition(partition("7"));
    assert!(matches!(broken(unused), PlanProblem::Unused(_)));
    let ungranted = |p: &mut Plan| p.steps.insert(1, Step::WriteGrant(ShareName::new("9").unwrap()));
    assert!(matches!(broken(ungranted), PlanProblem::Ungranted(_)));
}

#[test]
fn a_partition_goes_with_its_last_holder_and_a_strangers_never() {
    let plan = sound();
    let destroy = Undo::DestroyPartition(partition("0"));
    let files = [Undo::RemoveCdi, Undo::RemoveGrant(ShareName::new("0").unwrap())];
    let alone = undo(&plan, |_| true, []);
    assert_eq!(alone[..2], files);
    assert_eq!(alone[2..], [destroy]);
    let neighbour = grant_of("b", "0", partition("0").part());
    assert_eq!(undo(&plan, |_| true, [&neighbour]), files);
    assert_eq!(undo(&plan, |_| false, []), files, "found on the card: not ours to destroy");
    for step in &plan.steps {
        assert!(undo(&plan, |_| true, []).contains(&step.inverse()), "{step} has no inverse");
    }
}

#[test]
fn settings_are_spelled_one_way_and_ordered_by_strength() {
    assert_eq!(ComputePolicy::of_word("burst"), Some(ComputePolicy::Burst));
    assert_eq!(FailMode::of_word("Open"), None);
    assert_eq!(<Isolation as SettingWord>::words(), "hardware, timeslice or cooperative");
    let demand = PartitionDemand { isolation_at_least: Isolation::Timeslice };
    assert!(demand.met_by(Isolation::Hardware) && !demand.met_by(Isolation::Cooperative));
}
