//! One thing wrong, or at least unusual, in an object that is otherwise good.

use serde_json::{Value, json};

use super::Random;

/// Changes one random place of an object below its top level and says what was done.
///
/// The result may still be valid: whether it is, is the question to put.
pub fn mutate(random: &mut Random, object: &mut Value) -> String {
    let mut places = Vec::new();
    collect(object, String::new(), &mut places);
    // apiVersion, kind and status are for other tests.
    places.retain(|place| place.starts_with("/spec/") || place.starts_with("/metadata/"));
    if places.is_empty() {
        return "nothing".to_owned();
    }
    let place = random.pick(&places).clone();
    let done = match object.pointer_mut(&place) {
        Some(value) => change(random, value),
        None => "nothing",
    };
    if done == "removed"
        && let Some((parent, field)) = place.rsplit_once('/')
        && let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut)
    {
        fields.remove(&field.replace("~1", "/").replace("~0", "~"));
    }
    format!("{place} {done}")
}

/// The JSON pointers of everything below a value.
fn collect(value: &Value, path: String, places: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                collect(field, format!("{path}/{}", name.replace('~', "~0").replace('/', "~1")), places);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{path}/{index}"), places);
            }
        }
        _ => {}
    }
    places.push(path);
}

/// Changes a value and names the change; "removed" leaves the removal to the caller.
fn change(random: &mut Random, value: &mut Value) -> &'static str {
    if random.percent(12) {
        return "removed";
    }
    if random.percent(8) {
        *value = other_type(random, value);
        return "has another type";
    }
    match value {
        Value::Object(fields) if fields.is_empty() || random.percent(60) => {
            let name = *random.pick(&[
                "colour",
                "Name",
                "",
                "value",
                "a-b",
                "x.y/z",
                "domain.example.com/ok",
                "1st",
            ]);
            let value = random.pick(&[json!("1"), json!(1), json!({}), json!({"value": "1"})]).clone();
            fields.insert(name.to_owned(), value);
            "has one more field"
        }
        Value::Object(fields) => {
            fields.clear();
            "is empty"
        }
        Value::Array(items) if items.is_empty() || random.percent(20) => {
            items.clear();
            "is empty"
        }
        Value::Array(items) => {
            let item = random.pick(items).clone();
            let copies = *random.pick(&[1, 1, 8, 32]);
            items.extend(vec![item; copies]);
            "has copies of an item"
        }
        Value::String(text) => {
            *text = other_text(random, text);
            "has another text"
        }
        Value::Number(_) => {
            *value = random.pick(&[json!(-1), json!(0), json!(33), json!(1.5), json!(1_u64 << 40)]).clone();
            "is another number"
        }
        Value::Bool(flag) => {
            *flag = !*flag;
            "is turned round"
        }
        Value::Null => "is null",
    }
}

fn other_type(random: &mut Random, value: &Value) -> Value {
    let candidates = [json!("x"), json!(7), json!(true), json!([]), json!({}), json!(["x"])];
    let different: Vec<Value> = candidates
        .into_iter()
        .filter(|new| std::mem::discriminant(new) != std::mem::discriminant(value))
        .collect();
    random.pick(&different).clone()
}

fn other_text(random: &mut Random, text: &str) -> String {
    match random.below(12) {
        0 => String::new(),
        1 => text.to_uppercase(),
        2 => format!("{text} "),
        3 => format!("{text}_{text}"),
        4 => format!("{text}/{text}"),
        5 => format!("{text}.{text}"),
        6 => format!("-{text}"),
        7 => "x".repeat(*random.pick(&[32, 33, 63, 64, 65, 253, 254])),
        8 => format!("{text}é"),
        9 => "-1".to_owned(),
        10 => (*random.pick(&["All", "ExactCount", "Exists", "Equal", "NoExecute", "In", "1.2.3", "01.2.3"]))
            .to_owned(),
        _ => (*random.pick(&["0", "1Ki", "500m", "1e3", "1gb", "device.driver == 'x'", "true", "1 +"]))
            .to_owned(),
    }
}
