//! Files that follow the rules of the CDI format, and files that break one each.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_cdi::spec::Spec;
use aliquot_cdi::version::{SpecVersion, lowest};

/// Each good file with the lowest version that has what it uses.
const GOOD: &[(&str, &str)] = &[
    ("additional_gids", "0.7.0"),
    ("annotations", "0.6.0"),
    ("class_with_dot", "0.6.0"),
    ("common_edits", "0.3.0"),
    ("common_edits_empty", "0.3.0"),
    ("device_annotations", "0.6.0"),
    ("device_name_with_digit_in_front", "0.5.0"),
    ("device_node_types", "0.3.0"),
    ("device_node_whole", "0.3.0"),
    ("empty_value_and_equals_in_value", "0.3.0"),
    ("everything", "1.1.0"),
    ("higher_than_needed", "0.3.0"),
    ("hooks_of_others", "0.3.0"),
    ("host_path", "0.5.0"),
    ("intel_rdt", "0.7.0"),
    ("intel_rdt_monitoring", "1.1.0"),
    ("intel_rdt_root_class", "0.7.0"),
    ("intel_rdt_schemata", "1.1.0"),
    ("intel_rdt_schemata_empty", "1.1.0"),
    ("leading_v", "0.3.0"),
    ("minimal", "0.3.0"),
    ("mount_type", "0.4.0"),
    ("mount_type_empty", "0.3.0"),
    ("net_devices", "1.1.0"),
];

