//! What the agent logs for a call of the kubelet: one number on all lines, also of the threads on which the node works.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::fs::File;
use std::time::{Duration, Instant};

use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::machine::Machine;
use serde_json::{Value, json};

use crate::driver_reload::{Started, claim_on, devices, load_driver, plugin};

/// Lines of a call with this message, once there are so many.
async fn lines(log: &std::path::Path, message: &str, least: usize) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        let all = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found: Vec<Value> = all.filter(|line| line["fields"]["message"] == json!(message)).collect();
        if found.len() >= least {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{message}: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_a_call_have_its_number_on_every_thread() {
    let (machine, server, kubelet) =
        (Machine::of("[[card]]\n[[card]]"), FakeApiServer::start(), FakeKubelet::default());
    let (host, log) = (machine.dir().join("host"), machine.dir().join("log"));
    std::fs::create_dir(&host).unwrap();
    load_driver(&machine, &host, 1);
    let mut program = plugin(&machine, &server, &kubelet, &host);
    program
        .args(["--log", "info,aliquot_driver=debug", "--log-format", "json"])
        .stderr(File::create(&log).unwrap());
    let _program = Started(program.spawn().unwrap());
    let service = kubelet.register().await;
    server.wait_for("resourceslices", |slices| devices(slices).count() > 1).await;
    let slices = server.objects("resourceslices");
    let names: Vec<Value> = devices(&slices).map(|device| device["name"].clone()).collect();
    for (claim, name) in ["one", "two"].into_iter().zip(&names) {
        server.put(claim_on(&slices, claim, |device| device["name"] == *name));
    }

    let pair = [("default", "one", "one"), ("default", "two", "two")];
    assert!(service.prepare(&pair).await.values().all(Result::is_ok));
    assert!(service.prepare(&[("default", "absent", "absent")]).await["absent"].is_err());
    assert_eq!(service.unprepare(&pair[..1]).await["one"], "");

    let call = |line: &Value| (line["span"]["id"].clone(), line["span"]["operation"].clone());
    let of = |id: u64, operation: &str| (json!(id), json!(operation));
    // A line of the task of each claim, and those of the node's steps, which run on threads of their own.
    for message in ["prepared", "CDI file"] {
        for line in lines(&log, message, 2).await {
            assert_eq!(call(&line), of(1, "prepare"), "{line}");
        }
    }
    assert_eq!(call(&lines(&log, "released", 1).await[0]), of(3, "unprepare"));
    let received: Vec<_> = lines(&log, "received", 3).await.iter().map(call).collect();
    assert_eq!(received, [of(1, "prepare"), of(2, "prepare"), of(3, "unprepare")]);
}
