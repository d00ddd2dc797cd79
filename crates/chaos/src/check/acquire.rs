//! The stages of an acquisition: invoked, granted, refused, used.

use super::{
    Checker, ended, exclusion,
    late::Late,
    lock::{Done, Hold, Lock, Waiter},
    tokens, waits,
};
use crate::{
    event::{Event, Mode, What},
    report::Violation,
    rules::Rule,
};

impl Checker {
    pub(super) fn invoked(&mut self, op: u64, event: &Event) {
        let What::Invoke {
            lock,
            mode,
            policy,
            deadline,
            owner,
            ..
        } = &event.what
        else {
            return;
        };
        let at = self.lock(lock);
        if self.ops.insert(op, at).is_some() || self.ended.lock(op).is_some() {
            return self.found(ended::nothing(event));
        }
        let quiet = self.faults.quiet_since() < event.t;
        let lock = &mut self.locks[at];
        let alone = quiet && lock.is_unused(event.t);
        lock.waiting
            .values_mut()
            .for_each(|other| other.alone = false);
        let waiter = Waiter {
            p: event.p,
            owner: *owner,
            mode: *mode,
            policy: *policy,
            deadline: *deadline,
            invoked: event.clone(),
            asked: event.t,
            floor: lock.tokens.greatest,
            queued: None,
            alone,
            fire: None,
        };
        lock.waiting.insert(op, waiter);
    }

    pub(super) fn once(&mut self, op: u64, fire: u64) {
        let lock = self.ops.get(&op).map(|at| &mut self.locks[*at]);
        if let Some(waiter) = lock.and_then(|lock| lock.waiting.get_mut(&op)) {
            waiter.fire = Some(fire);
        }
    }

    /// Somebody was told that work is done. Where data may have been lost since it was asked for,
    /// that says nothing.
    pub(super) fn done(&mut self, event: &Event) {
        let What::Done {
            lock,
            tok,
            fire,
            since,
            until,
            ..
        } = &event.what
        else {
            return;
        };
        let at = self.lock(lock);
        self.report.figures.done += 1;
        let counts = self.faults.forfeits(lock, *since, 0) == 0;
        let lock = &mut self.locks[at];
        lock.done.retain(|done| event.t < done.until);
        if counts && lock.forgotten < *tok {
            lock.done.push(Done {
                fire: *fire,
                tok: *tok,
                until: *until,
                told: event.clone(),
            });
        }
    }

    pub(super) fn forgotten(&mut self, name: &str, tok: u64) {
        let at = self.lock(name);
        let lock = &mut self.locks[at];
        // A record has taken the place of those with smaller tokens.
        lock.forgotten = lock.forgotten.max(tok);
        lock.done.retain(|done| tok < done.tok);
    }

    pub(super) fn queued(&mut self, op: u64, t: u64) {
        // A look at a queue is noted later than it was made: the acquisition may have ended.
        let quiet = self.faults.quiet_since() < t;
        let waiter = self
            .ops
            .get(&op)
            .and_then(|at| self.locks[*at].waiting.get_mut(&op));
        if let Some(waiter) = waiter.filter(|_| quiet) {
            waiter.queued.get_or_insert(t);
            self.report.figures.queued += 1;
        }
    }

    pub(super) fn granted(&mut self, op: u64, tok: u64, valid: u64, event: &Event) {
        let Some((at, waiter)) = self.returned(op, event) else {
            return self.found(ended::nothing(event));
        };
        self.report.figures.grants += 1;
        let t = event.t;
        let forfeit = self
            .faults
            .forfeits(&self.locks[at].name, waiter.asked, self.limits.lease);
        self.recovered(at, &waiter, t);
        let Waiter { p, owner, mode, .. } = waiter;
        let granted = event.clone();
        let hold = Hold {
            p,
            owner,
            mode,
            tok,
            granted,
            valid,
            overtaken: None,
            downgraded: false,
            forfeit,
            least: 0,
        };
        let lock = &mut self.locks[at];
        let mut found: Vec<_> = waits::passed(lock, &hold, &waiter).into_iter().collect();
        found.extend(begun_after_done(lock, waiter.fire, event));
        if !self.faults.disorders(waiter.asked) {
            found.extend(tokens::granted(lock, &hold, waiter.floor));
        }
        lock.holds.insert(op, hold);
        self.ops.insert(op, at);
        found.extend(exclusion::granted(&mut self.locks[at], op, t));
        found.extend(self.in_the_past(at, valid, event));
        found
            .into_iter()
            .for_each(|violation| self.found(violation));
    }

    /// The store keeps the lock so long, whatever becomes of its holder.
    pub(super) fn kept(&mut self, op: u64, until: u64) {
        if let Some(hold) = self
            .ops
            .get(&op)
            .and_then(|at| self.locks[*at].holds.get_mut(&op))
        {
            hold.least = until;
        }
    }

