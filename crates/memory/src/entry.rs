//! The record of one claim in the store, and the tokens that it is granted.

use std::time::SystemTime;

use leasehold_core::backend::Raises;
use leasehold_core::backend::{Claim, Grant, Mode, Moment, Validity};
use leasehold_core::{FencingToken, Participant};

use crate::client::Link;

/// Tokens are counted over all names.
#[derive(Default)]
pub(crate) struct Tokens(u64);

/// Tokens are raised with holds, up to a limit that is far from their end.
pub(crate) const RAISES: Raises = Raises::Holds(FencingToken::new(1 << 62));

impl Tokens {
    /// The greatest one that was given out, or that they were raised to.
    pub(crate) fn mark(&self) -> FencingToken {
        FencingToken::new(self.0)
    }

    /// From now on they are greater than this number.
    pub(crate) fn raise(&mut self, number: u64) {
        self.0 = self.0.max(number);
    }

    /// The next ones, so many of them, all at least `floor`.
    fn reserve(&mut self, turns: u32, floor: u64) -> FencingToken {
        self.raise(floor.saturating_sub(1));
        let first = self.0 + 1;
        self.0 += u64::from(turns);
        FencingToken::new(first)
    }
}

pub(crate) struct Entry {
    pub(crate) claim: Claim,
    pub(crate) link: Link,
    /// The latest claim or renewal that the store saw: a grant's validity counts from it. It never goes back (S13).
    pub(crate) sent: Moment,
    /// The end of a hold that was given back within its `min_hold`, whatever is asked later (S15).
    pub(crate) ends: Option<Moment>,
    pub(crate) token: Option<(FencingToken, u32)>,
    /// Since when it waits, or holds.
    pub(crate) began: Moment,
}

impl Entry {
    pub(crate) fn new(claim: &Claim, link: &Link, now: Moment) -> Entry {
        Entry {
            claim: claim.clone(),
            link: link.clone(),
            sent: now,
            ends: None,
            token: None,
            began: now,
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.ends.unwrap_or(self.sent + self.claim.ttl)
    }

    /// A claim or a renewal has come. An older one, that was overtaken on its way, shortens nothing.
    pub(crate) fn extend(&mut self, now: Moment) {
        self.sent = self.sent.max(now);
    }

    /// For how long it surely lives.
    pub(crate) fn validity(&self) -> Validity {
        Validity::since(self.sent, self.deadline().since(self.sent))
    }

    pub(crate) fn holds(&self) -> bool {
        self.token.is_some()
    }

    /// Reserves its tokens.
    pub(crate) fn admit(&mut self, tokens: &mut Tokens, now: Moment) {
        let turns = self.claim.turns();
        self.token = Some((tokens.reserve(turns, self.floor()), turns));
        self.began = now;
    }

    /// Raises the entry to `floor` (S16).
    pub(crate) fn raise(&mut self, floor: Option<FencingToken>, tokens: &mut Tokens) {
        self.claim.floor = self.claim.floor.max(floor);
        let Some((first, turns)) = self.token.filter(|(first, _)| first.get() < self.floor())
        else {
            return;
        };
        let raised = if self.claim.mode == Mode::Exclusive {
            // No grant has followed this one, so the raised token is greater than all others.
            tokens.raise(self.floor() + u64::from(turns) - 1);
            FencingToken::new(self.floor())
        } else {
            tokens.reserve(turns, self.floor())
        };
        self.token = Some((raised.max(first), turns));
    }

    fn floor(&self) -> u64 {
        self.claim.floor.map_or(0, FencingToken::get)
    }

    pub(crate) fn grant(&self) -> Option<Grant> {
        let (token, turns) = self.token?;
        Some(Grant::new(self.link.place().clone(), token, self.validity()).turns(turns))
    }

    /// Returns whether this token is one of this hold's turns.
    pub(crate) fn owns(&self, token: FencingToken) -> bool {
        self.token.is_some_and(|(first, turns)| {
            (first.get()..first.get() + u64::from(turns)).contains(&token.get())
        })
    }

    pub(crate) fn shown(&self, now: Moment) -> Participant {
        let mut shown = Participant::new(&*self.claim.label).mode(self.claim.mode);
        shown.since = SystemTime::now().checked_sub(now.since(self.began));
        shown.token = self.token.map(|(token, _)| token);
        shown
    }
}
