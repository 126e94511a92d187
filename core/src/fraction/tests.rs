use super::*;
use crate::catalogue::Catalogue;

fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib).unwrap()
}

/// Queries the whole catalogue; answers are `model: choice`.
#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    let answers = resolve(&parse_ask(text).unwrap(), &models).unwrap();
    let got: Vec<String> = answers.iter().map(|a| format!("{}: {}", a.model, a.choice)).collect();
    assert_eq!(got, expected, "{text}");
}

const QUARTERS_310P: [&str; 4] = [
    "huawei-310p-24gb: vir02 or vir02_1c",
    "huawei-310p-48gb: vir02 or vir02_1c",
    "huawei-310p-duo-24gb: vir02 or vir02_1c",
    "huawei-310p-duo-48gb: vir02 or vir02_1c",
];

#[test]
fn a_quarter_of_a_310p_is_understood_in_every_spelling() {
    for text in [
        "1/4 Ascend310P",
        "310p-1/4",
        "huawei.com/ascend-310p-1/4",
        "1/4 310p",
        "Ascend310P 1/4",
        "25% 310P",
        "2/8 ASCEND-310P",
        "25.0% huawei.com/Ascend310P",
        "  1/4   Ascend310P ",
    ] {
        check(text, &QUARTERS_310P);
    }
}

#[test]
fn quarter_in_other_notations_is_a_quarter() {
    for text in
        ["¼ 310P", "¼ of Ascend310P", "310P ¼", "0.25 310P", "1/4 of 310P", "25% OF 310P", "Ascend310P 0.250"]
    {
        check(text, &QUARTERS_310P);
    }
    check("½ A30", &["nvidia-a30-24gb: 2g.12gb or 2g.12gb+me"]);
    check("¾ T4", &["nvidia-t4-16gb: a share of 11520Mi and 75% of the compute"]);
}

#[test]
fn resource_name_of_a_device_plugin_is_its_template() {
    let vir02: Vec<String> = QUARTERS_310P.iter().map(|q| q.replace(" or vir02_1c", "")).collect();
    let vir02: Vec<&str> = vir02.iter().map(String::as_str).collect();
    check("huawei.com/Ascend310P-2c", &vir02);
    check("Ascend310P-2c", &vir02);
    check("huawei.com/Ascend910-2c", &["huawei-910a-30c: vir02", "huawei-910a-32c: vir02"]);
    check(
        "huawei.com/Ascend910-5c.1cpu.16g",
        &["huawei-910b3: vir05_1c_16g", "huawei-910b4-1: vir05_1c_16g", "huawei-910c-20c: vir05_1c_16g"],
    );
    check("huawei.com/Ascend910B4", &["huawei-910b4: the whole card"]);
    check(
        "nvidia.com/mig-1g.12gb",
        &[
            "nvidia-h100-96gb: 1g.12gb",
            "nvidia-h100-nvl-94gb: 1g.12gb",
            "nvidia-h20-96gb: 1g.12gb",
            "nvidia-h800-nvl-94gb: 1g.12gb",
        ],
    );
    check("nvidia.com/mig-1g.5gb.me", &["nvidia-a100-40gb: 1g.5gb+me", "nvidia-a800-40gb: 1g.5gb+me"]);
}

#[test]
fn resource_with_its_number_is_the_part() {
    check(
        "huawei.com/Ascend310P-memory: 6144",
        &[
            "huawei-310p-24gb: vir02 or vir02_1c",
            "huawei-310p-48gb: vir01",
            "huawei-310p-duo-24gb: vir02 or vir02_1c",
            "huawei-310p-duo-48gb: vir01",
        ],
    );

    check(
        "huawei.com/npu-core = \"1\"",
        &[
            "huawei-310p-24gb: vir01",
            "huawei-310p-48gb: vir01",
            "huawei-310p-duo-24gb: vir01",
            "huawei-310p-duo-48gb: vir01",
        ],
    );
}

