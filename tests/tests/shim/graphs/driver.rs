//! Graphs without a limit: the simulated driver does what the vendor's documents say, for every kind of driver.

use super::{KINDS, LONG, UNIT, bench};
use aliquot_sim_device::{Card, MemoryKind};
use aliquot_tests::talk::Talk;

/// What graphs hold on a card, as the driver says.
fn of_graphs(card: &Card) -> u64 {
    card.processes().iter().map(|process| process.held_by_kind[usize::from(MemoryKind::Graph as u8)]).sum()
}

/// A program without limits, and what graphs hold after each line.
fn bare(kind: &str, lines: &[(&str, &str, u64)]) {
    println!("memory at {kind}");
    let Some((bench, program)) = bench(kind, UNIT) else { return };
    let mut program = Talk::start(&mut bench.command(program));
    for (line, expected, held) in lines {
        assert_eq!(program.say(line), *expected, "{line}");
        assert_eq!(of_graphs(&bench.card()), held * UNIT, "{line}");
    }
    program.end();
}

#[test]
fn driver_backs_graphs_at_launch_and_a_stream_shares_memory() {
    bare(
        "launch",
        &[
            ("inside 0 100000000", "0", 0),
            ("inside 1 30000000", "0", 0),
            ("launch 0 0", "0", 3),
            ("launch 1 0", "0", 3),
            ("launch 0 0", "0", 3),
            ("launch 1 1", "0", 4),
            ("upload 0 2", "0", 7),
            // What one stream keeps is not another one's; a trim gives back what is not in use.
            ("launch 0 2", "0", 7),
            (&format!("busy 2 {LONG}"), "0", 7),
            ("launch 0 2", "0", 7),
            ("trim", "0", 3),
            ("launch 1 2", "0", 3),
            ("undo 0", "0", 3),
            ("trim", "0", 3),
        ],
    );
}

#[test]
fn driver_keeps_unfreed_graph_memory_until_it_is_freed() {
    bare(
        "launch",
        &[
            ("left 0 30000000 0", "0", 0),
            ("left 1 30000000 1", "0", 0),
            ("free 0", "1", 0),
            ("launch 0 0", "0", 1),
            ("launch 0 0", "1", 1),
            ("trim", "0", 1),
            // Its memory is not another graph's.
            ("inside 2 30000000", "0", 1),
            ("launch 2 0", "0", 2),
            ("freeing 3 0", "0", 2),
            ("launch 3 1", "0", 2),
            ("launch 3 1", "1", 2),
            ("launch 0 0", "0", 2),
            ("undo 0", "0", 2),
            ("trim", "0", 1),
            ("free 0", "0", 1),
            ("free 0", "1", 1),
            ("launch 1 0", "0", 1),
            ("launch 1 0", "0", 1),
            ("trim", "0", 1),
            ("free 1", "0", 1),
            ("trim", "0", 0),
        ],
    );
}

#[test]
fn driver_reuses_addresses_and_refuses_as_the_vendor_does() {
    for kind in KINDS {
        let at_once = u64::from(kind == "instantiation");
        bare(
            kind,
            &[
                // 96 MiB ten times, one after the other.
                ("chain 0 100663296 10", "0", 3 * at_once),
                ("launch 0 0", "0", 3),
                ("again 0", "801", 3),
                ("clone 0", "801", 3),
                ("embed 0", "801", 3),
                ("remove 0", "801", 3),
                ("double 0", "1", 3),
                ("capture-launch 0 0", "900", 3),
                ("undo 0", "0", 3),
                ("trim", "0", 0),
                ("wide 1 100663296 3", "0", 9 * at_once),
                ("launch 1 0", "0", 9),
                ("undo 1", "0", 9),
                ("trim", "0", 0),
                ("child 2 100663296 3", "0", 3 * at_once),
                ("launch 2 0", "0", 3),
                ("undo 2", "0", 3),
                // More than the card has.
                ("inside 3 85899345920", if kind == "instantiation" { "2" } else { "0" }, 3),
            ],
        );
    }
    bare("launch", &[("inside 0 85899345920", "0", 0), ("launch 0 0", "2", 0), ("upload 0 0", "2", 0)]);
}

#[test]
fn other_drivers_use_stream_leftovers_or_allocate_at_once() {
    bare(
        "idle",
        &[
            ("inside 0 100000000", "0", 0),
            ("inside 1 30000000", "0", 0),
            ("launch 0 0", "0", 3),
            ("launch 1 1", "0", 3),
            ("launch 0 0", "0", 3),
            (&format!("busy 0 {LONG}"), "0", 3),
            ("launch 0 0", "0", 3),
            ("launch 1 1", "0", 4),
        ],
    );
    bare(
        "instantiation",
        &[
            ("inside 0 100000000", "0", 3),
            ("trim", "0", 3),
            ("left 1 30000000 0", "0", 4),
            ("launch 0 0", "0", 4),
            ("launch 1 1", "0", 4),
            ("undo 0", "0", 4),
            ("inside 2 60000000", "0", 4),
            ("trim", "0", 3),
        ],
    );
}
