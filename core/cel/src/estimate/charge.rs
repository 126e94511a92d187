//! What one call of a function may cost beside its arguments, and how large its result may be: upstream's formulas.

use super::part::{Part, Path, below};
use super::size::{PER_PATTERN_CHARACTER, Size, scaled};
use crate::ast::Form;
use crate::declarations::{QUANTITY, Signature};
use crate::functions::INCLUDES_MAX;
use crate::typing::Type;
use crate::value::Value;

/// Longest spelling of a format that upstream compares.
const FORMAT_MAX: u64 = 64;
/// Length of a pattern that stands for those of formats.
const FORMAT_PATTERN: f64 = 128.0;
/// Bytes of an address.
const ADDRESS: Size = Size { min: 4, max: 16 };
/// Of a call that makes a list.
const NEW_LIST: u64 = 11;

/// A call whose parts are estimated.
pub(super) struct Call<'a, 'e> {
    pub(super) name: &'a str,
    pub(super) target: Option<&'a Part<'e>>,
    pub(super) args: &'a [Part<'e>],
    /// Sizes of values by their path.
    pub(super) size_of: &'a dyn Fn(&Path) -> Option<Size>,
}

/// The estimate of a call.
pub(super) struct Charge {
    pub(super) cost: u64,
    /// `None`: the type or the place of the result says it, if anything does.
    pub(super) result: Option<Size>,
}

impl Charge {
    const fn of(cost: u64) -> Self {
        Self { cost, result: None }
    }

    const fn with(cost: u64, result: Size) -> Self {
        Self { cost, result: Some(result) }
    }
}

impl Call<'_, '_> {
    /// The estimate where this signature is the one that is called.
    pub(super) fn charge(&self, signature: &Signature) -> Charge {
        self.of_lists(signature)
            .or_else(|| self.of_kubernetes(signature))
            .or_else(|| self.of_language(signature))
            .unwrap_or(Charge::of(1))
    }

    fn arg(&self, index: usize) -> Size {
        self.args.get(index).map_or(Size::UNKNOWN, Part::size_or_unknown)
    }

    /// A number that is written in the call.
    fn written(&self, index: usize) -> Option<i64> {
        match self.args.get(index).map(|arg| &arg.expr.form) {
            Some(Form::Literal(Value::Int(number))) => Some(*number),
            _ => None,
        }
    }

    /// The same, where a negative one counts as 0.
    fn written_size(&self, index: usize) -> Option<u64> {
        self.written(index).map(|number| u64::try_from(number).unwrap_or(0))
    }

    fn of_lists(&self, signature: &Signature) -> Option<Charge> {
        let list =
            |factor: f64, size: Size| Some(Charge::with(size.cost(factor).saturating_add(NEW_LIST), size));
        let sort = |keys: Size, elements: Option<&Type>| {
            let walked =
                matches!(elements, Some(Type::List(of)) if matches!(**of, Type::String | Type::Bytes));
            list(if walked { 2.1 } else { 2.0 }, keys.multiply(keys))
        };
        let target = self.target.map(Part::size_or_unknown);
        match (self.name, target) {
            ("slice", Some(target)) => {
                let end = self.written_size(1).unwrap_or(target.max);
                list(1.0, Size::exactly(end.wrapping_sub(self.written_size(0).unwrap_or(0))))
            }
            ("lists.range", None) => list(1.0, Size::exactly(self.written_size(0).unwrap_or(u64::MAX))),
            ("reverse", Some(target)) => list(1.0, target),
            ("flatten", Some(target)) => {
                let depth = if self.args.is_empty() { 1 } else { self.written_size(0).unwrap_or(u64::MAX) };
                #[expect(clippy::cast_precision_loss, reason = "upstream's arithmetic, with its rounding")]
                list(depth as f64, target)
            }
            ("distinct", Some(target)) => list(2.0, target.multiply(target)),
            ("sort", Some(target)) => sort(target, signature.args.first()),
            ("@sortByAssociatedKeys", Some(_)) => sort(self.arg(0), signature.args.get(1)),
            ("sets.contains" | "sets.intersects", None) => {
                Some(Charge::of(self.arg(0).multiply(self.arg(1)).max.saturating_add(1)))
            }
            ("sets.equivalent", None) => {
                Some(Charge::of(self.arg(0).multiply(self.arg(1)).cost(2.0).saturating_add(1)))
            }
            _ => None,
        }
    }

