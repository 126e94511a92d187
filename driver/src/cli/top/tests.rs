use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use aliquot_core::units::Bytes;
use nix::pty::openpty;
use nix::sys::termios::tcgetattr;
use proptest::prelude::*;

use super::keys::{KeyCommand, wishes};
use super::screen::Screen;
use super::table::{human, lines};
use crate::view::model::{
    CardHealthView, CardPart, CardRow, DriverRow, PartitionRow, Picture, ProcessRow, Shim, TimeRate,
    ViewProblem,
};

/// Says to a test that it is to panic.
const PANICS: &str = "ALIQUOT_TEST_PANICS";

fn process(pid: u32, command: &str) -> ProcessRow {
    ProcessRow {
        pid: Some(pid),
        inner_pid: None,
        command: Some(command.to_owned()),
        shim: Shim::Outside,
        books: None,
        driver: Some(Bytes(480 << 20)),
        measured: TimeRate::Ppm(249_900),
    }
}

fn place(processes: usize, command: &str) -> CardPart {
    CardPart {
        memory: Some(Bytes(80 << 30)),
        granted: Bytes(0),
        books: Bytes(0),
        driver: Some(DriverRow {
            in_use: Bytes(1_234_567_890),
            high_water: Some(Bytes(u64::MAX)),
            unattributed: Bytes(1),
            busy: TimeRate::Implausible,
        }),
        shares: Vec::new(),
        outside: (0..processes).map(|n| process(u32::try_from(n).unwrap(), command)).collect(),
    }
}

fn drawn(cards: usize, processes: usize, text: &str) -> Picture {
    let card = |number: usize| CardRow {
        uuid: format!("GPU-a11c0de0-51a0-4c4d-8000-{number:012}"),
        index: None,
        name: Some(text.to_owned()),
        state: Some(PathBuf::from(text)),
        health: CardHealthView::Unwell(text.to_owned()),
        place: place(processes, text),
        partitions: vec![PartitionRow {
            health: CardHealthView::Well,
            template: "1g.10gb".to_owned(),
            placement: text.to_owned(),
            uuid: None,
            place: place(0, text),
        }],
    };
    let problem = || ViewProblem { subject: text.to_owned(), text: format!("{text} {text} and so on") };
    Picture {
        closed: vec![text.into()],
        cards: (0..cards).map(card).collect(),
        states: Vec::new(),
        problems: (0..cards * 40).map(|_| problem()).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tenant_text_stays_plain_and_within_the_line_width(
        cards in 0..3_usize, processes in 0..100_usize, text in any::<String>(), width in 0..200_usize,
    ) {
        for width in [Some(width), None] {
            let lines = lines(&drawn(cards, processes, &text), width);
            prop_assert!(lines.len() < 4 + cards * 70 + 33 * 40);
            for line in lines {
                prop_assert!(line.text.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{:?}", line.text);
                prop_assert!(width.is_none_or(|width| line.text.len() <= width), "{:?}", line.text);
            }
        }
    }

    #[test]
    fn any_bytes_are_wishes_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(wishes(&bytes).len() <= bytes.len());
    }
}

#[test]
fn cards_of_one_beginning_are_told_apart_and_columns_give_way() {
    let text = |width| -> Vec<String> {
        lines(&drawn(2, 1, "H100"), width).into_iter().map(|line| line.text).collect()
    };
    let narrow = text(Some(60));
    assert!(narrow.iter().any(|line| line.starts_with("GPU..000001 H100")), "{narrow:#?}");
    assert!(!narrow[2].contains("REAPED") && narrow[2].contains("STATE"), "{narrow:#?}");
    assert!(text(Some(140))[2].contains("REAPED"));
    assert!(text(None)[3].contains("GPU-a11c0de0-51a0-4c4d-8000-000000000000"));
}

#[test]
fn bytes_have_three_digits_and_a_unit() {
    let shown = [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1.5Ki"),
        (480 << 20, "480Mi"),
        ((480 << 20) + 1, "480Mi"),
        ((481 << 20) - 1, "481Mi"),
        (4 << 30, "4Gi"),
        (u64::MAX, "16384Pi"),
    ];
    for (bytes, text) in shown {
        assert_eq!(human(Bytes(bytes)), text);
    }
}

#[test]
fn keys_are_wishes() {
    assert_eq!(wishes(b"q"), [KeyCommand::End]);
    assert_eq!(
        wishes(b"\x1b[A\x1b[Bj\x1b[5~"),
        [KeyCommand::Lines(-1), KeyCommand::Lines(1), KeyCommand::Lines(1), KeyCommand::Screens(-1)]
    );
    assert_eq!(wishes(b"\x1b[1;5Dq"), [KeyCommand::End], "an unknown sequence is ignored");
    assert_eq!(wishes(b"\x1b"), []);
    assert_eq!(wishes(b"x\x1bq"), [KeyCommand::End]);
}

/// Panics with a borrowed terminal; nothing where no test asked for it.
#[test]
fn panics_in_a_borrowed_terminal() {
    if std::env::var_os(PANICS).is_some() {
        let _screen = Screen::open().unwrap();
        // Not the thread that borrowed it.
        let panicked = std::thread::spawn(|| panic!("the words of the panic")).join();
        panic!("and again: {panicked:?}");
    }
}

#[test]
fn a_panic_is_read_on_the_usual_screen() {
    let pty = openpty(None, None).unwrap();
    let (mut master, slave) = (File::from(pty.master), File::from(pty.slave));
    let before = tcgetattr(&slave).unwrap();
    let end = || Stdio::from(slave.try_clone().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cli::top::tests::panics_in_a_borrowed_terminal", "--nocapture"])
        .env(PANICS, "yes")
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    let reader = std::thread::spawn(move || {
        let (mut all, mut bytes) = (Vec::new(), [0; 1024]);
        while let Ok(read @ 1..) = master.read(&mut bytes) {
            all.extend_from_slice(&bytes[..read]);
        }
        String::from_utf8_lossy(&all).into_owned()
    });
    assert!(!child.wait().unwrap().success());
    assert_eq!(tcgetattr(&slave).unwrap().local_flags, before.local_flags);
    drop(slave);
    let written = reader.join().unwrap();
    let at = |text: &str| written.find(text).unwrap_or_else(|| panic!("no {text:?} in {written:?}"));
    assert!(at("\x1b[?1049h") < at("\x1b[?1049l") && at("\x1b[?1049l") < at("the words of the panic"));
}
