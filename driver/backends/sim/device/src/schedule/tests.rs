//! The schedule by itself: order, conservation, fairness.

use super::*;
use proptest::prelude::*;

const SLICE: u64 = 2_000_000;

fn turn() -> Turn {
    Turn { at: 0, slice_end: 0, current: 0 }
}

fn work(submitted: u64) -> Work {
    Work { submitted, done: 0 }
}

fn play(turn: &mut Turn, works: &mut [Work], until: u64) -> Vec<Run> {
    std::iter::from_fn(|| step(turn, works, SLICE, until)).collect()
}

#[test]
fn alone_a_process_runs_without_a_gap() {
    let mut works = [work(10 * SLICE + 5)];
    let runs = play(&mut turn(), &mut works, u64::MAX);
    assert_eq!(runs.iter().map(|run| run.end - run.start).sum::<u64>(), 10 * SLICE + 5);
    assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn two_that_always_have_work_get_half_each() {
    let mut works = [work(u64::MAX / 4), work(u64::MAX / 4)];
    play(&mut turn(), &mut works, 500 * SLICE);
    assert_eq!((works[0].done, works[1].done), (250 * SLICE, 250 * SLICE));
}

#[test]
fn late_work_waits_only_for_the_end_of_the_slice() {
    let (mut turn, mut works) = (turn(), [work(100 * SLICE), work(0)]);
    play(&mut turn, &mut works, SLICE / 2);
    works[1].submitted = 1_000;
    assert_eq!(finish(turn, &works, SLICE, 1, 1_000, u64::MAX), SLICE + 1_000);
}

#[test]
fn a_short_one_hands_over_at_once() {
    let mut works = [work(1_000), work(1_000), work(SLICE)];
    let runs = play(&mut turn(), &mut works, u64::MAX);
    let last = runs.last().unwrap();
    assert_eq!((last.seat, last.end), (0, SLICE + 2_000));
}

proptest! {
    #[test]
    fn prediction_conservation_and_one_at_a_time(
        loads in prop::collection::vec(0_u64..20_000_000, 1..16),
        stops in prop::collection::vec(1_u64..5_000_000, 0..40),
        seat in 0_usize..16,
    ) {
        let mut works = loads.iter().map(|load| work(*load)).collect::<Vec<_>>();
        let seat = seat % works.len();
        let mark = works[seat].submitted;
        let mut turn = turn();
        let predicted = finish(turn, &works, SLICE, seat, mark, u64::MAX);
        // A nearer horizon gives the same answer, or some time after the horizon.
        for until in stops.iter().copied().chain([0, predicted / 2, predicted]) {
            let bounded = finish(turn, &works, SLICE, seat, mark, until);
            prop_assert!(bounded == predicted || bounded > until && predicted >= bounded, "{bounded} {predicted}");
        }
        let mut runs = Vec::new();
        let mut now = 0;
        for stop in stops {
            now += stop;
            runs.extend(play(&mut turn, &mut works, now));
        }
        runs.extend(play(&mut turn, &mut works, now + 400_000_000));
        // Conserved: every seat ran exactly what it handed in.
        for (index, load) in loads.iter().enumerate() {
            let ran: u64 = runs.iter().filter(|run| run.seat == index).map(|run| run.end - run.start).sum();
            prop_assert_eq!(ran, *load);
            prop_assert_eq!(works[index].done, *load);
        }
        // One at a time, and never idle while there is work.
        prop_assert!(runs.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert_eq!(runs.last().map_or(0, |run| run.end), loads.iter().sum::<u64>());
        // Stopping to look changes nothing.
        let ended = runs.iter().filter(|run| run.seat == seat).map(|run| run.end).max().unwrap_or(0);
        prop_assert_eq!(ended, predicted);
    }
}
