//! The functions and operators of the environment and their signatures, as one readable table.
//!
//! A line is `name(arguments) result`; a leading dot makes the first argument the target of a member call. Single
//! capitals are type parameters. The order of a name's signatures is upstream's: where a type is still open, the first that
//! fits decides it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use super::format::FORMATS;
use super::typing::{Bindings, Type};

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Style {
    /// `f(x)`
    Global,
    /// `x.f()`
    Member,
}

/// One signature of a function; its parameters are numbered from zero.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub(super) args: Vec<Type>,
    pub(super) result: Type,
    params: u32,
}

/// All signatures of a name, by style.
#[derive(Debug, Default)]
pub(super) struct Function {
    global: Vec<Signature>,
    member: Vec<Signature>,
}

/// The name under which a quantity's type is known.
pub(super) const QUANTITY: &str = "kubernetes.Quantity";

const TABLE: &str = "
_?_:_(bool, A, A) A
!_(bool) bool
_==_(A, A) bool
_!=_(A, A) bool
-_(double) double
-_(int) int
_+_(bytes, bytes) bytes
_+_(double, double) double
_+_(int, int) int
_+_(list<A>, list<A>) list<A>
_+_(string, string) string
_+_(uint, uint) uint
_-_(double, double) double
_-_(int, int) int
_-_(uint, uint) uint
_*_(double, double) double
_*_(int, int) int
_*_(uint, uint) uint
_/_(double, double) double
_/_(int, int) int
_/_(uint, uint) uint
_%_(int, int) int
_%_(uint, uint) uint
_[_](list<A>, int) A
_[_](map<A, B>, A) B
_[_](optional<list<V>>, int) optional<V>
_[_](optional<map<K, V>>, K) optional<V>
_[?_](list<V>, int) optional<V>
_[?_](optional<list<V>>, int) optional<V>
_[?_](map<K, V>, K) optional<V>
_[?_](optional<map<K, V>>, K) optional<V>
@in(A, list<A>) bool
@in(A, map<A, B>) bool

size(bytes) int
size(list<A>) int
size(map<A, B>) int
size(string) int
.size(bytes) int
.size(list<A>) int
.size(map<A, B>) int
.size(string) int
type(A) type<A>
dyn(A) dyn
bool(bool) bool
bool(string) bool
bytes(bytes) bytes
bytes(string) bytes
double(double) double
double(int) double
double(string) double
double(uint) double
int(int) int
int(double) int
int(string) int
int(uint) int
uint(uint) uint
uint(double) uint
uint(int) uint
uint(string) uint
string(string) string
string(bool) string
string(bytes) string
string(double) string
string(int) string
string(uint) string
string(Ip) string
string(Cidr) string
.contains(string, string) bool
.endsWith(string, string) bool
.startsWith(string, string) bool
matches(string, string) bool
.matches(string, string) bool

.indexOf(list<A>, A) int
.lastIndexOf(list<A>, A) int
.charAt(string, int) string
.indexOf(string, string) int
.indexOf(string, string, int) int
.lastIndexOf(string, string) int
.lastIndexOf(string, string, int) int
.lowerAscii(string) string
.upperAscii(string) string
.replace(string, string, string) string
.replace(string, string, string, int) string
.split(string, string) list<string>
.split(string, string, int) list<string>
.substring(string, int) string
.substring(string, int, int) string
.trim(string) string
.format(string, list<dyn>) string
strings.quote(string) string
.join(list<string>) string
.join(list<string>, string) string
.find(string, string) string
.findAll(string, string) list<string>
.findAll(string, string, int) list<string>

.includes(dyn, dyn) bool
.slice(list<T>, int, int) list<T>
.flatten(list<list<T>>) list<T>
.flatten(list<dyn>, int) list<dyn>
lists.range(int) list<int>
.reverse(list<T>) list<T>
.distinct(list<T>) list<T>
sets.contains(list<T>, list<T>) bool
sets.equivalent(list<T>, list<T>) bool
sets.intersects(list<T>, list<T>) bool

optional.of(V) optional<V>
optional.ofNonZeroValue(V) optional<V>
optional.none() optional<V>
optional.unwrap(list<optional<V>>) list<V>
.unwrapOpt(list<optional<V>>) list<V>
.value(optional<V>) V
.hasValue(optional<V>) bool
.or(optional<V>, optional<V>) optional<V>
.orValue(optional<V>, V) V
.first(list<V>) optional<V>
.last(list<V>) optional<V>

