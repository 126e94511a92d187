use proptest::prelude::*;

use super::*;
use crate::dra::{DeviceCapacity, DeviceDescription};

/// A device with an attribute of every kind, of its driver's and of another domain.
fn device() -> Device {
    let attributes = [
        ("model", AttributeValue::String("A100-SXM4".to_owned())),
        ("slots", AttributeValue::Int(7)),
        ("ready", AttributeValue::Bool(true)),
        ("driverVersion", AttributeValue::Version("570.86.15-rc.1+x".to_owned())),
        ("other.example.com/numa", AttributeValue::Int(1)),
    ];
    let capacity = [("memory", "80Gi"), ("other.example.com/cores", "100")];
    DeviceDescription {
        attributes: attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        capacity: capacity
            .into_iter()
            .map(|(name, value)| {
                (name.to_owned(), DeviceCapacity { value: value.parse().unwrap(), policy: None })
            })
            .collect(),
        sharing: Sharing::Shareable,
        ..DeviceDescription::named("gpu-0")
    }
    .into()
}

fn view() -> DeviceView {
    DeviceView::new("gpu.example.com", &device())
}

fn evaluate(text: &str) -> Result<bool, EvaluationError> {
    Selector::compile(text).unwrap_or_else(|error| panic!("{text}: {error}")).matches(&view())
}

#[track_caller]
fn yields(expected: bool, texts: &[&str]) {
    for text in texts {
        assert_eq!(evaluate(text), Ok(expected), "{text}");
    }
}

#[track_caller]
fn fails(text: &str, message: &str) {
    assert_eq!(evaluate(text).unwrap_err().to_string(), message, "{text}");
}

#[track_caller]
fn refused(text: &str, message: &str) {
    assert_eq!(Selector::compile_new(text).unwrap_err().to_string(), message, "{text}");
}

#[test]
fn a_device_is_seen_as_upstream_shows_it() {
    yields(
        true,
        &[
            "device.driver == 'gpu.example.com'",
            "device.allowMultipleAllocations",
            "device.attributes['gpu.example.com'].model == 'A100-SXM4'",
            "device.attributes['gpu.example.com']['slots'] >= 7",
            "device.attributes['gpu.example.com'].ready",
            "device.attributes['other.example.com'].numa == 1",
            "device.capacity['gpu.example.com'].memory == quantity('80Gi')",
            "device.capacity['other.example.com'].cores.asInteger() == 100",
            "device.attributes['gpu.example.com'].driverVersion.major() == 570",
            "device.attributes['gpu.example.com'].driverVersion.isLessThan(semver('570.86.15'))",
            "'model' in device.attributes['gpu.example.com']",
            "!('numa' in device.attributes['gpu.example.com'])",
            "!('absent.example.com' in device.attributes)",
            "!has(device.attributes['absent.example.com'].model)",
            "device.attributes['absent.example.com'].?model.orValue('none') == 'none'",
            "device.attributes[?'gpu.example.com'].?model.hasValue()",
            "device.attributes.exists(d, 'numa' in device.attributes[d])",
            "cel.bind(gpu, device.attributes['gpu.example.com'], gpu.ready && gpu.slots == 7)",
        ],
    );
    fails("device.attributes['gpu.example.com'].absent == 1", "no such key: absent");
    fails("device.attributes['absent.example.com'].model == 'x'", "no such key: model");
    fails("device.capacity['gpu.example.com'].absent.isInteger()", "no such key: absent");
}

#[test]
fn errors_are_absorbed_by_the_logical_operators_alone() {
    let broken = "device.attributes['x'].y";
    yields(
        true,
        &[&format!("{broken} || true"), &format!("true || {broken}"), &format!("!({broken} && false)")],
    );
    fails(&format!("{broken} || false"), "no such key: y");
    fails(&format!("{broken} ? true : true"), "no such key: y");
    yields(true, &["[1, 0, 2].exists(x, 4 / x == 2)", "!([1, 0].all(x, 1 / x == 2))"]);
    fails("[0, 1].all(x, 1 / x == 1)", "division by zero");
}

