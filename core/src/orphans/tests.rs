use super::*;

const LOST: Sighting =
    Sighting { kubelet: Knowledge::Absent, server: Knowledge::Absent, processes: ClaimUse::Unused };

fn uid(number: u32) -> ClaimUid {
    format!("claim-{number}").parse().unwrap()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }

    fn sighting(&mut self) -> Sighting {
        let knowledge = [Knowledge::Known, Knowledge::Absent, Knowledge::Unanswered];
        let uses = [ClaimUse::Used, ClaimUse::Unused, ClaimUse::Unanswered];
        match self.below(20) {
            0 => Sighting { kubelet: knowledge[self.below(3)], ..LOST },
            1 => Sighting { server: knowledge[self.below(3)], ..LOST },
            2 => Sighting { processes: uses[self.below(3)], ..LOST },
            _ => LOST,
        }
    }
}

#[test]
fn orphan_is_lost_in_every_pass_of_the_grace() {
    let (mut released, mut kept) = (0, 0);
    for seed in 0..200 {
        let (mut random, mut watch) = (Random(seed), OrphanWatch::new(GRACE));
        let mut now = Duration::ZERO;
        // Every pass so far: its time, and what it found.
        let mut passes: Vec<(Duration, BTreeMap<ClaimUid, Sighting>)> = Vec::new();
        for step in 0..60 {
            // Most passes are on time, some at once, some late.
            now += match random.below(12) {
                0 => Duration::from_millis(random.below(1_000) as u64),
                1 => Duration::from_secs(60 + random.below(300) as u64),
                _ => watch.pause(),
            };
            let claims = (0..4).filter(|_| random.below(30) > 0).collect::<Vec<_>>();
            let found: BTreeMap<_, _> =
                claims.into_iter().map(|number| (uid(number), random.sighting())).collect();
            passes.push((now, found.clone()));
            if random.below(100) == 0 {
                watch.begin_anew();
                passes.clear();
                continue;
            }
            for claim in watch.pass(now, &found) {
                released += 1;
                // The passes back to the beginning of the grace, and one that is as old as the grace.
                let recent = passes.iter().rev();
                let of_grace: Vec<_> = recent
                    .take_while(|(_, found)| found.get(&claim).is_some_and(|found| found.is_lost()))
                    .collect();
                let oldest = of_grace.last().map(|(at, _)| *at).unwrap();
                let at = || format!("seed {seed}, pass {step}, {claim}");
                assert!(now - oldest >= GRACE, "{}: lost for {:?}", at(), now - oldest);
                let within = of_grace.iter().take_while(|(at, _)| now - *at <= GRACE);
                let times: Vec<Duration> = within.map(|(at, _)| *at).collect();
                let gap = times.windows(2).map(|pair| pair[0] - pair[1]).max().unwrap_or_default();
                assert!(gap <= 2 * watch.pause(), "{}: no pass for {gap:?}", at());
                assert!(of_grace.len() >= PASSES_MIN as usize, "{}: {} passes", at(), of_grace.len());
            }
            kept += found.values().filter(|found| !found.is_lost()).count();
        }
    }
    assert!(released > 1_000 && kept > 1_000, "{released} orphans, {kept} known or used");
}

#[test]
fn claim_that_is_lost_for_good_becomes_an_orphan() {
    let mut watch = OrphanWatch::new(GRACE);
    let found = BTreeMap::from([(uid(1), LOST), (uid(2), Sighting { server: Knowledge::Known, ..LOST })]);
    for pass in 0..5 {
        assert_eq!(watch.pass(watch.pause() * pass, &found), [], "pass {pass}");
    }
    assert_eq!(watch.pass(watch.pause() * 5, &found), [uid(1)]);
    // One that cannot be released is named again.
    assert_eq!(watch.pass(watch.pause() * 6, &found), [uid(1)]);
    assert_eq!(watch.pass(watch.pause() * 7, &BTreeMap::new()), []);
    assert_eq!(watch.pass(watch.pause() * 8, &found), []);
}

#[test]
fn each_doubt_begins_the_grace_anew() {
    let doubts = [
        Sighting { kubelet: Knowledge::Known, ..LOST },
        Sighting { kubelet: Knowledge::Unanswered, ..LOST },
        Sighting { server: Knowledge::Known, ..LOST },
        Sighting { server: Knowledge::Unanswered, ..LOST },
        Sighting { processes: ClaimUse::Used, ..LOST },
        Sighting { processes: ClaimUse::Unanswered, ..LOST },
    ];
    for doubt in doubts {
        let mut watch = OrphanWatch::new(GRACE);
        let pause = watch.pause();
        for pass in 0..20 {
            let sighting = if pass % 5 == 4 { doubt } else { LOST };
            let orphans = watch.pass(pause * pass, &BTreeMap::from([(uid(1), sighting)]));
            assert_eq!(orphans, [], "{doubt:?}, pass {pass}");
        }
    }
}
