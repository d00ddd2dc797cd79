//! I1, with I11 and I12: no two conflicting guards say at one instant that they are valid.

use super::lock::{Hold, Lock};
use crate::{
    event::{Event, Mode},
    report::Violation,
    rules::Rule,
};

/// A guard was returned. It is among the holds already.
pub(super) fn granted(lock: &mut Lock, op: u64, t: u64) -> Vec<Violation> {
    let Some(new) = lock.holds.remove(&op) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for other in lock
        .holds
        .values_mut()
        .filter(|other| excludes(other, &new, t))
    {
        if other.valid > t {
            let rule = rule(other, &new, Rule::Overlap);
            found.push((
                rule,
                format!(
                    "granted while another holder is valid until {}",
                    other.valid
                ),
                pair(other, &new),
            ));
        } else {
            other.overtaken.get_or_insert_with(|| new.granted.clone());
        }
    }
    lock.holds.insert(op, new);
    let found: Vec<_> = found
        .into_iter()
        .map(|(rule, text, events)| lock.violation(rule, text, events))
        .collect();
    if found.is_empty() {
        permits(lock, op, t)
    } else {
        found
    }
}

/// A guard says that it is valid.
pub(super) fn claimed(lock: &mut Lock, op: u64, event: &Event) -> Vec<Violation> {
    if let Some(found) = outlived(lock, op, event) {
        return vec![found];
    }
    let Some(hold) = lock.holds.get_mut(&op) else {
        return Vec::new();
    };
    let Some(overtaker) = hold.overtaken.take() else {
        return permits(lock, op, event.t);
    };
    let events = vec![hold.granted.clone(), overtaker, event.clone()];
    // The overtaking hold may have ended meanwhile; the history has it.
    let rule = match hold {
        Hold {
            mode: Mode::Leader, ..
        } => Rule::Leaders,
        Hold {
            downgraded: true, ..
        } => Rule::Downgraded,
        _ => Rule::Resumed,
    };
    let text = "valid again after another client was granted the lock".to_owned();
    vec![lock.violation(rule, text, events)]
}

/// A guard whose hold was ended by a fault still says that it is valid, beside another, when both
/// must know better.
fn outlived(lock: &mut Lock, op: u64, event: &Event) -> Option<Violation> {
    let t = event.t;
    let hold = lock.holds.get(&op)?;
    let besides = |other: &&Hold| {
        other.valid > t && excludes(other, hold, t) && (hold.forfeit > 0 || other.forfeit > 0)
    };
    let other = lock
        .holds
        .iter()
        .filter(|(of, _)| **of != op)
        .map(|(_, other)| other)
        .find(besides)?;
    let rule = rule(hold, other, Rule::Overlap);
    let mut events = pair(hold, other);
    events.push(event.clone());
    if let Some(hold) = lock.holds.get_mut(&op) {
        // It is told once.
        hold.forfeit = u64::MAX;
    }
    Some(lock.violation(
        rule,
        "still valid beside another holder, long after the fault".to_owned(),
        events,
    ))
}

fn permits(lock: &Lock, op: u64, t: u64) -> Vec<Violation> {
    let Some(Hold {
        mode: Mode::Permits { of, .. },
        forfeit,
        ..
    }) = lock.holds.get(&op)
    else {
        return Vec::new();
    };
    if *forfeit > t {
        return Vec::new();
    }
    let valid = lock
        .holds
        .values()
        .filter(|hold| hold.valid > t && hold.forfeit <= t);
    let taken = valid.clone().map(|hold| match hold.mode {
        Mode::Permits { n, .. } => u64::from(n),
        _ => 0,
    });
    let taken: u64 = taken.sum();
    if taken <= u64::from(*of) {
        return Vec::new();
    }
    let events = valid.map(|hold| hold.granted.clone()).collect();
    vec![lock.violation(
        Rule::Permits,
        format!("{taken} permits of {of} are taken at {t}"),
        events,
    )]
}

fn excludes(a: &Hold, b: &Hold, t: u64) -> bool {
    let one_owner = a.owner.is_some() && a.owner == b.owner;
    a.mode.excludes(b.mode) && !one_owner && a.forfeit <= t && b.forfeit <= t
}

fn rule(a: &Hold, b: &Hold, otherwise: Rule) -> Rule {
    if a.downgraded || b.downgraded {
        Rule::Downgraded
    } else if a.mode == Mode::Leader || b.mode == Mode::Leader {
        Rule::Leaders
    } else {
        otherwise
    }
}

fn pair(a: &Hold, b: &Hold) -> Vec<Event> {
    vec![a.granted.clone(), b.granted.clone()]
}
