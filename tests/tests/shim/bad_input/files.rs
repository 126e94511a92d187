//! Files of grants that are foreign, unreadable, cut short or noise.

use super::*;

#[test]
fn foreign_files_beside_a_grant_do_not_hide_it() {
    let Some(scene) = scene() else { return };
    type Clutter<'a> = &'a dyn Fn(&Path);
    let many = |count: usize, place: &Path| {
        (0..count).for_each(|n| std::fs::create_dir(place.join(format!("a{n}"))).unwrap());
    };
    let clutters: [(&str, Clutter<'_>); 6] = [
        ("a thousand directories", &|place| many(1_000, place)),
        ("a file", &|place| std::fs::write(place.join("note"), "x").unwrap()),
        ("a loop", &|place| endless(&place.join("loop"))),
        ("a pipe", &|place| pipe(&place.join("pipe"))),
        ("a name that is no text", &|place| {
            std::fs::rename(place.join("claim"), place.join(std::ffi::OsStr::from_bytes(b"\xff\xfe\n")))
                .unwrap();
        }),
        ("a grant without a share's directory", &|place| {
            std::fs::rename(place.join("claim/share"), place.join("0")).unwrap();
        }),
    ];
    for (name, clutter) in clutters {
        let (tenant, _files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
        clutter(tenant.grants());
        assert_eq!(scene.run(&tenant), Verdict::Held, "{name}");
    }
}

#[test]
fn more_grants_than_a_process_can_have_never_open_a_card() {
    let Some(scene) = scene() else { return };
    let (tenant, _files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    let open = |n: u32| Limits {
        fail_mode: FailMode::Open,
        ..memory_limit(&format!("GPU-00000000-0000-0000-0000-{n:012x}"), LIMIT)
    };
    let _files: Vec<_> = (1..60).map(|n| tenant.grant(&format!("c{n}"), &open(n))).collect();
    assert_ne!(scene.run(&tenant), Verdict::Open);
}

#[test]
fn unreadable_grant_is_denied_and_opens_no_other_card() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let Some(scene) = scene() else { return };
    let (tenant, files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    let other = "GPU-00000000-0000-0000-0000-000000000000";
    let _open = tenant.grant("open", &Limits { fail_mode: FailMode::Open, ..memory_limit(other, LIMIT) });
    let limits = files.dir().join("limits");
    std::fs::set_permissions(&limits, std::fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = tenant.command(&scene.bench, &scene.verdict);
    if std::fs::File::open(&limits).is_ok() {
        // Root may read everything; another user may not. The build directory may be closed to that one.
        let shim = scene.bench.libraries().join("libaliquot.so");
        std::fs::copy(aliquot_tests::preload::shim(), &shim).unwrap();
        let (bench, share) = (&scene.bench, files.dir());
        let place = bench.cards().parent().unwrap().to_owned();
        let _made = bench.card();
        opened_to_everybody(&[&place, &bench.libraries(), &bench.cards(), tenant.grants()]);
        opened_to_everybody(&[share.parent().unwrap(), share]);
        std::fs::set_permissions(&limits, std::fs::Permissions::from_mode(0o000)).unwrap();
        command.env("LD_PRELOAD", shim).uid(65534).gid(65534);
    }
    assert_eq!(scene.try_out(&mut command), Verdict::Closed);
    // So that it is that file which closes the card.
    std::fs::set_permissions(&limits, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(scene.run(&tenant), Verdict::Held);
}

#[test]
fn limits_that_turn_to_noise_stay_as_they_were_read_last() {
    let Some(scene) = scene() else { return };
    let (tenant, files) = Tenant::with(&memory_limit(&scene.card, 8 * GIB));
    let mut talk = Talk::start(&mut tenant.command(&scene.bench, &scene.program));
    assert_eq!(talk.say("take 1048576"), "0");
    files.change(&Limits { generation: 2, ..memory_limit(&scene.card, LIMIT) });
    assert!(talk.say("cuda").contains(&format!(" {LIMIT} {LIMIT} ")));
    for seed in 1..20 {
        // All but the residue, which has no checksum: whatever it says is beyond the shim's accounting.
        let behind_residue = limits::LOOKED_AT + 8;
        overwrite(files.dir().join("limits"), 64, &noise(seed, limits::RESIDUE - 64));
        overwrite(files.dir().join("limits"), behind_residue, &noise(seed, limits::BYTES - behind_residue));
        assert!(talk.say("cuda").contains(&format!(" {LIMIT} {LIMIT} ")), "{seed}");
        assert_eq!(talk.say(&format!("take {}", LIMIT + 1)), "2", "{seed}");
    }
    assert_eq!((talk.say("take 1048576"), talk.say("give")), ("0".into(), "0".into()));
}

/// The same of how managed memory is charged, which is free first, charged then, and noise in the end.
#[test]
fn settings_that_turn_to_noise_stay_as_they_were_read_last() {
    let Some(scene) = scene() else { return };
    let free = Limits { managed: ManagedPolicy::Free, ..memory_limit(&scene.card, LIMIT) };
    let (tenant, files) = Tenant::with(&free);
    let mut talk = Talk::start(&mut tenant.command(&scene.bench, &scene.program));
    let large = format!("managed {}", 2 * LIMIT);
    assert_eq!(talk.say(&large), "0", "free");
    files.change(&Limits { generation: 2, ..memory_limit(&scene.card, LIMIT) });
    assert_eq!(talk.say(&large), "2", "charged");
    for seed in 1..20 {
        overwrite(files.dir().join("limits"), 64, &noise(seed, 4032));
        assert_eq!(talk.say(&large), "2", "{seed}");
    }
}

#[test]
fn noise_in_usage_lifts_no_limit_and_frees_reach_the_driver() {
    let Some(scene) = scene() else { return };
    let (tenant, files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    let mut talk = Talk::start(&mut tenant.command(&scene.bench, &scene.program));
    let card = scene.bench.card();
    // With its answer it has a context.
    assert_eq!(talk.say("give"), "0");
    let empty = card.in_use();
    for seed in 1..12 {
        // The header is the host's; what follows the tenant can write.
        overwrite(files.dir().join("usage"), 64, &noise(seed, usage::BYTES - 64));
        for _ in 0..3 {
            talk.say(&format!("take {}", LIMIT / 3));
        }
        talk.say("cuda");
        talk.say("processes 0");
        assert!(card.in_use() - empty <= LIMIT, "noise {seed}: {} bytes", card.in_use() - empty);
    }
    for _ in 0..40 {
        assert_eq!(talk.say("give"), "0");
    }
    assert_eq!(card.in_use(), empty);
}

#[test]
fn a_tenant_that_cuts_its_usage_short_ends_itself_at_most() {
    let Some(scene) = scene() else { return };
    let (tenant, files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    let mut command = tenant.command(&scene.bench, &scene.program);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    writeln!(input, "take 1048576").unwrap();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "0\n");
    cut(files.dir().join("usage"), 0);
    writeln!(input, "take {}", 2 * LIMIT).unwrap();
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    drop(input);
    let status = child.wait().unwrap();
    assert!(line == "2\n" || status.signal() == Some(7), "{line} {status}");
    assert!(scene.bench.card().in_use() <= LIMIT);
    // The next one begins with a file that cannot be used.
    assert_eq!(scene.run(&tenant), Verdict::Closed);
}

/// Cards of three kinds of name, each with a grant of its own size.
#[test]
fn cards_are_told_apart_however_they_are_made_visible() {
    let Some(scene) = scene() else { return };
    let uuids = [
        "GPU-aaaa0000-0000-0000-0000-000000000001",
        "GPU-aaab0000-0000-0000-0000-000000000002",
        "MIG-bbbb0000-0000-0000-0000-000000000003",
    ];
    let cards: String = uuids.iter().map(|uuid| format!("[[card]]\nuuid = \"{uuid}\"\n")).collect();
    let bench = Bench::new();
    bench.write("node.toml", &cards);
    let tenant = Tenant::new();
    let _files: Vec<_> =
        (1_u64..).zip(uuids).map(|(n, uuid)| tenant.grant(uuid, &memory_limit(uuid, n * LIMIT))).collect();
    for (visible, first) in [
        ("0,1,2", 1),
        ("1", 2),
        ("2,0", 3),
        ("1,-1,0", 2),
        (uuids[1], 2),
        (uuids[2], 3),
        ("GPU-aaab", 2),
        ("GPU-aaab,0", 2),
        ("MIG-b", 3),
    ] {
        for order in ["PCI_BUS_ID", "FASTEST_FIRST"] {
            let mut command = tenant.command(&bench, &scene.program);
            command.env("CUDA_VISIBLE_DEVICES", visible).env("CUDA_DEVICE_ORDER", order);
            let mut talk = Talk::start(&mut command);
            let told = talk.say("cuda");
            let total = first * LIMIT;
            assert!(told.contains(&format!(" {total} {total} ")), "{visible}: {told}");
            assert_eq!(talk.say(&format!("take {}", total + 1)), "2", "{visible}");
        }
    }
    // What shows no card to CUDA shows none with the shim.
    for visible in ["", "0,0", "GPU-aaa", "9"] {
        let run =
            |mut command: Command| command.env("CUDA_VISIBLE_DEVICES", visible).output().unwrap().stdout;
        let ours = run(tenant.command(&bench, &scene.program));
        assert_eq!(ours, run(bench.command(&scene.program)), "{visible}");
    }
}

#[test]
fn drivers_that_are_absent_older_or_newer_are_no_way_round() {
    let Some(scene) = scene() else { return };
    for (version, missing) in
        [(11_030, &["cuDeviceGetUuid_v2", "cuGetProcAddress_v2", "cuMemAllocAsync"][..]), (14_020, &[])]
    {
        let bench = Bench::without(missing);
        bench.write("node.toml", &format!("cuda_version = {version}\n"));
        let (tenant, _files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
        let verdict = scene.try_out(&mut tenant.command(&bench, &scene.verdict));
        assert_eq!(verdict, Verdict::Held, "driver {version}");
    }
    // Without a way to tell cards apart none can be used.
    let bench = Bench::without(&["cuDeviceGetUuid_v2", "cuDeviceGetUuid"]);
    let (tenant, _files) = Tenant::with(&memory_limit(&scene.card, LIMIT));
    assert_eq!(scene.try_out(&mut tenant.command(&bench, &scene.verdict)), Verdict::Closed);
    // Without a library the program hears what it hears without the shim.
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let bench = Bench::new();
        std::fs::remove_file(bench.libraries().join(library)).unwrap();
        let ended = |mut command: Command| command.stdin(Stdio::null()).output().unwrap().status;
        let ours = ended(tenant.command(&bench, &scene.program));
        assert_eq!(ours, ended(bench.command(&scene.program)), "{library}");
    }
}
