//! What questions about memory, and look-ups, cost with the shim: as differences within one run, in processor time, over
//! libraries that answer at once. The shim is built as it ships.

use aliquot_tests::preload::{Tenant, memory_limit};
use aliquot_tests::simulated::{Bench, StoodAside, said};

#[test]
fn memory_information_costs_at_most_50_ns_more() {
    let bench = Bench::new();
    let source = "shim_info_cost";
    let program = match bench.compile_as(source, source, &["-O2", "-ldl"]) {
        Ok(program) => program,
        Err(StoodAside(why)) => return println!("stood aside: {why}"),
    };
    for (define, soname) in [("-DCUDA", "libcuda.so.1"), ("-DNVML", "libnvidia-ml.so.1")] {
        let name = format!("-Wl,-soname,{soname}");
        let library = bench.compile_as(source, soname, &["-O2", "-shared", "-fPIC", define, &name]).unwrap();
        std::fs::copy(library, bench.libraries().join(soname)).unwrap();
    }
    let (tenant, _files) = Tenant::with(&memory_limit("GPU-01010101-0101-0101-0101-010101010101", 8 << 30));
    // The least of several runs: what else the machine does adds, and never takes away.
    let least = |command: &dyn Fn() -> std::process::Command| {
        (0..4).fold([f64::MAX; 3], |least, _| {
            let text = said(&command().output().unwrap());
            let mut words = text.split_whitespace();
            least.map(|least| words.next().unwrap().parse::<f64>().unwrap().min(least))
        })
    };
    let (bare, ours) = (least(&|| bench.command(&program)), least(&|| tenant.command(&bench, &program)));
    let added: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours - bare).collect();
    println!(
        "added: cuMemGetInfo {:.1} ns, nvmlDeviceGetMemoryInfo {:.1} ns, dlsym {:.1} ns",
        added[0], added[1], added[2]
    );
    assert!(added[0] <= 50.0 && added[1] <= 50.0, "{added:?} ns more than {bare:?}");
    // 500 look-ups at start-up are then at most half a millisecond.
    assert!(added[2] <= 1_000.0, "{added:?} ns more than {bare:?}");
}
