//! What a store, configured as it is, really gives: data that services may check before they start.
//!
//! Two stores with the same API can differ in what survives a fault. A program should be able to
//! check that in code, so it is data, stated by the store and tested by the conformance suite.

use std::time::Duration;

use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::token::FencingToken;
use crate::support::setters::setters;

/// What a store gives, as it is configured now: data for programs that check it before they start.
///
/// Stores differ in what their server can do. A program that works only with strictly ordered
/// waiters, or only with tokens that survive the loss of all data, should fail at its start and not
/// at the first fault.
/// [`leasehold::guarantees`](https://docs.rs/leasehold/latest/leasehold/guarantees) explains each
/// field for each store.
///
/// For a store of your own, begin with [`Guarantees::none`](crate::Guarantees::none) and state what
/// the conformance suite has shown.
///
/// # Examples
///
/// ```no_run
/// # fn example(store: leasehold_core::Store) {
/// use leasehold_core::Fairness;
///
/// let gives = store.guarantees();
/// assert!(gives.fairness == Fairness::Strict, "{} keeps no order", gives.store);
/// println!("a crash blocks others for the TTL and {:?} more", gives.recovery);
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Guarantees {
    /// The name of the store, such as `redis`.
    pub store: &'static str,
    /// What the order of the fencing tokens survives.
    pub fencing: Fencing,
    /// In which order waiters get the lock.
    pub fairness: Fairness,
    /// Whether a release wakes the next waiter by a push. Otherwise waiters poll.
    pub pushed_wake: bool,
    /// The shortest TTL. A shorter one is refused.
    pub min_ttl: Duration,
    /// TTLs are rounded up to a multiple of this.
    pub ttl_step: Duration,
    /// How much later than the end of its lease the lock of a dead holder may be granted to the
    /// next client. An upper bound, which depends on the store's own timers.
    pub recovery: Duration,
    /// How many names a [`MultiLock`](crate::MultiLock) takes in one step at most, so that no
    /// client sees a part of them held. More are taken one after the other. With 1, all are.
    pub atomic_multi: usize,
    /// Whether a lock that was released within its `min_hold` stays taken until then, and no
    /// longer, if its process ends first. Otherwise it is free as soon as the store notices that
    /// the process has gone, at the latest after its TTL.
    pub min_hold_outlives_process: bool,
    /// Whether tokens can be raised, so that they go on behind those of another store.
    pub raises: Raises,
    /// What else an operator should know, in one or two sentences.
    pub notes: &'static str,
    /// Why this very server may give less, by the settings that it had when the store connected.
    /// Empty if the store found nothing, or does not ask. [`Store::new`](crate::Store::new) also
    /// emits each as an event of level `WARN`, target `leasehold`.
    pub warnings: Vec<String>,
}

impl Guarantees {
    /// Nothing is guaranteed: the start of the description of a store.
    pub const fn none(store: &'static str) -> Guarantees {
        Guarantees {
            store,
            fencing: Fencing::None,
            fairness: Fairness::None,
            pushed_wake: false,
            min_ttl: Duration::from_millis(100),
            ttl_step: Duration::from_millis(1),
            recovery: Duration::from_secs(1),
            atomic_multi: 1,
            min_hold_outlives_process: false,
            raises: Raises::No,
            notes: "",
            warnings: Vec::new(),
        }
    }

    setters! {
        /// Sets what the order of the tokens survives.
        fencing: Fencing => fencing;
        /// Sets the order of waiters.
        fairness: Fairness => fairness;
        /// Sets whether a release wakes the next waiter by a push.
        pushed_wake: bool => pushed_wake;
        /// Sets how much later than its lease the lock of a dead holder may be granted.
        recovery: Duration => recovery;
        /// Sets how many names are taken in one step.
        atomic_multi: usize => atomic_multi;
        /// Sets whether a `min_hold` is kept when its process ends.
        min_hold_outlives_process: bool => min_hold_outlives_process;
        /// Sets whether tokens can be raised.
        raises: Raises => raises;
        /// Sets the notes for operators.
        notes: &'static str => notes;
    }

    /// Sets the shortest TTL, and the step to which TTLs are rounded up.
    #[must_use]
    pub const fn ttl(mut self, min: Duration, step: Duration) -> Guarantees {
        self.min_ttl = min;
        self.ttl_step = step;
        self
    }

    /// Sets the warnings about this server.
    #[must_use]
    pub fn warnings(mut self, warnings: Vec<String>) -> Guarantees {
        self.warnings = warnings;
        self
    }

