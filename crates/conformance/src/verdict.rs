//! The suite without a test binary: the outcome of each case as a value, for programs that judge a
//! server.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::Moment;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::case::{CASES, Case};
use crate::context::Variant;
use crate::harness::Harness;
use crate::run::judge;

/// The outcome of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The store passed the case.
    Passed,
    /// The case failed, for this reason.
    Failed(String),
    /// The harness or the store lacks a need of the case, for this reason.
    NotJudged(String),
}

/// One case, judged.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The case.
    pub case: &'static Case,
    /// Its outcome.
    pub outcome: Outcome,
    /// The time that it took.
    pub took: Duration,
}

/// Judges every case bare, `at_once` at a time, and calls `seen` with each verdict and the number
/// of all cases.
///
/// A failed case panics: set a panic hook to hide the output. If the future is dropped, running
/// cases are aborted.
pub async fn verdicts(
    harness: Arc<dyn Harness>,
    at_once: usize,
    mut seen: impl FnMut(&Verdict, usize),
) -> Vec<Verdict> {
    let capabilities = harness.capabilities();
    let permits = Arc::new(Semaphore::new(at_once.max(1)));
    let mut judging = JoinSet::new();
    for case in CASES {
        let harness = harness.clone();
        let permits = permits.clone();
        let lack = capabilities.lack(case.needs);
        judging.spawn(async move {
            if let Some(why) = lack {
                return Verdict {
                    case,
                    outcome: Outcome::NotJudged(why),
                    took: Duration::ZERO,
                };
            }
            let _permit = permits.acquire_owned().await;
            let begin = Moment::now();
            let outcome = match judge(case, harness, Variant::Bare).await {
                Ok(()) => Outcome::Passed,
                Err(why) => Outcome::Failed(why),
            };
            Verdict {
                case,
                outcome,
                took: Moment::now().since(begin),
            }
        });
    }
    let mut all = Vec::with_capacity(CASES.len());
    while let Some(judged) = judging.join_next().await {
        // Nothing in there panics: the case itself runs in a task of its own.
        let Ok(verdict) = judged else { continue };
        seen(&verdict, CASES.len());
        all.push(verdict);
    }
    all.sort_by_key(|verdict| CASES.iter().position(|case| case.name == verdict.case.name));
    all
}
