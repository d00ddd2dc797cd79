//! The guarantees of a store as it is configured: data that services may check before they start.
//!
//! Two stores with the same API can differ in what survives a fault. A program should be able to
//! check that in code. The guarantees are therefore data, stated by the store and tested by the
//! conformance suite.

use std::time::Duration;

use crate::backend::error::{Error, ErrorKind, Result};

/// A method that sets a field, for each in a list of `with_name(name: type)`.
macro_rules! with {
    ($($(#[$doc:meta])+ $with:ident($field:ident: $type:ty);)+) => {
        $(
            $(#[$doc])+
            #[must_use]
            pub const fn $with(mut self, $field: $type) -> Guarantees {
                self.$field = $field;
                self
            }
        )+
    };
}

/// The guarantees of a store as it is configured now: data for programs that check it before they
/// start.
///
/// Stores differ in what their server can do. A program that works only with strictly ordered
/// waiters, or only with tokens that survive the loss of all data, should fail at its start and not
/// at the first fault.
/// [`leasehold::guarantees`](https://docs.rs/leasehold/latest/leasehold/guarantees) explains each
/// of them for each store.
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
/// assert!(gives.fairness() == Fairness::Strict, "{} keeps no order", gives.store());
/// println!("a crash blocks others for the TTL and {:?} more", gives.recovery());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Guarantees {
    store: &'static str,
    fencing: Fencing,
    fairness: Fairness,
    min_ttl: Duration,
    max_ttl: Option<Duration>,
    recovery: Duration,
    atomic_multi: usize,
    min_hold_outlives_process: bool,
    notes: &'static str,
    warnings: Vec<String>,
    pushed_wake: bool,
    ttl_step: Duration,
    connections: Option<Connections>,
    once: bool,
    once_in_transaction: bool,
}

/// The connections to its server that one client has: see [`Guarantees::connections`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connections {
    /// The greatest number that is open at once.
    pub at_most: usize,
    /// The number that stays open while the client has nothing to do.
    pub idle: usize,
}

/// What programs check, or show to operators.
impl Guarantees {
    /// The name of the store, such as `redis`.
    pub const fn store(&self) -> &'static str {
        self.store
    }

    /// The faults that the order of the fencing tokens survives.
    pub const fn fencing(&self) -> Fencing {
        self.fencing
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
    /// let redlock_like = Guarantees::none("x").with_fencing(Fencing::WhileDataLives);
    /// assert!(redlock_like.require_fencing(Fencing::WhileDataLives).is_ok());
    /// let refused = redlock_like.require_fencing(Fencing::SurvivesDataLoss).unwrap_err();
    /// assert_eq!(refused.kind(), ErrorKind::Unsupported);
    /// ```
    pub fn require_fencing(&self, at_least: Fencing) -> Result<()> {
        if self.fencing >= at_least {
            return Ok(());
        }
        let message = format!(
            "{} gives fencing {:?}, and {at_least:?} is required",
            self.store, self.fencing
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// The order in which waiters get the lock.
    pub const fn fairness(&self) -> Fairness {
        self.fairness
    }

    /// The shortest TTL. A shorter one is refused.
    pub const fn min_ttl(&self) -> Duration {
        self.min_ttl
    }

    /// The longest lease that the store grants, as far as it knew when it was made. A longer TTL is
    /// not refused: the lease is this long, and [`Guard::granted_ttl`](crate::Guard::granted_ttl)
    /// says so. `None` if there is no such limit below [`MAX_TTL`](crate::MAX_TTL), or none is
    /// known.
    pub const fn max_ttl(&self) -> Option<Duration> {
        self.max_ttl
    }

    /// The delay between the end of a dead holder's lease and the grant to the next client: an
    /// upper bound, which depends on the store's own timers.
    pub const fn recovery(&self) -> Duration {
        self.recovery
    }

    /// The greatest number of names that a [`MultiLock`](crate::MultiLock) takes in one step, so
    /// that no client sees a part of them held. A greater number of names is taken one after the
    /// other; if this is 1, any number is.
    pub const fn atomic_multi(&self) -> usize {
        self.atomic_multi
    }

    /// Returns whether a lock that was released within its `min_hold` stays taken until the end of
    /// it, and no longer, also if its process ends first. Otherwise it is free as soon as the store
    /// notices that the process has gone, at the latest after its TTL.
    pub const fn min_hold_outlives_process(&self) -> bool {
        self.min_hold_outlives_process
    }

    /// The reasons why this very server may give less, by the settings that it had when the store
    /// connected. Empty if the store found nothing, or does not ask.
    /// [`Store::new`](crate::Store::new) also emits each as an event of level `WARN`, target
    /// `leasehold`.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The connections to its server that this client has, or borrows from a pool of the program, in
    /// a program with one runtime. `None` if the store does not say.
    pub const fn connections(&self) -> Option<Connections> {
        self.connections
    }

    /// Returns whether the store has [`once`](crate::Store::once): work that is done once.
    pub const fn once(&self) -> bool {
        self.once
    }

    /// Returns whether a transaction of the program can itself record that the work is done, so
    /// that the record and the work commit together.
    pub const fn once_in_transaction(&self) -> bool {
        self.once_in_transaction
    }

    /// Further notes for operators, in one or two sentences.
    pub const fn notes(&self) -> &'static str {
        self.notes
    }
}

/// What authors of stores state.
impl Guarantees {
    /// Nothing is guaranteed: the start of the description of a store.
    pub const fn none(store: &'static str) -> Guarantees {
        Guarantees {
            store,
            fencing: Fencing::None,
            fairness: Fairness::None,
            min_ttl: Duration::from_millis(100),
            max_ttl: None,
            recovery: Duration::from_secs(1),
            atomic_multi: 1,
            min_hold_outlives_process: false,
            notes: "",
            warnings: Vec::new(),
            pushed_wake: false,
            ttl_step: Duration::from_millis(1),
            connections: None,
            once: false,
            once_in_transaction: false,
        }
    }

    with! {
        /// Sets what the order of the tokens survives.
        with_fencing(fencing: Fencing);
        /// Sets the order of waiters.
        with_fairness(fairness: Fairness);
        /// Sets the longest lease that the store grants.
        with_max_ttl(max_ttl: Option<Duration>);
        /// Sets how much later than its lease the lock of a dead holder may be granted.
        with_recovery(recovery: Duration);
        /// Sets how many names are taken in one step.
        with_atomic_multi(atomic_multi: usize);
        /// Sets whether a `min_hold` is kept when its process ends.
        with_min_hold_outlives_process(min_hold_outlives_process: bool);
        /// Sets the notes for operators.
        with_notes(notes: &'static str);
        /// Sets whether a release wakes the next waiter by a push.
        with_pushed_wake(pushed_wake: bool);
        /// Sets the connections of one client to its server.
        with_connections(connections: Option<Connections>);
        /// Sets whether the store records completions.
        with_once(once: bool);
        /// Sets whether a transaction of the program can record a completion.
        with_once_in_transaction(once_in_transaction: bool);
    }

    /// Sets the shortest TTL, and the step to which TTLs are rounded up.
    #[must_use]
    pub const fn with_ttl(mut self, min: Duration, step: Duration) -> Guarantees {
        self.min_ttl = min;
        self.ttl_step = step;
        self
    }

    /// Sets the warnings about this server.
    #[must_use]
    pub fn with_warnings(mut self, warnings: Vec<String>) -> Guarantees {
        self.warnings = warnings;
        self
    }

    /// Returns whether a release wakes the next waiter by a push. Otherwise waiters poll.
    pub const fn pushed_wake(&self) -> bool {
        self.pushed_wake
    }

    /// TTLs are rounded up to a multiple of this.
    pub const fn ttl_step(&self) -> Duration {
        self.ttl_step
    }
}

/// The faults that the order of fencing tokens survives. The variants are ordered: a later one
/// promises more.
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

/// The order in which waiters get the lock. The variants are ordered: a later one promises more.
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

/// As an object of the fields above, with durations in milliseconds (`min_ttl_ms`) and words such
/// as `survives_data_loss`.
#[cfg(feature = "serde")]
impl serde::Serialize for Guarantees {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let fencing = match self.fencing {
            Fencing::SurvivesDataLoss => "survives_data_loss",
            Fencing::WhileDataLives => "while_data_lives",
            _ => "none",
        };
        let fairness = match self.fairness {
            Fairness::Strict => "strict",
            Fairness::Bounded => "bounded",
            _ => "none",
        };
        let mut data = serializer.serialize_struct("Guarantees", 16)?;
        data.serialize_field("store", self.store)?;
        data.serialize_field("fencing", fencing)?;
        data.serialize_field("fairness", fairness)?;
        data.serialize_field("pushed_wake", &self.pushed_wake)?;
        data.serialize_field("min_ttl_ms", &millis(self.min_ttl))?;
        data.serialize_field("max_ttl_ms", &self.max_ttl().map(millis))?;
        data.serialize_field("ttl_step_ms", &millis(self.ttl_step))?;
        data.serialize_field("recovery_ms", &millis(self.recovery))?;
        data.serialize_field("atomic_multi", &self.atomic_multi)?;
        data.serialize_field("min_hold_outlives_process", &self.min_hold_outlives_process)?;
        let connections = self.connections.map(|it| (it.at_most, it.idle)).unzip();
        data.serialize_field("connections_at_most", &connections.0)?;
        data.serialize_field("connections_idle", &connections.1)?;
        data.serialize_field("once", &self.once)?;
        data.serialize_field("once_in_transaction", &self.once_in_transaction)?;
        data.serialize_field("notes", self.notes)?;
        data.serialize_field("warnings", &self.warnings)?;
        data.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_whose_tokens_promise_less_is_refused() {
        let all = [
            Fencing::None,
            Fencing::WhileDataLives,
            Fencing::SurvivesDataLoss,
        ];
        for (given, gives) in all.into_iter().enumerate() {
            for (required, at_least) in all.into_iter().enumerate() {
                let checked = Guarantees::none("x")
                    .with_fencing(gives)
                    .require_fencing(at_least);
                assert_eq!(
                    checked.is_ok(),
                    given >= required,
                    "{gives:?} for {at_least:?}"
                );
                if let Err(e) = checked {
                    assert_eq!(e.kind(), ErrorKind::Unsupported);
                }
            }
        }
    }
}