    /// Refuses a store whose tokens promise less than this.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported), with the name of the store and what it
    /// gives.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{ErrorKind, Fencing, Guarantees};
    ///
    /// let redlock_like = Guarantees::none("x").fencing(Fencing::WhileDataLives);
    /// assert!(redlock_like.require_fencing(Fencing::WhileDataLives).is_ok());
    /// let refused = redlock_like.require_fencing(Fencing::SurvivesDataLoss).unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Unsupported);
    /// ```
    pub fn require_fencing(&self, at_least: Fencing) -> Result<()> {
        if self.fencing >= at_least {
            return Ok(());
        }
        let message = format!("{} gives fencing {:?}, and {at_least:?} is required", self.store, self.fencing);
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// What the order of fencing tokens survives. The variants are ordered: a later one promises more.
///
/// # Examples
///
/// ```
/// use leasehold_core::Fencing;
///
/// assert!(Fencing::SurvivesDataLoss > Fencing::WhileDataLives);
/// assert!(Fencing::WhileDataLives > Fencing::None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Fencing {
    /// The tokens of a name may fall. A resource cannot rely on them.
    None,
    /// Tokens rise as long as the store keeps its data. After a loss of data or a restore, a new
    /// holder may have a smaller token than an old one.
    WhileDataLives,
    /// Tokens rise also when the store has lost its data, as long as its clock does not step back
    /// past the loss.
    SurvivesDataLoss,
}

/// In which order waiters get the lock. The variants are ordered: a later one promises more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Fairness {
    /// In any order. A waiter may be passed, also for ever.
    None,
    /// A waiter may be passed, but not for ever.
    Bounded,
    /// `fair` claims get the lock in the order in which the store recorded them.
    Strict,
}

/// Whether a store can raise its tokens above a number that it did not give out itself: what a move from another store to
/// this one needs, or back (clauses S16 and S17 of [`Backend`](crate::seam::Backend)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Raises {
    /// It cannot.
    No,
    /// The tokens of places that are taken afterwards, up to this number: the store numbers a place when it is *taken*.
    Places(FencingToken),
    /// Also that of a hold, up to this number: the store numbers a hold when it is *granted*.
    Holds(FencingToken),
}

impl Raises {
    /// How far; `None`: not at all.
    pub const fn limit(&self) -> Option<FencingToken> {
        match self {
            Raises::No => None,
            Raises::Places(limit) | Raises::Holds(limit) => Some(*limit),
        }
    }

    /// What a store asks before it does anything for a claim with this [`floor`](crate::seam::Claim), or for a
    /// [`raise`](crate::seam::Backend::raise) to it (S16, S17): is it within the limit? The limit itself is. Without a floor there
    /// is nothing to refuse, and where nothing is raised a floor changes nothing, however great it is.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a number beyond the limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{FencingToken, Raises};
    ///
    /// const RAISES: Raises = Raises::Holds(FencingToken::new(1_000));
    /// assert!(RAISES.check(Some(FencingToken::new(1_000))).is_ok());
    /// assert!(RAISES.check(Some(FencingToken::new(1_001))).is_err());
    /// ```
    pub fn check(&self, floor: Option<FencingToken>) -> Result<()> {
        match (self.limit(), floor) {
            (Some(limit), Some(floor)) if floor > limit => {
                Err(Error::new(ErrorKind::Invalid, format!("tokens cannot be raised to {floor}, only to {limit}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_floor_beyond_the_limit_is_refused() {
        let (limit, beyond) = (FencingToken::new(1 << 62), FencingToken::new((1 << 62) + 1));
        for raises in [Raises::Places(limit), Raises::Holds(limit)] {
            assert!(
                [None, Some(FencingToken::new(0)), Some(limit)].into_iter().all(|floor| raises.check(floor).is_ok())
            );
            let refused = raises.check(Some(beyond)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert_eq!(refused.to_string(), format!("tokens cannot be raised to {beyond}, only to {limit}"));
        }
        assert!([None, Some(beyond)].into_iter().all(|floor| Raises::No.check(floor).is_ok()));
    }

    #[test]
    fn a_store_whose_tokens_promise_less_is_refused() {
        let all = [Fencing::None, Fencing::WhileDataLives, Fencing::SurvivesDataLoss];
        for (given, gives) in all.into_iter().enumerate() {
            for (required, at_least) in all.into_iter().enumerate() {
                let checked = Guarantees::none("x").fencing(gives).require_fencing(at_least);
                assert_eq!(checked.is_ok(), given >= required, "{gives:?} for {at_least:?}");
                if let Err(e) = checked {
                    assert_eq!(e.kind(), ErrorKind::Unsupported);
                }
            }
        }
    }
}
