//! Memory nodes of graphs under a limit: each executable graph is charged its footprint while it exists, no memory is granted
//! above the limit, and the driver never holds more than accounting says, for every kind of driver.

mod driver;

use aliquot_abi::layout::usage;
use aliquot_sim_device::Card;
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

fn bench(kind: &str, unit: u64) -> Option<(Bench, std::path::PathBuf)> {
    let bench = Bench::new();
    let sizes = format!("context_bytes = 0\nmodule_bytes = 0\npool_bytes = {unit}\n");
    bench.write("node.toml", &format!("{sizes}graph_memory = \"{kind}\"\n"));
    match bench.compile("shim_graphs", Link::Opened) {
        Ok(program) => Some((bench, program)),
        Err(StoodAside(why)) => {
            println!("stood aside: {why}");
            None
        }
    }
}

/// A program under a limit.
struct Scene {
    program: Talk,
    files: GrantFiles,
    card: Card,
    limit: u64,
    _bench: Bench,
    _tenant: Tenant,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new(kind: &str) -> Option<Self> {
        Self::with(kind, (UNIT, LIMIT))
    }

    /// With stores that grow by `unit`.
    fn with(kind: &str, (unit, limit): (u64, u64)) -> Option<Self> {
        println!("memory at {kind}");
        let (bench, program) = bench(kind, unit)?;
        let card = bench.card();
        let (tenant, files) = Tenant::with(&memory_limit(&card.facts().uuid, limit));
        let program = Talk::start(&mut tenant.command(&bench, program));
        Some(Self { program, files, card, limit, _bench: bench, _tenant: tenant })
    }

    fn say(&mut self, line: &str, expected: &str) {
        assert_eq!(self.program.say(line), expected, "{line}");
    }

    /// The accounting, which holds no less than the driver; a request for memory updates it.
    fn charged(&mut self) -> u64 {
        let told = self.program.say("info");
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(told, format!("0 {}", self.limit - books));
        assert!(self.card.in_use() <= books, "{} of {books}", self.card.in_use());
        books
    }

    /// The accounting, where it is the driver's to the byte.
    fn settled(&mut self) -> u64 {
        let books = self.charged();
        assert_eq!(books, self.card.in_use());
        books
    }

    fn denied(&self) -> u64 {
        self.files.counter(usage::DENIED)
    }

    fn end(self) {
        assert!(self.card.high_water() <= self.limit, "{} of {}", self.card.high_water(), self.limit);
        self.program.end();
    }
}

#[test]
fn graph_memory_is_charged_from_instantiation_to_trim() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say("inside 0 1000", "0");
        assert_eq!(scene.charged(), UNIT);
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), UNIT);
        scene.say(&format!("captured 1 {UNIT}"), "0");
        scene.say("launch 1 1", "0");
        assert_eq!(scene.charged(), 2 * UNIT);
        scene.say("undo 0", "0");
        assert!(scene.settled() >= UNIT);
        // Memory that no graph uses is released before a refusal.
        scene.say("inside 2 1000", "0");
        scene.say("launch 2 2", "0");
        scene.say("undo 2", "0");
        scene.say(&format!("alloc 0 {}", 3 * UNIT), "0");
        assert_eq!((scene.charged(), scene.denied()), (LIMIT, 0));
        scene.say("alloc 1 1", "2");
        scene.say("free 1", "0");
        scene.say("undo 1", "0");
        scene.say("alloc 1 1", "0");
        scene.say("trim", "0");
        assert_eq!(scene.settled(), 3 * UNIT + 2 * MIB);
        scene.end();
    }
}

#[test]
fn excess_graph_memory_is_refused_before_the_driver_allocates() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
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
            scene.say("trim", "0");
            scene.say(&format!("alloc 0 {}", UNIT + UNIT / 2), "0");
            let before = (scene.settled(), scene.denied());
            scene.say(&form, "2");
            assert_eq!((scene.settled(), scene.denied()), (before.0, before.1 + 1), "{form}");
            scene.say("release 0", "0");
            scene.say(&form, "0");
            scene.say("launch 0 0", "0");
            assert_eq!(scene.settled(), 3 * UNIT, "{form}");
            if !form.starts_with("inside") {
                scene.program.say("free 0");
            }
            scene.say("undo 0", "0");
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
        scene.say("undo 63", "0");
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "0");
        scene.say(&upload, "2");
        scene.say("release 0", "0");
        scene.say(&upload, "0");
        assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 1));
        scene.say(&format!("launch 0 {stream}"), "0");
        scene.say(&format!("launch 0 {stream}"), "0");
        // What one stream has is no other one's.
        scene.say("launch 0 1", "2");
        assert_eq!((scene.settled(), scene.denied()), (3 * UNIT, 2));
        scene.end();
    }
}