    fn of_kubernetes(&self, signature: &Signature) -> Option<Charge> {
        let target = self.target.map(Part::size_or_unknown);
        Some(match (self.name, target) {
            ("includes", Some(_)) => Charge::of(u64::try_from(INCLUDES_MAX).unwrap_or(u64::MAX)),
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target)) => {
                Charge::of(match self.element_walk() {
                    Some(walk) => target.max.saturating_mul(walk.saturating_add(1)),
                    None => target.walk(),
                })
            }
            ("url", _) => Charge::with(self.arg(0).walk(), self.arg(0)),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target)) => {
                Charge::with(target.walk(), target)
            }
            ("replace", Some(target)) => {
                Charge::with(target.cost(0.2), replaced(target, self.arg(0), self.arg(1)))
            }
            ("split", Some(target)) => {
                // A negative limit counts as a very large one.
                let most = self.written(1).map_or(target.max, i64::cast_unsigned);
                Charge::with(target.cost(0.2), Size { min: 0, max: most })
            }
            ("join", Some(target)) => {
                let joined = self.joined(target);
                Charge::with(joined.walk(), joined)
            }
            ("find" | "findAll", Some(target)) => {
                Charge::with(searched(target, self.arg(0)), Size { min: 0, max: target.max })
            }
            ("ip", _) if matches!(signature.args[..], [Type::Object("net.CIDR")]) => Charge::of(1),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _) => {
                Charge::of(self.arg(0).walk())
            }
            ("ip.isCanonical", _) => Charge::of(self.arg(0).cost(0.2)),
            ("containsIP" | "containsCIDR", Some(_)) => {
                let compared = ADDRESS.add(ADDRESS).walk();
                let masked = if self.name == "containsCIDR" { ADDRESS.walk() + 1 } else { 0 };
                let parsed =
                    if signature.args.get(1) == Some(&Type::String) { self.arg(0).walk() } else { 0 };
                Charge::of(parsed.saturating_add(compared + masked))
            }
            ("validate", Some(_)) => {
                Charge::of(scaled(self.arg(0).walk(), FORMAT_PATTERN * PER_PATTERN_CHARACTER))
            }
            ("_==_", _) => return self.equal(),
            _ => return None,
        })
    }

    /// Values of Kubernetes' own types are compared in one step.
    fn equal(&self) -> Option<Charge> {
        let [left, right] = self.args else { return None };
        match &left.of {
            of if *of != right.of => None,
            Type::Object("net.IP" | "net.CIDR" | QUANTITY | "kubernetes.Semver") => Some(Charge::of(1)),
            Type::Object("kubernetes.NamedFormat") => Some(Charge::of(Size::exactly(FORMAT_MAX).walk())),
            Type::Object("kubernetes.URL") => Some(Charge::of(right.size.unwrap_or(Size::ONE).walk())),
            _ => None,
        }
    }

    /// What walking over one element of the target costs; `None`: it is no list.
    fn element_walk(&self) -> Option<u64> {
        let target = self.target?;
        match target.of.first_part()? {
            Type::String | Type::Bytes => Some(self.element_size(target).walk()),
            _ => Some(0),
        }
    }

    fn element_size(&self, list: &Part<'_>) -> Size {
        let path = if list.path.is_empty() { Path::new() } else { below(&list.path, "@items") };
        (self.size_of)(&path).unwrap_or(Size::UNKNOWN)
    }

    fn joined(&self, list: Size) -> Size {
        let target = self.target.filter(|target| target.of.first_part().is_some());
        let elements = target.map_or(Size::NONE, |target| list.multiply(self.element_size(target)));
        if self.args.is_empty() {
            return elements;
        }
        let separators = Size { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
        elements.add(self.arg(0).multiply(separators))
    }

    fn of_language(&self, signature: &Signature) -> Option<Charge> {
        let text = |index: usize| matches!(signature.args.get(index), Some(Type::String | Type::Bytes));
        let target = self.target.map(Part::size_or_unknown);
        Some(match (self.name, target) {
            ("format", Some(target)) => Charge::of(target.walk()),
            ("bytes", None) if matches!(signature.args[..], [Type::String]) => {
                let from = self.arg(0);
                Charge::with(from.walk(), Size { min: from.min, max: from.max.wrapping_mul(4) })
            }
            ("string", None) if matches!(signature.args[..], [Type::Bytes]) => {
                let from = self.arg(0);
                Charge::with(from.walk(), Size { min: from.min / 4, max: from.max })
            }
            ("strings.quote", None) => {
                let from = self.arg(0);
                let max = from.max.wrapping_mul(2).wrapping_add(2);
                Charge::with(from.walk(), Size { min: from.min.wrapping_add(2), max })
            }
            ("startsWith" | "endsWith", Some(_)) => Charge::of(self.arg(0).walk()),
            ("@in", None) if matches!(signature.args.get(1), Some(Type::List(_))) => {
                Charge::of(self.arg(1).cost(1.0))
            }
            ("matches", Some(target)) => Charge::of(searched(target, self.arg(0))),
            ("contains", Some(target)) => Charge::of(target.walk().saturating_mul(self.arg(0).walk())),
            ("_?_:_", None) => Charge::with(0, self.arg(1).union(self.arg(2))),
            ("_+_", None) if text(0) => {
                let sum = self.arg(0).add(self.arg(1));
                Charge::with(sum.walk(), sum)
            }
            ("_+_", None) if matches!(signature.args.first(), Some(Type::List(_))) => {
                Charge::with(1, self.arg(0).add(self.arg(1)))
            }
            ("_<_" | "_>_" | "_<=_" | "_>=_", None) if text(0) => Charge::of(self.smaller().walk()),
            ("_==_" | "_!=_", None) => Charge::of(self.smaller().walk()),
            _ => return None,
        })
    }

    /// The size up to which two values are compared.
    fn smaller(&self) -> Size {
        Size { min: 0, max: self.arg(0).max.min(self.arg(1).max) }
    }
}

/// A search for a pattern.
fn searched(text: Size, pattern: Size) -> u64 {
    text.add(Size::ONE).walk().saturating_mul(pattern.cost(PER_PATTERN_CHARACTER))
}

/// The largest result of `replace`, and the smallest.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let (mut count, mut kept) = (Size::NONE, Size::NONE);
    if old.min == 0 {
        // An empty text is found before and behind each character.
        (count.max, kept.max) = (text.max.saturating_add(1), text.max);
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = pieces(text.max, old.min);
    }
    if old.max == 0 {
        (count.min, kept.min) = (text.min.saturating_add(1), text.min);
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = pieces(text.min, old.max);
    }
    count.multiply(new).add(kept)
}

/// How many pieces of a length cover a text.
#[expect(clippy::cast_precision_loss, reason = "upstream's arithmetic, with its rounding")]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast stops at the largest number"
)]
fn pieces(text: u64, length: u64) -> u64 {
    (text as f64 / length as f64).ceil() as u64
}
