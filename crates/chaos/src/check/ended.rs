//! The acquisitions that ended last: what must not come after their end.

use std::collections::{BTreeMap, VecDeque};

use crate::{event::Event, report::Violation, rules::Rule};

/// The number of ended holds that are remembered.
const KEPT: usize = 10_000;

/// The way in which a hold ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Lost,
    /// Its release was called.
    Releasing,
    Released,
}

#[derive(Default)]
pub(super) struct Ended {
    by_op: BTreeMap<u64, (End, u64, usize, Event)>,
    order: VecDeque<u64>,
}

impl Ended {
    /// The acquisition `op` of process `p` on the lock with this index has ended so.
    pub(super) fn add(&mut self, op: u64, end: End, lock: usize, event: &Event) {
        let p = event.p;
        if self
            .by_op
            .insert(op, (end, p, lock, event.clone()))
            .is_none()
        {
            self.order.push_back(op);
        }
        while self.order.len() > KEPT {
            self.order.pop_front().map(|op| self.by_op.remove(&op));
        }
    }

    /// The lock of one that has ended.
    pub(super) fn lock(&self, op: u64) -> Option<usize> {
        self.by_op.get(&op).map(|(_, _, lock, _)| *lock)
    }

    /// A guard says that it is valid although it has ended.
    pub(super) fn used(&self, op: u64, event: &Event) -> Violation {
        match self.by_op.get(&op) {
            Some((End::Lost, _, _, end)) => {
                found(Rule::Revived, "valid after its loss", end, event)
            }
            Some((End::Releasing | End::Released, _, _, end)) => {
                found(Rule::ReleasedTwice, "valid after its release", end, event)
            }
            None => nothing(event),
        }
    }

    /// A release is called after the loss: it does nothing.
    pub(super) fn is_lost(&self, op: u64) -> bool {
        self.by_op
            .get(&op)
            .is_some_and(|(end, ..)| *end == End::Lost)
    }

    /// A release was called, or confirmed, although the hold has ended.
    pub(super) fn released(&self, op: u64, event: &Event) -> Violation {
        match self.by_op.get(&op) {
            Some((End::Lost, _, _, end)) => found(
                Rule::LostReleased,
                "its release was confirmed after its loss",
                end,
                event,
            ),
            Some((_, _, _, end)) => found(Rule::ReleasedTwice, "released twice", end, event),
            None => nothing(event),
        }
    }
}

/// An event about an acquisition that there is not.
pub(super) fn nothing(event: &Event) -> Violation {
    let text = "about an acquisition that there is not".to_owned();
    Violation {
        rule: Rule::Sense,
        lock: String::new(),
        text,
        events: vec![event.clone()],
    }
}

fn found(rule: Rule, text: &str, end: &Event, event: &Event) -> Violation {
    Violation {
        rule,
        lock: String::new(),
        text: text.to_owned(),
        events: vec![end.clone(), event.clone()],
    }
}