/// Each bad file with the whole message.
const BAD: &[(&str, &str)] = &[
    (
        "annotation_key",
        "a rule of the CDI format is broken: annotations: found the key \"Vendor.com/\", expected [<DNS subdomain>/]<name>, the name of 1 to 63 letters, digits, '-', '_' or '.'",
    ),
    (
        "annotation_not_text",
        "not a CDI spec in JSON: invalid type: integer `1`, expected a string at line 15 column 10",
    ),
    (
        "annotation_prefix",
        "a rule of the CDI format is broken: annotations: found the key \"a_b.com/x\", expected [<DNS subdomain>/]<name>, the name of 1 to 63 letters, digits, '-', '_' or '.'",
    ),
    (
        "clos_id",
        "a rule of the CDI format is broken: devices[0].containerEdits.intelRdt.closID: found \"a/b\", expected a file name, or / for the root class",
    ),
    (
        "common_env_without_name",
        "a rule of the CDI format is broken: containerEdits.env[0]: found \"=1\", expected NAME=value",
    ),
    (
        "device_name_empty",
        "not a CDI spec in JSON: device name is empty, expected at least one letter or digit at line 6 column 16",
    ),
    (
        "device_name_end",
        "not a CDI spec in JSON: device name \"gpu0-\" has '-' at byte 4, expected a letter or digit (A-Z, a-z, 0-9) at line 6 column 21",
    ),
    (
        "device_name_slash",
        "not a CDI spec in JSON: device name \"gpu/0\" has '/' at byte 3, expected letters, digits, '-', '_', '.' or ':' at line 6 column 21",
    ),
    (
        "device_twice",
        "a rule of the CDI format is broken: devices[1].name: found \"gpu0\" again, expected a name of its own",
    ),
    (
        "device_with_empty_lists",
        "a rule of the CDI format is broken: devices[0].containerEdits: found no edits, expected at least one edit, or a device would have no effect",
    ),
    (
        "device_without_edits",
        "a rule of the CDI format is broken: devices[0].containerEdits: found no edits, expected at least one edit, or a device would have no effect",
    ),
    ("empty_object", "not a CDI spec in JSON: missing field `cdiVersion` at line 1 column 2"),
    (
        "env_without_equals",
        "a rule of the CDI format is broken: devices[0].containerEdits.env[1]: found \"B\", expected NAME=value",
    ),
    (
        "env_without_name",
        "a rule of the CDI format is broken: devices[0].containerEdits.env[0]: found \"=1\", expected NAME=value",
    ),
    ("field_twice", "not a CDI spec in JSON: duplicate field `kind` at line 1 column 59"),
    (
        "gid_too_large",
        "not a CDI spec in JSON: invalid value: integer `4294967296`, expected u32 at line 9 column 20",
    ),
    (
        "hook_name",
        "a rule of the CDI format is broken: devices[0].containerEdits.hooks[0].hookName: found \"later\", expected one of prestart, createRuntime, createContainer, startContainer, poststart, poststop",
    ),
    (
        "hook_path_and_env",
        "a rule of the CDI format is broken: devices[0].containerEdits.hooks[0].path: found an empty text, expected the path of a program; devices[0].containerEdits.hooks[0].env[0]: found \"A\", expected NAME=value",
    ),
    (
        "kind_class_two_slashes",
        "not a CDI spec in JSON: class \"device/sub\" has '/' at byte 6, expected letters, digits, '-', '_' or '.' at line 3 column 33",
    ),
    (
        "kind_vendor_digit",
        "not a CDI spec in JSON: vendor \"3vendor.com\" has '3' at byte 0, expected a letter (A-Z, a-z) at line 3 column 30",
    ),
    (
        "kind_without_class",
        "not a CDI spec in JSON: \"vendor.com\" has no '/', expected <vendor>/<class> at line 3 column 22",
    ),
    (
        "low_for_additional_gids",
        "a rule of the CDI format is broken: cdiVersion: found 0.6.0, expected 0.7.0 or higher: devices[0].containerEdits.additionalGids is in the format since 0.7.0",
    ),
    (
        "low_for_annotations",
        "a rule of the CDI format is broken: cdiVersion: found 0.5.0, expected 0.6.0 or higher: annotations is in the format since 0.6.0",
    ),
    (
        "low_for_class",
        "a rule of the CDI format is broken: cdiVersion: found 0.5.0, expected 0.6.0 or higher: kind: a dot in the class is in the format since 0.6.0",
    ),
    (
        "low_for_device_name",
        "a rule of the CDI format is broken: cdiVersion: found 0.4.0, expected 0.5.0 or higher: devices[0].name: a digit in front is in the format since 0.5.0",
    ),
    (
        "low_for_host_path",
        "a rule of the CDI format is broken: cdiVersion: found 0.4.0, expected 0.5.0 or higher: devices[0].containerEdits.deviceNodes[0].hostPath is in the format since 0.5.0",
    ),
    (
        "low_for_intel_rdt",
        "a rule of the CDI format is broken: cdiVersion: found 0.6.0, expected 0.7.0 or higher: devices[0].containerEdits.intelRdt is in the format since 0.7.0",
    ),
    (
        "low_for_mount_type",
        "a rule of the CDI format is broken: cdiVersion: found 0.3.0, expected 0.4.0 or higher: devices[0].containerEdits.mounts[0].type is in the format since 0.4.0",
    ),
    (
        "low_for_net_devices",
        "a rule of the CDI format is broken: cdiVersion: found 1.0.0, expected 1.1.0 or higher: devices[0].containerEdits.netDevices is in the format since 1.1.0",
    ),
    (
        "low_for_schemata",
        "a rule of the CDI format is broken: cdiVersion: found 1.0.0, expected 1.1.0 or higher: devices[0].containerEdits.intelRdt.schemata is in the format since 1.1.0; cdiVersion: found 1.0.0, expected 1.1.0 or higher: devices[0].containerEdits.intelRdt.enableMonitoring is in the format since 1.1.0",
    ),
    (
        "mount_paths_empty",
        "a rule of the CDI format is broken: devices[0].containerEdits.mounts[0].hostPath: found an empty text, expected a path on the host; devices[0].containerEdits.mounts[0].containerPath: found an empty text, expected a path in the container",
    ),
    (
        "net_device_empty",
        "a rule of the CDI format is broken: devices[0].containerEdits.netDevices[0].hostInterfaceName: found an empty text, expected an interface on the host; devices[0].containerEdits.netDevices[0].name: found an empty text, expected an interface name in the container",
    ),
    (
        "net_device_twice",
        "a rule of the CDI format is broken: devices[0].containerEdits.netDevices[1].hostInterfaceName: found \"eth1\" again, expected each interface once; devices[0].containerEdits.netDevices[1].name: found \"net0\" again, expected a name of its own",
    ),
    ("no_container_edits", "not a CDI spec in JSON: missing field `containerEdits` at line 7 column 5"),
    ("no_devices", "a rule of the CDI format is broken: devices: found none, expected at least one device"),
    ("no_kind", "not a CDI spec in JSON: missing field `kind` at line 4 column 1"),
    ("no_mount_host_path", "not a CDI spec in JSON: missing field `hostPath` at line 11 column 11"),
    (
        "node_major_fraction",
        "not a CDI spec in JSON: invalid type: floating point `1.5`, expected i64 at line 11 column 24",
    ),
    (
        "node_path_empty",
        "a rule of the CDI format is broken: devices[0].containerEdits.deviceNodes[0].path: found an empty text, expected a path in the container",
    ),
    (
        "node_permissions",
        "a rule of the CDI format is broken: devices[0].containerEdits.deviceNodes[0].permissions: found \"rwx\", expected letters of rwm, or none",
    ),
    (
        "node_type",
        "a rule of the CDI format is broken: devices[0].containerEdits.deviceNodes[0].type: found \"char\", expected b, c, u or p",
    ),
    (
        "node_uid_negative",
        "not a CDI spec in JSON: invalid value: integer `-1`, expected u32 at line 11 column 21",
    ),
    ("not_json", "not a CDI spec in JSON: expected value at line 1 column 1"),
    ("truncated", "not a CDI spec in JSON: EOF while parsing a string at line 1 column 47"),
    (
        "unknown_device_field",
        "not a CDI spec in JSON: unknown field `memory`, expected one of `name`, `annotations`, `containerEdits` at line 7 column 14",
    ),
    (
        "unknown_edit_field",
        "not a CDI spec in JSON: unknown field `envs`, expected one of `env`, `deviceNodes`, `netDevices`, `hooks`, `mounts`, `intelRdt`, `additionalGids` at line 8 column 14",
    ),
    (
        "unknown_mount_field",
        "not a CDI spec in JSON: unknown field `readOnly`, expected one of `hostPath`, `containerPath`, `options`, `type` at line 12 column 22",
    ),
    (
        "unknown_node_field",
        "not a CDI spec in JSON: unknown field `mode`, expected one of `path`, `hostPath`, `type`, `major`, `minor`, `fileMode`, `permissions`, `uid`, `gid` at line 11 column 18",
    ),
    (
        "unknown_rdt_field",
        "not a CDI spec in JSON: unknown field `enableCMT`, expected one of `closID`, `l3CacheSchema`, `memBwSchema`, `schemata`, `enableMonitoring` at line 9 column 21",
    ),
    (
        "unknown_top_field",
        "not a CDI spec in JSON: unknown field `hooks`, expected one of `cdiVersion`, `kind`, `annotations`, `devices`, `containerEdits` at line 14 column 9",
    ),
    (
        "version_before_the_first",
        "not a CDI spec in JSON: cdiVersion \"0.2.0\" is not known, expected one of 0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0, 1.1.0 at line 2 column 23",
    ),
    (
        "version_not_text",
        "not a CDI spec in JSON: invalid type: integer `1`, expected a string at line 2 column 17",
    ),
    (
        "version_unknown",
        "not a CDI spec in JSON: cdiVersion \"1.2.0\" is not known, expected one of 0.3.0, 0.4.0, 0.5.0, 0.6.0, 0.7.0, 0.8.0, 1.0.0, 1.1.0 at line 2 column 23",
    ),
];

