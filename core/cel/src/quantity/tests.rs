use proptest::prelude::*;

use super::*;

#[track_caller]
fn check(text: &str, nanos: i128, printed: &str) {
    let quantity: Quantity = text.parse().unwrap();
    assert_eq!((quantity.nanos(), quantity.to_string().as_str()), (nanos, printed), "{text}");
}

#[test]
fn reads_and_prints_every_family() {
    const ONE: i128 = NANOS_PER_UNIT;
    check("0", 0, "0");
    check("8Gi", 8 * 1024 * 1024 * 1024 * ONE, "8Gi");
    check("1024Mi", 1024 * 1024 * 1024 * ONE, "1Gi");
    check("10500Mi", 10500 * 1024 * 1024 * ONE, "10500Mi");
    check("512", 512 * ONE, "512");
    check("0.5Ki", 512 * ONE, "512");
    check("1.5Gi", 1536 * 1024 * 1024 * ONE, "1536Mi");
    check("500m", ONE / 2, "500m");
    check("0.1", ONE / 10, "100m");
    check("-1.5", -ONE * 3 / 2, "-1500m");
    check("1e9", ONE * ONE, "1e9");
    check("12E3", 12000 * ONE, "12e3");
    check("1E", 1_000_000_000_000_000_000 * ONE, "1E");
    check("0.0000000001", 1, "1n");
    check("1e-30", 1, "1e-9");
    check("9223372036854775808", MAX_BINARY_NANOS + ONE, "9223372036854775808");
    check("8Ei", MAX_BINARY_NANOS, "9223372036854775807");
    check("1e99", MAX_NANOS, "10e27");
    check("99999999999999999999999999999Ei", MAX_BINARY_NANOS, "9223372036854775807");
    check("0.00000000001Ei", 11_529_215_046_068_470, "11529215046068470n");
}

#[test]
fn refuses_what_is_not_a_quantity() {
    for text in ["", "-", ".", "Gi", "1.2.3", "1gi", "1 Gi", "1e", "1e+", "0x10", "1Gi ", "--1", "1e1.5"] {
        assert!(text.parse::<Quantity>().is_err(), "{text}");
    }
}

#[test]
fn typed_amounts_that_mean_one_are_read_and_others_get_a_tip() {
    for (text, meant) in [
        ("8Gi", "8Gi"),
        ("8GiB", "8Gi"),
        ("8gib", "8Gi"),
        ("8gi", "8Gi"),
        ("8GI", "8Gi"),
        ("8 Gi", "8Gi"),
        (" 512mi ", "512Mi"),
        ("1.5 GiB", "1.5Gi"),
        ("4TiB", "4Ti"),
        ("8G", "8G"),
    ] {
        assert_eq!(Quantity::typed(text), Ok(meant.parse().unwrap()), "{text}");
    }
    for (text, tip) in [
        ("8GB", "write 8Gi or 8G"),
        ("8g", "write 8Gi or 8G"),
        ("8Gb", "write 8Gi or 8G"),
        ("8 gb", "write 8Gi or 8G"),
        ("1.5TB", "write 1.5Ti or 1.5T"),
        ("512MB", "write 512Mi or 512M"),
        ("64K", "write 64Ki or 64k"),
    ] {
        let error = Quantity::typed(text).unwrap_err();
        assert!(error.to_string().ends_with(&format!("1e9; {tip}")), "{text}: {error}");
        assert_eq!(text.parse::<Quantity>().unwrap_err(), error);
    }
    for text in ["", "lots", "8Q", "8GiBs", "1.2.3GB", "-8GB", "0x8GiB", "8,5Gi", ".GB", &"8".repeat(70)] {
        let meant = Quantity::typed(text).map_or_else(|error| error.meant, |_| Vec::new());
        assert_eq!(meant, Vec::<String>::new(), "{text}");
    }
    // A manifest is read as the API server reads it, with the same tip.
    let strict = "8GiB".parse::<Quantity>().unwrap_err();
    assert!(strict.to_string().ends_with("; write 8Gi"), "{strict}");
}

