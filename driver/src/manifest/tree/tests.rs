//! Text → tree: pieces with their lines, hostile and torn text, JSON beside `serde_json`.

use super::*;

/// The documents of a text whose lists of objects, if any, are empty.
fn all(text: &str) -> Result<Vec<YamlNode<'_>>, TreeError> {
    let documents = Pieces::of(text).map(|piece| match piece? {
        Piece::Document(node) => Ok(node),
        Piece::Item(node) => panic!("an item of a list: {node:?}"),
    });
    documents.collect()
}

fn error(text: &str) -> String {
    match all(text) {
        Err(error) => format!("{}: {error}", error.line),
        Ok(nodes) => panic!("read as {nodes:?}"),
    }
}

#[test]
fn documents_come_one_by_one_with_their_lines() {
    let nodes = all("a: 1\nb:\n- x\n---\n# nothing\n---\nc: {d: \"2\"}\n").unwrap();
    assert_eq!(nodes.len(), 3);
    assert_eq!(nodes[0].get("b").unwrap().line, 3);
    assert!(nodes[1].is_null());
    assert_eq!(nodes[2].get("c").unwrap().get("d").unwrap().text(), Some("2"));
}

/// The pieces of a text: items by name and line, documents by kind and line.
fn pieces(text: &str) -> Vec<String> {
    let named = |node: &YamlNode<'_>, key| node.get(key).and_then(YamlNode::text).unwrap_or("?").to_owned();
    let pieces = Pieces::of(text).map(|piece| match piece {
        Ok(Piece::Item(node)) => format!("{} at {}", named(&node, "name"), node.line),
        Ok(Piece::Document(node)) => format!("{} at {}", named(&node, "kind"), node.line),
        Err(error) => format!("line {}: {error}", error.line),
    });
    pieces.collect()
}

#[test]
fn items_of_lists_come_before_their_list() {
    let yaml = "apiVersion: v1\nitems:\n- name: a\n- name: b\n  x: &x [1]\nkind: PodList # all\n";
    let json = "{\"apiVersion\": \"v1\",\n\"items\": [\n{\"name\": \"a\"}, {\n\"name\":\n\"b\"}],\n\"kind\": \"List\"}\n";
    assert_eq!(pieces(yaml), ["a at 3", "b at 4", "PodList at 1"]);
    assert_eq!(pieces(json), ["a at 3", "b at 3", "List at 1"]);
    let first = "kind: List\napiVersion: v1\nitems: [{name: a}]\n---\nkind: x\n";
    assert_eq!(pieces(first), ["a at 3", "List at 1", "x at 5"]);
    let flow = "{apiVersion: v1, kind: List, items: [{name: a}]}";
    assert_eq!(pieces(flow), ["a at 1", "List at 1"]);
}

#[test]
fn items_of_other_kinds_stay_in_their_document() {
    for text in [
        "apiVersion: v1\nitems:\n- name: a\nkind: ConfigMap\n---\nkind: List\n",
        "apiVersion: v1\nitems:\n- name: a\n---\nkind: List\n",
        "items:\n- name: a\nkind: List\n",
        "apiVersion: v1\nkind: Thing\nspec:\n  items: [{name: a}]\n",
        "{\"apiVersion\": \"v1\", \"items\": [{\"name\": \"a\"}], \"kind\": \"ConfigMap\"}",
        "{\"items\": [{\"name\": \"a\"}], \"kind\": \"List\"}",
    ] {
        let documents = all(text).unwrap();
        let node = documents[0].get("items").or_else(|| documents[0].get("spec")?.get("items")).unwrap();
        assert!(matches!(&node.value, Value::List(items) if items.len() == 1), "{text}");
    }
    let two = "apiVersion: v1\nitems:\n- name: \"a\nkind: List\n\"\nkind: x\n";
    assert!(pieces(two)[0].contains("not YAML or JSON"), "{:?}", pieces(two));
}

