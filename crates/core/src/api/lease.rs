//! Bounds for resources: what a function may ask of a guard, real or a test's double.

use std::fmt::Debug;
use std::time::Duration;

use crate::seam::claim::Place;
use crate::seam::loss::{Loss, Lost};
use crate::seam::name::Name;
use crate::seam::token::FencingToken;

/// Something that is held for a while and may be lost. Every guard is one, and has the same methods as its own, so nobody
/// imports this trait to call them.
pub trait Lease: Send + Sync + Debug {
    /// Why it ended; `None` while it is provably held. Computed now.
    fn loss(&self) -> Option<Loss>;

    /// For how much longer it is provably held if nothing renews it.
    fn remaining(&self) -> Duration;

    /// Resolves when it has ended.
    fn lost(&self) -> Lost;

    /// Whether it is provably held at this instant.
    fn is_valid(&self) -> bool {
        self.loss().is_none()
    }
}

/// A lease with one name and one fencing token: what a resource needs to refuse a stale writer.
///
/// ```
/// use leasehold_core::{Fenced, FencingToken};
/// /// A row that remembers the greatest token it has seen.
/// struct Row { seen: FencingToken, value: String }
/// impl Row {
///     fn write(&mut self, by: &impl Fenced, value: &str) -> Result<(), &'static str> {
///         if by.fencing_token() < self.seen {
///             return Err("a later holder has written already");
///         }
///         self.seen = by.fencing_token();
///         self.value = value.to_owned();
///         Ok(())
///     }
/// }
/// ```
pub trait Fenced: Lease {
    /// The lock's name.
    fn name(&self) -> &Name;

    /// The token to hand to the resource.
    fn fencing_token(&self) -> FencingToken;

    /// The lock's name in the store, namespaces included: what the store's own condition (`still_holds`) goes by.
    fn full_name(&self) -> &Name {
        self.name()
    }

    /// Where the hold stands in the store, a key or a node's path, if the store gave one. A test's double has none.
    fn place(&self) -> Option<Place> {
        None
    }
}
