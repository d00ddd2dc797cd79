//! The ends of holds, and the rules about the whole history: faults, leftovers, use of resources.

use super::{
    Checker,
    ended::{self, End},
    late::{self, Late},
    lock::{Hold, Lock},
    tokens, waits,
};
use crate::{
    event::{Breaks, Event, Limits, Policy},
    report::Violation,
    rules::Rule,
};

impl Checker {
    pub(super) fn released(&mut self, op: u64, dropped: bool, event: &Event) {
        if self.ended.is_lost(op) {
            return;
        }
        let Some((at, hold)) = self.held(op) else {
            return self.found_in(op, self.ended.released(op, event));
        };
        self.ended.add(op, End::Releasing, at, event);
        let lock = &mut self.locks[at];
        if dropped {
            lock.busy_until(event.t.saturating_add(self.limits.settle));
        } else {
            lock.releasing.insert(op, (hold.p, event.t));
            self.ops.insert(op, at);
        }
        if hold.p != event.p {
            let text = "released by another client".to_owned();
            let violation = lock.violation(
                Rule::ForeignRelease,
                text,
                vec![hold.granted, event.clone()],
            );
            self.found(violation);
        }
    }

    pub(super) fn release_returned(&mut self, op: u64, confirmed: bool, event: &Event) {
        let at = self
            .ops
            .get(&op)
            .copied()
            .filter(|at| self.locks[*at].releasing.remove(&op).is_some());
        let Some(at) = at else {
            // A release that fails because of a loss was called before the loss was heard of, or
            // after it.
            if confirmed {
                self.found_in(op, self.ended.released(op, event));
            }
            return;
        };
        self.ops.remove(&op);
        let lock = &mut self.locks[at];
        if confirmed {
            self.ended.add(op, End::Released, at, event);
            lock.released = lock.released.max(event.t);
        } else {
            lock.busy_until(event.t.saturating_add(self.limits.settle));
        }
    }

    pub(super) fn lost(&mut self, op: u64, aside: bool, event: &Event) {
        // A watcher may hear of a release first: that is no loss.
        let Some((at, hold)) = self.held(op) else {
            return;
        };
        self.report.figures.losses += 1;
        self.ended.add(op, End::Lost, at, event);
        let lock = &mut self.locks[at];
        lock.busy_until(event.t.saturating_add(self.limits.settle));
        let events = vec![hold.granted, event.clone()];
        let violation = lock.violation(Rule::LateLoss, "the loss was reported late".into(), events);
        let p = event.p;
        let due = hold.valid;
        let t = event.t;
        let limit = self.limits.late;
        if t > due {
            self.lateness.add(Late {
                p,
                since: due,
                due,
                t,
                limit,
                is_loss: true,
                aside,
                violation,
            });
        }
    }

    /// The hold, which has ended.
    fn held(&mut self, op: u64) -> Option<(usize, Hold)> {
        let at = *self.ops.get(&op)?;
        let hold = self.locks[at].holds.remove(&op)?;
        self.ops.remove(&op);
        Some((at, hold))
    }

    pub(super) fn written(&mut self, lock: &str, op: u64, tok: u64, accepted: bool, event: &Event) {
        let at = self.lock(lock);
        let figures = &mut self.report.figures;
        let is_held = self.locks[at]
            .holds
            .get(&op)
            .is_some_and(|hold| hold.valid > event.t);
        figures.held_writes += u64::from(is_held);
        figures.held_accepted += u64::from(is_held && accepted);
        let found = if accepted {
            figures.accepted += 1;
            tokens::accepted(&mut self.locks[at], tok, event)
        } else {
            figures.rejected += 1;
            tokens::rejected(&self.locks[at], tok, event)
        };
        self.found_some(found);
    }

    pub(super) fn fault(&mut self, id: u64, kind: &str, breaks: Breaks, lock: Option<&String>) {
        *self
            .report
            .figures
            .faults
            .entry(kind.to_owned())
            .or_default() += 1;
        self.still_stuck();
        self.faults.begin(id, breaks, lock.cloned());
        for known in &mut self.locks {
            known.orphaned = known.orphaned.map(|(died, _)| (died, false));
            for waiter in known.waiting.values_mut() {
                (waiter.queued, waiter.alone) = (None, false);
            }
        }
        if breaks >= Breaks::Exclusion {
            self.forfeit(lock, u64::MAX);
            // What was recorded as done may be forgotten.
            self.concerned(lock).for_each(|known| known.done.clear());
        }
    }

    pub(super) fn healed(&mut self, id: u64, event: &Event) {
        let Some((breaks, lock)) = self.faults.end(id, event.t, self.limits.settle) else {
            return self.found(ended::nothing(event));
        };
        if breaks >= Breaks::Exclusion {
            self.forfeit(lock.as_ref(), event.t.saturating_add(self.limits.lease));
        }
        if breaks == Breaks::Order {
            self.concerned(lock.as_ref()).for_each(tokens::begin_anew);
        }
    }

