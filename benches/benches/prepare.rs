//! What a prepare of the node agent's service takes on a node with 500 prepared claims, syncs included.
//!
//! Eight simulated H100, device time 0. The state lies on the disk of the target directory, CDI files in memory, as below
//! `/var/run`. The disk's own time for an append with a sync is measured in the same run.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;

use aliquot_backend_sim::Personality;
use aliquot_benches::measure::{Effort, figures, percentile, timed};
use aliquot_benches::report::{Promise, Report, ended};
use aliquot_core::dra::ResourceClaim;
use aliquot_core::id::ClaimUid;
use aliquot_driver::disk::Disk;
use aliquot_driver::node::{Access, Dirs, Node, NodeService};
use aliquot_tests::node::{Want, World, claim};

/// Cards with shares; one more is for templates.
const CARDS: u32 = 7;

fn share(card: u32) -> Want {
    Want { card, part: "card", memory_mib: Some(1024), cores: 1 }
}

const TEMPLATE: Want = Want { card: CARDS, part: "1g.10gb at 0", memory_mib: None, cores: 0 };

/// Times of something, in milliseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn of<T, E: std::fmt::Display>(&mut self, work: impl FnOnce() -> Result<T, E>) -> Result<(), String> {
        let (done, seconds) = timed(work);
        self.0.push(seconds * 1e3);
        done.map(drop).map_err(|error| error.to_string())
    }

    fn row(&self, name: &str) -> [String; 5] {
        let at = |part| figures(percentile(&self.0, part));
        [name.to_owned(), self.0.len().to_string(), at(0.5), at(0.99), at(1.0)]
    }
}

fn uid(claim: &ResourceClaim) -> Result<ClaimUid, String> {
    ClaimUid::new(claim.uid.as_str()).map_err(|error| error.to_string())
}

/// The disk alone: a line of a journal and a sync, at the end of a file.
fn disk(dir: &Path, times: usize) -> Result<Times, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut file = OpenOptions::new().create(true).append(true).open(dir.join("sync")).map_err(failed)?;
    let mut taken = Times::default();
    for _ in 0..times {
        taken.of(|| file.write_all(&[b'x'; 1000]).and_then(|()| file.sync_data()))?;
    }
    Ok(taken)
}

/// Prepares and releases one claim again and again.
fn rounds(service: &NodeService, claim: &ResourceClaim, times: usize) -> Result<[Times; 2], String> {
    let mut taken = [Times::default(), Times::default()];
    let uid = uid(claim)?;
    for _ in 0..times {
        taken[0].of(|| service.prepare(claim))?;
        taken[1].of(|| service.release(&uid))?;
    }
    Ok(taken)
}

/// Milliseconds that one prepare on each of the first `count` cards takes, all at once.
fn at_once(service: &NodeService, claims: &[ResourceClaim]) -> Result<f64, String> {
    let start = Barrier::new(claims.len() + 1);
    let (outcome, seconds) = thread::scope(|scope| {
        let running: Vec<_> = claims
            .iter()
            .map(|claim| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    service.prepare(claim).map(drop).map_err(|error| error.to_string())
                })
            })
            .collect();
        start.wait();
        timed(|| {
            let ended =
                running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("panic".into())));
            ended.collect::<Result<(), String>>()
        })
    });
    outcome?;
    for claim in claims {
        service.release(&uid(claim)?).map_err(|error| error.to_string())?;
    }
    Ok(seconds * 1e3)
}

fn run(effort: Effort) -> Result<ExitCode, String> {
    let failed = |error: std::io::Error| error.to_string();
    let dir = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).map_err(failed)?;
    let cdi = tempfile::tempdir_in("/dev/shm").map_err(failed)?;
    let file =
        Personality::named("h100-8").ok_or("no such node")?.load().map_err(|error| error.to_string())?;
    let world = World::at(dir.path(), file, "");
    world.publish();
    let dirs = Dirs { state: world.state(), cdi: Some(cdi.path().to_owned()) };
    let opened = Node::open(world.parts(Disk::default()), &dirs, Access::ChangeNow);
    let (node, _) = opened.map_err(|error| error.to_string())?;
    let (held, times) = effort.pick((500, 500), (8, 4));
    let claims: Vec<ResourceClaim> =
        (0..held).map(|n: u32| claim(&node, &format!("held-{n}"), &[share(n % CARDS)])).collect();
    let measured = [claim(&node, "share", &[share(0)]), claim(&node, "template", &[TEMPLATE])];
    let several: Vec<ResourceClaim> =
        (0..CARDS).map(|card| claim(&node, &format!("several-{card}"), &[share(card)])).collect();
    let service = node.into_service();
    for claim in &claims {
        service.prepare(claim).map_err(|error| error.to_string())?;
    }
    let sync = disk(dir.path(), times)?;
    let [share, share_back] = rounds(&service, &measured[0], times)?;
    let [template, template_back] = rounds(&service, &measured[1], times)?;
    let mut again = Times::default();
    for claim in &claims {
        again.of(|| service.prepare(claim))?;
    }
    let alone =
        (0..times / 10 + 1).map(|_| at_once(&service, &several[..1])).collect::<Result<Vec<_>, _>>()?;
    let all = (0..times / 10 + 1).map(|_| at_once(&service, &several)).collect::<Result<Vec<_>, _>>()?;
    service.invariants().map_err(|error| error.to_string())?;
    let mut report = Report::new("Prepare and release on a full node", effort);
    let rows = [
        sync.row("the disk: append 1,000 bytes and sync"),
        share.row("prepare a share"),
        share_back.row("release it"),
        template.row("prepare a template"),
        template_back.row("release it"),
        again.row("prepare again what is prepared"),
    ];
    report.table(
        &format!("{held} prepared claims; milliseconds."),
        ["operation", "times", "median", "99 %", "highest"],
        &rows,
    );
    let (alone, all) = (percentile(&alone, 0.5), percentile(&all, 0.5));
    let row = [figures(alone), figures(all), figures(all / alone)];
    let about = format!("A share on one card, and on {CARDS} cards at once; median milliseconds.");
    report.table(&about, ["one", "at once", "ratio"], &[row]);
    report.promise("share, median", percentile(&share.0, 0.5), Promise::AtMost(2.0));
    report.promise("share, 99 %", percentile(&share.0, 0.99), Promise::AtMost(5.0));
    report.promise("template, 99 %", percentile(&template.0, 0.99), Promise::AtMost(10.0));
    Ok(report.finish())
}

fn main() -> ExitCode {
    ended(run(Effort::from_args()))
}
