//! Bounds for resources: what a function may ask of a guard, real or a test's double.
//!
//! A function of a resource should take the bound that it needs, not a concrete guard: then a test
//! can pass a double, and a view, a guard and a leadership all fit.

use std::fmt::Debug;
use std::time::Duration;

use crate::seam::claim::Place;
use crate::seam::loss::{Loss, Lost};
use crate::seam::name::Name;
use crate::seam::token::FencingToken;

/// Something that is held for a while and may be lost: a bound for functions that work with a real
/// guard or with a test double.
///
/// Each guard of this crate implements it, and has the same methods of its own, so the trait need
/// not be imported to call them.
///
/// # Examples
///
/// ```
/// use leasehold_core::Lease;
///
/// /// Stops between two steps when the lock is lost.
/// fn steps(lease: &impl Lease, steps: impl Iterator<Item = fn()>) -> bool {
///     for step in steps {
///         if !lease.is_valid() {
///             return false;
///         }
///         step();
///     }
///     true
/// }
/// ```
pub trait Lease: Send + Sync + Debug {
    /// Why the hold ended; `None` while it is provably held. It is computed at each call, and sends
    /// nothing.
    fn loss(&self) -> Option<Loss>;

    /// How much longer it is provably held if no renewal succeeds. Zero after its end.
    fn remaining(&self) -> Duration;

    /// A future that resolves when the hold has ended. It owns what it needs, and can be dropped at
    /// any time.
    fn lost(&self) -> Lost;

    /// Whether it is provably held at this instant.
    fn is_valid(&self) -> bool {
        self.loss().is_none()
    }
}

/// A lease with one name and one fencing token: what a resource needs to refuse a stale writer.
///
/// Take `&impl Fenced` in the functions of a resource instead of a bare number: the caller cannot
/// pass a number that is no token, and a test can pass a double.
///
/// # Examples
///
/// ```
/// use leasehold_core::{Fenced, FencingToken};
///
/// /// A row that remembers the greatest token it has seen.
/// struct Row { seen: FencingToken, value: String }
///
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
    /// The name of the lock, as its user wrote it.
    fn name(&self) -> &Name;

    /// The token to send to the resource with each write.
    fn fencing_token(&self) -> FencingToken;

    /// The name of the lock in the store, namespaces included. The store's own condition
    /// (`still_holds`) uses it, because two namespaces may have a lock of the same short name.
    fn full_name(&self) -> &Name {
        self.name()
    }

    /// Where the hold is in the store: a key, the path of a node. `None` for a test double, which
    /// no store has granted.
    fn place(&self) -> Option<Place> {
        None
    }
}
