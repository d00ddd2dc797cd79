//! Visits all states of a model, within its bounds, and says which of its properties do not hold.
//!
//! The models are in `tests/models`, one file for each protocol: what a server keeps, what clients know, which messages are on
//! their way. A model is a rule of a store written down once more, in the smallest form in which two holders are possible. It
//! judges the rule, not the code: its first lines name the files whose rule it is.
//!
//! Each model also runs with one of its rules removed. Then the checker must find what the rule prevents, or the model could not
//! find anything.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// States that one run comes to, at most, each as often as it does: some gigabytes at worst. Bounds of a model that has more are too wide.
pub const MOST: usize = 5_000_000;

/// The statistics of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Different states.
    pub states: usize,
    /// The most steps from the beginning to one of them.
    pub depth: usize,
}

/// Visits every state of the model.
///
/// # Errors
///
/// The first property that does not hold, and the fewest steps to where it fails; or one that should be seen to happen and
/// does not; or that there are more than [`MOST`] states.
pub fn visit_all<M>(model: M) -> Result<Seen, String>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(MOST)
        .spawn_bfs()
        .join();
    if checker.state_count() >= MOST {
        return Err(format!("there are more than {MOST} states"));
    }
    let properties = checker.model().properties();
    // A failure ends the run, so what was not seen until then says nothing.
    for property in &properties {
        let may_fail = property.expectation != Expectation::Sometimes;
        if let Some(path) = checker.discovery(property.name).filter(|_| may_fail) {
            return Err(format!(
                "{} is not so after\n{}",
                property.name,
                steps(&path.into_actions())
            ));
        }
    }
    for property in &properties {
        let should_be_seen = property.expectation == Expectation::Sometimes;
        if should_be_seen && checker.discovery(property.name).is_none() {
            return Err(format!("never seen: {}", property.name));
        }
    }
    Ok(Seen {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
    })
}

/// Looks for the shortest way to where this property does not hold: its steps, one in a line. `None`: it holds in the first [`MOST`]
/// states.
pub fn counterexample<M>(model: M, property: &'static str) -> Option<String>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = model
        .checker()
        .finish_when(found)
        .target_state_count(MOST)
        .spawn_bfs()
        .join();
    checker
        .discovery(property)
        .map(|path| steps(&path.into_actions()))
}

fn steps<A: Debug>(actions: &[A]) -> String {
    let each = actions
        .iter()
        .enumerate()
        .map(|(at, action)| format!("{:2} {action:?}\n", at + 1));
    each.collect()
}