quantity(string) Quantity
isQuantity(string) bool
sign(Quantity) int
.isGreaterThan(Quantity, Quantity) bool
.isLessThan(Quantity, Quantity) bool
.compareTo(Quantity, Quantity) int
.asApproximateFloat(Quantity) double
.asInteger(Quantity) int
.isInteger(Quantity) bool
.add(Quantity, Quantity) Quantity
.add(Quantity, int) Quantity
.sub(Quantity, Quantity) Quantity
.sub(Quantity, int) Quantity
semver(string) Semver
semver(string, bool) Semver
isSemver(string) bool
isSemver(string, bool) bool
.isGreaterThan(Semver, Semver) bool
.isLessThan(Semver, Semver) bool
.compareTo(Semver, Semver) int
.major(Semver) int
.minor(Semver) int
.patch(Semver) int

ip(string) Ip
isIP(string) bool
ip.isCanonical(string) bool
.family(Ip) int
.isUnspecified(Ip) bool
.isLoopback(Ip) bool
.isLinkLocalMulticast(Ip) bool
.isLinkLocalUnicast(Ip) bool
.isGlobalUnicast(Ip) bool
cidr(string) Cidr
isCIDR(string) bool
.containsIP(Cidr, string) bool
.containsIP(Cidr, Ip) bool
.containsCIDR(Cidr, string) bool
.containsCIDR(Cidr, Cidr) bool
.ip(Cidr) Ip
.prefixLength(Cidr) int
.masked(Cidr) Cidr
url(string) Url
isURL(string) bool
.getScheme(Url) string
.getHost(Url) string
.getHostname(Url) string
.getPort(Url) string
.getEscapedPath(Url) string
.getQuery(Url) map<string, list<string>>
format.named(string) optional<Format>
.validate(Format, string) optional<list<string>>
";

/// What compares with what: numbers of every type with each other.
const COMPARED: [(&str, &[&str]); 6] = [
    ("bool", &["bool"]),
    ("int", &["int", "double", "uint"]),
    ("uint", &["uint", "double", "int"]),
    ("double", &["double", "int", "uint"]),
    ("string", &["string"]),
    ("bytes", &["bytes"]),
];
const NUMBERS: [&str; 3] = ["int", "uint", "double"];
/// Every type that has an order.
const ORDERED: [&str; 6] = ["int", "uint", "double", "bool", "string", "bytes"];

/// Every function by name.
static FUNCTIONS: LazyLock<HashMap<String, Function>> = LazyLock::new(|| {
    let mut functions: HashMap<String, Function> = HashMap::new();
    let generated = generated();
    for line in TABLE.lines().chain(generated.iter().map(String::as_str)) {
        if let Some((name, style, signature)) = declaration(line) {
            let function = functions.entry(name.to_owned()).or_default();
            match style {
                Style::Global => function.global.push(signature),
                Style::Member => function.member.push(signature),
            }
        }
    }
    functions
});

/// The signatures that go over families of types.
fn generated() -> Vec<String> {
    let mut lines = Vec::new();
    for sign in ["<", "<=", ">", ">="] {
        for (left, others) in COMPARED {
            lines.extend(others.iter().map(|right| format!("_{sign}_({left}, {right}) bool")));
        }
    }
    for element in ORDERED {
        lines.push(format!(".isSorted(list<{element}>) bool"));
        lines.push(format!(".min(list<{element}>) {element}"));
        lines.push(format!(".max(list<{element}>) {element}"));
        lines.push(format!(".sort(list<{element}>) list<{element}>"));
        lines.push(format!(".@sortByAssociatedKeys(list<T>, list<{element}>) list<T>"));
    }
    lines.extend(NUMBERS.map(|element| format!(".sum(list<{element}>) {element}")));
    lines.extend(FORMATS.map(|(name, _)| format!("format.{name}() Format")));
    lines
}

/// The signatures of `name`.
pub(super) fn function(name: &str) -> Option<&'static Function> {
    FUNCTIONS.get(name)
}

/// Every name with the styles it has.
#[cfg(test)]
pub(super) fn all() -> Vec<(&'static str, Style)> {
    let styles = |(name, function): (&'static String, &'static Function)| {
        let global = (!function.global.is_empty()).then_some((name.as_str(), Style::Global));
        let member = (!function.member.is_empty()).then_some((name.as_str(), Style::Member));
        global.into_iter().chain(member)
    };
    FUNCTIONS.iter().flat_map(styles).collect()
}

