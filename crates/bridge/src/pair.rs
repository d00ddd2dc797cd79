//! The two stores: the guarantees of the pair, and the refusal of pairs that cannot keep them.

use leasehold_core::backend::TokenFloor;
use std::fmt;
use std::time::Duration;

use leasehold_core::backend::Backend;
use leasehold_core::backend::Raises;
use leasehold_core::{Connections, Error, ErrorKind, Fairness, FencingToken, Guarantees, Result};

/// One of the two stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// The store that the fleet leaves. It is always asked first, because all clients must use one
    /// order.
    Old,
    /// The store that the fleet moves to.
    New,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Old => Side::New,
            Side::New => Side::Old,
        }
    }

    /// Adds to an error which of the two stores it is about.
    pub(crate) fn says(self, e: Error) -> Error {
        if e.is_contended() || e.loss().is_some() {
            return e;
        }
        e.in_context(format_args!("the {self} store"))
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
    /// The raises that each store supports, the old store's first.
    raises: [Raises; 2],
}

impl Pair {
    /// Refuses two stores between which the promises cannot be kept.
    pub(crate) fn new(old: Box<dyn Backend>, new: Box<dyn Backend>) -> Result<Pair> {
        if !old.clock().is_same(&new.clock()) {
            let why =
                "the ends of leases in two stores cannot be compared unless both go by one clock";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let raises = |side: Side, store: &dyn Backend| {
            let floor = store
                .token_floor()
                .ok_or_else(|| cannot_raise(side, store))?;
            Ok::<_, Error>(floor.raises())
        };
        let raises = [raises(Side::Old, &*old)?, raises(Side::New, &*new)?];
        let pair = Pair { old, new, raises };
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

    /// The store as one whose tokens can be raised, as they could when the pair was made.
    pub(crate) fn floor(&self, side: Side) -> Result<&dyn TokenFloor> {
        let store = self.on(side);
        store.token_floor().ok_or_else(|| cannot_raise(side, store))
    }

    /// The greatest number to which this store can raise its tokens.
    pub(crate) fn limit(&self, side: Side) -> FencingToken {
        self.raises(side).limit()
    }

    pub(crate) fn raises(&self, side: Side) -> Raises {
        match side {
            Side::Old => self.raises[0],
            Side::New => self.raises[1],
        }
    }

    /// The guarantees of the pair: in each respect the weaker one of the two.
    pub(crate) fn guarantees(&self) -> Guarantees {
        let old = self.old.guarantees();
        let new = self.new.guarantees();
        let min_ttl = old.min_ttl().max(new.min_ttl());
        let ttl_step = old.ttl_step().max(new.ttl_step());
        // A lease may be rounded up in one store. It then ends later than the shorter one, which is
        // the hold's.
        let rounded = if old.ttl_step() == new.ttl_step() {
            Duration::ZERO
        } else {
            ttl_step
        };
        // A waiter in the queue of one store does not see the queue of the other.
        let fairness = old.fairness().min(new.fairness()).min(Fairness::Bounded);
        let each = |side: Side, all: &Guarantees| -> Vec<String> {
            all.warnings()
                .iter()
                .map(|warning| format!("the {side} store: {warning}"))
                .collect()
        };
        let connections = old.connections().zip(new.connections());
        let connections = connections.map(|(old, new)| Connections {
            at_most: old.at_most + new.at_most,
            idle: old.idle + new.idle,
        });
        let warnings = [each(Side::Old, &old), each(Side::New, &new)].concat();
        Guarantees::none("bridge")
            .with_fencing(old.fencing().min(new.fencing()))
            .with_fairness(fairness)
            .with_pushed_wake(old.pushed_wake() && new.pushed_wake())
            .with_ttl(min_ttl, ttl_step)
            .with_max_ttl(old.max_ttl().into_iter().chain(new.max_ttl()).min())
            .with_recovery(old.recovery().max(new.recovery()) + rounded)
            .with_min_hold_outlives_process(old.min_hold_outlives_process() && new.min_hold_outlives_process())
            .with_connections(connections)
            .with_notes("holds in two stores, during a move from one to the other; ends with the one that ends first")
            .with_warnings(warnings)
    }
}

fn cannot_raise(side: Side, store: &dyn Backend) -> Error {
    let name = store.guarantees().store();
    let why = format!(
        "the {side} store, {name}, cannot raise its tokens: they would fall during the move"
    );
    Error::new(ErrorKind::Unsupported, why)
}
