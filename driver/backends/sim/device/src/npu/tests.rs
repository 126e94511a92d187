use super::*;

fn machine(model: &str, recover: Recover) -> (tempfile::TempDir, Npus) {
    let dir = tempfile::tempdir().unwrap();
    let chip = |phy: u32| Chip {
        model: model.to_owned(),
        product: String::new(),
        chip: "310P3".to_owned(),
        card: phy,
        device: 0,
        memory_mib: 24_576,
        board_id: 0,
        pci: format!("0000:{:02x}:00.0", 0x11 + phy),
        pcie_root: None,
        numa: None,
        hccs: None,
        die: [phy, 0, 0, 0, 0],
    };
    let machine = Machine { recover, chips: vec![chip(0), chip(1)], ..Machine::default() };
    install_npus(dir.path(), &machine).unwrap();
    let npus = Npus::open(dir.path()).unwrap();
    (dir, npus)
}

fn wanted(template: &str) -> VnpuRequest {
    VnpuRequest { template: template.to_owned(), id: None, group: None }
}

fn make(npus: &Npus, templates: &[&str]) -> Vec<Result<(u32, Option<u32>), String>> {
    let one = |template: &&str| npus.create(0, &wanted(template)).map_err(|error| error.to_string());
    templates.iter().map(|template| one(template).map(|made| (made.id, made.group))).collect()
}

#[test]
fn four_quarters_fit_if_the_last_takes_one_ai_cpu() {
    let (_dir, npus) = machine("huawei-310p-24gb", Recover::Disabled);
    let made = make(&npus, &["vir02", "vir02", "vir02", "vir02", "vir02_1c"]);
    let short = || Err("resource occupied".to_owned());
    assert_eq!(
        made,
        [Ok((100, Some(0))), Ok((101, Some(1))), Ok((102, Some(2))), short(), Ok((103, Some(3)))]
    );
    assert_eq!(npus.create(1, &wanted("vir04")).unwrap().id, 116);
}

#[test]
fn vir01_joins_a_half_full_group() {
    let (_dir, npus) = machine("huawei-310p-24gb", Recover::Disabled);
    let made = make(&npus, &["vir01", "vir02", "vir01", "vir01"]);
    let groups: Vec<Option<u32>> = made.into_iter().map(|made| made.unwrap().1).collect();
    assert_eq!(groups, [Some(0), Some(1), Some(0), Some(2)]);
    let asked = |template: &str, group| VnpuRequest { group: Some(group), ..wanted(template) };
    assert!(matches!(npus.create(0, &asked("vir02", 2)), Err(NpuError::Occupied)));
    assert!(matches!(npus.create(0, &asked("vir02", 4)), Err(NpuError::BadParameter)));
    assert_eq!(npus.create(0, &asked("vir01", 2)).unwrap().group, Some(2));
}

#[test]
fn refusals_follow_the_driver() {
    let (_dir, npus) = machine("huawei-310p-24gb", Recover::Disabled);
    assert!(matches!(npus.create(0, &wanted("vir05")), Err(NpuError::BadParameter)));
    assert!(matches!(npus.create(2, &wanted("vir02")), Err(NpuError::NoDevice)));
    let asked = |id| VnpuRequest { id: Some(id), ..wanted("vir02") };
    assert!(matches!(npus.create(0, &asked(116)), Err(NpuError::BadParameter)));
    assert_eq!(npus.create(0, &asked(107)).unwrap().id, 107);
    assert!(matches!(npus.create(0, &asked(107)), Err(NpuError::Occupied)));
    npus.change(|state| Ok(state.whole.insert(1))).unwrap();
    assert!(matches!(npus.create(1, &wanted("vir02")), Err(NpuError::Occupied)));
    npus.change(|state| {
        state.vnpus[0].used = true;
        Ok(())
    })
    .unwrap();
    assert!(matches!(npus.destroy(0, Some(107)), Err(NpuError::Occupied)));
    assert!(matches!(npus.destroy(0, Some(100)), Err(NpuError::NoDevice)));
}

#[test]
fn recovery_lines_follow_the_vnpus() {
    let (dir, npus) = machine("huawei-310p-24gb", Recover::Enabled);
    let config = || fs::read_to_string(dir.path().join("etc/vnpu.cfg")).unwrap();
    make(&npus, &["vir02", "vir01"]);
    let line = "0:100:npu-smi set -t create-vnpu -i 0 -c 0 -f vir02 -v 100 -g 0\n";
    assert!(config().contains(line) && config().contains("0:101:"), "{}", config());
    assert!(dir.path().join("dev/vdavinci100").exists());
    npus.destroy(0, Some(100)).unwrap();
    assert!(!config().contains("0:100:") && config().contains("0:101:"), "{}", config());
    assert!(!dir.path().join("dev/vdavinci100").exists());
    npus.change(|state| {
        state.recovery_fails = true;
        Ok(())
    })
    .unwrap();
    assert!(matches!(npus.create(0, &wanted("vir02")), Err(NpuError::Recovery)));
    assert_eq!(npus.state().unwrap().vnpus.len(), 1);
}

#[test]
fn templates_are_those_of_the_catalogue_and_driver() {
    let count = |model: &str| template::table(model, "25.2.0").map(|table| table.templates.len());
    assert_eq!(
        (count("huawei-310p-24gb"), count("huawei-910b4"), count("nvidia-t4")),
        (Some(7), Some(4), None)
    );
    let named = |driver: &str| template::table("huawei-910b4-1", driver).unwrap().templates[0].name.clone();
    assert_eq!((named("8.5.0"), named("25.2.0")), ("vir10_3c_16g".to_owned(), "vir10_3c_32g".to_owned()));
}

#[test]
fn faults_count_calls_over_all_openers() {
    let (dir, npus) = machine("huawei-310p-24gb", Recover::Disabled);
    let plan = "[[fault]]\nsymbol = \"dcmi_init\"\ncall = 2\naction = { error = -8006 }\n";
    fs::write(dir.path().join("npu-faults.toml"), plan).unwrap();
    assert_eq!(npus.strike("dcmi_init").unwrap(), []);
    assert_eq!(Npus::open(dir.path()).unwrap().strike("dcmi_init").unwrap(), [NpuAction::Error(-8006)]);
    assert_eq!(npus.strike("dcmi_init").unwrap(), []);
}