fn testdata(which: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(which)
}

/// The stems of the files in a directory.
fn files(which: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(testdata(which)).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned())).collect()
}

/// An error with all its causes.
fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

#[test]
fn every_file_has_a_row() {
    let rows = |table: &[(&str, &str)]| table.iter().map(|(name, _)| (*name).to_owned()).collect();
    let (good, bad): (BTreeSet<String>, BTreeSet<String>) = (rows(GOOD), rows(BAD));
    assert_eq!(files("good"), good);
    assert_eq!(files("bad"), bad);
}

#[test]
fn good_files_are_accepted_and_need_exactly_this_version() {
    for (name, version) in GOOD {
        let text = fs::read_to_string(testdata("good").join(format!("{name}.json"))).unwrap();
        let spec = Spec::parse(&text).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
        assert_eq!(lowest(&spec).as_str(), *version, "{name}");
        for candidate in SpecVersion::ALL {
            let asking = Spec { cdi_version: candidate, ..spec.clone() };
            let accepted = aliquot_cdi::validate::validate(&asking).is_ok();
            assert_eq!(accepted, candidate >= lowest(&spec), "{name} as {candidate}");
        }
    }
}

#[test]
fn good_files_without_hooks_are_written_as_they_were_read() {
    for (name, _) in GOOD {
        let text = fs::read_to_string(testdata("good").join(format!("{name}.json"))).unwrap();
        let spec = Spec::parse(&text).unwrap();
        match spec.render() {
            Ok(written) => assert_eq!(Spec::parse(&written).unwrap(), spec, "{name}"),
            Err(error) => {
                assert_eq!(*name, "hooks_of_others", "{}", chain(&error));
                assert!(chain(&error).contains("hooks: found createContainer, prestart, expected none"));
            }
        }
    }
}

#[test]
fn bad_files_are_refused_with_the_field_and_what_was_expected() {
    let mut wrong = String::new();
    for (name, expected) in BAD {
        let text = fs::read_to_string(testdata("bad").join(format!("{name}.json"))).unwrap();
        let found = Spec::parse(&text).map_or_else(|error| chain(&error), |_| "accepted".to_owned());
        if found != *expected {
            wrong.push_str(&format!("    ({name:?}, {found:?}),\n"));
        }
    }
    assert!(wrong.is_empty(), "these messages differ from the table:\n{wrong}");
}
