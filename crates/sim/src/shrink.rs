//! Reduces a world that fails: fewer faults, fewer steps and so fewer processes, as long as it
//! still fails.

use crate::plan::{Part, Plan};
use crate::{Kind, Outcome, run};

/// A seed's world, or the smallest part of it that was found to fail.
#[derive(Clone, Debug)]
pub struct Small {
    /// The part that is left.
    pub part: Part,
    /// The outcome of that part.
    pub outcome: Outcome,
    /// The number of worlds that were run to find it.
    pub tries: usize,
}

/// Reduces a failing part of a world as far as leaving out steps and faults can.
#[must_use]
pub fn shrink(kind: Kind, seed: u64, part: &Part, outcome: Outcome) -> Small {
    let plan = Plan::of(kind, seed, part);
    let mut faults: Vec<usize> = plan.faults.iter().map(|fault| fault.nth).collect();
    let mut steps: Vec<usize> = plan.steps.iter().map(|step| step.nth).collect();
    let mut small = Small {
        part: part.clone(),
        outcome,
        tries: 0,
    };
    loop {
        let before = faults.len() + steps.len();
        faults = small.fewer((kind, seed), &faults, |faults| Part {
            faults: Some(faults),
            steps: Some(steps.clone()),
        });
        steps = small.fewer((kind, seed), &steps, |steps| Part {
            faults: Some(faults.clone()),
            steps: Some(steps),
        });
        if faults.len() + steps.len() == before {
            return small;
        }
    }
}

impl Small {
    /// Leaves out ever smaller runs of these numbers, as long as the rest still fails.
    fn fewer(
        &mut self,
        (kind, seed): (Kind, u64),
        all: &[usize],
        part: impl Fn(Vec<usize>) -> Part,
    ) -> Vec<usize> {
        let mut left = all.to_vec();
        let mut many = left.len().div_ceil(2);
        while many > 0 && !left.is_empty() {
            let mut at = 0;
            while at < left.len() {
                let mut without = left.clone();
                without.drain(at..(at + many).min(left.len()));
                let tried = part(without.clone());
                self.tries += 1;
                let outcome = run(kind, seed, &tried);
                // Another error would lead away from this one.
                if rule(&outcome) == rule(&self.outcome) {
                    (self.part, self.outcome) = (tried, outcome);
                    left = without;
                } else {
                    at += many;
                }
            }
            many = if many == 1 { 0 } else { many.div_ceil(2) };
        }
        left
    }
}

/// The rule of the first error, without its details; `None` if there is no error.
fn rule(outcome: &Outcome) -> Option<&str> {
    let first = outcome.wrong.first()?;
    first.split(')').next()
}
