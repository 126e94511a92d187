//! IPC-shared memory: charged while a process has it open, and shown once.

use super::*;

#[test]
fn ipc_memory_outlives_its_maker_while_it_is_open() {
    [Look::Reap, Look::Settle].into_iter().for_each(lent_memory_outlives_its_maker);
}

/// How exited processes are found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Reap,
    Settle,
}

fn lent_memory_outlives_its_maker(look: Look) {
    let tag = 4711;
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    let (mut maker, number) = start_tenant(dir.path(), Does::Reserves);
    // Far from the slots of later processes, which their pids determine.
    let lent = (number + usage::SLOT_COUNT / 2) % usage::SLOT_COUNT;
    let word = 3 << 32 | u64::from(maker.id());
    let byte = slot::lock_of_lent(u32::try_from(lent).unwrap(), word);
    let mut opener = start_beside(dir.path(), (Some(byte), Does::Rests), lent).0;
    let (slot, made) = (view.slot(lent).unwrap(), view.slot(number).unwrap());
    slot.start_time().store(made.start_time().load(Ordering::SeqCst), Ordering::SeqCst);
    slot.pid_namespace().store(made.pid_namespace().load(Ordering::SeqCst), Ordering::SeqCst);
    slot.kind().store(slot::LENT, Ordering::SeqCst);
    slot.tag().store(tag, Ordering::SeqCst);
    slot.owner().store(word, Ordering::SeqCst);
    view.total().fetch_add(50, Ordering::SeqCst);
    slot.used().store(50, Ordering::SeqCst);
    assert_eq!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::NoneExited);
    let mut seen = UsageCopy::of(&place.usage()).unwrap().processes;
    seen.retain(|process| process.pid == maker.id());
    assert!(seen.len() == 1 && seen[0].used >= Bytes(150), "{seen:?}");
    maker.kill().unwrap();
    maker.wait().unwrap();
    if look == Look::Settle {
        // Also known without an earlier reap: exited processes are released, and memory open in an importer stays.
        assert!(matches!(watched.settled(Ppm::ALL).unwrap(), Some(Bytes(150 | 153))));
    } else {
        assert!(matches!(
            reap_exited(&watched),
            ReapOutcome::Dead { processes: 1, returned: Bytes(100 | 103) }
        ));
    }
    assert_eq!((slot.used().load(Ordering::SeqCst), slot.owner().load(Ordering::SeqCst)), (50, word));
    opener.kill().unwrap();
    opener.wait().unwrap();
    assert!(matches!(reap_exited(&watched), ReapOutcome::Dead { processes: 1, returned: Bytes(150 | 153) }));
    assert_eq!((UsageCopy::of(&place.usage()).unwrap().total, watched.owners().count()), (Bytes(0), 0));
    // Memory that its exporter has needs no lock; closed and without a lock it is released, whichever processes live.
    let (mut maker, number) = start_beside(dir.path(), (None, Does::Rests), lent);
    let made = view.slot(number).unwrap();
    slot.start_time().store(made.start_time().load(Ordering::SeqCst), Ordering::SeqCst);
    slot.pid_namespace().store(made.pid_namespace().load(Ordering::SeqCst), Ordering::SeqCst);
    slot.kind().store(slot::LENT, Ordering::SeqCst);
    slot.owner().store(5 << 32 | u64::from(maker.id()), Ordering::SeqCst);
    assert_eq!(watched.reap(Ppm::ALL).unwrap(), ReapOutcome::NoneExited);
    view.total().fetch_add(50, Ordering::SeqCst);
    slot.used().store(50, Ordering::SeqCst);
    slot.kind().store(slot::LET_GO, Ordering::SeqCst);
    assert!(matches!(reap_exited(&watched), ReapOutcome::Dead { processes: 0, returned: Bytes(50) }));
    maker.kill().unwrap();
    maker.wait().unwrap();
}

/// Bytes move to and fro between an exporter's slot and a slot of IPC-shared memory, a page of the file apart. As in a real
/// process, they are in both for a moment.
#[test]
fn memory_that_is_being_lent_is_never_shown_twice() {
    let dir = tempfile::tempdir().unwrap();
    let place = place(&dir);
    place.ensure(&Disk::default(), &wanted(8 * MIB)).unwrap();
    let watched = UsageFile::open(&place.usage()).unwrap();
    let view = watched.view().unwrap();
    let (own, lent) = (view.slot(1).unwrap(), view.slot(usage::SLOT_COUNT - 1).unwrap());
    let me = std::process::id();
    lent.kind().store(slot::LENT, Ordering::SeqCst);
    lent.owner().store(3 << 32 | u64::from(me), Ordering::SeqCst);
    own.owner().store(1 << 32 | u64::from(me), Ordering::SeqCst);
    view.total().store(50, Ordering::SeqCst);
    own.used().store(50, Ordering::SeqCst);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                for (from, to) in [(own, lent), (lent, own)] {
                    to.used().store(50, Ordering::SeqCst);
                    from.used().store(0, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        });
        for look in 0..4000 {
            let seen = UsageCopy::of(&place.usage()).unwrap();
            let used: Vec<Bytes> = seen.processes.iter().map(|process| process.used).collect();
            if !matches!(used[..], [Bytes(0..=50)]) {
                ends.store(true, Ordering::SeqCst);
                panic!("look {look}: {used:?}");
            }
        }
        ends.store(true, Ordering::SeqCst);
    });
}