#[test]
fn pasted_line_is_its_part_as_often_as_its_count() {
    let count = |text: &str| parse_ask(text).unwrap().count;
    check("nvidia.com/mig-1g.6gb: 1", &["nvidia-a30-24gb: 1g.6gb"]);
    check(
        "\"nvidia.com/mig-1g.5gb.me\": \"2\",",
        &["nvidia-a100-40gb: 1g.5gb+me", "nvidia-a800-40gb: 1g.5gb+me"],
    );
    check("huawei.com/Ascend910B4: 1", &["huawei-910b4: the whole card"]);
    check("huawei.com/Ascend910-2c: 1", &["huawei-910a-30c: vir02", "huawei-910a-32c: vir02"]);
    check("25% T4: 2", &["nvidia-t4-16gb: a share of 3840Mi and 25% of the compute"]);
    for (text, expected) in
        [("nvidia.com/gpu: 4", 4), ("nvidia.com/gpu", 1), ("huawei.com/Ascend310P=2", 2), ("25% T4: 2", 2)]
    {
        assert_eq!(count(text), expected, "{text}");
    }
}

#[test]
fn whole_card_resource_is_every_card_it_stands_for() {
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    for (text, of_it) in [
        ("nvidia.com/gpu: 1", "nvidia-"),
        ("huawei.com/npu: 1", "huawei-"),
        ("huawei.com/Ascend910: 1", "huawei-910"),
        ("huawei.com/Ascend310P: 1", "huawei-310p"),
    ] {
        let answers = resolve(&parse_ask(text).unwrap(), &models).unwrap();
        assert!(answers.iter().all(|answer| answer.choice == FractionChoice::Whole), "{text}");
        let found: Vec<&str> = answers.iter().map(|answer| answer.model.as_str()).collect();
        let all: Vec<&str> =
            models.iter().map(|m| m.id.as_str()).filter(|id| id.starts_with(of_it)).collect();
        assert_eq!(found, all, "{text}");
    }
}

#[test]
fn plugin_memory_is_the_smallest_template_of_that_nominal_size() {
    for mebibytes in [8193, 16384] {
        let text = format!("huawei.com/Ascend910B3-memory: {mebibytes}");
        check(&text, &["huawei-910b3: vir05_1c_16g"]);
    }
    check("huawei.com/Ascend910B3-memory: 16385", &["huawei-910b3: vir10_3c_32g"]);
    check("huawei.com/Ascend910B3-memory: 32769", &["huawei-910b3: the whole card"]);
    check("huawei.com/Ascend910B3-memory: 65536", &["huawei-910b3: the whole card"]);
    check("Ascend910B4-memory: 16000", &["huawei-910b4: vir10_3c_16g or vir10_4c_16g_m or vir10_3c_16g_nm"]);
    check("Ascend910A-memory: 2184", &["huawei-910a-30c: vir02", "huawei-910a-32c: vir02"]);
    check(
        "Ascend310P-memory: 4096",
        &[
            "huawei-310p-24gb: vir02 or vir02_1c",
            "huawei-310p-48gb: vir01",
            "huawei-310p-duo-24gb: vir02 or vir02_1c",
            "huawei-310p-duo-48gb: vir01",
        ],
    );
}

#[test]
fn memory_with_a_percentage_is_a_share_of_both() {
    let share = ["nvidia-t4-16gb: a share of 8Gi and 25% of the compute"];
    for text in ["8Gi 25% T4", "25% 8Gi T4", "T4 8Gi 25%", "8Gi and 25% of T4", "1/4 8Gi T4", "8Gi T4 25%"] {
        check(text, &share);
    }
    let share = "a share of 3000Mi with best-effort compute";
    let ask = parse_ask("nvidia.com/gpumem: 3000").unwrap();
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    let answers = resolve(&ask, &models).unwrap();
    assert!(answers.iter().all(|answer| answer.choice.to_string() == share), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.model.as_str().starts_with("nvidia-")), "{answers:?}");
}

