//! A limit that the host changes is in force with the next call: no allocation and no question for memory that began after the
//! change was written is answered by the old one. That is stronger than any time.

#![expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use aliquot_abi::limits::{Limits, MemoryLimit};
use aliquot_driver::region::{GrantPaths, LIMITS};
use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, Link, StoodAside};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const THREADS: u64 = 2;
const CHANGES: u64 = 2_000;
const SIZE: u64 = 1 << 20;
/// Even numbers of changes: all threads fit. Odd ones: none does.
const LARGE: u64 = 4 * THREADS * SIZE;
const SMALL: u64 = SIZE - 512;
/// Words that the program and this test share, as the program says.
const BEGUN: u64 = 0;
const ENDED: u64 = 1;
const DECIDED: u64 = 2;
const GRANTED: u64 = 3;
const REFUSED: u64 = 4;
const TOLD: u64 = 5;
const OLD: u64 = 6;

struct Words(File);

impl Words {
    fn get(&self, word: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, word * 8).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn set(&self, word: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), word * 8).unwrap();
    }

    /// Waits until so many calls more were answered with no change under way.
    fn decided(&self, program: &mut Child, more: u64) {
        let (from, begun) = (self.get(DECIDED), Instant::now());
        while self.get(DECIDED) < from + more {
            assert!(program.try_wait().unwrap().is_none(), "the program ended");
            assert!(begun.elapsed() < Duration::from_secs(120), "the program does nothing");
            std::thread::yield_now();
        }
    }
}

#[test]
fn call_after_a_limit_change_never_uses_the_old_limit() {
    let bench = Bench::new();
    bench.write("node.toml", "context_bytes = 0\nmodule_bytes = 0\n");
    let path = match bench.compile("shim_live", Link::Direct) {
        Ok(path) => path,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    let uuid = bench.card().facts().uuid.clone();
    let (tenant, files) = Tenant::with(&memory_limit(&uuid, LARGE));
    let shared = bench.cards().with_file_name("words");
    std::fs::write(&shared, [0; 4096]).unwrap();
    let words = Words(File::options().read(true).write(true).open(&shared).unwrap());
    let numbers = [THREADS, SIZE, LARGE, SMALL].map(|number| number.to_string());
    let mut command = tenant.command(&bench, path);
    let mut program = command.args(numbers).arg(&shared).stdout(Stdio::piped()).spawn().unwrap();
    words.decided(&mut program, THREADS);
    // As the host writes: in place, into the file that the tenant has mapped.
    let place = GrantPaths { dir: files.dir().to_owned(), lock: files.dir().join("limits.lock") };
    assert!(place.dir.join(LIMITS).exists());
    for number in 1..=CHANGES {
        words.set(BEGUN, number);
        let bytes = if number % 2 == 1 { SMALL } else { LARGE };
        let changed = place.change(|now| now.map(|now| Limits { memory: MemoryLimit::Bytes(bytes), ..*now }));
        changed.unwrap();
        words.set(ENDED, number);
        words.decided(&mut program, 1);
    }
    words.set(BEGUN, u64::MAX);
    let mut said = String::new();
    program.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(program.wait().unwrap().success(), "{said}");
    let [granted, refused, told, old] = [GRANTED, REFUSED, TOLD, OLD].map(|word| words.get(word));
    println!("{CHANGES} changes: {granted} granted, {refused} refused, {told} told, {old} by an old limit");
    assert_eq!(old, 0);
    assert!(granted + refused >= CHANGES && granted > CHANGES / 4 && refused > CHANGES / 4 && told > 0);
}
