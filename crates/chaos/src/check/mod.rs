//! The checker: one pass over the events in the order of time, with memory for what is under way
//! only.
//!
//! - `lock` is what is known of one lock, `claims` of what several acquisitions go by; `ended`
//!   remembers what ended last; `faults` what is excused.
//! - `exclusion` judges I1, I11 and I12, `tokens` I2 and I3, `waits` I4, I5 and I10, `late` I6 and
//!   I14.
//! - `acquire` and `finish` take in the events; I7, I8, I9 and I13 are judged there.

mod acquire;
mod claims;
mod ended;
mod exclusion;
mod faults;
mod finish;
mod late;
mod lock;
mod tokens;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use self::{claims::Claims, ended::Ended, faults::Faults, late::Lateness, lock::Lock};
use crate::{
    event::{Event, Limits, What},
    report::{Report, Violation},
    rules::Rule,
};

/// Reads a history event by event, and reports what must not have happened.
pub struct Checker {
    /// Rules that are left out.
    without: BTreeSet<Rule>,
    limits: Limits,
    locks: Vec<Lock>,
    by_name: BTreeMap<String, usize>,
    /// Which lock an acquisition under way, a hold or a release is about.
    ops: BTreeMap<u64, usize>,
    claims: Claims,
    ended: Ended,
    faults: Faults,
    lateness: Lateness,
    gauges: BTreeMap<(u64, String), (u64, Event)>,
    killed: BTreeSet<u64>,
    /// When it began, the time of the last event, and whether it was the end.
    begun: u64,
    now: u64,
    complete: bool,
    report: Report,
}

impl Default for Checker {
    fn default() -> Checker {
        Checker::without(&[])
    }
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker")
            .field("now", &self.now)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// The checker is checked with this: what a rule finds must be found by no other.
impl Checker {
    /// A checker that lacks these rules.
    #[must_use]
    pub fn without(rules: &[Rule]) -> Checker {
        Checker {
            without: rules.iter().copied().collect(),
            limits: Limits::default(),
            locks: Vec::new(),
            by_name: BTreeMap::new(),
            ops: BTreeMap::new(),
            claims: Claims::default(),
            ended: Ended::default(),
            faults: Faults::default(),
            lateness: Lateness::default(),
            gauges: BTreeMap::new(),
            killed: BTreeSet::new(),
            begun: 0,
            now: 0,
            complete: false,
            report: Report::new(),
        }
    }

    /// Takes in the next event. They come in the order of their times.
    pub fn event(&mut self, event: &Event) {
        self.now = self.now.max(event.t);
        self.report.figures.events += 1;
        self.complete = matches!(event.what, What::End);
        for judged in self.lateness.judge(Some(self.now)) {
            self.judged(judged);
        }
        if !self.killed.contains(&event.p) {
            self.take_in(event);
        }
    }

    /// The number of acquisitions that are under way or held. The checker's memory grows with
    /// nothing else.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.ops.len()
    }

    /// The history is over.
    #[must_use]
    pub fn finish(mut self) -> Report {
        for judged in self.lateness.judge(None) {
            self.judged(judged);
        }
        if !self.complete {
            let text = "the history does not say that it is complete".to_owned();
            self.found(Violation {
                rule: Rule::Complete,
                lock: String::new(),
                text,
                events: Vec::new(),
            });
        }
        let settle = self.limits.settle;
        let quiet = self.faults.quiet_since();
        let forgotten = self.locks.iter().filter_map(|lock| {
            let since = waits::due_since(lock, settle, quiet)?;
            waits::forgotten(lock, self.now, since, self.limits.wake)
        });
        for violation in forgotten.collect::<Vec<_>>() {
            self.found(violation);
        }
        self.report
    }

    fn take_in(&mut self, event: &Event) {
        let t = event.t;
        match &event.what {
            What::Begin { limits, .. } => (self.limits, self.begun) = (*limits, t),
            What::Invoke { op, .. } => self.invoked(*op, event),
            What::Once { op, fire } => self.once(*op, *fire),
            What::Done { .. } => self.done(event),
            What::Forget { lock, tok } => self.forgotten(lock, *tok),
            What::Queued { op } => self.queued(*op, t),
            What::Under { op, claim } => self.under(*op, *claim),
            What::Ok { op, tok, valid } => self.granted(*op, *tok, *valid, event),
            What::Least { op, until } => self.kept(*op, *until),
            What::Fail { op, busy } => self.refused(*op, *busy, event),
            What::Info { op } => self.unknown(*op, event),
            What::Use { op, valid } => self.used(*op, *valid, event),
            What::Downgrade { op } => self.downgraded(*op, event),
            What::Release { op, dropped } => self.released(*op, *dropped, event),
            What::Released { op } => self.release_returned(*op, true, event),
            What::Unreleased { op } => self.release_returned(*op, false, event),
            What::Lost { op, aside, .. } => self.lost(*op, *aside, event),
            What::Accept { op, lock, tok } => self.written(lock, *op, *tok, true, event),
            What::Reject { op, lock, tok } => self.written(lock, *op, *tok, false, event),
            What::Observed { op, lock, tok } => {
                let at = self.lock(lock);
                // Where two may lead, an observer may see either, and an earlier leader after old
                // data were restored.
                if self.faults.doubles(lock, t, self.limits.lease) {
                    self.locks[at].observers.remove(op);
                } else if !self.faults.disorders(self.now) {
                    let found = tokens::observed(&mut self.locks[at], *op, *tok, event);
                    self.found_some(found);
                }
            }
            What::Fault {
                id,
                kind,
                breaks,
                lock,
            } => self.fault(*id, kind, *breaks, lock.as_ref()),
            What::Healed { id } => self.healed(*id, event),
            What::Killed { target } => self.killed(*target, t),
            What::Stall { ns, aside } => self.stalled(event.p, *aside, *ns, t),
            What::Gauge {
                name,
                value,
                baseline,
            } => self.gauge(name, *value, *baseline, event),
            What::Kv {
                name,
                left,
                allowed,
            } => self.left(name, *left, *allowed, event),
            What::End => {}
        }
    }
}
