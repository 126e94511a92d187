//! CEL selectors compile, fail, answer and are estimated as they are upstream.

use std::collections::BTreeMap;

use aliquot_core::cel::{Cost, DeviceView, Selector, SelectorError};
use aliquot_core::dra::Device;
use aliquot_driver::manifest;
use aliquot_tests::generate::{Random, SELECTOR_DRIVER, selector_device, selectors};
use aliquot_tests::oracle::Oracle;
use serde_json::{Value, json};

const SEED: u64 = 20_261_121;
const EXPRESSIONS: usize = 5_000;
/// Differences that a failure shows in full.
const SHOWN: usize = 15;

/// The gate for attributes that are lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListAttributes {
    Off,
    On,
}

/// The device that the expressions are about.
fn described(lists: ListAttributes) -> Value {
    let mut device = selector_device();
    if lists == ListAttributes::On {
        device["attributes"]["sizes"] = json!({"ints": [1, 2, 3]});
        device["attributes"]["modes"] = json!({"strings": ["H100", "'", "é-ü"]});
        device["attributes"]["flags"] = json!({"bools": [true, false]});
        device["attributes"]["releases"] = json!({"versions": ["12.4.1", "2.0.0-rc.1"]});
    }
    device
}

/// The same, read from a slice.
fn device(lists: ListAttributes) -> Option<Device> {
    let pool = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
    let devices = [described(lists)];
    let spec = json!({"driver": SELECTOR_DRIVER, "pool": pool, "nodeName": "n1", "devices": devices});
    let metadata = json!({"name": "s"});
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec});
    let (manifests, _) = manifest::read("slice", &slice.to_string());
    manifests.slices.first()?.devices.first().cloned()
}

fn compiled(expression: &str, lists: ListAttributes) -> Result<Selector, SelectorError> {
    match lists {
        ListAttributes::Off => Selector::compile_new(expression),
        ListAttributes::On => Selector::compile(expression),
    }
}

/// What an expression comes to, in one word, and the words of its error.
fn ours(expression: &str, view: &DeviceView, lists: ListAttributes) -> (&'static str, String) {
    match compiled(expression, lists).map(|selector| selector.matches(view)) {
        Err(error) => ("does not compile", error.to_string()),
        Ok(Err(error)) => ("fails", error.to_string()),
        Ok(Ok(true)) => ("true", String::new()),
        Ok(Ok(false)) => ("false", String::new()),
    }
}

fn worst_case(expression: &str, lists: ListAttributes) -> u64 {
    compiled(expression, lists).map_or(0, |selector| selector.worst_case().0)
}

fn upstream(answer: &Value) -> (&'static str, String) {
    let text = |field: &str| answer[field].as_str().map(str::to_owned);
    match (text("compileError"), text("runtimeError"), answer["result"] == json!(true)) {
        (Some(error), _, _) => ("does not compile", error),
        (None, Some(error), _) => ("fails", error),
        (None, None, true) => ("true", String::new()),
        (None, None, false) => ("false", String::new()),
    }
}

/// Puts every expression before both and returns how often each outcome came up.
#[expect(clippy::unwrap_used, reason = "a helper of the tests below: a judge that breaks ends them")]
fn compare(expressions: &[String], lists: ListAttributes) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let Some(mut oracle) = Oracle::start_or_say_why_not().unwrap() else { return counts };
    let view = DeviceView::new(SELECTOR_DRIVER, &device(lists).unwrap());
    let features = json!({"listTypeAttributes": lists == ListAttributes::On});
    let question = |expression: &String| json!({"op": "cel", "driver": SELECTOR_DRIVER, "device": described(lists), "features": features, "expression": expression});
    let answers = oracle.ask_all(expressions.iter().map(question)).unwrap();
    let mut differences = Vec::new();
    for (expression, answer) in expressions.iter().zip(&answers) {
        let (ours, theirs) = (ours(expression, &view, lists), upstream(answer));
        *counts.entry(theirs.0).or_default() += 1;
        if ours.0 != theirs.0 {
            differences.push(format!("{expression}\n  ours       {ours:?}\n  upstream's {theirs:?}"));
            continue;
        }
        let estimates = (worst_case(expression, lists), answer["cost"].as_u64().unwrap());
        if ours.0 != "does not compile" && estimates.0 != estimates.1 {
            differences.push(format!(
                "{expression}\n  costs {} by ours, {} by upstream's",
                estimates.0, estimates.1
            ));
        }
    }
    println!("{counts:?}");
    let shown = differences.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        differences.is_empty(),
        "{} of {} differ ({counts:?})\n{shown}",
        differences.len(),
        expressions.len()
    );
    counts
}