/// The type that an identifier names, such as `int`, and its name at run time.
pub(super) fn type_named(name: &str) -> Option<(Type, &'static str)> {
    let any = || Type::Dyn;
    Some(match name {
        "bool" => (Type::Bool, "bool"),
        "bytes" => (Type::Bytes, "bytes"),
        "double" => (Type::Double, "double"),
        "int" => (Type::Int, "int"),
        "list" => (Type::list(any()), "list"),
        "map" => (Type::map(any(), any()), "map"),
        "null_type" => (Type::Null, "null_type"),
        "string" => (Type::String, "string"),
        "type" => (Type::Meta(Arc::new(any())), "type"),
        "uint" => (Type::Uint, "uint"),
        "optional_type" => (Type::optional(any()), "optional_type"),
        "net.IP" => (Type::Object("net.IP"), "net.IP"),
        "net.CIDR" => (Type::Object("net.CIDR"), "net.CIDR"),
        _ => return None,
    })
}

// === impl Function ===

impl Function {
    pub(super) fn signatures(&self, style: Style) -> &[Signature] {
        match style {
            Style::Global => &self.global,
            Style::Member => &self.member,
        }
    }
}

// === impl Signature ===

impl Signature {
    /// The arguments and the result with parameters of their own.
    pub(super) fn instance(&self, bindings: &mut Bindings) -> (Vec<Type>, Type) {
        if self.params == 0 {
            return (self.args.clone(), self.result.clone());
        }
        let fresh: Vec<Type> = (0..self.params).map(|_| bindings.fresh()).collect();
        (self.args.iter().map(|arg| renamed(arg, &fresh)).collect(), renamed(&self.result, &fresh))
    }
}

fn renamed(of: &Type, fresh: &[Type]) -> Type {
    match of {
        Type::Param(param) => {
            usize::try_from(*param).ok().and_then(|index| fresh.get(index)).unwrap_or(of).clone()
        }
        Type::List(element) => Type::list(renamed(element, fresh)),
        Type::Map(pair) => Type::map(renamed(&pair.0, fresh), renamed(&pair.1, fresh)),
        Type::Optional(value) => Type::optional(renamed(value, fresh)),
        Type::Meta(inner) => Type::Meta(Arc::new(renamed(inner, fresh))),
        _ => of.clone(),
    }
}

/// Reads one line of the table; `None` for a blank or malformed one (a test reads them all).
fn declaration(line: &str) -> Option<(&str, Style, Signature)> {
    let open = line.rfind(['(']).filter(|_| !line.is_empty())?;
    let (name, rest) = (line.get(..open)?, line.get(open + 1..)?);
    let (args, result) = rest.split_once(") ")?;
    let (name, style) = match name.strip_prefix('.') {
        Some(name) => (name, Style::Member),
        None => (name, Style::Global),
    };
    let mut letters = Vec::new();
    let args = top_level(args).map(|arg| read(arg, &mut letters)).collect::<Option<Vec<_>>>()?;
    let result = read(result, &mut letters)?;
    Some((name, style, Signature { args, result, params: u32::try_from(letters.len()).ok()? }))
}

/// The pieces between commas that are in no angle brackets.
fn top_level(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |c| {
        depth += i32::from(c == '<') - i32::from(c == '>');
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|piece| !piece.is_empty())
}

fn read(text: &str, letters: &mut Vec<char>) -> Option<Type> {
    if let Some((outer, inner)) = text.strip_suffix('>').and_then(|text| text.split_once('<')) {
        let parts = top_level(inner).map(|part| read(part, letters)).collect::<Option<Vec<_>>>()?;
        return match (outer, &parts[..]) {
            ("list", [element]) => Some(Type::list(element.clone())),
            ("map", [key, value]) => Some(Type::map(key.clone(), value.clone())),
            ("optional", [value]) => Some(Type::optional(value.clone())),
            ("type", [of]) => Some(Type::Meta(Arc::new(of.clone()))),
            _ => None,
        };
    }
    if let (Some(letter), 1) = (text.chars().next().filter(char::is_ascii_uppercase), text.len()) {
        let index = letters.iter().position(|known| *known == letter).unwrap_or_else(|| {
            letters.push(letter);
            letters.len() - 1
        });
        return u32::try_from(index).ok().map(Type::Param);
    }
    Some(match text {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "dyn" => Type::Dyn,
        "Quantity" => Type::Object(QUANTITY),
        "Semver" => Type::Object("kubernetes.Semver"),
        "Ip" => Type::Object("net.IP"),
        "Cidr" => Type::Object("net.CIDR"),
        "Url" => Type::Object("kubernetes.URL"),
        "Format" => Type::Object("kubernetes.NamedFormat"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read() {
        let generated = generated();
        for line in TABLE.lines().chain(generated.iter().map(String::as_str)).filter(|line| !line.is_empty())
        {
            assert!(declaration(line).is_some(), "{line}");
        }
        assert!(all().len() > 120);
    }
}