#[test]
fn items_a_second_time_are_no_items_of_the_list() {
    let text = "apiVersion: v1\nitems:\n- name: a\nitems:\n- name: b\nitems:\n- name: c\nkind: PodList\n";
    assert_eq!(pieces(text), ["a at 3", "line 4: the key `items` appears twice"]);
    let json =
        "{\"apiVersion\": \"v1\", \"items\": [{\"name\": \"a\"}],\n\"items\": [{}], \"kind\": \"List\"}";
    assert_eq!(pieces(json), ["line 2: the key `items` appears twice"]);
}

#[test]
fn json_keeps_lines_and_numbers_as_written() {
    let text = "\u{feff}{\n\t\"a\": [1e9, true, null, \"x\\u00e9\"],\n\"b\": \"\\/\", \"c\":\n-0.50}";
    let nodes = all(text).unwrap();
    assert_eq!(nodes[0].get("b").unwrap().text(), Some("/"));
    assert_eq!((nodes[0].get("c").unwrap().text(), nodes[0].get("c").unwrap().line), (Some("-0.50"), 4));
    let Value::List(items) = &nodes[0].get("a").unwrap().value else { panic!() };
    assert_eq!((items[0].text(), items[3].text()), (Some("1e9"), Some("xé")));
    assert!(items[2].is_null());
}

#[test]
fn json_yaml_and_both_follow_each_other() {
    let kinds = |text: &str| pieces(text).join(", ");
    assert_eq!(kinds("{\"kind\": \"a\"}{\"kind\": \"b\"}\n\n[1]\n"), "a at 1, b at 1, ? at 3");
    assert_eq!(kinds("{\"kind\": \"a\"}\n---\nkind: b\n"), "a at 1, b at 3");
    assert_eq!(kinds("\n{kind: a}\n---\n{\"kind\": \"b\"}\n"), "a at 2, b at 4");
    assert_eq!(kinds("{\"kind\": \"a\"} # YAML has comments\n"), "a at 1");
    assert_eq!(kinds("{\"kind\": a, # so it is YAML\n}\n"), "a at 1");
}

#[test]
fn broken_json_names_line_found_and_expected() {
    for (text, message) in [
        ("{\"a\": 1,\n\"b\" 2}", "2: not JSON: found `2`, expected `:` behind a key"),
        ("{\"a\": [1,\n", "2: not JSON: found the end of the text, expected a value"),
        ("{\"a\": tru", "1: not JSON: found `t`, expected a value"),
        ("{\"a\": \"x\n\"", "1: not JSON: found `\\n`, expected the closing quote of a text"),
        ("{\n// why\n\"a\": 1}", "2: not JSON: found a comment, expected a key in double quotes"),
        ("{\"a\": 1,\n\"b\": 2, \"a\": 3}", "2: the key `a` appears twice"),
        ("{a: [}", "not YAML or JSON"),
    ] {
        assert!(error(text).contains(message), "{text}: {}", error(text));
    }
    let lone = error("{\"b\": 1,\n\"a\": \"\\ud800\"}");
    assert_eq!(
        lone, "2: not JSON: found a text with unexpected end of hex escape",
        "one place, that in the file"
    );
    let torn = "{\"apiVersion\": \"v1\", \"kind\": \"List\",\n\"items\": [{\"name\": \"a\"}, {1}]}";
    assert_eq!(pieces(torn), ["a at 2", "line 2: not JSON: found `1`, expected a key in double quotes"]);
}

/// What `serde_json` makes of the same text.
fn value(node: &YamlNode<'_>) -> serde_json::Value {
    match &node.value {
        Value::Scalar(text, Style::Quoted) => text.as_ref().into(),
        Value::Scalar(text, Style::Plain) => serde_json::from_str(text).unwrap(),
        Value::List(items) => items.iter().map(value).collect(),
        Value::Map(entries) => {
            serde_json::Value::Object(entries.iter().map(|e| (e.key.to_string(), value(&e.value))).collect())
        }
    }
}

