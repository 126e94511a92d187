//! A selector that fails on a device without a key, with the question before it whether the device has the key.

use std::sync::Arc;

use super::change::Change;
use super::remedy::Question;
use crate::allocate::refusal::{PlacementRefusal, SelectorOrigin};
use crate::allocate::world::World;

/// How the evaluator says that a key is missing.
const MISSING_KEY: &str = "no such key: ";

impl World {
    /// The guard with which the claims have a place, where a selector without one refuses them.
    pub(super) fn guard(
        &mut self,
        question: &mut Question<'_>,
        refusal: &PlacementRefusal,
    ) -> Option<Change> {
        let PlacementRefusal::Selector(failure) = refusal else { return None };
        let guard = guard_of(&failure.expression, failure.message.strip_prefix(MISSING_KEY)?)?;
        let guarded = format!("{guard} && ({})", failure.expression);
        let (claim, request) = (failure.claim.clone(), failure.request.clone());
        let of_failure = |names: (String, String)| names == (claim.clone(), request.clone());
        let spot = question.spots().into_iter().find(|spot| of_failure(question.names(*spot)))?;
        let placed = match &failure.origin {
            SelectorOrigin::Request { index } => {
                let changed = question.with(spot, |request| {
                    if let Some(selector) = request.selectors.get_mut(*index) {
                        *selector = guarded;
                    }
                });
                self.places(question, &changed)
            }
            SelectorOrigin::Class { class, index } => {
                let mut copy = self.classes.get(class)?.clone();
                // No class has such a name.
                copy.name = format!("{class}\0guarded");
                *copy.selectors.get_mut(*index)? = guarded;
                let name = copy.name.clone();
                Arc::make_mut(&mut self.classes).insert(name.clone(), copy);
                let changed = question.with(spot, |request| request.device_class.clone_from(&name));
                let placed = self.places(question, &changed);
                Arc::make_mut(&mut self.classes).remove(&name);
                placed
            }
        };
        let origin = failure.origin.clone();
        placed.then_some(Change::GuardSelector { claim, request, origin, guard })
    }
}

/// The question whether the key is there, for the first place of the expression that reads it.
fn guard_of(expression: &str, key: &str) -> Option<String> {
    expression.match_indices(key).find_map(|(at, _)| {
        let (before, after) = (&expression[..at], &expression[at + key.len()..]);
        if let Some(before) = before.strip_suffix('.') {
            let ends = !after.starts_with(is_of_name);
            return ends.then(|| Some(format!("has({}.{key})", operand(before)?))).flatten();
        }
        ['"', '\''].into_iter().find_map(|quote| {
            let before = before.strip_suffix(quote)?.strip_suffix('[')?;
            after.strip_prefix(quote)?.strip_prefix(']')?;
            Some(format!("{quote}{key}{quote} in {}", operand(before)?))
        })
    })
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The chain of names, fields and indices that ends the text, such as `device.attributes["a"]`.
fn operand(text: &str) -> Option<&str> {
    let mut start = text.len();
    loop {
        let rest = &text[..start];
        match rest.chars().next_back() {
            Some(']') => start = rest.rfind('[')?,
            Some('.') => start -= 1,
            Some(c) if is_of_name(c) => start -= 1,
            _ => break,
        }
    }
    let operand = &text[start..];
    operand.starts_with(is_of_name).then_some(operand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_asks_for_the_key_of_the_operand() {
        #[track_caller]
        fn check(expression: &str, key: &str, guard: Option<&str>) {
            assert_eq!(guard_of(expression, key).as_deref(), guard, "{expression}");
        }
        check(
            r#"device.attributes["a.b"].model == "x""#,
            "model",
            Some(r#"has(device.attributes["a.b"].model)"#),
        );
        check(
            r#"!(device.capacity['c'].memory.isGreaterThan(x))"#,
            "memory",
            Some(r#"has(device.capacity['c'].memory)"#),
        );
        check(
            r#"device.attributes["a"]["model"] == 1"#,
            "model",
            Some(r#""model" in device.attributes["a"]"#),
        );
        check(r#"modeled.models == 1"#, "model", None);
        check("model == 1", "model", None);
    }
}
