//! `devices --cluster` and `top --cluster`: cards by model, layout and node, from slices and claims of a server in this process.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test that calls them")]

use std::ffi::OsString;

use aliquot_tests::command_line::{Ran, ran};
use aliquot_tests::fake_apiserver::{Effect, FakeApiServer, Fault};
use serde_json::{Value, json};

/// A server with the slices of these nodes.
fn server(nodes: &[&str]) -> (FakeApiServer, Vec<Value>) {
    let server = FakeApiServer::start();
    let mut words = vec!["aliquot", "slices", "-o", "json"];
    words.extend(nodes.iter().flat_map(|node| ["--node", node]));
    let Ran { out, err, code } = ran(words.into_iter().map(OsString::from));
    assert_eq!(code, 0, "{err}");
    let list: Value = serde_json::from_str(&out).unwrap();
    let slices = list["items"].as_array().unwrap().clone();
    for slice in &slices {
        server.put(slice.clone());
    }
    (server, slices)
}

/// The first device of a node with this profile on its card of this number; `card` is the card itself.
fn device(slices: &[Value], node: &str, card: usize, profile: &str) -> Value {
    let of_node = slices.iter().filter(|slice| slice["spec"]["nodeName"] == node);
    let devices = of_node.flat_map(|slice| {
        let pool = slice["spec"]["pool"]["name"].clone();
        let devices = slice["spec"]["devices"].as_array().cloned().unwrap_or_default();
        devices.into_iter().map(move |device| (pool.clone(), device))
    });
    let devices: Vec<(Value, Value)> = devices.collect();
    let text = |device: &Value, name: &str| device["attributes"][name]["string"].as_str().map(str::to_owned);
    let mut cards: Vec<String> = Vec::new();
    for (_, device) in &devices {
        let uuid = text(device, "parentUUID").unwrap();
        if !cards.contains(&uuid) {
            cards.push(uuid);
        }
    }
    let wanted = |device: &Value| {
        let is_it = if profile == "card" {
            text(device, "type").as_deref() == Some("card")
        } else {
            text(device, "profile").as_deref() == Some(profile)
        };
        is_it && text(device, "parentUUID").as_ref() == cards.get(card)
    };
    let (pool, device) = devices.iter().find(|(_, device)| wanted(device)).unwrap();
    json!({"request": "r", "driver": "aliquot.dev", "pool": pool, "device": device["name"]})
}

/// Puts a claim that holds a device.
fn hold(server: &FakeApiServer, name: &str, mut result: Value, share: Option<&str>) {
    if let Some(memory) = share {
        result["shareID"] = "a671734a-e8e5-11e4-8fde-42010af09327".into();
        result["consumedCapacity"] = json!({"memory": memory, "cores": "10"});
    }
    server.put(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "card.aliquot.dev"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }));
}

fn aliquot(server: &FakeApiServer, words: &[&str]) -> Ran {
    let kubeconfig = server.kubeconfig().into_os_string();
    let words = words.iter().map(OsString::from);
    ran(std::iter::once("aliquot".into()).chain(words).chain(["--kubeconfig".into(), kubeconfig]))
}

/// The cards of a node.
fn cards(server: &FakeApiServer, node: &str) -> Vec<Value> {
    let Ran { out, err, code } = aliquot(server, &["devices", "--cluster", "--node", node, "-o", "json"]);
    assert_eq!(code, 0, "{err}");
    let value: Value = serde_json::from_str(&out).unwrap();
    value["nodes"][0]["cards"].as_array().unwrap().clone()
}

/// The card with this much held.
fn with_held<'c>(cards: &'c [Value], held: &str) -> &'c Value {
    let found: Vec<&Value> = cards.iter().filter(|card| card["memoryHeld"] == held).collect();
    assert_eq!(found.len(), 1, "{held}: {cards:#?}");
    found[0]
}

#[test]
fn cluster_cards_have_holes_beside_what_claims_hold() {
    let (server, slices) = server(&["h100-8", "t4-2"]);
    hold(&server, "whole", device(&slices, "h100-8", 0, "card"), None);
    hold(&server, "part", device(&slices, "h100-8", 1, "1g.10gb"), None);
    hold(&server, "share", device(&slices, "t4-2", 0, "card"), Some("4Gi"));
    let of_h100 = cards(&server, "h100-8");
    assert_eq!(of_h100.len(), 8);
    assert!(
        of_h100.iter().all(|card| card["layout"] == "dynamic" && card["model"] == "nvidia-h100-80gb-sxm")
    );
    let whole = with_held(&of_h100, "81152Mi");
    assert_eq!((&whole["largestHole"], &whole["claims"]), (&Value::Null, &json!(1)));
    // A partition of a seventh leaves neither the card nor one of seven sevenths.
    let part = with_held(&of_h100, "9984Mi");
    assert_eq!(part["largestHole"], json!({"profile": "4g.40gb", "memory": "40448Mi"}));
    let idle = of_h100.iter().filter(|card| card["memoryHeld"] == "0").collect::<Vec<_>>();
    assert_eq!(idle.len(), 6);
    assert_eq!(idle[0]["largestHole"]["memory"], "81152Mi");
    let share = cards(&server, "t4-2");
    let share = with_held(&share, "4Gi");
    assert_eq!((share["layout"].as_str(), &share["memory"]), (Some("shared"), &json!("15Gi")));
    assert_eq!(share["largestHole"]["memory"], "11Gi");
}

