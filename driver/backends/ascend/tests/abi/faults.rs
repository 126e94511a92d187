//! NPUs and libraries that answer wrongly, not at all, or with faults.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

/// Held by a test while its chips report faults: the queues of events are the process's, and every test's chips have the same numbers.
fn alone_with_events() -> MutexGuard<'static, ()> {
    static REPORTING: Mutex<()> = Mutex::new(());
    REPORTING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn garbage_answers_are_named_and_believed_nowhere() {
    for (symbol, words) in [
        ("dcmi_get_card_list", "found -1 cards, expected 0 to 64"),
        ("dcmi_get_device_num_in_card", "found -1 chips, expected 0 to 16"),
        ("dcmi_get_driver_version", "expected printable text that ends"),
        ("dcmi_get_device_chip_info_v2", "expected printable text that ends"),
        ("dcmi_get_device_logic_id", "found -1, expected 0 or more"),
        ("dcmi_get_device_phyid_from_logicid", "found 4294967295, expected 0 to 1023"),
        ("dcmi_get_device_die_v2", "found no identity, expected the words of a die"),
        ("dcmi_get_device_memory_info_v3", "expected MiB"),
    ] {
        let bench = Bench::new(&two_310p());
        bench.fault(symbol, "\"garbage\"");
        let refusal = bench.refusal();
        assert!(refusal.contains(words), "{symbol}: {refusal}");
    }
    let bench = Bench::new(&two_310p());
    bench.fault("dcmi_get_device_info", "\"garbage\"");
    let card = bench.open().discover().unwrap().cards[0].clone();
    assert!(unhealthy(&card).contains("found 4294967295 vNPUs, expected 0 to 32"), "{}", unhealthy(&card));
    let bench = Bench::new(&two_310p());
    bench.fault("dcmi_get_device_health", "\"garbage\"");
    let card = bench.open().discover().unwrap().cards[0].clone();
    assert!(unhealthy(&card).contains("found no chip"), "{}", unhealthy(&card));
}

#[test]
fn one_chip_that_does_not_answer_leaves_the_others() {
    let bench = Bench::new(&two_310p());
    bench.faults("[[fault]]\nsymbol = \"dcmi_get_device_logic_id\"\ncall = 1\naction = { error = -8012 }\n");
    let node = bench.open();
    assert!(node.trouble()[0].contains("card 0 chip 0") && node.trouble()[0].contains("in recovery"));
    assert_eq!(node.discover().unwrap().cards.len(), 2);
}

#[test]
fn silent_chip_keeps_its_devices_until_it_answers() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let read = node.discover().unwrap().cards;
    bench.fault("dcmi_get_device_logic_id", "{ error = -8012 }");
    let silent = node.discover().unwrap().cards;
    let same = |cards: &[Card]| cards.iter().map(|card| (card.uuid.clone(), card.table().cloned())).collect();
    let (before, after): (Vec<_>, Vec<_>) = (same(&read), same(&silent));
    assert_eq!(after, before, "the same devices stay on offer");
    assert!(silent.iter().all(|card| unhealthy(card).contains("in recovery")), "{silent:?}");
    assert!(silent.iter().all(|card| card.listing == Listing::Listed && card.found.is_empty()));
    let asked = node.discover_card(&read[1].uuid).unwrap();
    assert!(unhealthy(&asked).contains("in recovery"), "a prepare sees it as well");
    assert!(node.create_partition(&at(&read[1], "vir02", "vg0")).is_err());
    bench.faults("");
    assert_eq!(node.discover().unwrap().cards, read);
}

#[test]
fn chip_in_recovery_takes_no_claim_until_its_vnpus_are_back() {
    let bench = Bench::new(&Machine { recover: Recover::Enabled, ..two_310p() });
    let npus = bench.npus();
    vnpu(&npus, 0, "vir02");
    let kept = npus.state().unwrap();
    // A restart: the configuration names what does not exist yet.
    npus.change(|state| {
        state.vnpus.clear();
        Ok(())
    })
    .unwrap();
    let node = bench.open();
    let cards = node.discover().unwrap().cards;
    assert!(
        unhealthy(&cards[0]).contains("recovery: found no vNPU 100, expected"),
        "{}",
        unhealthy(&cards[0])
    );
    assert_eq!(cards[1].health, Health::Healthy);
    npus.change(|state| {
        state.vnpus = kept.vnpus;
        Ok(())
    })
    .unwrap();
    assert_eq!(node.discover().unwrap().cards[0].health, Health::Healthy);
    // A recovery line that cannot be written undoes the creation.
    npus.change(|state| {
        state.recovery_fails = true;
        Ok(())
    })
    .unwrap();
    let refused = node.create_partition(&at(&cards[1], "vir02", "vg0")).unwrap_err().to_string();
    assert!(refused.contains("inner error"), "{refused}");
    assert_eq!(npus.state().unwrap().vnpus.len(), 1);
}