    /// Somebody who waited when a holder died has the lock.
    fn recovered(&mut self, at: usize, waiter: &Waiter, t: u64) {
        if let Some((died, calm)) = self.locks[at]
            .orphaned
            .take()
            .filter(|(died, _)| waiter.invoked.t <= *died)
        {
            self.report.recovered(t.saturating_sub(died), calm);
        }
    }

    /// An acquire has returned: whether in time, and whether somebody was granted the lock in time.
    fn returned(&mut self, op: u64, event: &Event) -> Option<(usize, Waiter)> {
        let at = *self.ops.get(&op)?;
        let due = waits::due_since(
            &self.locks[at],
            self.limits.settle,
            self.faults.quiet_since(),
        );
        let lock = &mut self.locks[at];
        let waiter = lock.waiting.remove(&op)?;
        let events = || vec![waiter.invoked.clone(), event.clone()];
        if let Some(due) = waiter.deadline {
            let violation =
                lock.violation(Rule::LateReturn, "the call returned late".into(), events());
            let p = event.p;
            let t = event.t;
            let limit = self.limits.late;
            let since = waiter.invoked.t;
            self.lateness.add(Late {
                p,
                since,
                due,
                t,
                limit,
                is_loss: false,
                aside: false,
                violation,
            });
        }
        if let (Some(due), What::Ok { .. }) = (due, &event.what) {
            let violation = lock.violation(
                Rule::Stuck,
                "granted late although it was free".into(),
                events(),
            );
            let p = event.p;
            let t = event.t;
            let limit = self.limits.wake;
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
        self.ops.remove(&op);
        Some((at, waiter))
    }

    pub(super) fn refused(&mut self, op: u64, busy: bool, event: &Event) {
        let Some((at, waiter)) = self.returned(op, event) else {
            return self.found(ended::nothing(event));
        };
        self.report.figures.refusals += 1;
        let lock = &mut self.locks[at];
        lock.withdrawn(&waiter, event.t, self.limits.wake);
        let found = if busy {
            waits::refused(lock, &waiter, event)
        } else {
            None
        };
        self.found_some(found);
    }

    pub(super) fn unknown(&mut self, op: u64, event: &Event) {
        let Some((at, waiter)) = self.returned(op, event) else {
            return self.found(ended::nothing(event));
        };
        self.report.figures.unknown += 1;
        let lock = &mut self.locks[at];
        if self.faults.quiet_since() < event.t {
            // Nothing was lost: its caller has left.
            lock.withdrawn(&waiter, event.t, self.limits.wake);
        } else {
            lock.busy_until(event.t.saturating_add(self.limits.settle));
        }
    }

    pub(super) fn used(&mut self, op: u64, valid: u64, event: &Event) {
        let holding = self
            .ops
            .get(&op)
            .copied()
            .filter(|at| self.locks[*at].holds.contains_key(&op));
        let Some(at) = holding else {
            return self.found_in(op, self.ended.used(op, event));
        };
        let mut found: Vec<_> = self.in_the_past(at, valid, event).into_iter().collect();
        let lock = &mut self.locks[at];
        if let Some(hold) = lock.holds.get_mut(&op) {
            hold.valid = hold.valid.max(valid);
        }
        found.extend(exclusion::claimed(lock, op, event));
        found
            .into_iter()
            .for_each(|violation| self.found(violation));
    }

    pub(super) fn downgraded(&mut self, op: u64, event: &Event) {
        let lock = self.ops.get(&op).map(|at| &mut self.locks[*at]);
        match lock.and_then(|lock| {
            lock.holds
                .get_mut(&op)
                .map(|hold| (hold, &mut lock.released))
        }) {
            Some((hold, released)) => {
                (hold.mode, hold.downgraded) = (Mode::Shared, true);
                *released = event.t.max(*released);
            }
            // Its holder has not looked: the call says so.
            None if self.ended.is_lost(op) => {}
            None => self.found(ended::nothing(event)),
        }
    }

    fn in_the_past(&self, at: usize, valid: u64, event: &Event) -> Option<Violation> {
        let text = format!("valid until {valid}, which is over");
        (valid <= event.t)
            .then(|| self.locks[at].violation(Rule::ValidInPast, text, vec![event.clone()]))
    }
}

/// Work begins: nobody may have been told that its fire is done.
fn begun_after_done(lock: &Lock, fire: Option<u64>, event: &Event) -> Option<Violation> {
    let fire = fire?;
    let counts = |done: &&Done| fire <= done.fire && event.t < done.until;
    let Done {
        fire: done, told, ..
    } = lock.done.iter().find(counts)?;
    let text = format!("work of fire {fire} begins, and fire {done} was told to be done");
    Some(lock.violation(
        Rule::BegunAfterDone,
        text,
        vec![told.clone(), event.clone()],
    ))
}
