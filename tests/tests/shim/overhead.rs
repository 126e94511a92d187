//! Memory of contexts and modules is accounted as the driver reports it, until they end.

mod contexts;
mod modules;
mod stacks;

use aliquot_abi::layout::usage;
use aliquot_abi::limits::Limits;
use aliquot_sim_device::Card;
use aliquot_tests::preload::{GrantFiles, Tenant, UNPAGED, memory_limit, unpaged};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use aliquot_tests::talk::Talk;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
/// Of the simulated cards, as `driver/backends/sim/README.md` says.
const CONTEXT: u64 = 480 * MIB;
const MODULE: u64 = 2 * MIB;
const LIMIT: u64 = 4 << 30;

struct Scene {
    bench: Bench,
    tenant: Tenant,
    program: PathBuf,
    files: GrantFiles,
    card: Card,
}

/// Whether the host published how large a context is.
#[derive(Clone, Copy, Debug)]
enum Size {
    Published,
    Unknown,
}

impl Scene {
    /// `None`: no C compiler here.
    fn new(limit: u64, size: Size) -> Option<Self> {
        Self::on("", limit, size)
    }

    /// On such a node.
    fn on(node: &str, limit: u64, size: Size) -> Option<Self> {
        let bench = Bench::new();
        bench.write("node.toml", &format!("{UNPAGED}{node}"));
        let program = match bench.compile("shim_overhead", Link::Opened) {
            Ok(program) => program,
            Err(StoodAside(why)) => {
                println!("stood aside: {why}");
                return None;
            }
        };
        let card = bench.card();
        let context_bytes = if matches!(size, Size::Published) { CONTEXT } else { 0 };
        let limits = Limits { context_bytes, ..unpaged(memory_limit(&card.facts().uuid, limit)) };
        let (tenant, files) = Tenant::with(&limits);
        Some(Self { bench, tenant, program, files, card })
    }

    fn start(&self) -> Talk {
        Talk::start(&mut self.tenant.command(&self.bench, &self.program))
    }

    /// The accounting, which agrees with the driver.
    #[track_caller]
    fn books(&self) -> u64 {
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(books, self.card.in_use(), "accounting and card");
        books
    }

    /// The same but for the code of so many modules, which is residue.
    #[track_caller]
    fn books_beside(&self, modules: u64) -> u64 {
        let books = self.files.counter(usage::TOTAL);
        assert_eq!(books + modules * MODULE, self.card.in_use(), "accounting and card");
        books
    }
}

#[track_caller]
fn say(program: &mut Talk, line: &str, expected: &str) {
    assert_eq!(program.say(line), expected, "{line}");
}