#[test]
fn vnpu_that_disappears_is_absent_and_the_rest_goes_on() {
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let card = node.discover().unwrap().cards[0].clone();
    let live = node.create_partition(&at(&card, "vir02", "vg0")).unwrap();
    // It goes between the list and the question for it: the list asks first, then each.
    bench.faults("[[fault]]\nsymbol = \"dcmi_get_device_info\"\ncall = 2\naction = \"vanish\"\n");
    assert_eq!(node.partitions().unwrap(), []);
    let gone = node.access(&card.uuid, &live.at.part());
    assert!(matches!(gone, Err(BackendError::Absent { .. })), "{gone:?}");
    let gone = node.destroy_partition(&live.at, &ExpectedPartition::Handle(live.handle));
    assert!(matches!(gone, Err(BackendError::Absent { .. })), "{gone:?}");
}

#[test]
fn vnpus_for_virtual_machines_are_left_alone() {
    let bench = Bench::new(&Machine { mode: VnpuMode::Vm, ..two_310p() });
    let node = bench.open();
    assert!(
        node.no_partitions()[0].contains("vNPU mode: found VM, expected docker"),
        "{:?}",
        node.no_partitions()
    );
    assert_eq!(node.discover().unwrap().cards[0].table(), None);
}

#[test]
fn faults_reach_the_watcher_and_the_health() {
    let _alone = alone_with_events();
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let health = || node.discover().unwrap().cards[1].health.clone();
    assert_eq!(health(), Health::Healthy);
    let card = node.discover().unwrap().cards[1].uuid.clone();
    let watch = node.watch(&card).unwrap();
    let mut events = node.events(&card).unwrap();
    bench.npus().set_health(1, &ChipHealth { health: 3, codes: vec![0x80C9_8001] }).unwrap();
    let event = watch.next_fault(Duration::from_secs(20)).unwrap();
    assert_eq!((event.device, event.code, event.severity, event.assertion), (1, 0x80C9_8001, 3, 1));
    let noted = events.next(Duration::from_secs(20)).unwrap().unwrap();
    assert_eq!(noted.cause, Cause::Code(0x80C9_8001));
    assert!(matches!(health(), Health::Unhealthy(why) if why.contains("80C98001")));
    bench.npus().set_health(1, &ChipHealth::default()).unwrap();
    assert_eq!(watch.next_fault(Duration::from_secs(20)).unwrap().assertion, 0);
    let looks = [health(), health(), health()];
    assert_eq!(looks.iter().filter(|health| **health == Health::Healthy).count(), 1, "{looks:?}");
}

#[test]
fn generation_is_known_once_all_chips_are_watched_and_changes() {
    let _alone = alone_with_events();
    let bench = Bench::new(&two_310p());
    let node = bench.open();
    let cards = node.discover().unwrap().cards;
    let mut watches = vec![node.events(&cards[0].uuid).unwrap()];
    assert_eq!(node.generation(), None, "a fault of the other chip would give no sign");
    watches.push(node.events(&cards[1].uuid).unwrap());
    node.discover().unwrap();
    let quiet = node.generation();
    assert!(quiet.is_some());
    node.discover().unwrap();
    assert_eq!(node.generation(), quiet, "nothing has changed");
    let quarter = at(&cards[0], "vir02", "vg0");
    let made = node.create_partition(&quarter).unwrap();
    let created = node.generation();
    assert_ne!(created, quiet);
    node.destroy_partition(&quarter, &ExpectedPartition::Handle(made.handle)).unwrap();
    let destroyed = node.generation();
    assert!(destroyed != created && destroyed != quiet, "{quiet:?} {created:?} {destroyed:?}");
    bench.npus().set_health(1, &ChipHealth { health: 3, codes: vec![0x80C9_8001] }).unwrap();
    assert!(watches[1].next(Duration::from_secs(20)).unwrap().is_some());
    assert_ne!(node.generation(), destroyed, "a chip reported a fault");
    bench.fault("dcmi_get_device_logic_id", "{ error = -8012 }");
    node.discover().unwrap();
    assert!(!node.trouble().is_empty());
    assert_eq!(node.generation(), None, "a chip does not answer: each look asks all of them");
}
