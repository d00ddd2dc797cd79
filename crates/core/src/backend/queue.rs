//! The holders and waiters of a lock, for people.
//!
//! Displays and error messages use it. It is never used to decide whether a lock is held.

use std::time::{Duration, SystemTime};

use crate::backend::admission::holding;
use crate::backend::claim::Mode;
use crate::backend::contention::Contention;
use crate::backend::token::FencingToken;
use crate::support::setters::setters;

/// The contention by an entry that holds. The time for which it is held counts from its `since`.
impl From<&Participant> for Contention {
    fn from(holder: &Participant) -> Contention {
        let held_for = holder
            .since
            .map(|since| since.elapsed().unwrap_or_default());
        let label = holder.label.clone();
        let token = holder.token;
        let foreign = holder.foreign;
        Contention {
            label,
            token,
            held_for,
            foreign,
            waiters: None,
        }
    }
}

/// The queue of one lock at one moment: its holders and its waiters, as
/// [`Lock::inspect`](crate::Lock::inspect) returns it.
///
/// All modes of a name share one queue: a writer that waits behind readers, and a reader that waits
/// behind that writer, are in it in their order. It is a snapshot for people and tools.
///
/// It shows what the store knows. A task that waits inside its client has no place in the store,
/// and is not in it: a task that waits for a turn of `fast`, for another task of its
/// [`Owner`](crate::Owner), or because too many claims of its client are under way.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let queue = store.lock("orders/42").inspect().await?;
/// for holder in &queue.holders {
///     println!("{:?} holds it with token {:?}", holder.label, holder.token);
/// }
/// println!("{} wait", queue.waiters.len());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LockQueue {
    /// The holders, the oldest first. More than one if they are readers, or hold permits.
    pub holders: Vec<Participant>,
    /// The waiters, in the order of the queue.
    pub waiters: Vec<Participant>,
}

impl LockQueue {
    /// A queue with these holders and waiters.
    pub fn new(holders: Vec<Participant>, waiters: Vec<Participant>) -> LockQueue {
        LockQueue { holders, waiters }
    }

    /// A queue of these entries, in their order. The rule of [`admit`](crate::backend::admit)
    /// decides how many of the first hold.
    ///
    /// It is for stores that know the order but do not record which entries hold. Each entry comes
    /// with the token that it has if it holds; waiters lose it.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::backend::Mode;
    /// use leasehold_core::{FencingToken, LockQueue, Participant};
    ///
    /// let entry = |label: &str, n| Participant::new(label).token(FencingToken::new(n));
    /// let queue = LockQueue::in_order([
    ///     (Mode::Shared, entry("reader", 1)),
    ///     (Mode::Exclusive, entry("writer", 2)),
    ///     (Mode::Shared, entry("late reader", 3)),
    /// ]);
    /// assert_eq!((queue.holders.len(), queue.waiters.len()), (1, 2));
    /// assert_eq!(queue.waiters[0].token, None); // it does not hold the lock yet
    /// ```
    pub fn in_order(queue: impl IntoIterator<Item = (Mode, Participant)>) -> LockQueue {
        let queue = queue
            .into_iter()
            .map(|(mode, entry)| (mode, entry.mode(mode)));
        let (modes, mut holders): (Vec<Mode>, Vec<Participant>) = queue.unzip();
        let mut waiters = holders.split_off(holding(&modes));
        waiters.iter_mut().for_each(|waiter| waiter.token = None);
        LockQueue { holders, waiters }
    }

    /// The contention that a new claim would meet: the first holder, and the number of clients that
    /// wait.
    pub fn contention(&self) -> Contention {
        self.holders
            .first()
            .map_or_else(Contention::unknown, Contention::from)
            .waiters(self.waiters.len())
    }
}

/// One holder or waiter of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Participant {
    /// Its label. For another tool it is the text that the tool wrote, shortened, if the store can
    /// read it.
    pub label: Option<String>,
    /// Its fencing token, if it holds the lock.
    pub token: Option<FencingToken>,
    /// The time since which it holds or waits, by the wall clock of the store. etcd and ZooKeeper
    /// know of a holder only when it took its place in the queue.
    pub since: Option<SystemTime>,
    /// True if it is another tool, not Leasehold.
    pub foreign: bool,
    /// The mode in which it holds or wants to hold: exclusive, shared, or a number of permits.
    /// `None` if the store does not say (Redlock).
    pub mode: Option<Mode>,
    /// For another tool's hold, if the store can end it: the number by which
    /// [`evict`](crate::Store::evict) ends this very hold, in place of a token. It is computed from
    /// the data that the tool wrote, and is greater than all tokens of the store.
    pub evict_by: Option<FencingToken>,
    /// For another tool's hold, if the store can tell: the time after which the store ends it by
    /// itself; [`Duration::MAX`] if never.
    pub ends_in: Option<Duration>,
}

impl Participant {
    /// A participant with this label.
    pub fn new(label: impl Into<String>) -> Participant {
        Participant {
            label: Some(label.into()),
            ..Participant::default()
        }
    }

    /// A participant that is another tool.
    pub fn foreign() -> Participant {
        Participant {
            foreign: true,
            ..Participant::default()
        }
    }

    setters! {
        /// Sets its token.
        token: FencingToken => Some(token);
        /// Sets since when it holds or waits.
        since: SystemTime => Some(since);
        /// Sets how it holds or wants to hold.
        mode: Mode => Some(mode);
        /// Sets by which number it is evicted, if it is another tool.
        evict_by: FencingToken => Some(evict_by);
        /// Sets after how long the store ends it by itself, if it is another tool.
        ends_in: Duration => Some(ends_in);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(number: u64) -> Participant {
        Participant::new(format!("number {number}")).token(FencingToken::new(number))
    }

    #[test]
    fn the_first_of_a_queue_hold_and_the_rest_have_no_token_yet() {
        let modes = [Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared];
        let queue = LockQueue::in_order(modes.into_iter().zip([
            entry(1),
            entry(2),
            entry(3),
            Participant::foreign(),
        ]));
        assert_eq!(
            queue.holders,
            [entry(1), entry(2)].map(|entry| entry.mode(Mode::Shared))
        );
        assert_eq!(
            queue.waiters,
            [
                Participant::new("number 3").mode(Mode::Exclusive),
                Participant::foreign().mode(Mode::Shared)
            ]
        );
        let who = queue.contention();
        assert_eq!(
            (who.label.as_deref(), who.token, who.waiters),
            (Some("number 1"), entry(1).token, Some(2))
        );
        assert_eq!(
            LockQueue::in_order([]).contention(),
            Contention::unknown().waiters(0)
        );
    }

    #[test]
    fn a_holder_s_time_counts_from_its_since_and_is_never_negative() {
        let hour = Duration::from_secs(3600);
        let held_for = |since| Contention::from(&Participant::foreign().since(since)).held_for;
        assert!(held_for(SystemTime::now() - hour).is_some_and(|held| held >= hour));
        assert_eq!(
            held_for(SystemTime::now() + hour),
            Some(Duration::ZERO),
            "another machine's clock may be ahead"
        );
        assert_eq!(
            Contention::from(&Participant::foreign()),
            Contention::foreign()
        );
    }
}