#[test]
fn a_result_that_is_no_bool_is_an_error() {
    refused("1 + 1", "line 1, column 1: must evaluate to bool or the unknown type, not int");
    refused("dyn(true)", "line 1, column 1: must evaluate to bool or the unknown type, not dyn");
    fails("device.attributes['gpu.example.com'].model", "the selector yields a string, not a bool");
}

#[test]
fn meaningless_expression_is_refused_before_any_device() {
    refused(
        "node.name == 'x'",
        "line 1, column 1: undeclared reference to 'node': the one variable is 'device'",
    );
    refused("device.name == 'x'", "line 1, column 1: undefined field 'name' of device");
    refused(
        "true &&\n  matchez('a', 'b')",
        "line 2, column 3: undeclared reference to 'matchez': no such function",
    );
    refused(
        "quantity('1').isGreaterThan('2')",
        "line 1, column 14: found no matching overload for 'isGreaterThan' applied to '(kubernetes.Quantity, string)'",
    );
    refused(
        "[1, 'a'].size() == 2",
        "line 1, column 5: expected type 'int' but found 'string': elements must be of one type",
    );
    refused(
        "device.attributes['x'].y.all(x, x)",
        "line 1, column 23: expression of type 'any' cannot be range of a comprehension",
    );
    refused("'a'.matches('(')", "line 1, column 4: \"(\" is not a regular expression, or too large a one");
    refused("1 +", "line 1, column 4: expected a value, found end of the expression");
    refused("'abc", "line 1, column 1: the string is not closed");
    refused(&" ".repeat(20_000), "the selector has 20000 bytes; at most 10240 are allowed");
}

#[test]
fn numbers_of_all_types_are_one_number_line() {
    yields(
        true,
        &[
            "dyn(1) == 1u && dyn(1u) == 1.0 && 2 > 1.5 && 1u < 2 && -1 < 0u",
            "dyn(1) in [1.0]",
            "{1: 'a'}[dyn(1u)] == 'a'",
            "-9223372036854775808 < 0 && 0x10 == 16 && 1e3 == 1000.0",
            "7 / 2 == 3 && -7 / 2 == -3 && -7 % 2 == -1",
            "int('12') == 12 && double('1.5') == 1.5 && uint(3) == 3u && string(1.5) == '1.5'",
            "type(1) == int && type('') == string && type(quantity('1')) != int",
        ],
    );
    fails("9223372036854775807 + 1 > 0", "integer overflow");
    fails("1 / (1 - 1) == 0", "division by zero");
    fails("dyn(1) + dyn('a') == dyn(2)", "no such overload: _+_");
}

#[test]
fn strings_and_patterns() {
    yields(
        true,
        &[
            "'tacocat'.charAt(3) == 'o' && 'hello'.indexOf('l') == 2 && 'hello'.lastIndexOf('l') == 3",
            "'HeLLo'.lowerAscii() == 'hello' && 'x'.upperAscii() == 'X' && '  a '.trim() == 'a'",
            "'a-b-c'.split('-') == ['a', 'b', 'c'] && 'a-b-c'.split('-', 2) == ['a', 'b-c']",
            "['a', 'b'].join('/') == 'a/b' && 'abc'.substring(1, 2) == 'b' && 'aaa'.replace('a', 'b', 2) == 'bba'",
            "strings.quote('a\"b') == '\"a\\\\\"b\"'",
            "'%s is %d, %.2f'.format([dyn('x'), 3, 1.5]) == 'x is 3, 1.50'",
            "'A100-SXM4'.matches('^A[0-9]{3}') && matches('x', 'x|y') && !'é'.matches('^\\\\w$')",
            "'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
            "'\\u00e9' == 'é' && b'\\xff' != b'a' && r'\\n'.size() == 2 && '''a'b''' == \"a'b\"",
        ],
    );
    fails("'abc'.charAt(9) == ''", "index out of range: 9");
}

