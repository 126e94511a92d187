//! A real container runtime reads our file, and a real container sees what it says.
//!
//! ```text
//!  CdiDir::write ─▶ temp directory ─(bind)─▶ /run/cdi ◀─ podman ─▶ crun ─▶ busybox prints what it sees
//!                                  └────────── a mount namespace of its own ──────────┘
//! ```

#[path = "runtime/bench.rs"]
mod bench;

use std::fs;
use std::path::Path;

use aliquot_cdi::{CdiDir, ClaimSpec, ClaimSpecBuilder, DeviceNode, Edit, Mount, Owner};

/// What the container does: says what it sees of both shares.
const IN_CONTAINER: &str = r#"
for n in 0 1; do
    eval echo "env $n \$SHARE_$n"
    if [ -e /dev/share$n ]; then stat -c "node $n %F %t:%T" /dev/share$n; else echo "node $n none"; fi
    if [ -e /dev/share$n ]; then echo x > /dev/share$n && echo "node $n writable"; fi
done
echo "both $BOTH"
cat /opt/limits
(echo x > /opt/limits) 2>/dev/null && echo "mount writable" || echo "mount refuses writing"
cat /run/aliquot/grants/c/0/grant.json
(echo x > /run/aliquot/grants/c/0/grant.json) 2>/dev/null && echo "grant writable" || echo "grant refuses writing"
echo "from the tenant" > /run/aliquot/grants/c/0/usage && echo "usage writable"
while read -r _ at _ options _; do if [ "$at" = /opt/limits ]; then echo "options $options"; fi; done < /proc/mounts
"#;

/// The claim `4ee7` with two shares; a mount, a value and a grant for both.
fn claim_spec(limits: &Path, grant: &Path) -> Result<ClaimSpec, Box<dyn std::error::Error>> {
    let mut builder = ClaimSpecBuilder::new("4ee7-ab".parse()?);
    let limits = limits.to_str().ok_or("the temp directory has a name that is not text")?;
    let mount = Mount::read_only("/opt/limits".parse()?, limits.parse()?);
    let in_container = "/run/aliquot/grants/c/0";
    let grant = grant.to_str().ok_or("the temp directory has a name that is not text")?;
    let shown = Mount::read_only(in_container.parse()?, grant.parse()?);
    let usage =
        Mount::usage_file(format!("{in_container}/usage").parse()?, format!("{grant}/usage").parse()?)?;
    let both = Edit::Env("BOTH".parse()?, "yes".parse()?);
    let of_both = [Edit::Mount(mount), both, Edit::Mount(shown), Edit::Mount(usage)];
    for (share, host, minor) in [("0", "/dev/null", 3), ("1", "/dev/zero", 5)] {
        let container = format!("/dev/share{share}");
        let node = DeviceNode::new(container.parse()?, host.parse()?, (1, minor))?;
        let value = Edit::Env(format!("SHARE_{share}").parse()?, format!("value {share}").parse()?);
        let owner = Owner::new(format!("share {share}"));
        let edits = [&of_both[..], &[Edit::Node(node), value]].concat();
        builder.device(&"gpu/big".parse()?, &share.parse()?, &owner, &edits)?;
    }
    Ok(builder.build()?)
}

#[test]
fn a_real_runtime_injects_what_the_file_says_and_no_more() {
    let Some(bench) = bench::bench() else { return };
    let store = CdiDir::new(bench.cdi());
    let limits = bench.path("limits");
    fs::write(&limits, "limits of the host\n").unwrap();
    let grant = bench.path("grant");
    fs::create_dir(&grant).unwrap();
    fs::write(grant.join("grant.json"), "grant of the host\n").unwrap();
    fs::write(grant.join("usage"), "").unwrap();
    let claim_spec = claim_spec(&limits, &grant).unwrap();
    store.write(&claim_spec).unwrap();
    let names: Vec<String> = claim_spec.qualified_names().map(ToString::to_string).collect();
    assert_eq!(names, ["aliquot.dev/claim=4ee7-ab-gpu.big-0", "aliquot.dev/claim=4ee7-ab-gpu.big-1"]);

    let both = bench.run(&names, &[], IN_CONTAINER).unwrap();
    let seen = String::from_utf8_lossy(&both.stdout);
    let (lines, options) = seen.trim_end().rsplit_once("\noptions ").unwrap_or((&seen, ""));
    assert_eq!(
        lines,
        "env 0 value 0\nnode 0 character special file 1:3\nnode 0 writable\n\
         env 1 value 1\nnode 1 character special file 1:5\nnode 1 writable\n\
         both yes\nlimits of the host\nmount refuses writing\n\
         grant of the host\ngrant refuses writing\nusage writable",
        "{both:?}"
    );
    for option in ["ro", "nosuid", "nodev"] {
        assert!(options.split(',').any(|found| found == option), "{option} in {options}");
    }
    assert_eq!(fs::read_to_string(&limits).unwrap(), "limits of the host\n");
    assert_eq!(fs::read_to_string(grant.join("usage")).unwrap(), "from the tenant\n");

    let one = bench.run(&names[1..], &[], IN_CONTAINER).unwrap();
    let seen = String::from_utf8_lossy(&one.stdout);
    assert!(
        seen.starts_with("env 0\nnode 0 none\nenv 1 value 1\nnode 1 character special file 1:5\n"),
        "{one:?}"
    );

    store.remove(claim_spec.claim()).unwrap();
    let gone = bench.run(&names, &[], IN_CONTAINER).unwrap();
    assert!(!gone.status.success(), "{gone:?}");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("4ee7-ab-gpu.big-0"), "{gone:?}");
}
