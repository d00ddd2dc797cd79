//! I6 and I14: events that come too late, without the time in which their process did not run.
//!
//! A process reports a stall when it is over, which may be just after an event that came late
//! because of it. A judgement therefore waits until the history is a little further.

use std::collections::{BTreeMap, VecDeque};

use crate::report::Violation;

/// The time that a judgement waits for reports of stalls: a starved process may stand still for
/// seconds before it reports one.
const WAITS: u64 = 10_000_000_000;
/// The time after which a call that has begun has surely read the clock.
const AT_ONCE: u64 = 1_000_000;
/// The number of stalls of a process that are remembered.
const STALLS: usize = 512;

/// Something that came at `t` and was due at `due`.
pub(super) struct Late {
    pub(super) p: u64,
    /// When it began, which may be when it was due.
    pub(super) since: u64,
    pub(super) due: u64,
    pub(super) t: u64,
    /// The greatest lateness that is allowed.
    pub(super) limit: u64,
    /// A loss, whose lateness is a figure.
    pub(super) is_loss: bool,
    /// A thread beside the one that works was to hear of it: so only its own stalls excuse it.
    pub(super) aside: bool,
    pub(super) violation: Violation,
}

/// A judgement: the lateness, and the violation if it was too much.
pub(super) struct Judged {
    pub(super) lateness: Option<u64>,
    /// It was due while the thread that works stood still and the one beside it did not.
    pub(super) blocked: bool,
    pub(super) violation: Option<Violation>,
}

#[derive(Default)]
pub(super) struct Lateness {
    /// By their process, and whether they are those of the thread beside.
    stalls: BTreeMap<(u64, bool), VecDeque<(u64, u64)>>,
    open: VecDeque<Late>,
}

impl Lateness {
    pub(super) fn stalled(&mut self, p: u64, aside: bool, from: u64, to: u64) {
        let stalls = self.stalls.entry((p, aside)).or_default();
        stalls.push_back((from, to));
        if stalls.len() > STALLS {
            stalls.pop_front();
        }
    }

    /// For how long the thread that works stood still since then, all in all.
    pub(super) fn stalls_since(&self, p: u64, then: u64) -> u64 {
        self.stalls_of(p, false)
            .map(|&(from, to)| to.saturating_sub(from.max(then)))
            .sum()
    }

    pub(super) fn add(&mut self, late: Late) {
        if late.is_loss || late.t > late.due.saturating_add(late.limit) {
            self.open.push_back(late);
        }
    }

    /// Judges what is old enough, or everything.
    pub(super) fn judge(&mut self, now: Option<u64>) -> Vec<Judged> {
        let mut judged = Vec::new();
        while let Some(late) = self.open.pop_front() {
            if now.is_some_and(|now| now < late.t.saturating_add(WAITS)) {
                self.open.push_front(late);
                break;
            }
            let lateness = late
                .t
                .saturating_sub(late.due)
                .saturating_sub(self.stall_between(&late));
            let stood = |aside| {
                self.stalls_of(late.p, aside)
                    .any(|&(from, to)| from <= late.due && late.due < to)
            };
            let blocked = late.aside && stood(false) && !stood(true);
            let Late {
                limit,
                is_loss,
                mut violation,
                ..
            } = late;
            violation.text += &format!(", {:.1} ms after it was due", lateness as f64 / 1e6);
            judged.push(Judged {
                lateness: is_loss.then_some(lateness),
                blocked,
                violation: (lateness > limit).then_some(violation),
            });
        }
        judged
    }

    /// A process that was killed tells of no stall any more, so what it did just before is not
    /// judged.
    pub(super) fn forget_process(&mut self, p: u64) {
        self.stalls.retain(|(of, _), _| *of != p);
        self.open.retain(|late| late.p != p);
    }

    /// For how long its process stood still when it was due already; and before, if that was at
    /// once when it began: what counts from a clock that was read after that is due so much later.
    fn stall_between(&self, late: &Late) -> u64 {
        let &Late {
            p,
            since,
            due,
            t,
            aside,
            ..
        } = late;
        let at_once = |from, to| from <= since.saturating_add(AT_ONCE) && since < to;
        let before = |from, to: u64| {
            if at_once(from, to) {
                to.min(due).saturating_sub(since)
            } else {
                0
            }
        };
        let after = |from: u64, to: u64| to.min(t).saturating_sub(from.max(due));
        self.stalls_of(p, aside)
            .map(|&(from, to)| before(from, to) + after(from, to))
            .sum()
    }

    fn stalls_of(&self, p: u64, aside: bool) -> impl Iterator<Item = &(u64, u64)> {
        self.stalls.get(&(p, aside)).into_iter().flatten()
    }
}
