//! What came of a campaign: what the checker says, and how long nobody was granted the lock.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use leasehold_chaos::{Checker, Event, History, Invariant, What, timeline};

use crate::client::ORDERS;
use crate::pairs::Kind;

pub(crate) struct Verdict {
    pub(crate) text: String,
    pub(crate) passed: bool,
}

/// How much longer than a lease and what its stores need a gap may be on a busy machine.
const SLACK: Duration = Duration::from_secs(3);
/// What the slowest of the stores needs to notice that a lease is over: etcd, as its guarantees say.
const RECOVERY: Duration = Duration::from_secs(2);

/// Judges the history in a folder, and draws what is wrong.
pub(crate) fn check(folder: &Path) -> Verdict {
    let (mut checker, mut gaps, mut ttl) = (Checker::default(), Gaps::default(), Duration::ZERO);
    for event in History::in_folder(folder).unwrap() {
        let event = event.unwrap();
        if let What::Begin { store, .. } = &event.what {
            ttl = Kind::ALL
                .into_iter()
                .find(|kind| kind.name() == store)
                .map_or(ttl, Kind::ttl);
        }
        gaps.event(&event);
        checker.event(&event);
    }
    let report = checker.finish();
    for (nth, violation) in report.violations.iter().take(5).enumerate() {
        let events = History::in_folder(folder).unwrap().map(Result::unwrap);
        std::fs::write(
            folder.join(format!("violation-{nth}.html")),
            timeline(violation, events),
        )
        .unwrap();
    }
    let gap = Duration::from_nanos(gaps.longest);
    let may_take = ttl + RECOVERY + SLACK;
    let passed = report.is_clean() && report.figures.grants > 0 && gap <= may_take;
    let overlaps = report.of(Invariant::I1);
    let falls = report.of(Invariant::I2) + report.of(Invariant::I3);
    let text = format!(
        "{} kills, {} grants, {overlaps} overlaps, {falls} falling tokens, longest gap without a grant {gap:?} (lease {ttl:?}, \
         may take {may_take:?}); {report}",
        report.figures.killed, report.figures.grants
    );
    Verdict { text, passed }
}

/// How long the lock was free, or of somebody dead, and nobody was granted it: since a guard ended, a process was killed, or a fault
/// was over, whatever was last.
#[derive(Default)]
struct Gaps {
    since: Option<u64>,
    broken: BTreeSet<u64>,
    /// Acquisitions of the lock; who holds.
    ops: BTreeSet<u64>,
    holds: Option<u64>,
    longest: u64,
}

impl Gaps {
    fn event(&mut self, event: &Event) {
        let t = event.t;
        match &event.what {
            What::Invoke { op, lock, .. } if lock == ORDERS => drop(self.ops.insert(*op)),
            What::Ok { op, .. } if self.ops.contains(op) => {
                if let Some(since) = self.since.take().filter(|_| self.broken.is_empty()) {
                    self.longest = self.longest.max(t.saturating_sub(since));
                }
                self.holds = Some(*op);
            }
            What::Release { op, .. } | What::Lost { op, .. } if self.holds == Some(*op) => {
                (self.holds, self.since) = (None, Some(t));
            }
            What::Killed { target } => {
                if self.holds.is_some_and(|op| op / 1_000_000_000 == *target) {
                    self.holds = None;
                }
                if self.holds.is_none() {
                    self.since = Some(t);
                }
            }
            What::Fault { id, .. } => drop(self.broken.insert(*id)),
            What::Healed { id } => {
                self.broken.remove(id);
                if self.holds.is_none() {
                    self.since = Some(t);
                }
            }
            _ => {}
        }
    }
}