proptest::proptest! {
    #[test]
    fn json_is_read_as_by_serde_json(text in r#"([\[\]{}:,"] ?|"[ab]"|"[ab]":|-?[0-9]{1,2}|[.eE+-]|null|true|\\[nu"]|\n|é){0,12}"#) {
        // `serde_json` refuses numbers beyond those of an f64.
        let digits = |text: &str| text.trim_start_matches(['+', '-']).bytes().take_while(u8::is_ascii_digit).count();
        proptest::prop_assume!(!text.split(['e', 'E']).skip(1).any(|exponent| digits(exponent) > 2));
        let mut pieces = json::Pieces::of(&text, 0, 1);
        let theirs = serde_json::from_str::<serde_json::Value>(&text).ok();
        let theirs = theirs.filter(|_| !text.trim_ascii_start().is_empty());
        match pieces.next() {
            Ok(Piece::Document(node)) if pieces.rest().is_none() => {
                proptest::prop_assert_eq!(Some(value(&node)), theirs);
            }
            Err(json::Fault::Final(error)) if error.to_string().contains("appears twice") => {}
            _ => proptest::prop_assert_eq!(None, theirs),
        }
    }

    #[test]
    fn json_values_are_read_as_by_serde_json(text in "[\\PC\n\t\"\\\\]{0,20}", number: f64, whole: i64) {
        let written = serde_json::json!({"a": [text, number, whole], &text: {"": null}, "é": {"b": [[], {}]}});
        for text in [written.to_string(), format!("{written:#}")] {
            let nodes = all(&text).unwrap();
            proptest::prop_assert_eq!(value(&nodes[0]), serde_json::from_str::<serde_json::Value>(&text).unwrap());
        }
    }
}

#[test]
fn a_key_that_appears_twice_is_an_error_in_small_and_large_maps() {
    assert!(error("a: 1\nb: 2\na: 3\n").contains("3: the key `a` appears twice"));
    let many: String = (0..40).map(|i| format!("k{i}: 1\n")).collect();
    assert!(error(&format!("{many}k7: 2\n")).contains("41: the key `k7` appears twice"));
}

#[test]
fn aliases_are_copied_within_a_bound() {
    let nodes = all("a: &x {n: 1}\nb: *x\nc:\n  <<: *x\n  m: 2\n").unwrap();
    assert_eq!(nodes[0].get("b").unwrap().get("n").unwrap().text(), Some("1"));
    assert_eq!(nodes[0].get("c").unwrap().get("n").unwrap().text(), Some("1"));
    let nodes = all("a: &x {n: 1}\nc:\n  '<<': *x\n  \"n\": 2\n").unwrap();
    assert!(nodes[0].get("c").unwrap().get("<<").is_some(), "in quotes it is a key");
    assert!(error("a: &x {n: 1}\nc:\n  <<: *x\n  <<: *x\n").contains("4: the key `<<` appears twice"));
    assert!(error("a: {<<: 1}\n").contains("merges maps"));
    let large = |from: usize| (from..from + 40).map(|i| format!("k{i}: 1,")).collect::<String>();
    let merged = format!("a: &x {{{}}}\nc: {{{} <<: *x}}\n", large(0), large(20));
    let nodes = all(&merged).unwrap();
    assert!(
        matches!(&nodes[0].get("c").unwrap().value, Value::Map(entries) if entries.len() == 60),
        "{nodes:?}"
    );
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..12 {
        let list = vec![format!("*a{}", i - 1); 10].join(",");
        bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    assert!(error(&bomb).contains("aliases bring more than"));
    assert!(error("a: &a [*a]\n").contains("a cycle"));
}

#[test]
fn depth_is_bounded_whatever_the_notation() {
    assert!(!error(&"[".repeat(100_000)).is_empty());
    assert!(!error(&"{a: ".repeat(100_000)).is_empty());
    let block: String = (0..5_000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert!(!error(&block).is_empty());
    assert!(!error(&"- ".repeat(100_000)).is_empty());
}

#[test]
fn torn_text_names_the_line() {
    assert!(error("a: 1\nb: [1, 2\n").starts_with('2') || error("a: 1\nb: [1, 2\n").starts_with('3'));
    assert!(error("a: 'x\n").contains("not YAML or JSON"));
    assert!(error("? [a]\n: b\n").contains("expected text"));
}
