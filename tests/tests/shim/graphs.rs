//! Memory nodes of graphs: the simulated driver does what the vendor's documents say. Under a limit no memory
//! is granted above it, no free memory is refused, and the accounting agrees with the driver, for every kind
//! of driver.

use aliquot_abi::layout::usage;
use aliquot_sim_device::{Card, MemoryKind};
use aliquot_tests::preload::{GrantFiles, Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;

const MIB: u64 = 1 << 20;
/// What stores of graphs grow by.
const UNIT: u64 = 32 * MIB;
const LIMIT: u64 = 4 * UNIT;
/// Longer than any test.
const LONG: &str = "600000000000";

/// When the driver takes memory for graphs.
const KINDS: [&str; 3] = ["launch", "idle", "instantiation"];

fn bench(kind: &str) -> Option<(Bench, std::path::PathBuf)> {
    let bench = Bench::new();
    bench.write("node.toml", &format!("context_bytes = 0\nmodule_bytes = 0\ngraph_memory = \"{kind}\"\n"));
    match bench.compile("shim_graphs", Link::Opened) {
        Ok(program) => Some((bench, program)),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// What graphs hold on a card, as the driver says.
fn of_graphs(card: &Card) -> u64 {
    card.processes().iter().map(|process| process.held_by_kind[usize::from(MemoryKind::Graph as u8)]).sum()
}

/// A program under a limit.
struct Scene {
    program: Talk,
    files: GrantFiles,
    card: Card,
    _bench: Bench,
    _tenant: Tenant,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new(kind: &str) -> Option<Self> {
        println!("memory at {kind}");
        let (bench, program) = bench(kind)?;
        let card = bench.card();
        let (tenant, files) = Tenant::with(&memory_limit(&card.facts().uuid, LIMIT));
        let program = Talk::start(&mut tenant.command(&bench, program));
        Some(Self { program, files, card, _bench: bench, _tenant: tenant })
    }

    fn say(&mut self, line: &str, expected: &str) {
        assert_eq!(self.program.say(line), expected, "{line}");
    }

    /// The accounting, which agrees with the driver; a request for memory updates it.
    fn settled(&mut self) -> u64 {
        let told = self.program.say("info");
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(told, format!("0 {}", LIMIT - books));
        assert_eq!(books, self.card.in_use());
        books
    }

    fn denied(&self) -> u64 {
        self.files.counter(usage::DENIED)
    }

    fn end(self) {
        assert!(self.card.high_water() <= LIMIT, "{} of {LIMIT}", self.card.high_water());
        self.program.end();
    }
}

/// A program without limits, and what graphs hold after each line.
fn bare(kind: &str, lines: &[(&str, &str, u64)]) {
    println!("memory at {kind}");
    let Some((bench, program)) = bench(kind) else { return };
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

#[test]
fn graph_memory_is_charged_at_launch_and_credited_at_trim() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        let at_once = kind == "instantiation";
        scene.say("inside 0 1000", "0");
        assert_eq!(scene.files.counter(usage::TOTAL), if at_once { UNIT } else { 0 });
        scene.say("launch 0 0", "0");
        assert_eq!(scene.files.counter(usage::TOTAL), UNIT);
        scene.say(&format!("captured 1 {UNIT}"), "0");
        scene.say("launch 1 1", "0");
        assert_eq!(scene.settled(), if kind == "idle" { UNIT } else { 2 * UNIT });
        scene.say("undo 0", "0");
        scene.say("trim", "0");
        assert_eq!(scene.files.counter(usage::TOTAL), UNIT);
        // Memory that no graph uses is released before a refusal.
        scene.say("inside 2 1000", "0");
        scene.say("launch 2 2", "0");
        scene.say("undo 2", "0");
        scene.say(&format!("alloc 0 {}", 3 * UNIT), "0");
        assert_eq!((scene.settled(), scene.denied()), (LIMIT, 0));
        scene.say("alloc 1 1", "2");
        scene.say("free 1", "0");
        scene.say("undo 1", "0");
        scene.say("alloc 1 1", "0");
        scene.end();
    }
}

#[test]
fn excess_graph_memory_is_refused_before_the_driver_allocates() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        let at_once = kind == "instantiation";
        // What this driver is like.
        scene.say("inside 63 1", "0");
        let forms = [
            format!("left 0 {} 0", 3 * UNIT),
            format!("inside 0 {}", 3 * UNIT),
            format!("chain 0 {} 20", 3 * UNIT),
            format!("wide 0 {} 6", UNIT / 2),
            format!("many 0 {} 48", UNIT / 16),
            format!("captured 0 {}", 3 * UNIT),
            format!("child 0 {} 1", 3 * UNIT),
            format!("child 0 {} 12", 3 * UNIT),
        ];
        for form in forms {
            scene.say("undo 63", "0");
            scene.say("trim", "0");
            scene.say("inside 63 1", "0");
            scene.say(&format!("alloc 0 {}", UNIT + UNIT / 2), "0");
            let before = (scene.settled(), scene.denied());
            scene.say(&form, if at_once { "2" } else { "0" });
            if !at_once {
                for line in ["upload 0 0", "upload 0 9", "launch 0 0", "launch 0 1", "launch 0 9"] {
                    scene.say(line, "2");
                }
            }
            let refused = if at_once { 1 } else { 5 };
            assert_eq!((scene.settled(), scene.denied()), (before.0, before.1 + refused), "{form}");
            scene.say("release 0", "0");
            if at_once {
                scene.say("undo 63", "0");
                scene.say(&form, "0");
            }
            scene.say("launch 0 0", "0");
            assert_eq!(scene.settled(), 3 * UNIT, "{form}");
            if !form.starts_with("inside") && !form.contains("UNUSED") {
                scene.program.say("free 0");
            }
            scene.say("undo 0", "0");
            if at_once {
                scene.say("inside 63 1", "0");
            }
        }
        scene.end();
    }
}

