//! I2 and I3: tokens rise from grant to grant, and the resource accepts none that is smaller than
//! one it has seen.

use std::collections::BTreeMap;

use super::lock::{Hold, Lock};
use crate::{
    event::{Event, Mode},
    report::Violation,
    rules::Rule,
};

/// The greatest tokens of grants that have returned, by what they exclude.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    exclusive: u64,
    shared: u64,
    permits: u64,
}

impl Floor {
    fn slot(&mut self, mode: Mode) -> &mut u64 {
        match mode {
            Mode::Exclusive | Mode::Leader => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
            Mode::Permits { .. } => &mut self.permits,
        }
    }

    /// The greatest token of a grant that conflicts with this mode.
    fn of(&self, mode: Mode) -> u64 {
        match mode {
            Mode::Exclusive | Mode::Leader => self.exclusive.max(self.shared).max(self.permits),
            Mode::Shared => self.exclusive.max(self.permits),
            Mode::Permits { .. } => self.exclusive.max(self.shared),
        }
    }
}

/// Tokens of one lock.
#[derive(Default)]
pub(super) struct Tokens {
    /// The greatest token of all grants that have returned.
    pub(super) greatest: Floor,
    /// Exclusive ones, of which owner. Only those that a grant under way could repeat.
    recent: BTreeMap<u64, (Option<u64>, Event)>,
}

impl Tokens {
    /// The owner of who was granted this one a short while ago, exclusively.
    pub(super) fn of(&self, tok: u64) -> Option<Option<u64>> {
        self.recent.get(&tok).map(|(owner, _)| *owner)
    }
}

/// A guard was returned: its token is compared with those of grants that had returned before it was
/// asked for.
pub(super) fn granted(lock: &mut Lock, hold: &Hold, floor: Floor) -> Option<Violation> {
    let Hold {
        mode, tok, owner, ..
    } = *hold;
    if tok == 0 {
        return None;
    }
    let known = lock.tokens.recent.get(&tok);
    let reentered = owner.is_some() && lock.tokens.of(tok) == Some(owner);
    let found = reentry(lock, hold).or_else(|| {
        if reentered {
            return None;
        }
        if tok <= floor.of(mode) {
            let events = lock
                .tokens
                .recent
                .values()
                .next_back()
                .map(|(_, event)| event.clone());
            let text = format!(
                "token {tok}, and {} was granted before it was asked for",
                floor.of(mode)
            );
            return Some((
                Rule::TokenOrder,
                text,
                events.into_iter().chain([hold.granted.clone()]).collect(),
            ));
        }
        let (_, twin) = known.filter(|_| mode.is_exclusive())?;
        let text = format!("token {tok} was granted twice");
        Some((
            Rule::TokenUnique,
            text,
            vec![twin.clone(), hold.granted.clone()],
        ))
    });
    let slot = lock.tokens.greatest.slot(mode);
    *slot = tok.max(*slot);
    if mode.is_exclusive() {
        lock.tokens
            .recent
            .entry(tok)
            .or_insert_with(|| (owner, hold.granted.clone()));
    }
    // A grant under way is greater than its floor, or a re-entry with just that token.
    let oldest = lock
        .waiting
        .values()
        .map(|waiter| waiter.floor.exclusive)
        .min();
    let oldest = oldest.unwrap_or(lock.tokens.greatest.exclusive);
    lock.tokens.recent = lock.tokens.recent.split_off(&oldest);
    found.map(|(rule, text, events)| lock.violation(rule, text, events))
}

/// A re-entry by the owner of a hold must have the token of that hold.
fn reentry(lock: &Lock, hold: &Hold) -> Option<(Rule, String, Vec<Event>)> {
    let t = hold.granted.t;
    let held = |other: &&Hold| {
        other.owner == hold.owner && other.valid > t && other.forfeit <= t && other.tok > 0
    };
    let other = lock
        .holds
        .values()
        .filter(|_| hold.owner.is_some())
        .find(held)?;
    (other.tok != hold.tok).then(|| {
        let text = format!("re-entered with token {} and not {}", hold.tok, other.tok);
        (
            Rule::TokenReentry,
            text,
            vec![other.granted.clone(), hold.granted.clone()],
        )
    })
}

/// The resource has accepted a write.
pub(super) fn accepted(lock: &mut Lock, tok: u64, event: &Event) -> Option<Violation> {
    if let Some((seen, earlier)) = lock.seen.clone().filter(|(seen, _)| tok < *seen) {
        let text = format!("a write with token {tok} was accepted after one with {seen}");
        return Some(lock.violation(Rule::StaleWrite, text, vec![earlier, event.clone()]));
    }
    lock.seen = Some((tok, event.clone()));
    lock.ever_seen = lock.ever_seen.max(tok);
    None
}

/// The resource has refused a write.
pub(super) fn rejected(lock: &Lock, tok: u64, event: &Event) -> Option<Violation> {
    // The resource may know nothing of a new beginning.
    let stale = tok < lock.ever_seen;
    let events = lock
        .seen
        .iter()
        .map(|(_, earlier)| earlier.clone())
        .chain([event.clone()])
        .collect();
    let text = format!("a write with token {tok} was refused though no greater one was seen");
    (!stale).then(|| lock.violation(Rule::FreshWrite, text, events))
}

/// An observer has seen a leader.
pub(super) fn observed(
    lock: &mut Lock,
    observer: u64,
    tok: u64,
    event: &Event,
) -> Option<Violation> {
    match lock.observers.insert(observer, (tok, event.clone())) {
        Some((before, earlier)) if tok < before => {
            let text = format!("the leader with token {tok} was seen after that with {before}");
            Some(lock.violation(Rule::ObservedOrder, text, vec![earlier, event.clone()]))
        }
        _ => None,
    }
}

/// Tokens may begin anew.
pub(super) fn begin_anew(lock: &mut Lock) {
    lock.tokens = Tokens::default();
    lock.seen = None;
    lock.observers.clear();
    for waiter in lock.waiting.values_mut() {
        waiter.floor = Floor::default();
    }
}