#[test]
fn agrees_with_upstream_on_the_golden_vectors() {
    let mut checked = 0;
    for line in include_str!("golden.tsv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        match (fields[0].parse::<Quantity>(), &fields[1..]) {
            (Err(_), ["refused"]) => {}
            (Ok(quantity), [canonical, value, milli]) => {
                let rest = quantity.nanos() % 1_000_000;
                let milli_rounded = quantity.nanos() / 1_000_000 + rest.signum();
                let found = (
                    quantity.to_string(),
                    quantity.units_rounded_up().to_string(),
                    milli_rounded.to_string(),
                );
                let expected = ((*canonical).to_owned(), (*value).to_owned(), (*milli).to_owned());
                assert_eq!(found, expected, "{line}");
            }
            other => panic!("{line}: {other:?}"),
        }
        checked += 1;
    }
    assert!(checked >= 295, "only {checked} vectors");
}

#[test]
fn converts_to_integers_and_doubles_where_it_can() {
    let parse = |text: &str| text.parse::<Quantity>().unwrap();
    assert_eq!(parse("8Gi").as_integer(), Some(8 << 30));
    assert_eq!(parse("1500m").as_integer(), None);
    assert_eq!(parse("9223372036854775808").as_integer(), None);
    assert!((parse("1500m").approximate() - 1.5).abs() < f64::EPSILON);
}

fn format() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::BinarySi), Just(Format::DecimalSi), Just(Format::DecimalExponent)]
}

#[test]
fn amounts_that_are_compared_have_one_unit() {
    let alike = |texts: [&str; 3]| in_one_unit(texts.map(|text| text.parse().unwrap()));
    assert_eq!(alike(["200Gi", "81152Mi", "80Gi"]), ["204800Mi", "81152Mi", "81920Mi"]);
    assert_eq!(alike(["90Gi", "0Gi", "15Gi"]), ["90Gi", "0", "15Gi"]);
    assert_eq!(alike(["1Gi", "1500", "2"]), ["1Gi", "1500", "2"], "not binary, all of them");
    assert_eq!(alike(["4Ei", "2Pi", "1Ti"]), ["4194304Ti", "2048Ti", "1Ti"]);
    assert_eq!(alike(["0Gi", "0Mi", "0Gi"]), ["0", "0", "0"]);
}

proptest! {
    #[test]
    fn printed_quantity_reads_back_equal(high in any::<i64>(), low in any::<i32>(), format in format()) {
        let quantity = Quantity::from_nanos(i128::from(high) * i128::from(low), format);
        let printed = quantity.to_string();
        let back: Quantity = printed.parse().unwrap();
        prop_assert_eq!(back, quantity);
        // The printed form is canonical: it prints as itself.
        prop_assert_eq!(back.to_string(), printed);
    }

    /// The order is that of the amounts, found here by comparing digit by digit.
    #[test]
    fn order_is_by_amount_whatever_the_spelling(a in 0_u32..5_000, b in 0_u32..5_000, suffix in 0_usize..7) {
        let (spelt, factor) = [("", 1_u64), ("k", 1000), ("M", 1_000_000), ("Ki", 1024), ("Mi", 1 << 20), ("e3", 1000), ("e6", 1_000_000)][suffix];
        let (left, right) = (format!("{a}{spelt}"), (u64::from(b) * factor).to_string());
        let found = left.parse::<Quantity>().unwrap().cmp(&right.parse().unwrap());
        prop_assert_eq!(found, a.cmp(&b));
    }

    #[test]
    fn sums_and_differences_undo_each_other(a in any::<i64>(), b in any::<i64>(), format in format()) {
        let (a, b) = (Quantity::from_nanos(i128::from(a) * 1000, format), Quantity::from_nanos(i128::from(b), format));
        prop_assert_eq!(a.plus(b).minus(b), a);
        prop_assert_eq!(a.plus(b), b.plus(a));
    }

    #[test]
    fn any_text_reads_or_is_refused(text in "\\PC{0,60}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse::<Quantity>(), Ok(quantity));
        }
    }

    #[test]
    fn long_numbers_read_or_are_refused(text in "[-+]?[0-9]{0,400}\\.?[0-9]{0,400}(e-?[0-9]{1,30}|[KMGTPE]i?|[numk])?") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.to_string().parse::<Quantity>(), Ok(quantity));
        }
    }
}
