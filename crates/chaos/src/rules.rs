//! The invariants, and the rules by which each is judged.

use std::fmt;

/// A statement that must be true of every history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// The history itself is complete and makes sense.
    History,
    /// Exclusion: windows in which conflicting guards say that they are valid are disjoint.
    I1,
    /// Fenced exclusion: the resource accepts no write with a smaller token than it has seen.
    I2,
    /// Order of tokens: a later conflicting grant has a greater one.
    I3,
    /// No lost wake-up: a free lock does not have a live waiter for long.
    I4,
    /// Fairness: nobody passes a waiter who was in the queue before.
    I5,
    /// Loss in time: at the end of validity, and no validity in the past.
    I6,
    /// Loss is final.
    I7,
    /// A release ends its own hold, and once.
    I8,
    /// Nothing is left after all have ended.
    I9,
    /// Names never interact.
    I10,
    /// Leaders: at most one, and observers see them in their order.
    I11,
    /// A downgrade keeps exclusion.
    I12,
    /// The resources that a process uses are bounded.
    I13,
    /// Calls return by their deadline.
    I14,
    /// Work that is done is not begun again.
    I15,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Invariant::History => "the history",
            Invariant::I1 => "I1 exclusion",
            Invariant::I2 => "I2 fenced exclusion",
            Invariant::I3 => "I3 order of tokens",
            Invariant::I4 => "I4 no stuck waiter",
            Invariant::I5 => "I5 fairness",
            Invariant::I6 => "I6 loss in time",
            Invariant::I7 => "I7 loss is final",
            Invariant::I8 => "I8 release",
            Invariant::I9 => "I9 nothing left",
            Invariant::I10 => "I10 names",
            Invariant::I11 => "I11 leaders",
            Invariant::I12 => "I12 downgrade",
            Invariant::I13 => "I13 bounded use",
            Invariant::I14 => "I14 deadline",
            Invariant::I15 => "I15 done once",
        };
        f.write_str(name)
    }
}

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident => $invariant:ident,)*) => {
        /// A rule by which an invariant is judged: one comparison.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule { $($(#[$doc])* $rule,)* }

        impl Rule {
            /// All of them.
            pub const ALL: &'static [Rule] = &[$(Rule::$rule,)*];

            /// The invariant that this rule judges.
            #[must_use]
            pub fn invariant(self) -> Invariant {
                match self { $(Rule::$rule => Invariant::$invariant,)* }
            }
        }
    };
}

rules! {
    /// An event is about an acquisition that there is not.
    Sense => History,
    /// The last event says that the history is complete.
    Complete => History,
    /// A grant beside a conflicting guard that is valid.
    Overlap => I1,
    /// A guard that is valid again after another client was granted the lock.
    Resumed => I1,
    /// More permits are taken than there are.
    Permits => I1,
    /// Two exclusive holders, of which one is a leader.
    Leaders => I11,
    /// Two conflicting holders, of which one was downgraded.
    Downgraded => I12,
    /// A write was accepted after one with a greater token.
    StaleWrite => I2,
    /// A write was refused although no greater token was seen.
    FreshWrite => I2,
    /// A token is not greater than that of a conflicting grant which had returned before.
    TokenOrder => I3,
    /// Two exclusive grants have one token.
    TokenUnique => I3,
    /// A re-entered hold has another token.
    TokenReentry => I3,
    /// A lock was free for too long before somebody who waited was granted it.
    Stuck => I4,
    /// A lock is free, somebody waits, and is never granted it.
    Forgotten => I4,
    /// A grant passed somebody who had been seen in the queue before.
    Passed => I5,
    /// A loss was reported too late.
    LateLoss => I6,
    /// A guard says that it is valid until an instant in the past.
    ValidInPast => I6,
    /// A guard is valid again after its loss.
    Revived => I7,
    /// The release of a lost hold was confirmed.
    LostReleased => I7,
    /// A guard is valid after its release was confirmed, or a hold was released twice.
    ReleasedTwice => I8,
    /// One client has released the hold of another.
    ForeignRelease => I8,
    /// More is left in the store than may be.
    Left => I9,
    /// A lock that nobody else used was refused.
    RefusedByNobody => I10,
    /// An observer saw an earlier leader after a later one.
    ObservedOrder => I11,
    /// More is in use than before.
    Growth => I13,
    /// A call returned too late.
    LateReturn => I14,
    /// Work begins although somebody was told that it is done.
    BegunAfterDone => I15,
}