    /// From here on waiters may have to wait: who should have been served before then is judged
    /// now.
    fn still_stuck(&mut self) {
        let t = self.now;
        let limit = self.limits.wake;
        let quiet = self.faults.quiet_since();
        for lock in &self.locks {
            let due = waits::due_since(lock, self.limits.settle, quiet);
            let waiters = || {
                lock.waiting
                    .values()
                    .filter(|waiter| waiter.policy != Policy::Try)
            };
            let (Some(due), Some(waiter)) = (due, waiters().min_by_key(|waiter| waiter.invoked.t))
            else {
                continue;
            };
            let events = vec![waiter.invoked.clone()];
            let violation = lock.violation(
                Rule::Stuck,
                "not granted although it was free".into(),
                events,
            );
            let p = waiter.p;
            self.lateness.add(Late {
                p,
                since: due,
                due,
                t,
                limit,
                is_loss: false,
                aside: false,
                violation,
            });
        }
    }

    fn forfeit(&mut self, lock: Option<&String>, until: u64) {
        for known in self.concerned(lock) {
            known
                .holds
                .values_mut()
                .for_each(|hold| hold.forfeit = until);
        }
    }

    fn concerned(&mut self, lock: Option<&String>) -> impl Iterator<Item = &mut Lock> {
        self.locks
            .iter_mut()
            .filter(move |known| lock.is_none_or(|lock| *lock == known.name))
    }

    /// Places that a process could not renew meanwhile may have lapsed: their claims stand at the
    /// end of the queue now.
    pub(super) fn stalled(&mut self, p: u64, aside: bool, ns: u64, t: u64) {
        self.lateness.stalled(p, aside, t.saturating_sub(ns), t);
        let Limits { late, lease, .. } = self.limits;
        if ns > late / 3 || self.lateness.stalls_since(p, t.saturating_sub(lease)) > lease / 8 {
            let waiters = self
                .locks
                .iter_mut()
                .flat_map(|lock| lock.waiting.values_mut());
            waiters
                .filter(|waiter| waiter.p == p)
                .for_each(|waiter| waiter.queued = None);
        }
    }

    pub(super) fn killed(&mut self, target: u64, t: u64) {
        self.report.figures.killed += 1;
        self.killed.insert(target);
        self.lateness.forget_process(target);
        let until = t.saturating_add(self.limits.settle);
        let calm = self.faults.are_calm();
        self.locks
            .iter_mut()
            .for_each(|lock| lock.forget_process(target, (t, calm), until));
        let locks = &self.locks;
        self.ops.retain(|op, at| {
            let Lock {
                holds,
                waiting,
                releasing,
                ..
            } = &locks[*at];
            holds.contains_key(op) || waiting.contains_key(op) || releasing.contains_key(op)
        });
    }

    pub(super) fn gauge(&mut self, name: &str, value: u64, baseline: bool, event: &Event) {
        let key = (event.p, name.to_owned());
        if baseline {
            self.gauges.insert(key, (value, event.clone()));
            return;
        }
        let Some((before, earlier)) = self.gauges.get(&key).cloned() else {
            return self.found(ended::nothing(event));
        };
        if value.saturating_sub(before) > before / 100 {
            let text = format!("{name}: {value}, and {before} at first");
            let events = vec![earlier, event.clone()];
            self.found(Violation {
                rule: Rule::Growth,
                lock: String::new(),
                text,
                events,
            });
        }
    }

    pub(super) fn left(&mut self, name: &str, left: u64, allowed: u64, event: &Event) {
        if left > allowed {
            let text = format!("{left} {name} are left, and {allowed} may be");
            self.found(Violation {
                rule: Rule::Left,
                lock: String::new(),
                text,
                events: vec![event.clone()],
            });
        }
    }

    pub(super) fn judged(&mut self, judged: late::Judged) {
        if let Some(lateness) = judged.lateness {
            // Nothing is later than the histogram can say: it grows.
            let _ = self.report.lateness.record(lateness);
            if judged.blocked {
                let _ = self.report.blocked.record(lateness);
            }
        }
        self.found_some(judged.violation);
    }

    /// The index of a lock.
    pub(super) fn lock(&mut self, name: &str) -> usize {
        if let Some(at) = self.by_name.get(name) {
            return *at;
        }
        self.locks.push(Lock {
            name: name.to_owned(),
            ..Lock::default()
        });
        self.by_name.insert(name.to_owned(), self.locks.len() - 1);
        self.locks.len() - 1
    }

    /// A violation by an acquisition that has ended: its lock is known if it ended not long ago.
    pub(super) fn found_in(&mut self, op: u64, mut violation: Violation) {
        if let Some(at) = self.ended.lock(op) {
            violation.lock.clone_from(&self.locks[at].name);
        }
        self.found(violation);
    }

    pub(super) fn found_some(&mut self, violation: Option<Violation>) {
        if let Some(violation) = violation {
            self.found(violation);
        }
    }

    pub(super) fn found(&mut self, violation: Violation) {
        if !self.without.contains(&violation.rule) {
            self.report
                .first
                .get_or_insert(self.now.saturating_sub(self.begun));
            self.report.add(violation);
        }
    }
}