#[test]
fn graphs_with_memory_launch_again_at_a_full_limit() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        for (slot, size) in [2, 1, 1].iter().enumerate() {
            scene.say(&format!("inside {slot} {}", size * UNIT), "0");
        }
        scene.say(&format!("busy 0 {LONG}"), "0");
        for refused in 0..2 {
            (0..9).for_each(|turn| scene.say(&format!("launch {} 0", turn % 3), "0"));
            assert_eq!((scene.charged(), scene.denied()), (LIMIT, refused));
            scene.say("alloc 1 1", "2");
        }
        // In another stream they would have to have memory of their own.
        scene.say("launch 2 1", "2");
        scene.end();
    }
}

#[test]
fn graph_that_changes_streams_is_charged_once_more_until_a_trim() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("inside 0 {UNIT}"), "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.charged(), UNIT);
        for turn in 0..20 {
            scene.say(&format!("launch 0 {}", turn % 4), "0");
            assert!(scene.charged() <= LIMIT);
        }
        // Nothing runs: all but the footprint goes before a refusal, where the driver keeps nothing of its own.
        let kept = if kind == "instantiation" { 2 } else { 1 };
        scene.say(&format!("alloc 0 {}", LIMIT - kept * UNIT), "0");
        assert_eq!((scene.charged(), scene.denied()), (LIMIT, 0));
        scene.end();
    }
}

#[test]
fn graph_leftovers_and_others_stay_within_their_footprints() {
    for kind in ["launch", "idle"] {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("left 0 {} 1", 2 * UNIT), "0");
        scene.say(&format!("inside 1 {}", 2 * UNIT), "0");
        scene.say("launch 1 0", "0");
        scene.say(&format!("busy 0 {LONG}"), "0");
        // In the memory of the other, which needs more then.
        for line in ["launch 0 0", "launch 1 0", "launch 0 0"] {
            scene.say(line, "0");
        }
        scene.say("alloc 0 1", "2");
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
fn trim_leaves_the_charge_of_a_graph_and_update_adds_none() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("inside 0 {}", 3 * UNIT), "0");
        scene.say("launch 0 0", "0");
        scene.say("update 0 1000", "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), 3 * UNIT);
        scene.say("trim", "0");
        assert_eq!(scene.charged(), 3 * UNIT);
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "2");
        scene.say("launch 0 0", "0");
        scene.say("undo 0", "0");
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "0");
        assert_eq!((scene.settled(), scene.denied()), (2 * UNIT, 1));
        scene.end();
    }
}

/// A driver may take what they say; the simulated one keeps what the graph has.
#[test]
fn graph_update_is_reserved_what_its_new_nodes_want() {
    for version in [1, 2] {
        let Some(mut scene) = Scene::new("launch") else { return };
        scene.say(&format!("inside 0 {UNIT}"), "0");
        scene.say("launch 0 0", "0");
        scene.say(&format!("alloc 0 {}", 2 * UNIT), "0");
        scene.say(&format!("update 0 {} {version}", 3 * UNIT), "2");
        scene.say("launch 0 0", "0");
        scene.say("release 0", "0");
        scene.say(&format!("update 0 {} {version}", 3 * UNIT), "0");
        scene.say("launch 0 0", "0");
        assert_eq!((scene.charged(), scene.denied()), (3 * UNIT, 1));
        scene.say("undo 0", "0");
        scene.say("trim", "0");
        assert_eq!(scene.settled(), 0);
        scene.end();
    }
}

#[test]
fn graphs_end_with_their_context() {
    let Some(mut scene) = Scene::new("launch") else { return };
    scene.say(&format!("inside 0 {UNIT}"), "0");
    scene.say(&format!("inside 1 {UNIT}"), "0");
    assert_eq!(scene.charged(), 2 * UNIT);
    scene.say("reset", "0");
    assert_eq!(scene.files.counter(usage::TOTAL), 0);
    scene.end();
}

