//! Well-formed selectors of every kind that the device environment knows, and a device to try them on.
//!
//! An expression is grown by type: a boolean out of comparisons, those out of integers, strings, lists, quantities and
//! versions, each of which is a literal, an attribute or a function of others. Some look at attributes that the device
//! does not have: what fails, and what `||` and `&&` absorb, has to agree as well.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Random;

/// The driver that publishes [`selector_device`].
pub const SELECTOR_DRIVER: &str = "gpu.example.com";

/// The domain of the device's own attributes, as an expression.
const OWN: &str = "device.attributes['gpu.example.com']";

/// The device that the expressions are about.
#[must_use]
pub fn selector_device() -> Value {
    json!({
        "name": "d0",
        "allowMultipleAllocations": true,
        "attributes": {
            "model": {"string": "H100-80"},
            "uuid": {"string": "GPU-7c3f"},
            "size": {"int": 7},
            "index": {"int": 2},
            "healthy": {"bool": true},
            "draining": {"bool": false},
            "version": {"version": "12.4.1"},
            "firmware": {"version": "2.0.0-rc.1"},
            "example.com/rack": {"string": "r1"},
            "example.com/slot": {"int": 3},
        },
        "capacity": {
            "memory": {"value": "80Gi"},
            "cores": {"value": "100"},
            "example.com/lanes": {"value": "16"},
        },
    })
}

/// So many different expressions, the same for the same seed.
#[must_use]
pub fn selectors(seed: u64, count: usize) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut seen = BTreeSet::new();
    let mut expressions = Vec::new();
    while expressions.len() < count {
        let depth = random.between(1, 3);
        let expression = Grower { random: &mut random, variables: Vec::new() }.boolean(depth);
        if seen.insert(expression.clone()) {
            expressions.push(expression);
        }
    }
    expressions
}

/// The types of variables that comprehensions and `cel.bind` bring in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Int,
    String,
    Map,
}

/// Grows one expression. Every method takes the depth that is left and returns an expression of its type that needs
/// no parentheses around it.
struct Grower<'a> {
    random: &'a mut Random,
    variables: Vec<(String, Type)>,
}

