//! The two stores, what the pair of them gives, and which pairs are refused.

use std::fmt;
use std::time::Duration;

use leasehold_core::seam::Backend;
use leasehold_core::{Error, ErrorKind, Fairness, FencingToken, Guarantees, Raises, Result};

/// One of the two stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The one that the fleet leaves. It is always asked first: all must use one order.
    Old,
    /// The one that it moves to.
    New,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Old => Side::New,
            Side::New => Side::Old,
        }
    }

    /// An error of this store says which of the two it is about.
    pub(crate) fn says(self, e: Error) -> Error {
        if e.is_contended() || e.loss().is_some() {
            return e;
        }
        Error::new(e.kind(), format!("the {self} store: {e}")).with_source(e)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Old => "old",
            Side::New => "new",
        })
    }
}

/// The two stores.
#[derive(Debug)]
pub(crate) struct Pair {
    old: Box<dyn Backend>,
    new: Box<dyn Backend>,
    /// Whether and how far each can raise its tokens, the old one's first.
    raises: [Raises; 2],
}

impl Pair {
    /// Refuses two stores between which the promises cannot be kept.
    pub(crate) fn new(old: Box<dyn Backend>, new: Box<dyn Backend>) -> Result<Pair> {
        if !old.clock().is_same(&new.clock()) {
            let why = "the ends of leases in two stores cannot be compared unless both go by one clock";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let raises = [old.guarantees().raises, new.guarantees().raises];
        let pair = Pair { old, new, raises };
        for side in [Side::Old, Side::New] {
            if !matches!(pair.raises(side), Raises::Places(_) | Raises::Holds(_)) {
                let name = pair.on(side).guarantees().store;
                let why = format!("the {side} store, {name}, cannot raise its tokens: they would fall during the move");
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        }
        if let [Raises::Places(_), Raises::Places(_)] = raises {
            let why = "both stores number a place when it is taken, so they cannot know a hold by one token; move by way of a \
                       store that numbers holds, such as redis or postgres";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        Ok(pair)
    }

    pub(crate) fn on(&self, side: Side) -> &dyn Backend {
        match side {
            Side::Old => &*self.old,
            Side::New => &*self.new,
        }
    }

    /// How far this store can raise its tokens.
    pub(crate) fn limit(&self, side: Side) -> FencingToken {
        self.raises(side).limit().unwrap_or(FencingToken::new(0))
    }

    pub(crate) fn raises(&self, side: Side) -> Raises {
        match side {
            Side::Old => self.raises[0],
            Side::New => self.raises[1],
        }
    }

    /// What both give: the weaker of the two in each.
    pub(crate) fn guarantees(&self) -> Guarantees {
        let (old, new) = (self.old.guarantees(), self.new.guarantees());
        let (min_ttl, ttl_step) = (old.min_ttl.max(new.min_ttl), old.ttl_step.max(new.ttl_step));
        // The longer lease may end later than the shorter one, which is the hold's, by what one of them was rounded up.
        let rounded = if old.ttl_step == new.ttl_step { Duration::ZERO } else { ttl_step };
        // Who waits in one line does not see the other.
        let fairness = old.fairness.min(new.fairness).min(Fairness::Bounded);
        let each = |side: Side, all: &Guarantees| -> Vec<String> {
            all.warnings.iter().map(|warning| format!("the {side} store: {warning}")).collect()
        };
        let warnings = [each(Side::Old, &old), each(Side::New, &new)].concat();
        Guarantees::none("bridge")
            .fencing(old.fencing.min(new.fencing))
            .fairness(fairness)
            .pushed_wake(old.pushed_wake && new.pushed_wake)
            .ttl(min_ttl, ttl_step)
            .recovery(old.recovery.max(new.recovery) + rounded)
            .min_hold_outlives_process(old.min_hold_outlives_process && new.min_hold_outlives_process)
            .notes("holds in two stores, during a move from one to the other; ends with the one that ends first")
            .warnings(warnings)
    }
}
