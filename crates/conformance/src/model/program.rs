//! The steps of a program, and the random choice of programs.

use fastrand::Rng;
use leasehold_core::backend::Mode;

/// The number of clients that act, and the number of names.
pub(crate) const ACTORS: usize = 3;
pub(crate) const NAMES: usize = 2;

/// The primitive and the mode by which a client takes a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `lock`.
    Lock,
    /// `rw_lock`, to read.
    Read,
    /// `rw_lock`, to write.
    Write,
    /// `semaphore`: the number of permits to take, and the size.
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
    /// Takes a place in the queue.
    Wait { who: usize, at: usize, style: Style },
    /// Takes a name as the client's owner: re-entry.
    Enter { who: usize, at: usize, style: Style },
    /// Takes all names now or none.
    All { who: usize },
    /// Gives a hold back, and waits for the store's word.
    Release { who: usize, nth: usize },
    /// Drops a hold.
    Drop { who: usize, nth: usize },
    /// Leaves the queue.
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

impl Op {
    /// Draws one step; with `time`, one that may also let leases pass and clients die.
    pub fn draw(random: &mut Rng, time: bool) -> Op {
        let who = random.usize(0..ACTORS);
        let at = random.usize(0..NAMES);
        let nth = random.usize(0..4);
        if time && random.u8(0..16) == 0 {
            return if random.u8(0..3) < 2 {
                Op::Pass
            } else {
                Op::Crash { who }
            };
        }
        match random.u8(0..42) {
            0..6 => Op::Try {
                who,
                at,
                style: style(random),
            },
            6..14 => Op::Wait {
                who,
                at,
                style: style(random),
            },
            14..18 => Op::Enter {
                who,
                at,
                style: re_entrant(random),
            },
            18..19 => Op::All { who },
            19..27 => Op::Release { who, nth },
            27..30 => Op::Drop { who, nth },
            30..32 => Op::Leave { who, nth },
            32..34 => Op::Confirm { who, nth },
            34..37 => Op::Downgrade { who, nth },
            37..40 => Op::Proclaim {
                who,
                nth,
                value: random.u8(..),
            },
            _ => Op::Evict { at, nth },
        }
    }
}

fn style(random: &mut Rng) -> Style {
    match random.u8(0..15) {
        0..2 => Style::Lock,
        2..6 => Style::Read,
        6..8 => Style::Write,
        8..12 => Style::Permits(random.u32(1..=3), 3),
        12..13 => Style::Permits(random.u32(1..=2), 2),
        _ => Style::Candidate,
    }
}

fn re_entrant(random: &mut Rng) -> Style {
    [Style::Lock, Style::Read, Style::Write, Style::Permits(2, 3)][random.usize(0..4)]
}

/// Draws a program of at most `steps` steps, none of which lets time pass.
pub fn program(random: &mut Rng, steps: usize) -> Vec<Op> {
    (0..random.usize(1..=steps))
        .map(|_| Op::draw(random, false))
        .collect()
}