#[test]
fn graph_instantiated_with_upload_is_reserved_before_it() {
    for stream in [0, 9] {
        let Some(mut scene) = Scene::new("launch") else { return };
        let upload = format!("upload-at-once 0 {} {stream}", 3 * UNIT);
        scene.say("inside 63 1", "0");
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "0");
        scene.say(&upload, "2");
        scene.say("release 0", "0");
        scene.say(&upload, "0");
        assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 1));
        // It has its memory: there is no room for it to be had again, as it is at work.
        if stream == 0 {
            scene.say(&format!("busy 0 {LONG}"), "0");
        }
        scene.say(&format!("launch 0 {stream}"), "0");
        scene.say(&format!("launch 0 {stream}"), "0");
        if stream == 0 {
            scene.say("launch 0 1", "2");
            assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 2));
        }
        scene.end();
    }
}

#[test]
fn graphs_with_memory_launch_again_at_a_full_limit() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        // That graphs of a stream have the same memory is seen where there is room to see it.
        for slot in [3, 4] {
            scene.say(&format!("inside {slot} 1"), "0");
            scene.say(&format!("launch {slot} 0"), "0");
        }
        for slot in [3, 4] {
            scene.say(&format!("undo {slot}"), "0");
        }
        scene.say("trim", "0");
        let sizes = if kind == "instantiation" { [2, 1, 1] } else { [3, 2, 1] };
        for (slot, size) in sizes.iter().enumerate() {
            scene.say(&format!("inside {slot} {}", size * UNIT), "0");
        }
        // Before any of them is done; each has most of the limit, and they have the same.
        scene.say(&format!("busy 0 {LONG}"), "0");
        for turn in 0..9 {
            scene.say(&format!("launch {} 0", turn % 3), "0");
        }
        let held = if kind == "instantiation" { 4 } else { 3 };
        assert_eq!((scene.settled(), scene.denied()), (held * UNIT, 0));
        if kind != "instantiation" {
            scene.say(&format!("alloc 0 {UNIT}"), "0");
            scene.say("alloc 1 1", "2");
            // A request was refused, and nothing was there to be released.
            (0..9).for_each(|turn| scene.say(&format!("launch {} 0", turn % 3), "0"));
            // In another stream they would have to have memory of their own.
            scene.say("launch 2 1", "2");
        }
        scene.end();
    }
}

