//! The variable of an expression: its fields, their types and how large they can be.

use super::declarations::QUANTITY;
use super::typing::Type;

/// The one variable of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Name of the variable.
    pub variable: &'static str,
    /// Name of its type, as messages print it.
    pub type_name: &'static str,
    /// Its fields.
    pub fields: &'static [(&'static str, FieldType)],
    /// The largest sizes of values, by the names that lead to them from the variable down: characters, elements, entries.
    /// `@keys` are the keys of a map, `@values` its values by a computed key, and `*` is any value of a map.
    pub sizes: &'static [(&'static [&'static str], usize)],
}

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// A bool.
    Bool,
    /// An integer.
    Int,
    /// A string.
    String,
    /// A quantity.
    Quantity,
    /// Any type but a list; it is known at the evaluation.
    Any,
    /// Any type, lists among them; it is known at the evaluation.
    Dyn,
    /// A map from strings.
    Map(&'static Self),
}

// === impl Environment ===

impl Environment {
    /// The type of a field.
    pub(super) fn field(&self, name: &str) -> Option<Type> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, of)| of.as_type())
    }

    /// Whether a result of this type can turn out to be a bool.
    pub(super) fn may_yield(&self, found: &Type) -> bool {
        match found {
            Type::Bool | Type::Any => true,
            Type::Dyn => self.fields.iter().any(|(_, of)| of.has_dyn()),
            _ => false,
        }
    }
}

// === impl FieldType ===

impl FieldType {
    fn has_dyn(self) -> bool {
        match self {
            Self::Dyn => true,
            Self::Map(of) => of.has_dyn(),
            Self::Bool | Self::Int | Self::String | Self::Quantity | Self::Any => false,
        }
    }

    fn as_type(self) -> Type {
        match self {
            Self::Bool => Type::Bool,
            Self::Int => Type::Int,
            Self::String => Type::String,
            Self::Quantity => Type::Object(QUANTITY),
            Self::Any => Type::Any,
            Self::Dyn => Type::Dyn,
            Self::Map(of) => Type::map(Type::String, of.as_type()),
        }
    }
}
