//! What fits on one card, against what vendors document.

use std::collections::BTreeSet;

use super::*;
use crate::catalogue::Catalogue;

fn table(model: &str) -> PartitionTable {
    Catalogue::embedded().model(&model.parse().unwrap()).unwrap().table().unwrap().clone()
}

/// `3*vir02 + vir02_1c` as names.
fn names(combination: &str) -> Vec<TemplateName> {
    let term = |term: &str| -> Vec<TemplateName> {
        let (count, name) = term.split_once('*').unwrap_or(("1", term));
        vec![TemplateName::new(name).unwrap(); count.parse().unwrap()]
    };
    combination.split(" + ").flat_map(term).collect()
}

#[track_caller]
fn check(model: &str, accepted: &[&str], refused: &[&str]) {
    let table = table(model);
    for combination in accepted {
        let wanted = names(combination);
        let Arrangement::Placed(placed) = table.arrange(&wanted) else { panic!("{model}: {combination}") };
        let parts = wanted.iter().zip(&placed).map(|(t, p)| table.consumption(t, p).unwrap());
        let sum = parts.fold(CounterVector::default(), |sum, takes| sum.plus(&takes).unwrap());
        assert_eq!(sum.first_excess(&table.totals), None, "{model}: {combination}");
    }
    for combination in refused {
        assert_eq!(table.arrange(&names(combination)), Arrangement::Impossible, "{model}: {combination}");
    }
}

/// The fifteen combinations of the vendor's manual.
const OFFICIAL_310P: [&str; 15] = [
    "vir04 + vir04_3c",
    "vir04 + vir02 + vir02_1c",
    "vir04 + vir02_1c + 2*vir01",
    "vir04_3c + 2*vir02",
    "vir04_3c + vir02 + 2*vir01",
    "vir04_3c + 4*vir01",
    "3*vir02 + vir02_1c",
    "2*vir02 + vir02_1c + 2*vir01",
    "vir02 + vir02_1c + 4*vir01",
    "vir02_1c + 6*vir01",
    "vir04_4c_dvpp + vir04_3c_ndvpp",
    "vir04 + vir04_3c_ndvpp",
    "vir04_3c_ndvpp + 2*vir02",
    "vir04_3c_ndvpp + vir02 + 2*vir01",
    "vir04_3c_ndvpp + 4*vir01",
];

#[test]
fn all_official_310p_combinations_fit_and_the_impossible_do_not() {
    for model in ["huawei-310p-24gb", "huawei-310p-48gb", "huawei-310p-duo-24gb", "huawei-310p-duo-48gb"] {
        check(model, &OFFICIAL_310P, &["4*vir02", "2*vir04", "8*vir01", "2*vir04_4c_dvpp", "5*vir02_1c"]);
        check(model, &["4*vir02_1c", "7*vir01", "2*vir04_3c", "3*vir02 + vir01"], &["vir04_4c_dvpp + vir01"]);
    }
}

/// Adds to `found` every multiset of templates that fits.
fn multisets(table: &PartitionTable, from: usize, chosen: &mut Vec<usize>, found: &mut BTreeSet<Vec<usize>>) {
    let wanted: Vec<TemplateName> = chosen.iter().map(|i| table.templates[*i].name.clone()).collect();
    if table.arrange(&wanted) == Arrangement::Impossible {
        return;
    }
    found.insert(chosen.clone());
    for next in from..table.templates.len() {
        chosen.push(next);
        multisets(table, next, chosen, found);
        chosen.pop();
    }
}

#[test]
fn ascend_310p_has_96_feasible_sets_37_full_official_included() {
    let table = table("huawei-310p-24gb");
    let mut found = BTreeSet::new();
    multisets(&table, 0, &mut Vec::new(), &mut found);
    let is_full = |set: &Vec<usize>| {
        (0..table.templates.len()).all(|extra| {
            let mut more = set.clone();
            more.push(extra);
            more.sort_unstable();
            !found.contains(&more)
        })
    };
    let full: BTreeSet<&Vec<usize>> = found.iter().filter(|s| is_full(s)).collect();
    assert_eq!((found.len(), full.len()), (96, 37));
    for combination in OFFICIAL_310P {
        let index = |n: &TemplateName| table.templates.iter().position(|t| t.name == *n).unwrap();
        let mut set: Vec<usize> = names(combination).iter().map(index).collect();
        set.sort_unstable();
        assert!(full.contains(&set), "{combination}");
    }
}