#[test]
fn graph_leftovers_are_not_reused_by_other_graphs() {
    for kind in ["launch", "idle"] {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("left 0 {} 1", 2 * UNIT), "0");
        scene.say(&format!("inside 1 {}", 2 * UNIT), "0");
        scene.say("launch 1 0", "0");
        scene.say(&format!("busy 0 {LONG}"), "0");
        // In the memory of the other, which needs more then.
        scene.say("launch 0 0", "0");
        scene.say(&format!("alloc 0 {UNIT}"), "0");
        scene.say("launch 1 0", "2");
        scene.say("launch 0 0", "0");
        scene.say("release 0", "0");
        scene.say("launch 1 0", "0");
        scene.say("launch 0 0", "0");
        assert_eq!((scene.settled(), scene.denied()), (LIMIT, 1));
        scene.end();
    }
}

#[test]
fn stream_with_a_reused_handle_has_no_memory_of_the_old_one() {
    for kind in ["launch", "idle"] {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("inside 0 {}", 3 * UNIT), "0");
        scene.say(&format!("busy 0 {LONG}"), "0");
        scene.say("launch 0 0", "0");
        scene.say("renew 0", "0");
        scene.say("launch 0 0", "2");
        assert_eq!(scene.settled(), 3 * UNIT);
        scene.end();
    }
}

#[test]
fn trim_costs_graph_memory_and_update_adds_none() {
    for kind in ["launch", "idle"] {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("inside 0 {}", 3 * UNIT), "0");
        scene.say("launch 0 0", "0");
        scene.say("update 0 1000", "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), 3 * UNIT);
        scene.say("trim", "0");
        assert_eq!(scene.settled(), 0);
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "0");
        scene.say("launch 0 0", "2");
        scene.say("release 0", "0");
        scene.say("launch 0 0", "0");
        assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 1));
        scene.end();
    }
}

/// A driver may take what they say; the simulated one keeps what the graph has.
#[test]
fn a_graph_that_was_updated_is_reserved_what_its_new_nodes_want() {
    for version in [1, 2] {
        let Some(mut scene) = Scene::new("launch") else { return };
        scene.say(&format!("inside 0 {UNIT}"), "0");
        scene.say("launch 0 0", "0");
        scene.say(&format!("update 0 {} {version}", 3 * UNIT), "0");
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "0");
        scene.say("launch 0 0", "2");
        scene.say("release 0", "0");
        scene.say("launch 0 0", "0");
        assert_eq!((scene.settled(), scene.denied()), (UNIT, 1));
        scene.end();
    }
}

