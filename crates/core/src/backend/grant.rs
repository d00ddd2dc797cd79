//! The types of a store's answers.
//!
//! Exclusion rests on the instant from which a lease counts. A store must state it with each
//! answer, because only the store knows which request has extended the lease.

use std::time::Duration;

use crate::backend::claim::Place;
use crate::backend::clock::Moment;
use crate::backend::completion::Completion;
use crate::backend::contention::Contention;
use crate::backend::error::Error;
use crate::backend::loss::Loss;
use crate::backend::token::{FencingToken, TURNS_OF_A_PLACE, token_of_place};
use crate::support::fault;

/// The answer of a store to a claim.
#[derive(Debug)]
pub enum Claimed {
    /// The claim holds the lock.
    Granted(Grant),
    /// The claim has a place in the queue.
    Waiting(Waiting),
    /// Another client is in the way, and nothing of this claim is left in the store. Only for a
    /// [`Try`](crate::backend::WaitPolicy).
    Busy(Contention),
    /// The work that the claim asks for is done, and nothing of this claim is left in the store.
    /// Only for a claim with [`once`](crate::backend::Claim::once) (S19).
    Done(Completion),
}

/// The answer of a store to several claims that are granted together, or not at all.
#[derive(Debug)]
pub enum ClaimedAll {
    /// All of them hold: their grants, in the order of the claims.
    Granted(Vec<Grant>),
    /// None of them was granted. The fields are the index (from 0) of the first claim with another
    /// client in its way, and the facts known about that client.
    Busy(usize, Contention),
}

impl FromIterator<Claimed> for ClaimedAll {
    /// Makes one answer of the answers to each claim: all grants, or the first claim that was not
    /// granted.
    fn from_iter<I: IntoIterator<Item = Claimed>>(answers: I) -> ClaimedAll {
        let mut grants = Vec::new();
        for (i, answer) in answers.into_iter().enumerate() {
            match answer {
                Claimed::Granted(grant) => grants.push(grant),
                Claimed::Waiting(Waiting { who, .. }) | Claimed::Busy(who) => {
                    return ClaimedAll::Busy(i, who);
                }
                // No claim of several asks for work that is done once.
                Claimed::Done(_) => return ClaimedAll::Busy(i, Contention::unknown()),
            }
        }
        ClaimedAll::Granted(grants)
    }
}

/// A place in the queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The place of the claim in the store.
    pub place: Place,
    /// The facts known about the holder in front of it.
    pub who: Contention,
    /// The delay after which core claims again without a notification, for example just after the
    /// end of the holder's lease. `None` if the store notifies in that case too.
    ///
    /// Only the store knows when a dead holder's lease ends, and whether the holder is another tool
    /// that does not notify.
    pub retry_after: Option<Duration>,
}

impl Waiting {
    /// A place in the queue behind this holder.
    pub fn new(place: Place, who: Contention) -> Waiting {
        Waiting {
            place,
            who,
            retry_after: None,
        }
    }

    /// Asks core to claim again after `d`, also without a notification.
    #[must_use]
    pub fn retry_after(mut self, d: Duration) -> Waiting {
        self.retry_after = Some(d);
        self
    }
}

/// A grant: the place, the token, and the time for which it surely holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The place of the claim in the store.
    pub place: Place,
    /// The fencing token of the first turn.
    pub token: FencingToken,
    /// The number of consecutive tokens, from `token` on, that are reserved for this grant. Core
    /// gives them to tasks of one process that take turns under one claim, so that a local turn
    /// needs no request.
    pub turns: u32,
    /// The time for which it surely holds.
    pub validity: Validity,
}

impl Grant {
    /// A grant with one token.
    pub fn new(place: Place, token: FencingToken, validity: impl Into<Validity>) -> Grant {
        Grant {
            place,
            token,
            turns: 1,
            validity: validity.into(),
        }
    }

    /// A grant of the place with this number, with 256 turns, for a store that numbers places when
    /// they are *taken*.
    ///
    /// A token that is drawn when a turn begins would exceed the numbers of claims that already
    /// stand behind it. The token is therefore made of the number of the place and the turn in its
    /// low bits: `number << 8`, plus the turn.
    pub fn of_place(place: Place, number: i64, validity: impl Into<Validity>) -> Grant {
        Grant::new(place, token_of_place(number), validity).turns(TURNS_OF_A_PLACE)
    }

    /// Reserves `turns` consecutive tokens for this grant.
    #[must_use]
    pub fn turns(mut self, turns: u32) -> Grant {
        self.turns = turns.max(1);
        self
    }
}

/// The validity of a lease: its TTL, and the instant from which it counts.
///
/// The instant must lie **before the send of the request that surely extended the lease**:
/// exclusion depends on it. A lease that counts from the answer is late by the time of the round
/// trip.
///
/// A plain [`Duration`] counts from core's own time stamp, taken before it called the store. That
/// is right only if this very call extended the lease. Use
/// [`Validity::since`](crate::backend::Validity::since) for the rest: a session whose last
/// confirmed keep-alive was earlier, or a pushed grant that goes back to an earlier attempt.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    since: Option<Moment>,
    ttl: Duration,
}

