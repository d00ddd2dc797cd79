//! Bounds for resources: what a function may ask of a guard, real or a test's double.
//!
//! A function of a resource should take the bound that it needs, not a concrete guard: then a test
//! can pass a double, and a view, a guard and a leadership all fit.

use std::fmt::Debug;
use std::time::Duration;

use crate::backend::claim::Place;
use crate::backend::error::Result;
use crate::backend::loss::{Loss, Lost};
use crate::backend::name::Name;
use crate::backend::token::FencingToken;

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

    /// The time for which it is provably held if no renewal succeeds. Zero after its end.
    fn remaining(&self) -> Duration;

    /// The TTL of the lease that the store granted, as it said last. A double that does not say it has what remains.
    fn granted_ttl(&self) -> Duration {
        self.remaining()
    }

    /// A future that resolves when the hold has ended. It owns what it needs, and can be dropped at
    /// any time.
    fn lost(&self) -> Lost;

    /// Returns whether it is provably held at this instant.
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

    /// The place of the hold in the store: a key, the path of a node. `None` for a test double,
    /// which no store has granted.
    fn place(&self) -> Option<Place> {
        None
    }

    /// Checks that a condition for a transaction of one store (`still_holds`) covers this hold: no
    /// other client or task has the lock before such a transaction has ended.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with the reason: the hold of a
    /// [`fast`](crate::Lock::fast) lock goes from task to task, and a hold over a bridge is free in
    /// one store once its lease has ended there, regardless of a transaction in the other store.
    fn check_condition(&self) -> Result<()> {
        Ok(())
    }
}
