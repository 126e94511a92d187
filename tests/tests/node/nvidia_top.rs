//! `aliquot top` of this machine's own NVIDIA cards.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use aliquot_sim_device::Health;
use aliquot_tests::local::{aliquot, wait_for};
use aliquot_tests::machine::{CARDS, Machine};
use serde_json::Value;
use tempfile::TempDir;

use super::nvidia::{GIB, end, only};

/// The card with a share.
fn granted(value: &Value) -> &Value {
    let has_share = |card: &&Value| !card["shares"].as_array().unwrap().is_empty();
    value["cards"].as_array().unwrap().iter().find(has_share).unwrap()
}

/// `aliquot devices` takes what a program without a grant uses on the first card from the room of shares there.
fn devices_count_strangers(machine: &Machine, card: &Value, stranger: u32) {
    let cards = machine.devices();
    let others = &cards[0]["otherPrograms"];
    assert_eq!(only(&others["processes"])["pid"], stranger, "{others}");
    let used = card["outside"][0]["driverBytes"].as_u64().unwrap();
    assert_eq!(others["memory"], format!("{}Mi", used >> 20), "{others}");
    let free = (81_559_u64 << 20) - 4 * GIB - used;
    assert_eq!(cards[0]["shareRoom"]["memory"], format!("{}Mi", free >> 20), "{}", cards[0]);
    assert_eq!(
        (&cards[1]["otherPrograms"], &cards[1]["shareRoom"]["memory"]),
        (&Value::Null, &"15Gi".into())
    );
    let table = machine.aliquot("devices", &[]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains(&format!("card 0: programs that belong to no claim use {}Mi", used >> 20)),
        "{table}"
    );
    assert!(table.contains(&format!("{}Mi, 75% cores", free >> 20)), "{table}");
}

#[test]
fn top_shows_users_of_cards_and_enforcement() {
    let machine = Machine::of(CARDS);
    let idle = machine.top(&["-n", "0"]);
    let idle = idle["cards"].as_array().unwrap();
    assert_eq!(idle.len(), 3, "the machine's cards, though nothing is promised in this state");
    assert!(
        idle.iter().all(|card| card["driver"]["usedBytes"] == 0 && card["shares"] == serde_json::json!([]))
    );
    let (held, words) =
        machine.tenant(&["--memory", "4Gi", "--cores", "25", "--card", "0"], &["fill", "1024"]);
    // On the same card without a grant.
    let mut stranger = machine.bench.command(aliquot());
    stranger.args(["demo-tenant", "work", "1000000"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stranger = stranger.spawn().unwrap();
    BufReader::new(stranger.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let mut value = Value::Null;
    let percent = |value: &Value| value.as_f64().unwrap_or(0.0);
    wait_for("the driver's samples", || {
        value = machine.top(&["-n", "0.5"]);
        let card = granted(&value);
        percent(&card["driver"]["busyPercent"]) > 50.0
            && percent(&only(&card["outside"])["measuredPercent"]) > 50.0
    });
    let card = granted(&value);
    assert_eq!((&card["name"], &card["index"]), (&"NVIDIA H100 80GB HBM3".into(), &0.into()), "{card}");
    assert_eq!(
        (&card["health"]["state"], &card["memoryBytes"]),
        (&"healthy".into(), &(81_559_u64 << 20).into())
    );
    assert_eq!(card["driver"]["usedBytes"], machine.bench.card().in_use(), "{card}");
    assert_eq!(card["driver"]["highWaterBytes"], Value::Null, "NVML does not say");
    assert_eq!(only(&card["outside"])["pid"], stranger.id(), "{card}");
    let share = only(&card["shares"]);
    assert_eq!(
        (&share["enforcement"]["state"], &share["memory"]["limitBytes"]),
        (&"observed".into(), &(4 * GIB).into())
    );
    assert_eq!(share["compute"]["guaranteedPercent"].as_f64(), Some(25.0), "{share}");
    let process = only(&share["processes"]);
    assert_eq!(process["pid"].to_string(), words[1]);
    assert!(
        process["driverBytes"].as_u64() >= Some(GIB) && process["bookedBytes"] == process["driverBytes"],
        "{process}"
    );
    devices_count_strangers(&machine, card, stranger.id());
    // A user that names simulated cards means these.
    let other = TempDir::new().unwrap();
    fs::write(other.path().join("node.toml"), "card = []").unwrap();
    assert_eq!(
        machine.top(&["-n", "0", "--cards", &other.path().display().to_string()])["cards"][0]["driver"],
        Value::Null
    );
    machine.bench.card().set_health(Health::Lost);
    let lost = machine.top(&["-n", "0"]);
    let said = lost["problems"].to_string();
    assert!(said.contains("this machine's cards") && said.contains("card 0: NVML error 15"), "{said}");
    assert_eq!(granted(&lost)["driver"], Value::Null, "what is promised on it is shown");
    machine.bench.card().set_health(Health::Well);
    assert_eq!((end(held).is_some(), end(stranger).is_some()), (true, true));
    let old = Machine::of("driver = \"470.57.02\"").top(&["-n", "0"]);
    assert!(old["problems"].to_string().contains("found version 470.57.02, expected 510"), "{old}");
}
