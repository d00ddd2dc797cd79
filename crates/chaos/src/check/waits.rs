//! I4, I5 and I10: who waits is served, in order, and is not refused because of nobody.

use super::lock::{Hold, Lock, Waiter};
use crate::{
    event::{Event, Mode, Policy},
    report::Violation,
    rules::Rule,
};

/// Since when somebody should have been granted the lock, if anybody waits for it and it is free.
pub(super) fn due_since(lock: &Lock, settle: u64, quiet_since: u64) -> Option<u64> {
    let waiters = lock
        .waiting
        .values()
        .filter(|waiter| waiter.policy != Policy::Try);
    let first = waiters.map(|waiter| waiter.invoked.t).min()?;
    let free = first.max(lock.free_since(settle, false));
    let beside = reader(lock).map(|queued| queued.max(lock.free_since(settle, true)));
    Some(beside.unwrap_or(free).min(free).max(quiet_since))
}

/// Since when a reader is known to be in the queue before all writers. Other readers that hold are
/// not in its way.
fn reader(lock: &Lock) -> Option<u64> {
    let writers = || {
        lock.waiting
            .values()
            .filter(|waiter| waiter.mode != Mode::Shared)
    };
    let readers = lock
        .waiting
        .values()
        .filter(|waiter| waiter.mode == Mode::Shared && waiter.policy == Policy::Fair);
    readers
        .filter_map(|reader| reader.queued)
        .filter(|queued| writers().all(|writer| writer.invoked.t > *queued))
        .min()
}

/// Finds a waiter that waited in vain until the end.
pub(super) fn forgotten(lock: &Lock, t: u64, since: u64, wake: u64) -> Option<Violation> {
    let late = t.saturating_sub(since);
    if late <= wake {
        return None;
    }
    let waiters = lock
        .waiting
        .values()
        .filter(|waiter| waiter.policy != Policy::Try);
    let events: Vec<Event> = waiters.map(|waiter| waiter.invoked.clone()).collect();
    let text = format!(
        "free for {} ms, and {} still wait",
        late / 1_000_000,
        events.len()
    );
    Some(lock.violation(Rule::Forgotten, text, events))
}

/// A grant passed somebody who had been in the queue before it was asked for, and who would have
/// excluded it.
pub(super) fn passed(lock: &Lock, new: &Hold, waiter: &Waiter) -> Option<Violation> {
    let one_owner = |owner: Option<u64>| owner.is_some() && owner == new.owner;
    // Also if who held has released since: the token is still that one's.
    let reenters = lock.holds.values().any(|hold| one_owner(hold.owner))
        || lock.tokens.of(new.tok).is_some_and(one_owner);
    if waiter.policy == Policy::Fast || reenters {
        return None;
    }
    let other = lock.waiting.values().find(|other| other.precedes(waiter))?;
    let text = "granted before somebody who was in the queue already".to_owned();
    Some(lock.violation(
        Rule::Passed,
        text,
        vec![other.invoked.clone(), new.granted.clone()],
    ))
}

/// A try was refused.
pub(super) fn refused(lock: &Lock, waiter: &Waiter, event: &Event) -> Option<Violation> {
    let text = "refused though nobody else has used the lock".to_owned();
    let found = waiter.alone && waiter.policy == Policy::Try;
    found.then(|| {
        lock.violation(
            Rule::RefusedByNobody,
            text,
            vec![waiter.invoked.clone(), event.clone()],
        )
    })
}
