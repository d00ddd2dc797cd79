//! Who holds and who waits, for people.

use std::time::SystemTime;

use crate::seam::admission::holding;
use crate::seam::claim::Mode;
use crate::seam::contention::Contention;
use crate::seam::token::FencingToken;

/// By an entry that holds: for how long is counted from its `since`.
impl From<&Participant> for Contention {
    fn from(holder: &Participant) -> Contention {
        let held_for = holder.since.map(|since| since.elapsed().unwrap_or_default());
        let (label, token, foreign) = (holder.label.clone(), holder.token, holder.foreign);
        Contention { label, token, held_for, foreign, waiters: None }
    }
}

/// A look at one lock's line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LockQueue {
    /// Who holds it, oldest first.
    pub holders: Vec<Participant>,
    /// Who waits, in line order.
    pub waiters: Vec<Participant>,
}

impl LockQueue {
    /// A line of these.
    pub fn new(holders: Vec<Participant>, waiters: Vec<Participant>) -> LockQueue {
        LockQueue { holders, waiters }
    }

    /// A line as it stands: who of these, in line order, holds is what [`admit`](crate::seam::admit) says. Each brings the
    /// token that it has if it holds.
    pub fn in_order(line: impl IntoIterator<Item = (Mode, Participant)>) -> LockQueue {
        let line = line.into_iter().map(|(mode, entry)| (mode, entry.mode(mode)));
        let (modes, mut holders): (Vec<Mode>, Vec<Participant>) = line.unzip();
        let mut waiters = holders.split_off(holding(&modes));
        waiters.iter_mut().for_each(|waiter| waiter.token = None);
        LockQueue { holders, waiters }
    }

    /// Who stands in the way of whoever comes next: the first holder, and how many wait.
    pub fn contention(&self) -> Contention {
        self.holders.first().map_or_else(Contention::unknown, Contention::from).waiters(self.waiters.len())
    }
}

/// One holder or waiter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Participant {
    /// Its label.
    pub label: Option<String>,
    /// Its token, if it holds.
    pub token: Option<FencingToken>,
    /// Since when it holds or waits, by the store's wall clock. etcd and ZooKeeper know of a holder only when it took its
    /// place in line.
    pub since: Option<SystemTime>,
    /// It is another tool's entry.
    pub foreign: bool,
    /// How it holds, or wants to: alone, with other readers, or so many of how many permits. `None` where the store does not say
    /// (Redlock).
    pub mode: Option<Mode>,
}

impl Participant {
    /// An entry with this label.
    pub fn new(label: impl Into<String>) -> Participant {
        Participant { label: Some(label.into()), ..Participant::default() }
    }

    /// Another tool's entry.
    pub fn foreign() -> Participant {
        Participant { foreign: true, ..Participant::default() }
    }

    /// Adds the token.
    #[must_use]
    pub fn token(mut self, token: FencingToken) -> Participant {
        self.token = Some(token);
        self
    }

    /// Adds since when.
    #[must_use]
    pub fn since(mut self, since: SystemTime) -> Participant {
        self.since = Some(since);
        self
    }

    /// Adds how it holds.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Participant {
        self.mode = Some(mode);
        self
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
    fn the_first_of_a_line_hold_and_the_rest_have_no_token_yet() {
        let modes = [Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared];
        let line = LockQueue::in_order(modes.into_iter().zip([entry(1), entry(2), entry(3), Participant::foreign()]));
        assert_eq!(line.holders, [entry(1), entry(2)].map(|entry| entry.mode(Mode::Shared)));
        assert_eq!(
            line.waiters,
            [Participant::new("number 3").mode(Mode::Exclusive), Participant::foreign().mode(Mode::Shared)]
        );
        let who = line.contention();
        assert_eq!((who.label.as_deref(), who.token, who.waiters), (Some("number 1"), entry(1).token, Some(2)));
        assert_eq!(LockQueue::in_order([]).contention(), Contention::unknown().waiters(0));
    }

    #[test]
    fn a_holder_s_time_counts_from_its_since_and_is_never_negative() {
        let hour = Duration::from_secs(3600);
        let held_for = |since| Contention::from(&Participant::foreign().since(since)).held_for;
        assert!(held_for(SystemTime::now() - hour).is_some_and(|held| held >= hour));
        assert_eq!(held_for(SystemTime::now() + hour), Some(Duration::ZERO), "another machine's clock may be ahead");
        assert_eq!(Contention::from(&Participant::foreign()), Contention::foreign());
    }
}