/// What fits on cards of seven compute and eight memory slices; `me` is 1g with media, `1gd` 1g with double memory.
const SEVENTHS_THAT_FIT: [&str; 21] = [
    "7g",
    "4g + 3g",
    "4g + 2g + 1g",
    "4g + 3*1g",
    "2*3g",
    "3g + 2g + 1g",
    "3g + 3*1g",
    "2*2g + 3g",
    "2g + 2*1g + 3g",
    "4*1g + 3g",
    "3*2g + 1g",
    "2*2g + 3*1g",
    "2g + 5*1g",
    "7*1g",
    "4*1gd",
    "me + 6*1g",
    "2*1gd + 3g",
    "me + 4g + 2g",
    "3*2g + me",
    "2*1gd + 3*1g",
    "4g + 1gd + 1g",
];

/// What does not.
const SEVENTHS_THAT_DO_NOT: [&str; 14] = [
    "2*3g + 1g",
    "2*4g",
    "2*me",
    "8*1g",
    "7g + 1g",
    "7g + me",
    "4*2g",
    "5*1gd",
    "4g + 3g + 1g",
    "3*3g",
    "4g + 2*2g",
    "3*2g + 2*1g",
    "7g + 7g",
    "3*2g + 1gd + 1g",
];

#[test]
fn documented_mig_combinations_fit_and_impossible_ones_do_not() {
    for (model, [one, double, two, three, four, seven]) in [
        ("nvidia-a100-40gb", [5, 10, 10, 20, 20, 40]),
        ("nvidia-a100-80gb", [10, 20, 20, 40, 40, 80]),
        ("nvidia-h100-80gb-sxm", [10, 20, 20, 40, 40, 80]),
        ("nvidia-h100-80gb-pcie", [10, 20, 20, 40, 40, 80]),
        ("nvidia-h100-nvl-94gb", [12, 24, 24, 47, 47, 94]),
        ("nvidia-h100-96gb", [12, 24, 24, 48, 48, 96]),
        ("nvidia-h200-141gb", [18, 35, 35, 71, 71, 141]),
        ("nvidia-b200-180gb", [23, 45, 45, 90, 90, 180]),
        ("nvidia-gb200-186gb", [23, 47, 47, 93, 93, 186]),
        ("nvidia-a800-40gb", [5, 10, 10, 20, 20, 40]),
        ("nvidia-a800-80gb", [10, 20, 20, 40, 40, 80]),
        ("nvidia-h800-80gb-sxm", [10, 20, 20, 40, 40, 80]),
        ("nvidia-h800-80gb-pcie", [10, 20, 20, 40, 40, 80]),
        ("nvidia-h800-nvl-94gb", [12, 24, 24, 47, 47, 94]),
        ("nvidia-h20-96gb", [12, 24, 24, 48, 48, 96]),
        ("nvidia-h20-3e-141gb", [18, 35, 35, 71, 71, 141]),
        ("nvidia-gh200-144gb", [18, 36, 36, 72, 72, 144]),
        ("nvidia-b300-269gb", [34, 67, 67, 135, 135, 269]),
        ("nvidia-gb300-278gb", [35, 70, 70, 139, 139, 278]),
    ] {
        let spell = |combination: &&str| -> String {
            let term = |term: &str| {
                let (count, name) =
                    term.split_once('*').map_or((String::new(), term), |(n, t)| (format!("{n}*"), t));
                let name = match name {
                    "1g" => format!("1g.{one}gb"),
                    "me" => format!("1g.{one}gb+me"),
                    "1gd" => format!("1g.{double}gb"),
                    "2g" => format!("2g.{two}gb"),
                    "3g" => format!("3g.{three}gb"),
                    "4g" => format!("4g.{four}gb"),
                    _ => format!("7g.{seven}gb"),
                };
                format!("{count}{name}")
            };
            combination.split(" + ").map(term).collect::<Vec<_>>().join(" + ")
        };
        let (fit, not) = (
            SEVENTHS_THAT_FIT.iter().map(spell).collect::<Vec<_>>(),
            SEVENTHS_THAT_DO_NOT.iter().map(spell).collect::<Vec<_>>(),
        );
        check(
            model,
            &fit.iter().map(String::as_str).collect::<Vec<_>>(),
            &not.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
}

#[test]
fn cards_of_four_and_twelve_slices_have_their_own_sets() {
    check(
        "nvidia-a30-24gb",
        &[
            "4g.24gb",
            "2*2g.12gb",
            "2g.12gb + 2*1g.6gb",
            "4*1g.6gb",
            "1g.6gb+me + 3*1g.6gb",
            "2g.12gb+me + 2g.12gb",
        ],
        &["4g.24gb + 1g.6gb", "2*2g.12gb + 1g.6gb", "5*1g.6gb", "2*1g.6gb+me", "2g.12gb+me + 1g.6gb+me"],
    );
    check(
        "nvidia-rtx-pro-6000",
        &[
            "4g.96gb",
            "2*2g.48gb",
            "2g.48gb + 2*1g.24gb",
            "4*1g.24gb",
            "1g.24gb+me + 3*1g.24gb",
            "4*1g.24gb+gfx",
            "1g.24gb+me.all + 3*1g.24gb-me",
            "2g.48gb+me.all + 2g.48gb-me",
            "2g.48gb+gfx + 2g.48gb",
            "4g.96gb+gfx",
        ],
        &[
            "4g.96gb + 1g.24gb-me",
            "2*1g.24gb+me",
            "1g.24gb+me + 1g.24gb+me.all",
            "2*1g.24gb+me.all",
            "5*1g.24gb",
            "2*2g.48gb+me.all",
            "3*2g.48gb",
            "1g.24gb+me.all + 1g.24gb",
        ],
    );
}

#[test]
fn ascend_910_combinations_are_those_of_the_driver() {
    check(
        "huawei-910a-30c",
        &["15*vir02", "vir16 + vir08 + vir04 + vir02", "7*vir04 + vir02"],
        &["16*vir02", "2*vir16", "3*vir08 + vir16"],
    );
    check("huawei-910a-32c", &["2*vir16", "16*vir02", "4*vir08"], &["17*vir02", "2*vir16 + vir02"]);
    for (model, half, quarter) in [
        ("huawei-910b1", "vir12_3c_32g", "vir06_1c_16g"),
        ("huawei-910b3", "vir10_3c_32g", "vir05_1c_16g"),
        ("huawei-910b4-1", "vir10_3c_16g", "vir05_1c_8g"),
        ("huawei-910c-24c", "vir12_3c_32g", "vir06_1c_16g"),
    ] {
        let fit = [format!("4*{quarter}"), format!("{half} + 2*{quarter}"), format!("2*{half}")];
        let not = [format!("5*{quarter}"), format!("{half} + 3*{quarter}"), format!("2*{half} + {quarter}")];
        check(model, &fit.each_ref().map(String::as_str), &not.each_ref().map(String::as_str));
    }
    check(
        "huawei-910b4",
        &[
            "4*vir05_1c_8g",
            "vir10_3c_16g + 2*vir05_1c_8g",
            "vir10_3c_16g_nm + 2*vir05_1c_8g",
            "2*vir10_3c_16g",
            "vir10_3c_16g + vir10_3c_16g_nm",
            "2*vir10_3c_16g_nm",
            "vir10_4c_16g_m + vir10_3c_16g_nm",
        ],
        &["vir10_4c_16g_m + vir10_3c_16g", "vir10_4c_16g_m + vir05_1c_8g", "2*vir10_4c_16g_m"],
    );
}