/// The expression with a few characters missing, doubled or from elsewhere.
fn spoil(random: &mut Random, expression: &str) -> String {
    const TOKENS: [&str; 22] = [
        "1", "'a'", "true", "null", "[]", "{}", "(", ")", "!", "-", ".", "?", ":", "==", "&&", ">", "in",
        "b'x'", "1u", "0x1F", "device", ".size",
    ];
    let mut characters: Vec<String> = expression.chars().map(String::from).collect();
    for _ in 0..random.between(1, 2) {
        let at = random.below(characters.len());
        match random.below(4) {
            0 => characters[at].clear(),
            1 => characters[at] = characters[at].repeat(2),
            2 => characters[at] = (*random.pick(&TOKENS)).to_owned(),
            _ => {
                let end = (at + random.between(1, 12)).min(characters.len());
                characters[at..end].fill(String::new());
                characters[at] = (*random.pick(&TOKENS)).to_owned();
            }
        }
    }
    characters.concat()
}

#[test]
fn well_formed_selectors_answer_as_upstream_answers() {
    let counts = compare(&selectors(SEED, EXPRESSIONS), ListAttributes::Off);
    assert!(
        counts.is_empty() || ["true", "false", "fails"].iter().all(|name| counts[name] >= 200),
        "{counts:?}"
    );
}

#[test]
fn spoilt_selectors_are_refused_where_upstream_refuses_them() {
    let mut random = Random::new(SEED);
    let expressions: Vec<String> =
        selectors(SEED + 1, EXPRESSIONS).iter().map(|expression| spoil(&mut random, expression)).collect();
    let counts = compare(&expressions, ListAttributes::Off);
    assert!(counts.is_empty() || counts["does not compile"] >= EXPRESSIONS / 2, "{counts:?}");
}

/// Every list of integers of a grown expression becomes an attribute that is one.
fn with_lists(expression: &str) -> String {
    const OWN: &str = "device.attributes['gpu.example.com']";
    let sizes = format!("{OWN}.sizes");
    ["[1, 2, 3]", "[7]", "[2, 7, 7]", "[0, -1, 5, 10]"]
        .iter()
        .fold(expression.to_owned(), |text, list| text.replace(list, &sizes))
}

#[test]
fn selectors_over_lists_answer_as_upstream_answers() {
    const OWN: &str = "device.attributes['gpu.example.com']";
    let by_hand = [
        ".modes.includes('H100')",
        ".model.includes('H100-80')",
        ".sizes.includes(2.0)",
        ".sizes.includes('2')",
        ".modes.exists(mode, mode.startsWith('H'))",
        ".modes.all(mode, mode.size() > 0)",
        ".modes == ['H100', '\\'', 'é-ü']",
        ".modes.join(',') == \"H100,',é-ü\"",
        ".releases.exists(v, v.isGreaterThan(semver('12.0.0')))",
        ".releases.includes(semver('12.4.1'))",
        ".releases[1].major() == 2",
        ".flags.exists(flag, !flag)",
        ".flags[0]",
        ".flags",
        ".flags.exists_one(flag, flag == 'x')",
        ".modes",
        ".modes.matches('a')",
        ".modes.size() == 3",
        ".sizes.sum() == 6",
        ".sizes == 1",
        ".sizes + [4] == [1, 2, 3, 4]",
        ".sizes.x",
        ".sizes[7] == 1",
        ".size.exists(x, x == 1)",
        ".exists(name, name == 'sizes')",
        ".missing.includes(1)",
        ".?sizes.orValue([]).exists(x, x == 3)",
        ".all(name, attribute, name == 'x' || attribute.includes(1) || true)",
    ];
    let mut expressions: Vec<String> = by_hand.iter().map(|rest| format!("{OWN}{rest}")).collect();
    expressions.push("dyn(true)".to_owned());
    expressions.push("dyn(device.driver)".to_owned());
    let grown = selectors(SEED + 2, EXPRESSIONS);
    expressions.extend(grown.iter().map(|text| with_lists(text)).filter(|text| text.contains(".sizes")));
    let counts = compare(&expressions, ListAttributes::On);
    assert!(
        counts.is_empty() || ["true", "false", "fails"].iter().all(|name| counts[name] >= 100),
        "{counts:?}"
    );
}