#[test]
fn line_of_a_plugin_follows_the_rule_of_its_plugin() {
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    for (text, count, of_t4) in [
        ("nvidia.com/gpumem-percentage: 25", 1, "a share of 3840Mi with best-effort compute"),
        ("volcano.sh/vgpu-memory-percentage: 33", 1, "a share of 5068Mi with best-effort compute"),
        ("gpucores: 30", 1, "a share of 15Gi and 30% of the compute"),
        ("volcano.sh/vgpu-cores: 100", 1, "the whole card"),
        ("nvidia.com/gpumem-percentage: 100", 1, "the whole card"),
        ("volcano.sh/vgpu-number: 2", 2, "the whole card"),
        ("nvidia.com/vgpu-memory: 1000", 1, "a share of 1000Mi with best-effort compute"),
        ("aliyun.com/gpu-mem: 3", 1, "a share of 3Gi with best-effort compute"),
        ("aliyun.com/gpu-core.percentage: 40", 1, "a share of 15Gi and 40% of the compute"),
        ("tencent.com/vcuda-memory: 20", 1, "a share of 5Gi with best-effort compute"),
        ("tencent.com/vcuda-core: 20", 1, "a share of 15Gi and 20% of the compute"),
        ("tencent.com/vcuda-core: 200", 2, "the whole card"),
        ("tke.cloud.tencent.com/qgpu-memory: 4", 1, "a share of 4Gi with best-effort compute"),
        ("koordinator.sh/gpu-memory-ratio: 50", 1, "a share of 7680Mi with best-effort compute"),
        ("koordinator.sh/gpu-memory: 8Gi", 1, "a share of 8Gi with best-effort compute"),
        ("koordinator.sh/gpu-core: 50", 1, "a share of 15Gi and 50% of the compute"),
        ("koordinator.sh/gpu: 50", 1, "a share of 7680Mi and 50% of the compute"),
        ("koordinator.sh/gpu: 300", 3, "the whole card"),
    ] {
        let ask = parse_ask(text).unwrap();
        let answers = resolve(&ask, &models).unwrap();
        let t4 = answers.iter().find(|answer| answer.model.as_str() == "nvidia-t4-16gb").unwrap();
        assert_eq!((ask.count, t4.choice.to_string().as_str()), (count, of_t4), "{text}");
        assert!(answers.iter().all(|answer| answer.model.as_str().starts_with("nvidia-")), "{text}");
    }
}

#[test]
fn exact_share_stands_beside_a_template_of_the_fraction() {
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    let beside = |text: &str| -> Vec<String> {
        let found = shares_beside_templates(&parse_ask(text).unwrap(), &models);
        found.iter().map(|found| format!("{}: {}", found.model, found.choice)).collect()
    };
    assert_eq!(beside("25% A30"), ["nvidia-a30-24gb: a share of 6016Mi and 25% of the compute"]);
    assert!(beside("1/4 310P").is_empty());
    assert!(beside("100% A30").is_empty());
    assert!(beside("vir02").is_empty());
}

#[test]
fn family_name_is_every_model_of_the_family() {
    check(
        "Ascend910B-1/2",
        &[
            "huawei-910b1: vir12_3c_32g",
            "huawei-910b2: vir12_3c_32g",
            "huawei-910b2c: vir12_3c_32g",
            "huawei-910b3: vir10_3c_32g",
            "huawei-910b4: vir10_3c_16g or vir10_4c_16g_m or vir10_3c_16g_nm",
            "huawei-910b4-1: vir10_3c_32g",
        ],
    );
}

