//! How often the shim calls the driver in calls that programs make all the time: counted by a driver that
//! counts, so exact. `benches/benches/hooks.rs` measures their cost.

use aliquot_tests::bare::{Bare, CARD, number};
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::StoodAside;

/// The call, how many pools hold memory, and the driver calls for it without the shim and with it.
const CALLS: [(&str, u32, [u32; 2]); 10] = [
    // Once more: which card is the current one.
    ("info", 0, [1, 2]),
    // And how large each pool is that holds something: it may have shrunk.
    ("info", 3, [1, 5]),
    ("nvml", 0, [0, 0]),
    ("nvml", 3, [0, 3]),
    ("freeasync", 0, [1, 1]),
    ("freeasync", 3, [1, 1]),
    ("graph", 3, [1, 1]),
    ("function", 0, [1, 1]),
    ("function", 3, [1, 1]),
    ("lookup", 3, [0, 0]),
];

#[test]
fn the_driver_is_asked_nothing_that_the_program_did_not_ask() {
    let bare = match Bare::new() {
        Ok(bare) => bare,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let (tenant, _files) = Tenant::with(&memory_limit(CARD, 8 << 30));
    for (what, pools, expected) in CALLS {
        let arguments = [what.to_owned(), pools.to_string(), "0".to_owned()];
        let calls = [bare.command(), bare.command_of(&tenant)]
            .map(|mut command| number(command.args(&arguments)).unwrap());
        assert_eq!(calls, expected.map(f64::from), "{what} beside {pools} pools");
    }
}
