//! An agent on a host that says that it has SELinux.

use std::fs;
use std::time::{Duration, Instant};

use aliquot_driver::selinux::{ENFORCE, FileLabels as _, LABEL, XattrLabels};
use aliquot_tests::fake_apiserver::FakeApiServer;
use aliquot_tests::fake_kubelet::FakeKubelet;
use aliquot_tests::machine::Machine;

use super::driver_reload::{Started, plugin};

#[tokio::test(flavor = "multi_thread")]
async fn agent_labels_the_grants_directory_at_its_start() {
    let (machine, server, kubelet) =
        (Machine::of("[[card]]"), FakeApiServer::start(), FakeKubelet::default());
    if let Err(error) = XattrLabels.write(&machine.state(), "system_u:object_r:var_lib_t:s0") {
        return println!("stood aside: security.selinux cannot be set: {error}");
    }
    let host = machine.dir().join("host");
    let enforce = host.join(ENFORCE);
    fs::create_dir_all(enforce.parent().unwrap()).unwrap();
    fs::write(enforce, "1").unwrap();
    let _plugin = Started(plugin(&machine, &server, &kubelet, &host).spawn().unwrap());
    kubelet.register().await;
    let began = Instant::now();
    for name in ["grants", "shims"] {
        let label = || XattrLabels.read(&machine.state().join(name)).ok().flatten();
        while label().as_deref() != Some(LABEL) {
            assert!(began.elapsed() < Duration::from_secs(60), "{name}: {:?}", label());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
