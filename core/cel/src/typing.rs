//! Static types, and which type may stand where another is expected.
//!
//! `dyn` and `any` (an attribute's type) fit everywhere. Type parameters are bound as they are met; when a later use
//! needs a more general binding, the more general one wins.

use std::fmt;
use std::sync::Arc;

/// A static type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    Dyn,
    /// As [`Type::Dyn`], but not something to walk over: the type of an attribute.
    Any,
    List(Arc<Self>),
    Map(Arc<(Self, Self)>),
    Optional(Arc<Self>),
    /// The type of a type.
    Meta(Arc<Self>),
    Object(&'static str),
    Param(u32),
}

/// Most nodes a type may have; a type that doubles at every step would otherwise take for ever to compare.
const SIZE_MAX: usize = 1_000;

/// Bindings of type parameters, undone where a signature does not fit.
#[derive(Default)]
pub(super) struct Bindings {
    bound: Vec<Option<Type>>,
    /// What each change overwrote, oldest first.
    trail: Vec<(usize, Option<Type>)>,
}

// === impl Type ===

impl Type {
    pub(super) fn list(element: Self) -> Self {
        Self::List(Arc::new(element))
    }

    pub(super) fn map(key: Self, value: Self) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    pub(super) fn optional(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    pub(super) fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any)
    }

    fn is_nullable(&self) -> bool {
        matches!(self, Self::Null | Self::Optional(_) | Self::Object(_))
    }

    /// The types this one is made of.
    fn parts(&self) -> [Option<&Self>; 2] {
        match self {
            Self::List(inner) | Self::Optional(inner) | Self::Meta(inner) => [Some(&**inner), None],
            Self::Map(pair) => [Some(&pair.0), Some(&pair.1)],
            _ => [None, None],
        }
    }

    /// The type of what a list holds, of the keys of a map, or of what an optional or a type is about.
    pub(super) fn first_part(&self) -> Option<&Self> {
        self.parts()[0]
    }

    fn same_shape(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether the type is too large to work with.
    pub(super) fn is_oversized(&self) -> bool {
        fn count(of: &Type, left: &mut usize) {
            if let Some(rest) = left.checked_sub(1) {
                *left = rest;
                of.parts().into_iter().flatten().for_each(|part| count(part, left));
            }
        }
        let mut left = SIZE_MAX;
        count(self, &mut left);
        left == 0
    }

    /// Whether this type says no more than `other` does.
    fn is_at_most_as_specific(&self, other: &Self) -> bool {
        if self.is_dyn() || matches!(self, Self::Param(_)) {
            return true;
        }
        if other.is_dyn() || matches!(other, Self::Param(_)) {
            return false;
        }
        match (self, other) {
            (Self::Meta(_), Self::Meta(_)) => true,
            (Self::List(_) | Self::Map(_) | Self::Optional(_), _) if self.same_shape(other) => {
                let pairs = self.parts().into_iter().flatten().zip(other.parts().into_iter().flatten());
                pairs.into_iter().all(|(a, b)| a.is_at_most_as_specific(b))
            }
            _ => self == other,
        }
    }
}

/// The more general of two types that go together.
pub(super) fn most_general(a: &Type, b: &Type) -> Type {
    if a.is_at_most_as_specific(b) { a.clone() } else { b.clone() }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Bytes => f.write_str("bytes"),
            Self::Null => f.write_str("null"),
            Self::Dyn | Self::Param(_) => f.write_str("dyn"),
            Self::Any => f.write_str("any"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Map(pair) => write!(f, "map({}, {})", pair.0, pair.1),
            Self::Optional(value) => write!(f, "optional({value})"),
            Self::Meta(of) => write!(f, "type({of})"),
            Self::Object(name) => f.write_str(name),
        }
    }
}

// === impl Bindings ===

impl Bindings {
    /// A parameter that nothing is known about.
    pub(super) fn fresh(&mut self) -> Type {
        self.bound.push(None);
        Type::Param(u32::try_from(self.bound.len() - 1).unwrap_or(u32::MAX))
    }

    fn find(&self, param: u32) -> Option<&Type> {
        self.bound.get(usize::try_from(param).ok()?)?.as_ref()
    }