#[test]
fn cluster_of_many_nodes_fits_one_screen() {
    let (server, slices) = server(&["t4-2*60", "h100-8*4"]);
    let node = slices.iter().rev().find_map(|slice| slice["spec"]["nodeName"].as_str()).unwrap().to_owned();
    hold(&server, "whole", device(&slices, &node, 0, "card"), None);
    let summed = aliquot(&server, &["devices", "--cluster"]);
    assert_eq!(summed.code, 0, "{}", summed.err);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = summed.out.lines().map(words).collect();
    assert!(rows.len() <= 30, "{}", summed.out);
    assert!(
        rows.iter().any(|row| row.starts_with(&["nvidia-t4-16gb", "shared", "60", "120"].map(str::to_owned)))
    );
    assert!(summed.out.contains("… and 44 nodes more; -o wide shows all, --node NAME one"), "{}", summed.out);
    let wide = aliquot(&server, &["devices", "--cluster", "-o", "wide"]).out;
    assert!(wide.lines().count() > 64, "{wide}");
    // The fullest node comes first.
    let top = aliquot(&server, &["top", "--cluster", "-o", "name"]);
    assert_eq!(top.out.lines().next(), Some(format!("node/{node}").as_str()), "{}", top.err);
    assert_eq!(top.out.lines().count(), 64);
    let one = aliquot(&server, &["top", "--context=fake", "--node", &node]).out;
    assert_eq!(one.lines().count(), 1 + cards(&server, &node).len(), "{one}");
    let absent = aliquot(&server, &["devices", "--cluster", "--node", "no-such"]);
    assert_eq!((absent.code, absent.out.as_str()), (2, ""));
    assert!(absent.err.contains("--node no-such: found no card"), "{}", absent.err);
}

#[test]
fn tainted_cards_are_closed_and_old_generations_left_out() {
    let (server, slices) = server(&["t4-2"]);
    for slice in &slices {
        let mut newer = slice.clone();
        newer["metadata"]["name"] = format!("newer-{}", slice["metadata"]["name"].as_str().unwrap()).into();
        newer["spec"]["pool"]["generation"] = 2.into();
        for device in newer["spec"]["devices"].as_array_mut().into_iter().flatten() {
            device["taints"] = json!([{"key": "aliquot.dev/unhealthy", "effect": "NoSchedule"}]);
        }
        server.put(newer);
    }
    let cards = cards(&server, "t4-2");
    assert_eq!(cards.len(), 2);
    assert!(cards.iter().all(|card| card["closed"] == true && card["largestHole"].is_null()), "{cards:#?}");
    let table = aliquot(&server, &["devices", "--cluster"]).out;
    assert!(table.contains("closed"), "{table}");
}

#[test]
fn amounts_beyond_any_card_and_odd_devices_are_borne() {
    let (server, slices) = server(&["t4-2"]);
    let mut hostile = slices[0].clone();
    hostile["metadata"]["name"] = "hostile".into();
    hostile["spec"]["pool"] = json!({"name": "hostile", "generation": 1, "resourceSliceCount": 1});
    let devices = (0..4).map(|number| {
        json!({
            "name": format!("d{number}"),
            "attributes": {"parentUUID": {"string": "\u{1b}[31m"}, "type": {"string": "partition"}},
            "capacity": {"memory": {"value": "7Ei"}},
        })
    });
    hostile["spec"]["devices"] = devices.collect();
    server.put(hostile);
    for number in 0..4 {
        let result = json!({"request": "r", "driver": "aliquot.dev", "pool": "hostile", "device": "d0"});
        hold(&server, &format!("c{number}"), result, Some("7Ei"));
    }
    let shown = aliquot(&server, &["devices", "--cluster", "--node", "t4-2"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert_eq!(shown.out.lines().count(), 4, "{}", shown.out);
    assert!(!shown.out.contains('\u{1b}') && shown.out.contains("unknown"), "{}", shown.out);
    assert_eq!(aliquot(&server, &["devices", "--cluster"]).code, 0);
}

#[test]
fn devices_with_a_tenants_rights_say_what_is_not_known() {
    let (server, slices) = server(&["t4-2"]);
    hold(&server, "share", device(&slices, "t4-2", 0, "card"), Some("4Gi"));
    let refuse = || server.inject(Fault::once("list", "resourceclaims", Effect::Status(403)));
    refuse();
    let shown = aliquot(&server, &["devices", "--cluster", "-n", "team", "-o", "json"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert!(shown.err.contains("which devices claims of other namespaces hold"), "{}", shown.err);
    let value: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(value["notDecided"], json!(["which devices claims of other namespaces hold"]));
    assert!(value["nodes"][0]["cards"].as_array().unwrap().iter().any(|card| card["memoryHeld"] == "4Gi"));
    refuse();
    let all = aliquot(&server, &["top", "--cluster", "-A"]);
    assert_eq!((all.code, all.out.as_str()), (3, ""), "{}", all.err);
    for (words, says) in [
        (&["devices", "--cluster", "--state", "x", "--node", "t4-2"][..], "leave it out"),
        (&["top", "--cluster", "-A", "--namespace", "team"], "cannot be used with"),
    ] {
        let refused = aliquot(&server, words);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{words:?}");
        assert!(refused.err.contains(says), "{words:?}: {}", refused.err);
    }
    let placeless = ran(["aliquot", "devices", "--node", "t4-2", "-n", "team"].map(OsString::from));
    assert!(placeless.code == 2 && placeless.err.contains("expected --cluster"), "{}", placeless.err);
    // Without a cluster the words are as before.
    let own = ran(["aliquot", "devices", "--node", "t4-2", "-o", "name"].map(OsString::from));
    assert_eq!((own.code, own.out.as_str()), (0, "node/t4-2\n"), "{}", own.err);
}

#[test]
fn cluster_without_an_agent_has_no_cards() {
    let server = FakeApiServer::start();
    let shown = aliquot(&server, &["devices", "--cluster"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert_eq!(shown.out, "no cards: no agent publishes slices here\n");
}