/// Every function whose estimate has a formula of its own, on values of known and of unknown size.
const ESTIMATED: &[&str] = &[
    "device == device",
    "has(device.attributes['gpu.example.com'].model)",
    "device.attributes.exists(d, d == 'x')",
    "device.attributes.exists(d, a, a.exists(k, v, k == 'model' && v == 'x'))",
    "device.attributes.all(d, device.attributes[d].all(k, k.startsWith('x') || device.attributes[d][k] == 'y'))",
    "device.capacity.exists(d, device.capacity[d].exists(k, device.capacity[d][k] == quantity('1')))",
    "device.capacity['a'].all(k, c, c != quantity('1'))",
    "device.capacity['a'].b == device.capacity['a'].c",
    "device.capacity['a'].b != device.capacity['a'].c",
    "OWN.model.lowerAscii().contains('h100')",
    "OWN.model.matches('^(nvidia|amd)-[a-z]+$')",
    "matches(OWN.model, '^(nvidia|amd)-[a-z]+$')",
    "OWN.model.find('[0-9]+') == '100'",
    "OWN.model.findAll('[0-9]+', 2).size() == 2",
    "OWN.model.replace('', 'abc').size() > 2",
    "OWN.model.replace('abc', '') == OWN.uuid.replace('a', 'bcd')",
    "OWN.model.replace(OWN.uuid, 'x').replace('x', OWN.uuid).size() > 3",
    "OWN.model.split('-').exists(p, p == '80')",
    "OWN.model.split('-', 3).join('/') == 'a'",
    "OWN.model.split('-', -1).size() == 2",
    "[string(OWN.model), 'b'].join() == ''",
    "['abc', 'de'].join('--') + 'x' < 'y'",
    "OWN.model.indexOf('-') < OWN.model.lastIndexOf('-', 3)",
    "[1, 2].indexOf(2) == 1 && ['a'].lastIndexOf('b') == -1",
    "[3, 1].isSorted() || ['b', 'a'].isSorted() || [b'a'].max() == b'b'",
    "[1, 2, 3].sum() > [1.5].min()",
    "lists.range(40).exists(i, i == 3)",
    "lists.range(OWN.size).size() > 3",
    "[1, 2, 3].slice(0, 2) == [1, 2]",
    "[1, 2, 3].slice(OWN.size, 2).size() == 1",
    "[1, 2, 3].slice(2, OWN.size).reverse().size() == 1",
    "[[1], [2]].flatten() == [1, 2]",
    "[[1], [2]].map(x, dyn(x)).flatten(2).size() == 2",
    "[1, 1].distinct().size() == 1",
    "['b', 'a'].sort() == ['a', 'b'] && [2, 1].sort()[0] == 1",
    "['bb', 'a'].sortBy(s, s.size())[0] == 'a'",
    "['bb', 'a'].map(s, s + s).sortBy(s, s)[0] == 'aa'",
    "sets.contains([1, 2], [1]) && sets.intersects([1], [2]) && sets.equivalent([1, 2], [2, 1])",
    "['a', 'b'].filter(s, s != 'a').map(s, s.upperAscii()).exists_one(s, s.contains('B'))",
    "['a', 'b'].map(s, s == 'a', s + 'x').all(s, s.size() == 2)",
    "['a', 'b'].transformList(i, s, s + string(i)).exists(s, s == 'b1')",
    "['a', 'b'].transformList(i, s, i > 0, s).exists(s, s == 'b')",
    "{'a': 'bc'}.transformMap(k, v, v + k).exists(k, k == 'a')",
    "{'a': 'bc'}.transformMap(k, v, k != 'x', v + k).size() == 1",
    "{'a': 'bc'}.transformMapEntry(k, v, {v: k}).exists(k, k == 'bc')",
    "{'a': 'bc'}.transformMapEntry(k, v, k != 'x', {v: k}).size() == 1",
    "[1, 2].exists_one(i, x, i == x) || [1].existsOne(i, x, i == x) || [1].all(i, x, i < x)",
    "{'a': 1, 'bcd': 2}.exists(k, k == 'a') && {'a': ['x']}['a'][0] == 'x'",
    "cel.bind(a, OWN, a.model == 'x' && a.uuid == 'y')",
    "cel.bind(l, ['a', 'bc'], l[0] + l[1] == 'abc' && l.exists(s, s == 'a'))",
    "cel.bind(d, device.driver, d == 'x' || d.startsWith('y'))",
    "OWN.?model.orValue('') == 'x' && OWN.?missing.or(OWN.?uuid).hasValue()",
    "OWN[?'model'].optMap(m, m == 'x').orValue(false)",
    "OWN.?model.optFlatMap(m, optional.of(m + 'y')).orValue('x') == 'y'",
    "optional.of('abc').optMap(m, m + m).optMap(m, m + m).value() == 'x'",
    "optional.ofNonZeroValue([1]).hasValue() && ['a'].first().hasValue() && ['a'].last() == optional.of('a')",
    "optional.unwrap([optional.of(1)]) == [1] && [optional.of(1)].unwrapOpt().size() == 1",
    "[?optional.of('a'), 'b'].size() == 2 && {?'k': optional.of(1)}.size() == 1",
    "string(b'abc') == 'abc' && bytes(OWN.model) == b'x' && bytes('é') != b''",
    "string(OWN.model) == 'x' && int(OWN.size) == 3 && string(7) == '7'",
    "strings.quote(OWN.model) == 'x' && strings.quote(string(device.driver)).size() > 3",
    "'%s-%d'.format(['a', 1]) == 'a-1'",
    "(OWN.healthy ? 'abc' : device.driver) == 'x'",
    "(OWN.healthy ? ['abc'] : ['d', 'e']).exists(s, s == 'x')",
    "OWN.model in ['a', 'b', 'c'] || 'model' in OWN || 1 in [1, 2]",
    "OWN.model in OWN.uuid || OWN.model[0] == 'x' || OWN.model.x == 1",
    "OWN.model + OWN.uuid == 'x' || OWN.size + 1 > 3",
    "'abc' < 'b' && b'a' <= b'b' && OWN.model >= 'a' && 1 < 2.5",
    "dyn(OWN.model) == 'x' && dyn(['a', 'b']).size() == 2",
    "type(OWN.model) == string && type(1) == int && type(ip('::1')) == net.IP",
    "quantity(OWN.model).isGreaterThan(quantity('1')) && isQuantity(OWN.model)",
    "quantity('1Gi').add(quantity('2')).sub(1).compareTo(quantity('3')) > 0 && sign(quantity('1')) == 1",
    "semver(OWN.model).major() == 1 && isSemver('1.2.3', true) && semver('1.2.3') == semver('1.2.3')",
    "ip('::1') == ip('::2') && isIP(device.driver) && ip.isCanonical('::1') && ip('::1').isLoopback()",
    "cidr('10.0.0.0/8').containsIP('10.1.1.1') && cidr('10.0.0.0/8').containsIP(ip('10.1.1.1'))",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && cidr('10.0.0.0/8').ip() == ip('10.0.0.0')",
    "cidr('10.0.0.0/8').containsCIDR(cidr('10.1.0.0/16')) && cidr('::/1').masked().prefixLength() == 1",
    "url('https://a/b') == url('https://c') && url(OWN.model).getHost() == 'x' && isURL('x')",
    "url('https://a/b?c=d').getQuery()['c'][0] == 'd' && url('a').getQuery().exists(k, k == 'c')",
    "!format.dns1123Label().validate(OWN.model).hasValue() && format.named('uuid').hasValue()",
    "format.dns1123Label() == format.uuid() || format.named('x') == format.named('y')",
    "[1, 2].exists(x, [3, 4].exists(y, x == y && OWN.size == x))",
    "OWN.exists(a, OWN.exists(b, OWN.exists(c, OWN[a] == OWN[b] || OWN[b] == OWN[c])))",
    "OWN.all(a, OWN.all(b, a.contains(b) || b.matches(a)))",
    "device.attributes.exists(a, device.attributes.exists(b, device.attributes[a].exists(c, c == b)))",
];

#[test]
fn worst_cases_are_estimated_as_upstream_does() {
    const OWN: &str = "device.attributes['gpu.example.com']";
    let expressions: Vec<String> = ESTIMATED.iter().map(|text| text.replace("OWN", OWN)).collect();
    for lists in [ListAttributes::Off, ListAttributes::On] {
        compare(&expressions, lists);
    }
    let beyond =
        expressions.iter().filter(|text| worst_case(text, ListAttributes::Off) > Cost::MAX.0).count();
    assert!(beyond > 10, "{beyond} are beyond the limit");
}