#[test]
fn graphs_are_read_however_deep_they_lie_in_each_other() {
    let Some(mut scene) = Scene::new("launch") else { return };
    // Without memory nodes, in a process in which there was one.
    scene.say("inside 63 1", "0");
    scene.say("child 0 0 300", "0");
    for depth in [15, 16, 300] {
        scene.say(&format!("child 0 {} {depth}", 2 * UNIT), "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), 2 * UNIT);
        scene.say("undo 0", "0");
        scene.say("trim", "0");
    }
    scene.say(&format!("child 0 {} 300", 5 * UNIT), "0");
    scene.say("launch 0 0", "2");
    assert_eq!((scene.settled(), scene.denied()), (0, 1));
    scene.end();
}

/// The driver writes a launch down as a graph inside the captured one, which has nodes like any.
#[test]
fn captured_child_graph_launch_is_read_beside_an_allocation() {
    let Some(mut scene) = Scene::new("launch") else { return };
    // Graphs inside each other, without memory nodes.
    scene.say("child 63 0 3", "0");
    scene.say(&format!("beside 0 63 {UNIT}"), "0");
    scene.say("launch 0 0", "0");
    assert_eq!(scene.settled(), UNIT);
    scene.say(&format!("beside 1 63 {LIMIT}"), "0");
    scene.say("launch 1 0", "2");
    assert_eq!((scene.settled(), scene.denied()), (UNIT, 1));
    scene.say("launch 63 0", "0");
    scene.end();
}

#[test]
fn more_graphs_than_are_noted_are_refused() {
    let Some(mut scene) = Scene::new("launch") else { return };
    // What this driver is like.
    scene.say("inside 1 1", "0");
    scene.say("undo 1", "0");
    scene.say("many 1 1000 900", "0");
    scene.say("undo 1", "0");
    scene.say("crowd 5000 1000", "3072 2");
    scene.say("launch 0 0", "400");
    scene.end();
}

#[test]
fn upload_beside_leftovers_is_reserved_before_the_driver() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("left 0 {} 0", 2 * UNIT), "0");
        scene.say("launch 0 0", "0");
        scene.say(&format!("alloc 0 {UNIT}"), "0");
        assert_eq!(scene.settled(), 3 * UNIT);
        scene.say("upload 0 0", "2");
        assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 1));
        scene.say("release 0", "0");
        scene.say("upload 0 0", "0");
        assert_eq!((scene.settled(), scene.denied()), (LIMIT, 1));
        // That leaves the kind of driver as it was detected.
        let fits = if kind == "instantiation" { "2 2" } else { "80 0" };
        scene.say(&format!("crowd 80 {UNIT}"), fits);
        scene.say("free 0", "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), LIMIT);
        scene.end();
    }
}

#[test]
fn driver_with_another_allocation_rule_surprises_once() {
    // It takes none of small graphs when they are instantiated, and all of large ones.
    let Some(mut scene) = Scene::new("mixed") else { return };
    scene.say("inside 0 1000", "0");
    assert_eq!(scene.settled(), 0);
    scene.say(&format!("crowd 80 {}", 2 * UNIT), "2 2");
    assert_eq!((scene.settled(), scene.denied()), (LIMIT, 1));
    scene.end();
    // It takes all of large graphs then, and some of small ones when they are launched.
    let Some(mut scene) = Scene::new("mixed") else { return };
    scene.say(&format!("inside 0 {}", 2 * UNIT), "0");
    scene.say("left 1 1000 0", "0");
    scene.say("launch 1 0", "0");
    assert_eq!(scene.settled(), 3 * UNIT);
    scene.say(&format!("crowd 80 {}", 2 * UNIT), "0 2");
    scene.say("inside 2 1000", "0");
    scene.say("launch 2 1", "0");
    scene.say("inside 3 1000", "0");
    // Another stream gives back what it does not use.
    scene.say("launch 3 2", "0");
    assert_eq!((scene.settled(), scene.denied()), (LIMIT, 1));
    scene.end();
}

#[test]
fn instantiation_passing_the_limit_unforeseen_is_undone() {
    let Some(mut scene) = Scene::new("mixed") else { return };
    scene.say("inside 0 1000", "0");
    scene.say(&format!("alloc 0 {}", 3 * UNIT), "0");
    scene.say(&format!("inside 1 {}", 2 * UNIT), "2");
    assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 1));
    scene.say("launch 1 0", "400");
    // That was the once.
    let past = scene.card.high_water();
    assert_eq!(past, 5 * UNIT);
    scene.say("release 0", "0");
    scene.say(&format!("crowd 80 {}", 2 * UNIT), "2 2");
    assert_eq!((scene.settled(), scene.card.high_water()), (LIMIT, past));
    scene.program.end();
}