#[test]
fn graphs_are_read_however_deep_they_lie_in_each_other() {
    let Some(mut scene) = Scene::new("launch") else { return };
    // Without memory nodes, in a process in which there was one.
    scene.say("inside 63 1", "0");
    scene.say("undo 63", "0");
    scene.say("child 0 0 300", "0");
    for depth in [15, 16, 300] {
        scene.say(&format!("child 0 {} {depth}", 2 * UNIT), "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), 2 * UNIT);
        scene.say("undo 0", "0");
        scene.say("trim", "0");
    }
    scene.say(&format!("child 0 {} 300", 5 * UNIT), "2");
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
    scene.say(&format!("beside 1 63 {LIMIT}"), "2");
    assert_eq!((scene.settled(), scene.denied()), (UNIT, 1));
    scene.say("launch 63 0", "0");
    scene.end();
}

#[test]
fn more_graphs_than_are_noted_are_refused() {
    let (unit, limit) = (2 * MIB, 8192 * MIB);
    let Some(mut scene) = Scene::with("launch", (unit, limit)) else { return };
    // By what its stores grow is seen at the first launch.
    scene.say("inside 1 1", "0");
    assert_eq!(scene.charged(), UNIT);
    scene.say("launch 1 0", "0");
    scene.say("undo 1", "0");
    scene.say("trim", "0");
    scene.say("many 1 1000 900", "0");
    assert_eq!(scene.charged(), 900 * unit);
    scene.say("undo 1", "0");
    scene.say("crowd 5000 1000", "3072 2");
    assert_eq!(scene.charged(), 3072 * unit);
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
        scene.say("free 0", "0");
        scene.say("launch 0 0", "0");
        assert_eq!(scene.settled(), LIMIT);
        scene.end();
    }
}

/// Each has what its launch left allocated, so that the store is as large as the graphs that exist.
#[test]
fn destroyed_graph_makes_room_beside_graphs_in_use() {
    for kind in KINDS {
        let Some(mut scene) = Scene::new(kind) else { return };
        for slot in 0..4 {
            scene.say(&format!("left {slot} {UNIT} 1"), "0");
            scene.say(&format!("launch {slot} {}", slot % 2), "0");
        }
        assert_eq!(scene.settled(), LIMIT);
        for turn in 0..3 {
            scene.say(&format!("left 5 {UNIT} 0"), "2");
            scene.say(&format!("free {turn}"), "0");
            scene.say(&format!("undo {turn}"), "0");
            if turn == 0 {
                scene.say("trim", "0");
                assert_eq!(scene.settled(), 3 * UNIT);
            }
            scene.say(&format!("left {turn} {UNIT} 1"), "0");
            scene.say(&format!("launch {turn} 0"), "0");
            assert_eq!(scene.settled(), LIMIT);
        }
        // What is freed is had again by the next launch, and what is not by that as well.
        scene.say("free 3", "0");
        scene.say("launch 3 1", "0");
        scene.say("launch 3 1", "0");
        assert_eq!((scene.settled(), scene.denied()), (LIMIT, 3));
        scene.end();
    }
}

#[test]
fn unfreed_memory_of_a_destroyed_graph_stays_charged() {
    for (kind, frees_by_graph) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let Some(mut scene) = Scene::new(kind) else { return };
        scene.say(&format!("left 0 {UNIT} 0"), "0");
        scene.say(&format!("left 1 {UNIT} 0"), "0");
        scene.say("launch 0 0", "0");
        scene.say("launch 1 0", "0");
        // What a graph frees no call names.
        if frees_by_graph {
            scene.say("freeing 3 0", "0");
            scene.say("launch 3 0", "0");
        } else {
            scene.say("free 0", "0");
        }
        scene.say("undo 1", "0");
        scene.say("trim", "0");
        assert_eq!(scene.charged(), 2 * UNIT);
        scene.say("launch 0 0", "0");
        assert_eq!((scene.settled(), scene.denied()), (2 * UNIT, 0));
        scene.end();
    }
}

#[test]
fn driver_that_allocates_at_either_time_is_held() {
    // It takes none of small graphs when they are instantiated, and all of large ones.
    let Some(mut scene) = Scene::new("mixed") else { return };
    scene.say("inside 0 1000", "0");
    scene.say(&format!("inside 1 {}", 2 * UNIT), "0");
    assert_eq!(scene.charged(), 3 * UNIT);
    scene.say(&format!("crowd 80 {UNIT}"), "1 2");
    scene.say("launch 1 1", "0");
    scene.say("launch 0 0", "0");
    assert_eq!((scene.charged(), scene.denied()), (LIMIT, 1));
    scene.end();
}