impl Grower<'_> {
    fn boolean(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.simple_boolean();
        }
        let next = depth - 1;
        match self.random.below(14) {
            0 => format!("!{}", self.boolean(next)),
            1 | 2 => format!("({} && {})", self.boolean(next), self.boolean(next)),
            3 | 4 => format!("({} || {})", self.boolean(next), self.boolean(next)),
            5 => format!("({} ? {} : {})", self.boolean(next), self.boolean(next), self.boolean(next)),
            6 | 7 => self.compared_integers(next),
            8 => self.tested_string(next),
            9 => self.tested_list(next),
            10 => self.tested_quantity(next),
            11 => self.tested_version(),
            12 => self.bound(next),
            _ => self.tested_map(next),
        }
    }

    fn simple_boolean(&mut self) -> String {
        let map = self.map();
        match self.random.below(10) {
            0 => (*self.random.pick(&["true", "false"])).to_owned(),
            1 => "device.allowMultipleAllocations".to_owned(),
            2 => format!("{map}.healthy"),
            3 => format!("{map}.draining"),
            4 => format!("{map}.?healthy.orValue({})", self.random.pick(&["true", "false"])),
            5 => format!("has({map}.{})", self.random.pick(&["healthy", "size", "missing"])),
            6 => format!("{map}.?{}.hasValue()", self.random.pick(&["model", "missing"])),
            7 => format!("({} in {map})", self.random.pick(&["'model'", "'missing'", "'size'"])),
            8 => format!(
                "(device.driver == {})",
                self.random.pick(&["'gpu.example.com'", "'other.example.com'"])
            ),
            // A runtime error, unless something absorbs it.
            _ => format!("{map}.missing"),
        }
    }

    /// A map of attributes: the own domain, another one, one that does not exist, or a variable.
    fn map(&mut self) -> String {
        if let Some(name) = self.variable(Type::Map) {
            return name;
        }
        match self.random.below(12) {
            0 => "device.attributes['example.com']".to_owned(),
            1 => "device.attributes['nobody.example.com']".to_owned(),
            2 => "device.attributes[device.driver]".to_owned(),
            3 => "device.attributes[\"gpu.example.com\"]".to_owned(),
            _ => OWN.to_owned(),
        }
    }

    fn variable(&mut self, wanted: Type) -> Option<String> {
        let fitting: Vec<String> =
            self.variables.iter().filter(|(_, kind)| *kind == wanted).map(|(name, _)| name.clone()).collect();
        (!fitting.is_empty() && self.random.percent(70)).then(|| self.random.pick(&fitting).clone())
    }

    fn integer(&mut self, depth: usize) -> String {
        if let Some(name) = self.variable(Type::Int) {
            return name;
        }
        if depth == 0 {
            let map = self.map();
            return match self.random.below(6) {
                0 | 1 => self.random.pick(&["0", "1", "2", "3", "7", "10", "-1", "100"]).to_string(),
                2 => format!("{OWN}.size"),
                3 => format!("{OWN}['index']"),
                4 => format!("{map}.?size.orValue({})", self.random.below(9)),
                _ => "device.attributes['example.com'].slot".to_owned(),
            };
        }
        let next = depth - 1;
        match self.random.below(12) {
            0..4 => {
                let operator = *self.random.pick(&["+", "-", "*", "/", "%"]);
                format!("({} {operator} {})", self.integer(next), self.integer(next))
            }
            4 => format!("size({})", self.string(next)),
            5 => format!("{}.size()", self.integers(next)),
            6 => format!("{}.indexOf({})", self.string(next), self.random.pick(&["'-'", "'0'", "'zz'"])),
            7 => format!("{}.compareTo({})", self.quantity(next), self.quantity(next)),
            8 => format!("{}.asInteger()", self.quantity(next)),
            9 => format!("{}.{}()", self.version(), self.random.pick(&["major", "minor", "patch"])),
            10 => format!("int({})", self.random.pick(&["'12'", "3.7", "7u", "'-4'", "device.driver"])),
            _ => format!("({} ? {} : {})", self.boolean(next), self.integer(next), self.integer(next)),
        }
    }

    fn compared_integers(&mut self, depth: usize) -> String {
        let operator = *self.random.pick(&["==", "!=", "<", "<=", ">", ">="]);
        match self.random.below(6) {
            0 => format!("({} in {})", self.integer(depth), self.integers(depth)),
            // Numbers of different types have an order, but statically no equality.
            1 => {
                let order = *self.random.pick(&["<", "<=", ">", ">="]);
                format!("({} {order} {})", self.integer(depth), self.random.pick(&["1.5", "7.0", "3u"]))
            }
            _ => format!("({} {operator} {})", self.integer(depth), self.integer(depth)),
        }
    }

    fn string(&mut self, depth: usize) -> String {
        if let Some(name) = self.variable(Type::String) {
            return name;
        }
        if depth == 0 {
            let literal =
                *self.random.pick(&["'H100-80'", "'A100'", "\"r1\"", "''", "'GPU-7c3f'", "'é-ü'", "'H100'"]);
            return match self.random.below(6) {
                0 | 1 => literal.to_owned(),
                2 => "device.driver".to_owned(),
                3 => format!("{OWN}.uuid"),
                4 => "device.attributes['example.com'].?rack.orValue('none')".to_owned(),
                _ => format!("{OWN}.model"),
            };
        }
        let next = depth - 1;
        match self.random.below(12) {
            0 | 1 => format!("({} + {})", self.string(next), self.string(next)),
            2 => format!("{}.lowerAscii()", self.string(next)),
            3 => format!("{}.upperAscii()", self.string(next)),
            4 => format!("{}.replace('0', 'o')", self.string(next)),
            5 => format!("{}.substring({})", self.string(next), self.random.below(6)),
            6 => format!("{}.split('-')[{}]", self.string(next), self.random.below(2)),
            7 => format!("string({})", self.integer(next)),
            8 => format!("{}.trim()", self.string(next)),
            9 => format!("{}.charAt({})", self.string(next), self.random.below(5)),
            10 => format!("['a', string({})].join('/')", self.string(next)),
            _ => format!("({} ? {} : {})", self.boolean(next), self.string(next), self.string(next)),
        }
    }

    fn tested_string(&mut self, depth: usize) -> String {
        let (left, right) = (self.string(depth), self.string(depth));
        match self.random.below(9) {
            0 => format!("{left}.startsWith({right})"),
            1 => format!("{left}.endsWith({right})"),
            2 => format!("{left}.contains({right})"),
            3 => {
                let pattern = *self.random.pick(&["'^H[0-9]+'", "'[a-z]+-[0-9a-f]{4}'", "'^$'", "'(?i)gpu'"]);
                format!("{left}.matches({pattern})")
            }
            4 => format!("({left} in ['H100-80', string({right})])"),
            5 => format!("({left} < {right})"),
            6 => format!("({left} != {right})"),
            _ => format!("({left} == {right})"),
        }
    }

    /// A list of integers.
    fn integers(&mut self, depth: usize) -> String {
        if depth == 0 || self.variables.len() > 2 {
            return (*self.random.pick(&["[1, 2, 3]", "[7]", "[2, 7, 7]", "[0, -1, 5, 10]"])).to_owned();
        }
        let next = depth - 1;
        match self.random.below(5) {
            0 => format!("[int({}), int({})]", self.integer(next), self.integer(next)),
            1 => format!("({} + {})", self.integers(next), self.integers(next)),
            2 => {
                let list = self.integers(next);
                let (name, body) = self.with_variable(Type::Int, |grower| grower.integer(next));
                format!("{list}.map({name}, {body})")
            }
            3 => {
                let list = self.integers(next);
                let (name, body) = self.with_variable(Type::Int, |grower| grower.boolean(next));
                format!("{list}.filter({name}, {body})")
            }
            _ => self.integers(0),
        }
    }

    fn tested_list(&mut self, depth: usize) -> String {
        let list = self.integers(depth);
        let (name, body) = self.with_variable(Type::Int, |grower| grower.boolean(depth));
        match self.random.below(8) {
            0 | 1 => format!("{list}.exists({name}, {body})"),
            2 | 3 => format!("{list}.all({name}, {body})"),
            4 => format!("{list}.exists_one({name}, {body})"),
            5 => format!("({list} == {})", self.integers(depth)),
            6 => format!("({list}[{}] == {})", self.random.below(4), self.integer(depth)),
            _ => format!("({list}.size() > {})", self.random.below(4)),
        }
    }

    /// Over the names of a map of attributes.
    fn tested_map(&mut self, depth: usize) -> String {
        let map = self.map();
        let (name, body) = self.with_variable(Type::String, |grower| grower.tested_string(depth));
        match self.random.below(5) {
            0 => format!("{map}.exists({name}, {body})"),
            1 => format!("{map}.all({name}, {body})"),
            2 => format!("(size({map}) > {})", self.random.below(10)),
            3 => format!("(size({map}.map({name}, {name})) == {})", self.random.below(10)),
            _ => format!("{map}.filter({name}, {body}).all({name}, {name} in {map})"),
        }
    }

    fn quantity(&mut self, depth: usize) -> String {
        let literal =
            *self.random.pick(&["'80Gi'", "'40Gi'", "'100'", "'1500m'", "'1e3'", "'0.5'", "'16'", "'-1'"]);
        let capacity = "device.capacity['gpu.example.com']";
        match self.random.below(if depth == 0 { 8 } else { 10 }) {
            0 | 1 => format!("{capacity}.memory"),
            2 => format!("{capacity}.cores"),
            3 => "device.capacity['example.com'].lanes".to_owned(),
            4 => format!("{capacity}.?missing.orValue(quantity({literal}))"),
            8 => format!("{}.add({})", self.quantity(depth - 1), self.quantity(depth - 1)),
            9 => format!("{}.sub({})", self.quantity(depth - 1), self.random.pick(&["1", "quantity('1Gi')"])),
            _ => format!("quantity({literal})"),
        }
    }

    fn tested_quantity(&mut self, depth: usize) -> String {
        let (left, right) = (self.quantity(depth), self.quantity(depth));
        match self.random.below(8) {
            0 | 1 => format!("{left}.isGreaterThan({right})"),
            2 | 3 => format!("{left}.isLessThan({right})"),
            4 => format!("{left}.isInteger()"),
            5 => format!("isQuantity({})", self.random.pick(&["'1Gi'", "'1gb'", "''", "'1.5'"])),
            // Upstream cannot compare a computed quantity for equality.
            6 => format!("({} == {})", self.quantity(0), self.quantity(0)),
            _ => format!("({left}.compareTo({right}) >= 0)"),
        }
    }

    fn version(&mut self) -> String {
        let literal = *self.random.pick(&["'12.4.1'", "'12.0.0'", "'2.0.0'", "'2.0.0-rc.1'", "'0.0.1'"]);
        match self.random.below(4) {
            0 => format!("semver({literal})"),
            1 => format!("{OWN}.firmware"),
            2 => format!("{OWN}.?missing.orValue(semver({literal}))"),
            _ => format!("{OWN}.version"),
        }
    }

    fn tested_version(&mut self) -> String {
        let (left, right) = (self.version(), self.version());
        match self.random.below(7) {
            0 | 1 => format!("{left}.isGreaterThan({right})"),
            2 | 3 => format!("{left}.isLessThan({right})"),
            4 => format!("isSemver({})", self.random.pick(&["'1.2.3'", "'1.2'", "'v1.2.3'", "'01.2.3'"])),
            5 => format!("({left} == {right})"),
            _ => format!("({left}.compareTo({right}) == 0)"),
        }
    }

    fn bound(&mut self, depth: usize) -> String {
        let (kind, value) = match self.random.below(3) {
            0 => (Type::Int, self.integer(depth)),
            1 => (Type::String, self.string(depth)),
            _ => (Type::Map, self.map()),
        };
        let (name, body) = self.with_variable(kind, |grower| grower.boolean(depth));
        format!("cel.bind({name}, {value}, {body})")
    }

    /// The name of a new variable, and what is grown while it is in sight.
    fn with_variable(&mut self, kind: Type, body: impl FnOnce(&mut Self) -> String) -> (String, String) {
        let name = format!("v{}", self.variables.len());
        self.variables.push((name.clone(), kind));
        let body = body(self);
        self.variables.pop();
        (name, body)
    }
}