#[test]
fn fractions_are_templates_of_exactly_that_part_else_shares() {
    check("1/2 A100-40", &["nvidia-a100-40gb: 4g.20gb or 3g.20gb"]);
    check("1/8 nvidia-h100-80gb-sxm", &["nvidia-h100-80gb-sxm: 1g.10gb or 1g.10gb+me"]);
    check("12.5% nvidia-h100-80gb-sxm", &["nvidia-h100-80gb-sxm: 1g.10gb or 1g.10gb+me"]);
    check("1/4 nvidia-h100-80gb-sxm", &["nvidia-h100-80gb-sxm: 2g.20gb or 1g.20gb"]);
    check("3/8 nvidia-h100-80gb-sxm", &["nvidia-h100-80gb-sxm: a share of 30432Mi and 37% of the compute"]);
    check("1/3 T4", &["nvidia-t4-16gb: a share of 5Gi and 33% of the compute"]);
    check("1/2 910B4", &["huawei-910b4: vir10_3c_16g or vir10_4c_16g_m or vir10_3c_16g_nm"]);
    check("1/16 910A-30", &["huawei-910a-30c: vir02"]);
    check("1 T4", &["nvidia-t4-16gb: the whole card"]);
    check("100% T4", &["nvidia-t4-16gb: the whole card"]);
    check("8/8 310p-24", &["huawei-310p-24gb: the whole card"]);
    for text in ["25% H100", "25 % H100"] {
        check(
            text,
            &[
                "nvidia-h100-80gb-pcie: 2g.20gb or 1g.20gb",
                "nvidia-h100-80gb-sxm: 2g.20gb or 1g.20gb",
                "nvidia-h100-nvl-94gb: 2g.24gb or 1g.24gb",
            ],
        );
    }
}

#[test]
fn memory_is_a_template_of_that_size_else_a_share() {
    check("6Gi 310p-24", &["huawei-310p-24gb: vir02 or vir02_1c"]);
    check("9984Mi nvidia-h100-80gb-sxm", &["nvidia-h100-80gb-sxm: 1g.10gb or 1g.10gb+me"]);
    check("8Gi T4", &["nvidia-t4-16gb: a share of 8Gi with best-effort compute"]);
    check("8G T4", &["nvidia-t4-16gb: a share of 7630Mi with best-effort compute"]);
    check("T4 15Gi", &["nvidia-t4-16gb: the whole card"]);
    check("t4-8Gi", &["nvidia-t4-16gb: a share of 8Gi with best-effort compute"]);
}

#[test]
fn templates_and_models_are_understood_by_name() {
    check(
        "vir10_3c_32g",
        &["huawei-910b3: vir10_3c_32g", "huawei-910b4-1: vir10_3c_32g", "huawei-910c-20c: vir10_3c_32g"],
    );
    check("1g.10gb A100-40", &["nvidia-a100-40gb: 1g.10gb"]);
    check("nvidia-a100-80gb 1G.10GB+ME", &["nvidia-a100-80gb: 1g.10gb+me"]);
    check("RTX PRO 6000", &["nvidia-rtx-pro-6000: the whole card"]);
    check(
        "1/4 RTX PRO 6000",
        &["nvidia-rtx-pro-6000: 1g.24gb or 1g.24gb+me or 1g.24gb+gfx or 1g.24gb+me.all or 1g.24gb-me"],
    );
    check("RTX PRO 6000 2g.48gb", &["nvidia-rtx-pro-6000: 2g.48gb"]);
    check("1g.24gb-me", &["nvidia-rtx-pro-6000: 1g.24gb-me"]);
    check("910B4-1", &["huawei-910b4-1: the whole card"]);
    check("1/4 910B4-1", &["huawei-910b4-1: vir05_1c_16g"]);
    check("vir02 310p-24", &["huawei-310p-24gb: vir02"]);
}

#[test]
fn an_ask_without_a_model_is_for_every_model() {
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    let all = |text: &str| resolve(&parse_ask(text).unwrap(), &models).unwrap();
    let three_eighths = all("3/8");
    assert!(three_eighths.iter().all(|a| matches!(a.choice, FractionChoice::Share { .. })));
    assert!(three_eighths.iter().all(|a| !a.model.as_str().contains("310p")));
    assert_eq!(all("1/1").len(), models.len());
    let vir02 = all("vir02");
    assert_eq!(vir02.len(), 6, "four of the 310P and two of the 910A have it: {vir02:?}");
    let share =
        |a: &&FractionMatch| a.choice == FractionChoice::Share { memory: mib(8192), cores: Cores::NONE };
    assert_eq!(all("8Gi").iter().filter(share).count(), models.iter().filter(|m| takes_8gi(m)).count());
}