#[test]
fn lists_sets_and_optionals() {
    yields(
        true,
        &[
            "[1, 2, 3].sum() == 6 && [3, 1].min() == 1 && [3, 1].max() == 3 && [1, 2].isSorted()",
            "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [3, 1, 2].sort() == [1, 2, 3]",
            "[[1], [2, 3]].flatten() == [1, 2, 3] && [1, 1, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1]",
            "lists.range(3) == [0, 1, 2] && [1, 2, 3].slice(1, 2) == [2]",
            "['bb', 'a'].sortBy(s, s.size()) == ['a', 'bb']",
            "sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && sets.intersects([1], [2, 1])",
            "[1, 2, 3].map(x, x * 2) == [2, 4, 6] && [1, 2, 3].filter(x, x > 1) == [2, 3]",
            "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6] && [1, 2].exists_one(x, x == 1)",
            "[5, 6].all(i, v, v == i + 5) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
            "[5, 6].transformList(i, v, i + v) == [5, 7] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
            "{'a': 'b'}.transformMapEntry(k, v, {v: k}) == {'b': 'a'}",
            "optional.of(1).optMap(x, x + 1).value() == 2 && !optional.none().hasValue()",
            "optional.of({'a': 1}).optFlatMap(m, m.?a).orValue(0) == 1",
            "optional.ofNonZeroValue('').or(optional.of('x')).value() == 'x'",
            "[1, ?optional.none(), ?optional.of(2)] == [1, 2] && {?'a': optional.none()} == {}",
            "[1, 2][?5].orValue(9) == 9 && [1, 2].first().value() == 1 && [1, 2].last().value() == 2",
        ],
    );
    fails("optional.none().value() == 1", "optional.none() dereference");
    fails("[1, 2][2] == 1", "index out of bounds");
}

#[test]
fn kubernetes_libraries() {
    yields(
        true,
        &[
            "quantity('1Gi').compareTo(quantity('1024Mi')) == 0 && isQuantity('1.5k') && !isQuantity('1.5q')",
            "quantity('1').add(quantity('500m')).sub(1) == quantity('0.5') && sign(quantity('-1')) == -1",
            "quantity('50k').isInteger() && !quantity('1500m').isInteger() && quantity('1500m').asApproximateFloat() == 1.5",
            "semver('1.2.3').major() == 1 && semver('v01.2', true).compareTo(semver('1.2.0')) == 0 && !isSemver('v1.2.3')",
            "ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && !isIP('::ffff:1.2.3.4')",
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.1.0.0/16').masked().prefixLength() == 16",
            "url('https://a.b:80/c?d=e').getPort() == '80' && url('https://a/?k=v').getQuery()['k'] == ['v']",
            "!format.dns1123Label().validate('abc').hasValue() && format.named('uuid').hasValue()",
        ],
    );
    yields(
        true,
        &[
            "device.attributes['gpu.example.com'].driverVersion != 'x'",
            "!(device.attributes['x'].y in [])",
            "'%s-%d'.format(['a', 1]) == 'a-1' && '%f'.format([1234.5]) == '1,234.500000'",
            "'%e'.format([1500.0]) == '1.500000×10⁰³' && string(1e6) == '1e+06' && string(100000.0) == '100000'",
            "device.attributes['gpu.example.com'].model.includes('A100-SXM4')",
            "optional.of({'a': 1}).b == optional.none() && {1: 1, 1: 2}[1] == 2",
            "'a{2,b'.matches('a{2,b') && 'a-'.matches(r'^[\\w-]+$') && 'a'.matches(r'\\141') && 'A'.matches('(?i)a')",
        ],
    );
    fails("device.attributes['gpu.example.com'].driverVersion == 'x'", "no such overload");
    refused("int('x') == 1", "line 1, column 1: \"x\" is not an int");
    refused("'%d'.format(['a']) == ''", "line 1, column 5: %d does not take a string");
    refused("'a'.matches('a**')", "line 1, column 4: \"a**\" is not a regular expression");
    refused(
        "'a'.matches('(a{100}){100}')",
        "line 1, column 4: \"(a{100}){100}\" is not a regular expression",
    );
    fails("quantity('1500m').asInteger() == 1", "cannot convert value to integer");
}