impl Validity {
    /// Counts from `sent`, an instant before the request that surely extended the lease was sent.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_core::backend::{Moment, Validity};
    ///
    /// let sent = Moment::from_nanos(1_000_000_000); // one second after the clock's zero
    /// let heard = sent + Duration::from_secs(3);
    /// let validity = Validity::since(sent, Duration::from_secs(10));
    /// // Ten seconds from the send, not from the answer, less the margin of 102 ms.
    /// assert_eq!(validity.until(heard), sent + Duration::from_millis(9_898));
    /// ```
    pub const fn since(sent: Moment, ttl: Duration) -> Validity {
        Validity {
            since: Some(sent),
            ttl,
        }
    }

    /// Counts so that a holder may call itself valid until `end`. It is for a store over other
    /// stores: its hold ends with the first of their holds that ends. `ttl` sets how often it is
    /// renewed: the shortest TTL of those holds.
    pub fn ending(end: Moment, ttl: Duration) -> Validity {
        let counts = ttl.saturating_sub(margin(ttl));
        if end.since(Moment::from_nanos(0)) < counts {
            // It would count from before the clock's zero.
            return Validity::since(Moment::from_nanos(0), end.since(Moment::from_nanos(0)));
        }
        Validity::since(end.before(counts), ttl)
    }

    /// The TTL that was granted.
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The instant from which the lease counts, given core's stamp for this call.
    pub(crate) fn start(&self, stamp: Moment) -> Moment {
        // A store cannot know an instant later than the call it answers; core's stamp is the later
        // bound.
        if fault("from-answer") {
            return Moment::now();
        }
        self.since.map_or(stamp, |sent| sent.min(stamp))
    }

    /// Returns whether it names its instant; a pushed grant must.
    pub(crate) fn is_anchored(&self) -> bool {
        self.since.is_some()
    }

    /// The instant until which a holder may call itself valid, given an instant before the call
    /// that this answers.
    ///
    /// The margin of 1 % + 2 ms covers the rate errors of the client's and the store's clock
    /// together (the drift term of Redlock).
    pub fn until(&self, stamp: Moment) -> Moment {
        self.start(stamp) + self.ttl.saturating_sub(margin(self.ttl))
    }
}

/// The margin by which a lease counts as over before its TTL: the greatest difference of two
/// clocks' rates over that time.
pub(crate) fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

impl From<Duration> for Validity {
    fn from(ttl: Duration) -> Validity {
        Validity { since: None, ttl }
    }
}

/// The answer of a store about one lease.
#[derive(Debug)]
pub enum Renewal {
    /// It is still there, granted or waiting as it was, and was extended.
    Renewed(Validity),
    /// It was waiting, and is granted now.
    Granted(Grant),
    /// It is surely gone.
    Lost(Loss),
    /// There is no answer. That is no evidence of loss: it only fails to extend the validity.
    Unknown(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_counts_from_the_earlier_instant_and_keeps_the_margin() {
        let early = Moment::from_nanos(1_000_000_000);
        let late = Moment::from_nanos(2_000_000_000);
        let ttl = Duration::from_secs(10);
        let margin = Duration::from_millis(102);
        assert_eq!(
            Validity::since(early, ttl).until(late),
            early + (ttl - margin)
        );
        assert_eq!(
            Validity::since(late, ttl).until(early),
            early + (ttl - margin)
        );
        assert_eq!(Validity::from(ttl).until(late), late + (ttl - margin));
        assert_eq!(Validity::from(Duration::from_millis(1)).until(late), late);
        let end = late + ttl;
        assert_eq!(Validity::ending(end, ttl).until(end), end);
        assert!(
            Validity::ending(late, ttl).until(end) <= late,
            "so soon after the clock's zero"
        );
        let soonest = Moment::from_nanos(0) + (ttl - margin);
        assert_eq!(
            Validity::ending(soonest, ttl).until(end),
            soonest,
            "it counts from the clock's zero"
        );
        assert!(Validity::since(early, ttl).is_anchored() && !Validity::from(ttl).is_anchored());
    }

    #[test]
    fn all_are_granted_or_the_first_that_is_not_is_named() {
        let grant = |n| {
            Claimed::Granted(Grant::new(
                Place::new("p"),
                FencingToken::new(n),
                Duration::from_secs(1),
            ))
        };
        let waiting = Claimed::Waiting(Waiting::new(Place::new("p"), Contention::by("one")));
        let all: ClaimedAll = [grant(1), grant(2)].into_iter().collect();
        assert!(
            matches!(all, ClaimedAll::Granted(all) if all[0].token.get() == 1 && all[1].token.get() == 2)
        );
        let none: ClaimedAll = [grant(1), waiting, Claimed::Busy(Contention::by("two"))]
            .into_iter()
            .collect();
        assert!(matches!(none, ClaimedAll::Busy(1, who) if who == Contention::by("one")));
    }
}