    fn set(&mut self, param: u32, to: Type) {
        let index = usize::try_from(param).unwrap_or(usize::MAX);
        if let Some(slot) = self.bound.get_mut(index) {
            self.trail.push((index, slot.replace(to)));
        }
    }

    /// Whether a value of type `from` may stand where `to` is expected; binds parameters only if so.
    pub(super) fn assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.assignable_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    /// As [`Self::assignable`], for argument lists.
    pub(super) fn assignable_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        self.trail.clear();
        let fits = from.len() == to.len() && from.iter().zip(to).all(|(from, to)| self.unify(from, to));
        if !fits {
            while let Some((index, old)) = self.trail.pop() {
                self.bound[index] = old;
            }
        }
        fits
    }

    fn unify(&mut self, from: &Type, to: &Type) -> bool {
        if let Type::Param(param) = to {
            match self.substitutes(from, *param) {
                Some(true) => return true,
                Some(false) => return false,
                None => {}
            }
        }
        if let Type::Param(param) = from {
            return self.substitutes(to, *param) == Some(true);
        }
        if from.is_dyn() || to.is_dyn() {
            return true;
        }
        if matches!(from, Type::Null) {
            return to.is_nullable();
        }
        if matches!(to, Type::Null) {
            return from.is_nullable();
        }
        match from {
            Type::Meta(_) => matches!(to, Type::Meta(_)),
            Type::List(_) | Type::Map(_) | Type::Optional(_) => {
                from.same_shape(to)
                    && from.parts().into_iter().zip(to.parts()).all(|pair| match pair {
                        (Some(from), Some(to)) => self.unify(from, to),
                        (None, None) => true,
                        _ => false,
                    })
            }
            _ => from == to,
        }
    }

    /// Whether `candidate` may be what `param` stands for; `None`: the parameter is free, but the candidate contains it.
    fn substitutes(&mut self, candidate: &Type, param: u32) -> Option<bool> {
        if *candidate == Type::Param(param) {
            return Some(true);
        }
        if let Some(known) = self.find(param).cloned() {
            if *candidate == known {
                return Some(true);
            }
            if !self.unify(candidate, &known) {
                return Some(false);
            }
            let general = most_general(candidate, &known);
            if self.is_absent(param, &general) {
                self.set(param, general);
            }
            return Some(true);
        }
        if self.is_absent(param, candidate) {
            self.set(param, candidate.clone());
            return Some(true);
        }
        None
    }

    /// Whether `param` does not occur in `within`.
    fn is_absent(&self, param: u32, within: &Type) -> bool {
        match within {
            Type::Param(other) if *other == param => false,
            Type::Param(other) => self.find(*other).is_none_or(|bound| self.is_absent(param, bound)),
            _ => within.parts().into_iter().flatten().all(|part| self.is_absent(param, part)),
        }
    }

    /// As [`Self::resolve`], with `dyn` for parameters that nothing is known about.
    pub(super) fn settled(&self, of: &Type) -> Type {
        match of {
            Type::Param(param) => self.find(*param).map_or(Type::Dyn, |bound| self.settled(bound)),
            Type::List(element) => Type::list(self.settled(element)),
            Type::Map(pair) => Type::map(self.settled(&pair.0), self.settled(&pair.1)),
            Type::Optional(value) => Type::optional(self.settled(value)),
            Type::Meta(inner) => Type::Meta(Arc::new(self.settled(inner))),
            _ => of.clone(),
        }
    }

    /// `of` with every bound parameter replaced.
    pub(super) fn resolve(&self, of: &Type) -> Type {
        match of {
            Type::Param(param) => self.find(*param).map_or_else(|| of.clone(), |bound| self.resolve(bound)),
            Type::List(element) => Type::list(self.resolve(element)),
            Type::Map(pair) => Type::map(self.resolve(&pair.0), self.resolve(&pair.1)),
            Type::Optional(value) => Type::optional(self.resolve(value)),
            Type::Meta(inner) => Type::Meta(Arc::new(self.resolve(inner))),
            _ => of.clone(),
        }
    }
}
