//! Can the suite fail? Stores that are broken on purpose, one mistake each: a named case must notice it, in its own words,
//! and must pass the same store without the mistake. `docs/mutants.md` is the table.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test binary of its own"
)]

mod at_once;
mod broken;
mod completions;
mod defect;
mod floors;
mod leases;
mod modes;
mod verbs;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use leasehold_conformance::{CASES, Case, Variant, judge};
use libtest_mimic::{Arguments, Failed, Trial};

use defect::{Defect, SENTENCES, Sentence};
use world::{Harnessed, World};

fn case(name: &str) -> &'static Case {
    CASES
        .iter()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("the suite has no case {name:?}"))
}

async fn verdict(case: &'static Case, defect: Option<Defect>) -> Result<(), String> {
    judge(case, Arc::new(Harnessed(World::new(defect))), Variant::Bare).await
}

async fn is_caught(sentence: &Sentence) -> Result<(), Failed> {
    let Sentence {
        defect,
        case: name,
        says,
        ..
    } = sentence;
    let case = case(name);
    verdict(case, None)
        .await
        .map_err(|e| format!("{name} fails a sound store: {e}"))?;
    // A few random programs, or requests that happen not to meet, may all miss a mistake; ten times as many do not.
    let by_chance = ["programs/", "exclusion/", "lease/never"]
        .iter()
        .any(|group| name.starts_with(group));
    // On a busy machine a waiter may not wait yet when it is to be woken.
    let draws = if by_chance { 10 } else { 3 };
    let mut outcome = Ok(());
    for _ in 0..draws {
        outcome = verdict(case, Some(*defect)).await;
        if outcome.is_err() {
            break;
        }
    }
    match outcome {
        Ok(()) => Err(format!("{name} passes a store that is broken: {defect:?}").into()),
        Err(e) if !says.split('|').any(|words| e.contains(words)) => {
            Err(format!("{name} fails, but does not say {says:?}: {e}").into())
        }
        Err(_) => Ok(()),
    }
}

/// The table in the book is the table in the code.
fn the_book_agrees() -> Result<(), Failed> {
    let book = include_str!("../../../../docs/mutants.md");
    for Sentence {
        defect, what, case, ..
    } in SENTENCES
    {
        let row = format!("| {defect:?} | {what} | `{case}` |");
        if !book.contains(&row) {
            return Err(format!("docs/mutants.md lacks the row:\n{row}").into());
        }
        let name = format!("{defect:?}");
        for clause in self::case(case).clauses.split(' ') {
            let start = format!("| {clause} | ");
            let mut rows = book
                .lines()
                .filter_map(|line| line.strip_prefix(&start)?.strip_suffix(" |"));
            if !rows.any(|row| row.split(", ").any(|known| known == name)) {
                return Err(format!(
                    "docs/mutants.md lacks {name} in its table by clause, at {clause}"
                )
                .into());
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Most of a case is waiting for leases.
    args.test_threads.get_or_insert(8);
    // A case fails by panicking, and here it should.
    std::panic::set_hook(Box::new(|_| {}));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let Ok(runtime) = runtime.map(Arc::new) else {
        return ExitCode::FAILURE;
    };
    let mut trials = vec![Trial::test("the_book_agrees", the_book_agrees)];
    for sentence in SENTENCES {
        let runtime = runtime.clone();
        let name = format!("{:?} is caught by {}", sentence.defect, sentence.case);
        trials.push(Trial::test(name, move || {
            runtime.block_on(is_caught(sentence))
        }));
    }
    let listing = args.list;
    let conclusion = libtest_mimic::run(&args, trials);
    if !listing {
        SENTENCES
            .iter()
            .for_each(|s| println!("  {:?} -> {}: {}", s.defect, s.case, s.what));
    }
    conclusion.exit_code()
}
