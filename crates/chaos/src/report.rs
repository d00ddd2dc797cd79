//! The result of a checker.

use std::{collections::BTreeMap, fmt};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{
    event::Event,
    rules::{Invariant, Rule},
};

/// Something that must not have happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// By which rule it was found.
    pub rule: Rule,
    /// Which lock, if it is about one.
    pub lock: String,
    /// A description for people.
    pub text: String,
    /// The events that show it: of two holders, what is known of both.
    pub events: Vec<Event>,
}

impl Violation {
    /// The invariant that is violated.
    #[must_use]
    pub fn invariant(&self) -> Invariant {
        self.rule.invariant()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.invariant(), self.rule)?;
        if !self.lock.is_empty() {
            write!(f, ", lock {:?}", self.lock)?;
        }
        write!(f, ": {}", self.text)?;
        for event in &self.events {
            let line = serde_json::to_string(event).map_err(|_| fmt::Error)?;
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// The numbers of events in a history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Figures {
    /// Events.
    pub events: u64,
    /// Acquires that returned a guard.
    pub grants: u64,
    /// Acquires that were refused, or not served in time.
    pub refusals: u64,
    /// Acquires with an unknown result, and callers that left.
    pub unknown: u64,
    /// Writes that the resource accepted.
    pub accepted: u64,
    /// Writes that the resource refused because of their tokens.
    pub rejected: u64,
    /// Writes under holds that were valid just then, by what their clients said.
    pub held_writes: u64,
    /// The number of these that the resource accepted. It refuses one only where two hold, or where
    /// tokens have begun anew.
    pub held_accepted: u64,
    /// Losses that were reported.
    pub losses: u64,
    /// Processes that were killed.
    pub killed: u64,
    /// Places that were seen in a queue.
    pub queued: u64,
    /// Callers that were told that their work is done.
    pub done: u64,
    /// Faults by their kind.
    pub faults: BTreeMap<String, u64>,
}

/// The findings of a checker in a history.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The first hundred violations, in the order of time.
    pub violations: Vec<Violation>,
    /// The number of all violations.
    pub count: u64,
    /// The time from the beginning to the first violation, in nanoseconds of the history.
    pub first: Option<u64>,
    /// What happened.
    pub figures: Figures,
    /// The delays between the end of validity and the report of the loss, in nanoseconds, without
    /// the time in which the process did not run.
    pub lateness: Histogram<u64>,
    /// The delays of losses that were due while the working thread was blocked, and that another
    /// thread heard of.
    pub blocked: Histogram<u64>,
    /// The times between the death of an exclusive holder and the grant to a waiter, in
    /// nanoseconds.
    pub recovery: Histogram<u64>,
    /// The times of `recovery` without another fault meanwhile.
    pub calm_recovery: Histogram<u64>,
}

/// The number of violations that are kept.
const KEPT: usize = 100;

impl Report {
    pub(crate) fn new() -> Report {
        // Three digits are always possible.
        let histogram = || Histogram::new(3).unwrap_or_else(|_| unreachable!());
        Report {
            violations: Vec::new(),
            count: 0,
            first: None,
            figures: Figures::default(),
            lateness: histogram(),
            blocked: histogram(),
            recovery: histogram(),
            calm_recovery: histogram(),
        }
    }

    pub(crate) fn recovered(&mut self, took: u64, calm: bool) {
        // Nothing takes longer than a histogram can say: it grows.
        let _ = self.recovery.record(took);
        if calm {
            let _ = self.calm_recovery.record(took);
        }
    }

    pub(crate) fn add(&mut self, violation: Violation) {
        self.count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(violation);
        }
    }

    /// Returns whether there is no violation.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.count == 0
    }

    /// The number of kept violations of this invariant.
    #[must_use]
    pub fn of(&self, invariant: Invariant) -> usize {
        self.violations
            .iter()
            .filter(|violation| violation.invariant() == invariant)
            .count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures {
            events,
            grants,
            refusals,
            unknown,
            losses,
            killed,
            queued,
            faults,
            ..
        } = &self.figures;
        let Figures {
            accepted,
            rejected,
            held_writes,
            held_accepted,
            ..
        } = &self.figures;
        writeln!(
            f,
            "{events} events: {grants} grants, {refusals} refusals, {unknown} without a result, {losses} losses"
        )?;
        writeln!(
            f,
            "{accepted} writes accepted, {rejected} stale ones refused; {queued} places seen in queues"
        )?;
        writeln!(
            f,
            "{held_accepted} of {held_writes} writes under valid holds were accepted"
        )?;
        let kinds: Vec<String> = faults
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        writeln!(
            f,
            "{} faults ({}), {killed} clients killed",
            faults.values().sum::<u64>(),
            kinds.join(", ")
        )?;
        let ms = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e6;
        writeln!(
            f,
            "losses reported after the end of validity: p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms",
            ms(&self.lateness, 0.5),
            ms(&self.lateness, 0.99),
            ms(&self.lateness, 1.0)
        )?;
        writeln!(
            f,
            "{} of them while a runtime was blocked: at most {:.1} ms",
            self.blocked.len(),
            ms(&self.blocked, 1.0)
        )?;
        writeln!(
            f,
            "{} locks of dead holders taken over: p50 {:.0} ms, at most {:.0} ms; {} without another fault: at most {:.0} ms",
            self.recovery.len(),
            ms(&self.recovery, 0.5),
            ms(&self.recovery, 1.0),
            self.calm_recovery.len(),
            ms(&self.calm_recovery, 1.0)
        )?;
        write!(f, "{} violations", self.count)?;
        if let Some(first) = self.first {
            write!(f, ", the first after {} s", first / 1_000_000_000)?;
        }
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}
