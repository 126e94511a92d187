use super::*;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

/// A process that is killed with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_accounts_are_read_as_the_kernel_writes_them() {
    assert_eq!(run_delay("634050878 1376188392 182\n"), Some(1_376_188_392));
    assert_eq!([run_delay(""), run_delay("7"), run_delay("7 x 1")], [None; 3]);
    let stat =
        "cpu  9 9 9 9 9 9 9 99 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 2 3 4 5 6 7 80 0 0\nintr 5\ncpu2 1\n";
    assert_eq!(stolen(stat), [8, 80, 0]);
    assert_eq!(stolen(""), [0; 0]);
}

#[test]
fn new_thread_counts_fully_and_ended_thread_not_at_all() {
    let before = Delays::from([(1, 100), (2, 500)]);
    let now = Delays::from([(1, 130), (3, 7)]);
    assert_eq!(since(&before, &now), Duration::from_nanos(37));
}

#[test]
fn threads_that_share_too_few_processors_lack_them() {
    if delays(std::process::id()).is_empty() {
        return println!("stood aside: this kernel keeps no account of run delays");
    }
    let lack = Lack::of([std::process::id()]);
    let over = AtomicBool::new(false);
    let threads = 3 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let bound = std::time::Instant::now() + Duration::from_secs(60);
        // However many processors there are, two of three threads wait at any time. Read while they live: what a thread lacked
        // goes with it.
        let lacked = loop {
            let lacked = [lack.sum(), lack.most()];
            if lacked.iter().all(|it| *it >= Duration::from_millis(100)) || std::time::Instant::now() > bound
            {
                break lacked;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        over.store(true, Ordering::Relaxed);
        assert!(lacked.iter().all(|it| *it >= Duration::from_millis(100)), "{lacked:?}");
    });
}

#[test]
fn thread_wanting_no_processor_is_not_short_of_one() {
    let child = Running(Command::new("sh").args(["-c", "kill -STOP $$"]).spawn().unwrap());
    let stat = format!("/proc/{}/stat", child.0.id());
    let bound = std::time::Instant::now() + Duration::from_secs(60);
    while !read(&stat).rsplit(')').next().unwrap().starts_with(" T") {
        assert!(std::time::Instant::now() < bound, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It says that it is stopped while it still stands in line for its last steps.
    let lack = loop {
        let lack = Lack::of([child.0.id()]);
        std::thread::sleep(Duration::from_millis(50));
        if lack.each().sum::<Duration>().is_zero() {
            break lack;
        }
        assert!(std::time::Instant::now() < bound, "it lacks more and more");
    };
    drop(child);
    assert_eq!(lack.each().sum::<Duration>(), Duration::ZERO, "the dead lack nothing");
}
