//! What a program is made of, and how one is drawn.

use leasehold_core::seam::Mode;
use proptest::prelude::*;

/// How many clients act, on how many names.
pub(crate) const ACTORS: usize = 3;
pub(crate) const NAMES: usize = 2;

/// How a client wants a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `lock`.
    Lock,
    /// `rw_lock`, to read.
    Read,
    /// `rw_lock`, to write.
    Write,
    /// `semaphore`: so many, of so many.
    Permits(u32, u32),
    /// `election`.
    Candidate,
}

impl Style {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Style::Lock | Style::Write | Style::Candidate => Mode::Exclusive,
            Style::Read => Mode::Shared,
            Style::Permits(n, of) => Mode::Permits { n, of },
        }
    }
}

/// One step. The first number is the client, `at` the name; `nth` counts what the client holds or waits for, modulo how many
/// those are, so that every program has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are explained above, once")]
pub enum Op {
    /// Takes a name now or not at all.
    Try { who: usize, at: usize, style: Style },
    /// Takes a place in line.
    Wait { who: usize, at: usize, style: Style },
    /// Takes a name as the client's owner: re-entry.
    Enter { who: usize, at: usize, style: Style },
    /// Takes all names now or none.
    All { who: usize },
    /// Gives a hold back, and waits for the store's word.
    Release { who: usize, nth: usize },
    /// Drops a hold.
    Drop { who: usize, nth: usize },
    /// Leaves the line.
    Leave { who: usize, nth: usize },
    /// Asks the store whether a hold is good.
    Confirm { who: usize, nth: usize },
    /// Makes a writer a reader.
    Downgrade { who: usize, nth: usize },
    /// Proclaims another value.
    Proclaim { who: usize, nth: usize, value: u8 },
    /// An operator ends the hold of one of the holders by its token.
    Evict { at: usize, nth: usize },
    /// Most of a lease passes. On virtual time only.
    Pass,
    /// A client is cut off until its leases are over. On virtual time only.
    Crash { who: usize },
}

fn style() -> impl Strategy<Value = Style> {
    prop_oneof![
        2 => Just(Style::Lock),
        4 => Just(Style::Read),
        2 => Just(Style::Write),
        4 => (1..=3u32).prop_map(|n| Style::Permits(n, 3)),
        1 => (1..=2u32).prop_map(|n| Style::Permits(n, 2)),
        2 => Just(Style::Candidate),
    ]
}

fn re_entrant() -> impl Strategy<Value = Style> {
    prop_oneof![Just(Style::Lock), Just(Style::Read), Just(Style::Write), Just(Style::Permits(2, 3))]
}

/// A program of at most so many steps; with `time`, it also lets leases pass and clients die.
pub fn program(steps: usize, time: bool) -> impl Strategy<Value = Vec<Op>> {
    let (who, at, nth) = (|| 0..ACTORS, || 0..NAMES, || 0..4usize);
    let op = prop_oneof![
        6 => (who(), at(), style()).prop_map(|(who, at, style)| Op::Try { who, at, style }),
        8 => (who(), at(), style()).prop_map(|(who, at, style)| Op::Wait { who, at, style }),
        4 => (who(), at(), re_entrant()).prop_map(|(who, at, style)| Op::Enter { who, at, style }),
        1 => who().prop_map(|who| Op::All { who }),
        8 => (who(), nth()).prop_map(|(who, nth)| Op::Release { who, nth }),
        3 => (who(), nth()).prop_map(|(who, nth)| Op::Drop { who, nth }),
        2 => (who(), nth()).prop_map(|(who, nth)| Op::Leave { who, nth }),
        2 => (who(), nth()).prop_map(|(who, nth)| Op::Confirm { who, nth }),
        3 => (who(), nth()).prop_map(|(who, nth)| Op::Downgrade { who, nth }),
        3 => (who(), nth(), any::<u8>()).prop_map(|(who, nth, value)| Op::Proclaim { who, nth, value }),
        2 => (at(), nth()).prop_map(|(at, nth)| Op::Evict { at, nth }),
    ];
    let timed = prop_oneof![2 => Just(Op::Pass), 1 => who().prop_map(|who| Op::Crash { who })];
    let op = prop_oneof![15 => op.clone(), 1 => if time { timed.boxed() } else { op.boxed() }];
    proptest::collection::vec(op, 1..=steps)
}
