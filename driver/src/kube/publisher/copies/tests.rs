use super::*;

fn object(name: &str, uid: &str, version: &str) -> api::ResourceSlice {
    let mut object = api::ResourceSlice::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object.spec.driver = "aliquot.dev".to_owned();
    object.spec.node_name = Some("n1".to_owned());
    object.spec.pool.name = "n1/p".to_owned();
    object.spec.pool.resource_slice_count = 1;
    object
}

fn listed(objects: &[api::ResourceSlice]) -> ServerCopies {
    let mut copies = ServerCopies::new("aliquot.dev", "n1");
    copies.observe(Event::Init);
    for object in objects {
        copies.observe(Event::InitApply(object.clone()));
    }
    assert_eq!(copies.observe(Event::InitDone), Seen::Listed);
    copies
}

#[test]
fn echo_of_an_own_write_changes_nothing() {
    let mut copies = listed(&[object("a", "1", "10")]);
    assert_eq!(copies.take(ServerSlice::new(object("a", "1", "12"))), Seen::Changed);
    assert_eq!(copies.observe(Event::Apply(object("a", "1", "12"))), Seen::Known);
    assert_eq!(copies.observe(Event::Apply(object("a", "1", "11"))), Seen::Known);
    assert_eq!(copies.observe(Event::Apply(object("a", "1", "13"))), Seen::Changed);
}

#[test]
fn late_events_never_bring_deleted_slices_back() {
    let mut copies = listed(&[object("a", "1", "10")]);
    copies.remove("a");
    assert_eq!(copies.observe(Event::Apply(object("a", "1", "10"))), Seen::Known);
    assert!(copies.get("a").is_none());
    copies.take(ServerSlice::new(object("a", "2", "20")));
    assert_eq!(copies.observe(Event::Delete(object("a", "1", "15"))), Seen::Known);
    assert_eq!(copies.get("a").unwrap().uid(), "2");
    assert_eq!(copies.observe(Event::Delete(object("a", "2", "21"))), Seen::Changed);
    assert!(copies.get("a").is_none());
}

#[test]
fn listing_replaces_what_was_known() {
    let mut copies = listed(&[object("a", "1", "10"), object("b", "2", "11")]);
    assert_eq!(copies.observe(Event::Init), Seen::Listing);
    assert!(copies.get("b").is_some());
    copies.observe(Event::InitApply(object("a", "1", "10")));
    copies.observe(Event::InitDone);
    assert!(copies.get("b").is_none());
}

#[test]
fn slices_of_other_drivers_and_nodes_are_left_out() {
    let mut other_driver = object("a", "1", "10");
    other_driver.spec.driver = "gpu.example.com".to_owned();
    let mut other_node = object("b", "2", "10");
    other_node.spec.node_name = Some("n2".to_owned());
    let mut copies = listed(&[other_driver.clone(), other_node.clone()]);
    assert_eq!(copies.iter().count(), 0);
    assert_eq!(copies.observe(Event::Apply(other_node)), Seen::Known);
    assert_eq!(copies.take(ServerSlice::new(other_driver)), Seen::Known);
    assert_eq!(copies.iter().count(), 0);
}

#[test]
fn versions_that_are_no_numbers_are_taken_as_events_come() {
    let mut copies = listed(&[object("a", "1", "x")]);
    assert_eq!(copies.observe(Event::Apply(object("a", "1", "x"))), Seen::Known);
    assert_eq!(copies.observe(Event::Apply(object("a", "1", "w"))), Seen::Changed);
}

#[test]
fn list_is_judged_by_names_uids_and_versions() {
    let mut copies = listed(&[object("a", "1", "10"), object("b", "2", "12")]);
    let verdict = |copies: &mut ServerCopies, objects: &[(&str, &str, &str)], version: Option<&str>| {
        let objects: Vec<_> = objects.iter().map(|(name, uid, at)| object(name, uid, at).metadata).collect();
        copies.judge(&objects.iter().collect::<Vec<_>>(), version)
    };
    let both = [("a", "1", "10"), ("b", "2", "12")];
    assert_eq!(verdict(&mut copies, &both, Some("20")), ListVerdict::Same);
    // A version without an order, or none, says nothing of age.
    assert_eq!(verdict(&mut copies, &both, Some("x")), ListVerdict::Same);
    assert_eq!(verdict(&mut copies, &both, None), ListVerdict::Same);
    for other in [("b", "3", "12"), ("b", "2", "13"), ("c", "2", "12")] {
        assert_eq!(verdict(&mut copies, &[both[0], other], Some("20")), ListVerdict::Differs);
    }
    assert_eq!(verdict(&mut copies, &both[..1], Some("20")), ListVerdict::Differs);
    let older = ListVerdict::Older { found: 19, known: 20 };
    assert_eq!(verdict(&mut copies, &both, Some("19")), older);
    copies.restored(19);
    assert_eq!(verdict(&mut copies, &both, Some("19")), ListVerdict::Same);
    // An own write or an event is of a later state than the list before.
    copies.take(ServerSlice::new(object("b", "2", "30")));
    assert_eq!(verdict(&mut copies, &both, Some("29")), ListVerdict::Older { found: 29, known: 30 });
}