#[test]
fn attributes_that_are_lists_are_read() {
    let mut device = device();
    let lists = [
        ("sizes", AttributeValue::Ints(vec![1, 2])),
        ("flags", AttributeValue::Bools(vec![true, false])),
        ("modes", AttributeValue::Strings(vec!["a".to_owned(), "b".to_owned()])),
        ("releases", AttributeValue::Versions(vec!["1.2.3".to_owned(), "2.0.0".to_owned()])),
    ];
    for (name, list) in lists {
        device.attributes.insert(name.to_owned(), list);
    }
    let view = DeviceView::new("gpu.example.com", &device);
    let answer = |rest: &str| {
        let text = format!("device.attributes['gpu.example.com'].{rest}");
        Selector::compile(&text).unwrap().matches(&view).map_err(|error| error.to_string())
    };
    for rest in [
        "sizes == [1, 2]",
        "modes.includes('b')",
        "modes.exists(mode, mode == 'a')",
        "flags[0]",
        "releases.all(release, release.major() < 3)",
        "model.includes('A100-SXM4')",
    ] {
        assert_eq!(answer(rest), Ok(true), "{rest}");
    }
    assert_eq!(answer("flags"), Err("the selector yields a list, not a bool".to_owned()));
    // Before it is stored, the API server with default gates knows of no lists.
    let text = "device.attributes['gpu.example.com'].modes.exists(mode, mode == 'a')";
    let refused = Selector::compile_new(text).unwrap_err().to_string();
    assert!(refused.contains("cannot be range of a comprehension"), "{refused}");
}

#[test]
fn a_device_that_no_selector_can_judge_says_why() {
    let mut device = device();
    let broken = ["1.2", "1.2.3"].map(str::to_owned).to_vec();
    for value in [AttributeValue::Version("1.2".to_owned()), AttributeValue::Versions(broken)] {
        device.attributes.insert("many".to_owned(), value);
        assert!(!DeviceView::is_usable(&device));
        let view = DeviceView::new("gpu.example.com", &device);
        let error = Selector::compile("true").unwrap().matches(&view).unwrap_err();
        assert_eq!(error.to_string(), "attribute many: \"1.2\" is not a version: expected major.minor.patch");
    }
}

#[test]
fn hostile_expressions_end_in_an_error() {
    let nested =
        |open: &str, close: &str, count: usize| format!("{}true{}", open.repeat(count), close.repeat(count));
    let deep = "the expression is nested more than 250 deep";
    for text in [
        nested("(", ")", 5_000),
        nested("[", "]", 5_000),
        nested("{1:", "}", 2_500),
        format!("1{} > 0", "+1".repeat(5_000)),
        format!("device{}", ".a".repeat(5_000)),
        format!("device{}", "[0]".repeat(3_000)),
        format!("device{}", ".f()".repeat(2_000)),
        format!("x{}", ".optMap(a,a)".repeat(800)),
        format!("true{}", "?true:true".repeat(1_000)),
    ] {
        let message = Selector::compile(&text).unwrap_err().to_string();
        assert!(message.ends_with(deep), "{message}");
    }
    yields(true, &[&format!("{}true", "!".repeat(10_000)), &format!("true{}", "&&true".repeat(1_600))]);
    for text in [
        "lists.range(9223372036854775807).size() > 0",
        "lists.range(2000).all(a, lists.range(2000).all(b, a >= 0 && b >= 0))",
        "cel.bind(a, 'xxxxxxxxxx', cel.bind(b, a.replace('', a), cel.bind(c, b.replace('', b), cel.bind(d, c.replace('', c), d.replace('', d).size() > 0))))",
        "'a'.matches('a{1000}'+'{1000}{1000}') || 'x'.find(string(lists.range(100000).size())) == ''",
    ] {
        let result = evaluate(text);
        assert!(
            result == Err(ExpressionError::TooCostly.into()) || text.contains("matches"),
            "{text}: {result:?}"
        );
    }
}