/// Whether 8Gi of it is a share.
fn takes_8gi(model: &CardModel) -> bool {
    model.shareable == ShareSupport::Enforceable && templates(model).all(|t| t.memory != mib(8192))
}

#[track_caller]
fn refuse(text: &str, words: &[&str]) {
    let catalogue = Catalogue::embedded();
    let models: Vec<&CardModel> = catalogue.models().iter().collect();
    let message = match parse_ask(text) {
        Err(error) => error.to_string(),
        Ok(ask) => resolve(&ask, &models).unwrap_err().to_string(),
    };
    for word in words {
        assert!(message.contains(word), "`{word}` is missing in: {message}");
    }
}

#[test]
fn unavailable_fraction_is_refused_with_available_ones() {
    refuse(
        "3/8 310p-24",
        &[
            "no card has 3/8 of 310p-24",
            "huawei-310p-24gb: 1/8 (vir01), 1/4 (vir02, vir02_1c), 1/2 (vir04, vir04_3c,",
            "the whole card; ask for one of these",
        ],
    );
    refuse("8Gi 310p-24", &["no card has 8Gi of 310p-24", "1/4 (vir02, vir02_1c)"]);
    refuse("64Gi T4", &["no card has 64Gi of T4", "shares from 1% and 1Mi up to all 15Gi"]);
    refuse("1/1000 T4", &["no card has 1/1000 of T4"]);
    refuse("1/4 voodoo", &["`voodoo` is neither a part nor a card nor a template", "correct the name"]);
    refuse("9g.99gb", &["`9g.99gb` is neither", "such as `1/4 Ascend310P`", "the nearest are ", "1g.10gb"]);
    refuse("1/4 h101", &["`h101` is neither", "nvidia-h100-80gb-sxm"]);
    refuse("!!!", &["`!!!` is neither a part nor a card nor a template"]);
    refuse("!!! H100", &["`!!! H100` is neither"]);
    refuse("x/ H100", &["`x/ H100` is neither"]);
    refuse("1/x H100", &["`1/x H100` is neither"]);
    refuse("1/4 H100!", &["`H100!` is neither"]);
    refuse("huawei.com/Ascend310P-3c", &["`huawei.com/Ascend310P-3c` is neither"]);
    refuse("nvidia.com/Ascend310P-2c", &["is neither"]);
    refuse("nvidia.com/mig-9g.90gb", &["is neither"]);
    refuse("huawei.com/Ascend310P-memory", &["a resource without its number", "behind a colon"]);
    refuse("huawei.com/npu-core: all", &["no whole one above 0"]);
    refuse("huawei.com/npu-core: 0", &["no whole one above 0"]);
    refuse("huawei.com/npu-core: 3", &["`vir03` is neither"]);
    refuse("huawei.com/Ascend310P-memory: 500000", &["no card has 500000Mi of Ascend310P"]);
    refuse("huawei.com/Ascend910B3-memory: 65537", &["no card has 65537Mi of Ascend910B3"]);
    for text in ["nvidia.com/gpu.shared: 1", "huawei.com/Ascend910B3-core: 50", "aliyun.com/gpu-count: 2"] {
        refuse(text, &["says no size by itself", "`25%`"]);
    }
    refuse("nvidia.com/gpumem-percentage: 125", &["a percentage above 100"]);
    refuse("tencent.com/vcuda-core: 150", &["no number of whole cards"]);
    refuse("koordinator.sh/gpu-memory: 8", &["no quantity from 1Mi on"]);
    refuse("koordinator.sh/gpu-memory: many", &["no quantity from 1Mi on"]);
    refuse("aliyun.com/gpu-mem: 4000000", &["no card has a share of"]);
    refuse("nvidia.com/gpu: 0", &["no whole one above 0"]);
    refuse("nvidia.com/mig-1g.10gb: some", &["no whole one above 0"]);
    refuse("8Gi 33.3% H100", &["not a whole percentage"]);
    refuse("8k H100", &["less than 1Mi of memory"]);
    refuse("64Gi 25% T4", &["no card has a share of 64Gi and 25% of the compute of T4"]);
    refuse("2Gi 25% 310P", &["no card has a share of 2Gi", "1/4 (vir02, vir02_1c)"]);
    refuse("8GB L4", &["`8GB L4` is neither a part", "`8Gi`"]);
}

