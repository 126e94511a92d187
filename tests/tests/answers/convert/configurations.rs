//! Configurations of device plugins and of mig-parted: what is one, and what of it a policy has.

use super::{NODE, Ran, convert};

fn plugin(resources: &str) -> String {
    format!("version: v1\nsharing: {{timeSlicing: {{resources: [{resources}]}}}}\n")
}

fn mig_parted(entry: &str) -> String {
    format!("version: v1\nmig-configs: {{a: [{entry}]}}\n")
}

#[test]
fn config_map_of_another_program_comes_out_as_it_went_in() {
    for data in [
        "config.yaml: \"version: 2\\nflags: {colour: red}\\n\"",
        "config.yaml: \"version: v1\\nflags: {colour: red}\\n\"",
        "config.yaml: \"version: v1\\nsharing: {with: friends}\\n\"",
        "config.yaml: \"mig-configs: none\\n\"",
        "a: \"version: v1\\nflags: {migStrategy: none}\\n---\\nanother: document\\n\"",
    ] {
        let text =
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{{data}, other: x}}\n");
        let Ran { code, out, err } = convert(&text, &NODE);
        assert_eq!((code, err.as_str()), (0, ""), "{text}");
        assert!(
            out.contains("other: x") && out.contains("kind: ConfigMap") && !out.contains("aliquot"),
            "{out}"
        );
    }
}

#[test]
fn other_keys_of_a_config_map_are_kept() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {mine: too}}\ndata: {script.sh: 'echo 1', \
                config.yaml: \"version: v1\\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: \
                4}]}}\\n\"}\nbinaryData: {b: AAAA}\n";
    let Ran { out, .. } = convert(text, &NODE);
    for word in ["script.sh: 'echo 1'", "b: AAAA", "mine: too", "copies = 4"] {
        assert!(out.contains(word), "no {word} in\n{out}");
    }
    assert!(!out.contains("timeSlicing"), "{out}");
}

#[test]
fn configurations_that_are_not_selected_are_named() {
    let config = |replicas: u32| {
        format!(
            "\"version: v1\\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\\n\""
        )
    };
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{few: {}, many: {}}}\n",
        config(2),
        config(8)
    );
    assert_eq!(convert(&text, &NODE).code, 2);
    let Ran { code, out, err } = convert(&text, &["--select", "many", "--node", "mixed"]);
    assert!(code == 1 && out.contains("copies = 8") && !out.contains("copies = 2"), "{out}");
    assert!(err.contains("2 configurations, of which many"), "{err}");
}

#[test]
fn devices_that_cannot_be_read_are_never_all_cards() {
    for devices in ["[]", "['0']", "[0, x]", "[-1]", "0", "none", "{}"] {
        let entry = format!("{{devices: {devices}, mig-enabled: true, mig-devices: {{1g.10gb: 2}}}}");
        let Ran { code, out, err } = convert(&mig_parted(&entry), &NODE);
        assert!(code == 1 && err.contains("devices: ") && !out.contains("[[rule]]"), "{devices}: {out}{err}");
        let resource = format!("{{name: nvidia.com/gpu, devices: {devices}, replicas: 4}}");
        let Ran { code, out, err } = convert(&plugin(&resource), &NODE);
        assert!(code == 1 && err.contains("devices: ") && !out.contains("[[rule]]"), "{devices}: {out}{err}");
    }
}

#[test]
fn entries_of_mig_parted_that_cannot_be_read_are_named() {
    for (entry, field) in [
        ("{devices: all, mig-enabled: 'true', mig-devices: {1g.10gb: 2}}", "mig-enabled: true"),
        ("{devices: all, mig-devices: {1g.10gb: 2}}", "mig-enabled"),
        ("{devices: all, mig-enabled: true, mig-devices: [1g.10gb]}", "mig-devices"),
        ("text", "devices"),
    ] {
        let Ran { code, out, err } = convert(&mig_parted(entry), &NODE);
        assert!(code == 1 && err.contains(field) && !out.contains("[[rule]]"), "{entry}: {out}{err}");
    }
    let Ran { code, err, .. } = convert("version: v1\nmig-configs: {a: {devices: all}}\n", &NODE);
    assert!(code == 1 && err.contains("mig-configs[a]"), "{err}");
    let known = "{devices: all, mig-enabled: false, mig-devices: {}, colour: red}";
    let Ran { code, out, err } = convert(&mig_parted(known), &NODE);
    assert!(code == 1 && out.contains("whole") && err.contains("colour: red: not carried"), "{out}{err}");
}

#[test]
fn indices_of_replicated_cards_are_carried() {
    let Ran { out, .. } = convert(&plugin("{name: nvidia.com/gpu, devices: [0, 2], replicas: 4}"), &NODE);
    assert!(out.contains("index = [0, 2]") && out.contains("copies = 4"), "{out}");
    let Ran { code, out, .. } = convert(&plugin("{name: nvidia.com/gpu, devices: all, replicas: 4}"), &NODE);
    assert!(code == 1 && out.contains("copies = 4") && !out.contains("index"), "{out}");
}

#[test]
fn fields_of_the_plugin_without_equivalent_are_named() {
    let text = "version: v1\nflags: {migStrategy: none}\nresources: {gpus: [{pattern: '*T4*', name: nvidia.com/t4}], migs: \
                []}\nimex: {required: true}\nsharing: {timeSlicing: {failRequestsGreaterThanOne: true, renameByDefault: \
                true, colour: red, resources: [{name: nvidia.com/gpu, rename: nvidia.com/part, replicas: 4, size: 2}]}}\n";
    let Ran { code, out, err } = convert(text, &NODE);
    assert!(code == 1 && out.contains("copies = 4"), "{out}");
    for field in [
        "configuration resources.gpus: ",
        "configuration imex: ",
        "failRequestsGreaterThanOne: true",
        "sharing.timeSlicing.colour: red",
        "resources[0].rename: nvidia.com/part",
        "resources[0].size: 2",
    ] {
        assert!(
            err.lines().any(|line| line.contains(field) && line.contains(": not carried: ")),
            "{field}: {err}"
        );
    }
    assert!(!err.contains("renameByDefault") && !err.contains("resources.migs"), "{err}");
}

#[test]
fn replicas_are_in_a_policy_once() {
    let twice = "{name: nvidia.com/gpu, replicas: 4}, {name: nvidia.com/gpu, replicas: 2}";
    let one = plugin("{name: nvidia.com/gpu, replicas: 4}");
    let both = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}, mps: {resources: \
                [{name: nvidia.com/gpu, replicas: 4}]}}\n";
    for text in [plugin(twice), both.to_owned(), format!("{one}---\n{one}")] {
        let Ran { code, out, err } = convert(&text, &NODE);
        assert!(code == 1 && err.contains("a second time"), "{text}: {err}");
        assert_eq!(out.matches("name = \"shared\"\n").count(), 1, "{out}");
    }
}

#[test]
fn configuration_of_another_system_stays_where_one_is_named() {
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{config.yaml: {:?}}}\n",
        plugin("{name: nvidia.com/gpu, replicas: 4}")
    );
    let Ran { code, out, err } = convert(&map, &["--from", "hami", "--node", "mixed"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("timeSlicing"), "{out}");
    let Ran { code, out, .. } = convert(&map, &["--from", "nvidia", "--node", "mixed"]);
    assert!(code == 1 && out.contains("copies = 4"), "{out}");
    let Ran { code, err, .. } = convert(&plugin(""), &["--from", "hami"]);
    assert!(code == 2 && err.contains("--from"), "{err}");
}