#[test]
fn a_type_that_doubles_at_every_step_is_refused() {
    let mut text = "true".to_owned();
    let mut names = vec!["1".to_owned()];
    for step in 0..40 {
        names.push(format!("v{step}"));
    }
    for pair in names.windows(2).rev() {
        text = format!("cel.bind({}, {{{}: {}}}, {text})", pair[1], pair[0], pair[0]);
    }
    assert!(Selector::compile(&text).unwrap_err().to_string().ends_with("the type of this is too large"));
}

/// Pieces that random expressions are glued from.
const PIECES: [&str; 46] = [
    "device",
    ".driver",
    ".attributes",
    "['gpu.example.com']",
    ".model",
    ".capacity",
    ".memory",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "'a'",
    "1",
    "2u",
    "1.5",
    "true",
    "null",
    "&&",
    "||",
    "!",
    "-",
    "+",
    "==",
    "<",
    " in ",
    "?",
    ":",
    ",",
    ".exists(x, ",
    ".map(x, y, ",
    "x",
    ".?",
    "[?",
    "quantity('1Gi')",
    ".compareTo(",
    "semver('1.2.3')",
    "has(",
    "optional.of(",
    ".orValue(",
    "cel.bind(x, ",
    "b'\\xff'",
    "r'\\d'",
    ".matches(",
    ".flatten()",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_compiles_or_is_refused(text in "\\PC{0,80}") {
        if let Ok(selector) = Selector::compile(&text) {
            let first = selector.matches(&view());
            prop_assert_eq!(first, selector.matches(&view()));
        }
    }

    #[test]
    fn glued_pieces_compile_or_are_refused(pieces in proptest::collection::vec(0..PIECES.len(), 0..24)) {
        let text: String = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        if let Ok(selector) = Selector::compile(&text) {
            let first = selector.matches(&view());
            prop_assert_eq!(first, selector.matches(&view()));
        }
    }
}

#[test]
fn devices_that_agree_in_what_is_read_have_one_reading() {
    let other = |edit: &dyn Fn(&mut DeviceDescription)| {
        let mut described = (*device()).clone();
        edit(&mut described);
        DeviceView::new("gpu.example.com", &described.into())
    };
    let slots = other(&|device| {
        device.attributes.insert("slots".into(), AttributeValue::Int(8));
    });
    let memory = other(&|device| {
        device.capacity.remove("memory");
    });
    let a = "device.attributes[\"gpu.example.com\"]";
    // Whether the reading differs for another `slots`, and for no `memory`.
    for (text, reads_slots, reads_memory) in [
        ("device.driver != \"\"".to_owned(), false, false),
        ("true".to_owned(), false, false),
        (format!("{a}.model == \"x\""), false, false),
        (format!("{a}.slots > 7"), true, false),
        (format!("has({a}.slots)"), true, false),
        (format!("cel.bind(d, {a}, d.model == \"x\" && d.slots == 7)"), true, false),
        (format!("cel.bind(d, {a}, d.model == \"x\")"), false, false),
        (format!("{a}.exists(name, name == \"x\")"), true, false),
        (format!("[1, 2].all(n, n < {a}.slots)"), true, false),
        (format!("{a}.?slots.orValue(3) == 3"), true, false),
        (format!("[1].map(n, {a}.model).exists(m, m == \"x\")"), false, false),
        ("\"memory\" in device.capacity[\"gpu.example.com\"]".to_owned(), false, true),
        ("device.capacity.exists(domain, domain == \"x\")".to_owned(), false, true),
        ("cel.bind(d, device, d.capacity[\"gpu.example.com\"].memory.isInteger())".to_owned(), false, true),
        ("device.attributes.exists(d, \"slots\" in device.attributes[d])".to_owned(), true, false),
        ("[device].exists(d, d.driver == \"x\")".to_owned(), true, true),
    ] {
        let selector = Selector::compile(&text).unwrap();
        let plain = selector.read(&view());
        assert_eq!(selector.read(&slots) != plain, reads_slots, "{text}");
        assert_eq!(selector.read(&memory) != plain, reads_memory, "{text}");
    }
}
