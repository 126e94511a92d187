use super::*;

fn path_message(text: &str) -> String {
    text.parse::<PlainPath>().map_or_else(|error| error.to_string(), |path| path.to_string())
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    let expected = "expected an absolute path such as /dev/card0";
    for (text, wrong) in [
        ("dev/card0", "does not begin with '/'"),
        ("", "does not begin with '/'"),
        ("/", "is the root"),
        ("/dev//card0", "has an empty, '.' or '..' part"),
        ("/dev/", "has an empty, '.' or '..' part"),
        ("/dev/../etc/shadow", "has an empty, '.' or '..' part"),
        ("/dev/./card0", "has an empty, '.' or '..' part"),
        ("/dev/a\nb", "holds a control character"),
        ("/dev/a\0b", "holds a control character"),
    ] {
        assert_eq!(path_message(text), format!("path {text:?} {wrong}, {expected}"));
    }
    assert!(path_message(&format!("/{}", "a".repeat(4095))).contains("longer than 4095 bytes"));
    assert_eq!(path_message("/dev/..card0"), "/dev/..card0");
}

#[test]
fn environment_names_and_values_are_plain() {
    for name in ["", "1A", "A B", "A=B", "Ä", "A-B"] {
        let error = name.parse::<EnvName>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("environment name {name:?} is not one")), "{error}");
    }
    for name in ["_", "A", "ALIQUOT_GRANTS_1"] {
        assert_eq!(name.parse::<EnvName>().unwrap().as_str(), name);
    }
    let error = "a\nb".parse::<EnvValue>().unwrap_err().to_string();
    assert_eq!(
        error,
        "environment value of 3 bytes holds a control character, expected at most 4096 bytes of plain text"
    );
    assert!("x".repeat(4097).parse::<EnvValue>().is_err());
    assert_eq!("".parse::<EnvValue>().unwrap().as_str(), "");
}

#[test]
fn only_a_usage_file_is_mounted_writable() {
    let mount = |container: &str, host: &str| {
        Mount::usage_file(container.parse().unwrap(), host.parse().unwrap()).map(|mount| mount.to_spec())
    };
    let spec = mount("/run/aliquot/grants/c/0/usage", "/var/lib/aliquot/grants/c/0/usage").unwrap();
    assert_eq!(spec.options, ["rw", "nosuid", "nodev", "noexec", "bind"]);
    for (container, host) in [
        ("/run/aliquot/grants/c/0", "/g/usage"),
        ("/run/aliquot/grants/c/0/usage", "/g/limits"),
        ("/run/aliquot/grants/c/0/limits", "/g/usage"),
        ("/run/aliquot/grantsusage/usage", "/g/usage"),
        ("/etc/usage", "/g/usage"),
        ("/run/aliquot/grants/c/usage", "/g"),
    ] {
        let error = mount(container, host).unwrap_err().to_string();
        let expected = format!("writable mount of host {host} at {container}: only a file `usage` may be");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn simulated_cards_are_mounted_writable_at_one_place() {
    let mount = |container: &str, host: &str| {
        Mount::simulated_cards(container.parse().unwrap(), host.parse().unwrap()).map(|m| m.to_spec())
    };
    for host in ["/var/lib/aliquot/cards", "/var/lib/aliquot/cards-MIG-1"] {
        assert_eq!(mount("/run/aliquot/cards", host).unwrap().options, USAGE_MOUNT_OPTIONS, "{host}");
    }
    for (container, host) in
        [("/etc", "/s/cards"), ("/run/aliquot/cards", "/etc"), ("/run/aliquot/cards/x", "/s/cards")]
    {
        let error = mount(container, host).unwrap_err().to_string();
        assert!(error.starts_with(&format!("simulated cards {host} at {container}: expected")), "{error}");
    }
}

#[test]
fn a_node_without_a_major_number_is_refused() {
    let path: PlainPath = "/dev/card0".parse().unwrap();
    let error = DeviceNode::new(path.clone(), path, (0, 3)).unwrap_err().to_string();
    assert_eq!(
        error,
        "device node /dev/card0 has major number 0, expected the number that the host's node has"
    );
}
