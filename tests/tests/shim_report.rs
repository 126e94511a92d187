//! Every call that tells about memory tells the grant, whichever way a program came by it.

use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside, said};

const LIMIT: u64 = 8 << 30;

#[test]
fn memory_is_the_grant_by_every_way_to_the_driver() {
    let bench = Bench::new();
    let program = match bench.compile("shim_info", Link::Opened) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let card = bench.card().facts().clone();
    let (tenant, _files) = Tenant::with(&memory_limit(&card.uuid, LIMIT));
    for way in ["opened", "deepbind", "default", "address", "address2"] {
        let told = said(&tenant.command(&bench, &program).arg(way).output().unwrap());
        let told: Vec<u64> = told.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!((told[1], told[2]), (LIMIT, LIMIT), "{way}");
        assert!(told[0] <= LIMIT, "{way}");
        let bare = said(&bench.command(&program).arg(way).output().unwrap());
        assert!(bare.contains(&format!(" {0} {0}", card.memory_bytes)), "{way}: {bare}");
    }
}
