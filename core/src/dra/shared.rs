//! Values that copies share until one of them is changed: equal nodes of a plan differ in names alone.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value with copies that are one value in memory. A change of a copy gives it a value of its own.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct SharedValue<T>(Arc<T>);

impl<T> SharedValue<T> {
    /// Equal for copies that are one value in memory; another value may have it later.
    #[must_use]
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl<T> Deref for SharedValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for SharedValue<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T: fmt::Debug> fmt::Debug for SharedValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> From<T> for SharedValue<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<A, T: FromIterator<A>> FromIterator<A> for SharedValue<T> {
    fn from_iter<I: IntoIterator<Item = A>>(items: I) -> Self {
        Self::from(items.into_iter().collect::<T>())
    }
}

impl<'a, T> IntoIterator for &'a SharedValue<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&*self.0).into_iter()
    }
}