#[test]
fn meaningless_fraction_is_refused_at_once() {
    for (text, problem) in [
        ("", "found nothing,"),
        ("   ", "found nothing,"),
        ("-1/4 H100", "found a size with a sign"),
        ("-8Gi", "found a size with a sign"),
        ("0/4 H100", "found nothing, or more than a card"),
        ("5/4 H100", "found nothing, or more than a card"),
        ("1/0", "found nothing, or more than a card"),
        ("0%", "found nothing, or more than a card"),
        ("101% H100", "found nothing, or more than a card"),
        ("4294967295% H100", "found nothing, or more than a card"),
        ("33.333333% H100", "more than four decimals"),
        ("2 H100", "the count of a request"),
        ("0Gi", "no memory"),
        ("1/4\u{7}H100", "more than a line"),
        ("1/ H100", "a fraction that cannot be read"),
        ("H100 1/", "a fraction that cannot be read"),
        ("1/4/2 H100", "a fraction that cannot be read"),
        ("/4 H100", "a fraction that cannot be read"),
        ("% H100", "a fraction that cannot be read"),
        ("25%% H100", "a fraction that cannot be read"),
        ("0,25 H100", "a fraction that cannot be read"),
        ("1.5 H100", "found nothing, or more than a card"),
        ("1½ H100", "a number and a fraction in one"),
        ("１/４ H100", "not ASCII"),
        ("1⁄4 H100", "not ASCII"),
        ("H100™", "not ASCII"),
    ] {
        let message = parse_ask(text).unwrap_err().to_string();
        assert!(message.contains(problem) && message.contains("1/4 Ascend310P"), "{text:?}: {message}");
    }
    assert!(parse_ask(&"x".repeat(200)).is_err());
}

proptest::proptest! {
    #[test]
    fn any_text_is_answered_or_refused(text in "\\PC{0,40}|[0-9/%.a-zA-Z+ \u{a0}_-]{0,40}") {
        let catalogue = Catalogue::embedded();
        let models: Vec<&CardModel> = catalogue.models().iter().collect();
        if let Ok(ask) = parse_ask(&text) {
            for answer in resolve(&ask, &models).into_iter().flatten() {
                let model = catalogue.model(&answer.model).unwrap();
                match answer.choice {
                    FractionChoice::Whole => {}
                    FractionChoice::Templates(names) => proptest::prop_assert!(!names.is_empty()),
                    FractionChoice::Share { memory, .. } => {
                        proptest::prop_assert!(memory.0 % Bytes::MIB.0 == 0 && memory <= model.memory);
                    }
                }
            }
        }
    }

    #[test]
    fn equal_shares_of_a_card_fit_beside_each_other(parts in 2_u32..100) {
        let catalogue = Catalogue::embedded();
        for model in catalogue.models() {
            let Some(FractionChoice::Share { memory, cores }) = by_fraction(model, Fraction::new(1, parts).unwrap()) else {
                continue;
            };
            proptest::prop_assert!(memory.0 * u64::from(parts) <= model.memory.0);
            proptest::prop_assert!(u32::from(cores.percent()) * parts <= 100);
        }
    }
}
