//! The suite as a test binary: every case is a named test, filtered openly.

use std::env;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::case::CASES;
use crate::harness::Harness;
use crate::matrix::Matrix;
use crate::run::judge;

/// The whole of a store's test binary: makes the harness, runs every case in every variant that fits, prints the count and, if
/// no case was filtered out in all of its variants, the row of this store in the matrix of `docs/guarantees.md`.
///
/// Understands the usual arguments of a Rust test binary. Cases that the harness has no power for are listed as ignored.
///
/// For a store with several set-ups there is [`main_of`].
pub fn main<F>(harness: impl FnOnce() -> F + 'static) -> ExitCode
where
    F: Future<Output = Arc<dyn Harness>> + 'static,
{
    main_of(vec![Setup::new("", harness)])
}

/// The variable with the name of the set-up to judge. `?` prints the names of all of them.
const SETUP: &str = "LEASEHOLD_SETUP";

type Started = Pin<Box<dyn Future<Output = Arc<dyn Harness>>>>;

/// A way in which a store's servers are set up and reached: a name, and the function that starts
/// the servers and returns the harness.
#[allow(
    missing_debug_implementations,
    reason = "a function has nothing to show"
)]
pub struct Setup {
    name: &'static str,
    harness: Box<dyn FnOnce() -> Started>,
}

impl Setup {
    /// A set-up of this name, one word.
    pub fn new<F>(name: &'static str, harness: impl FnOnce() -> F + 'static) -> Setup
    where
        F: Future<Output = Arc<dyn Harness>> + 'static,
    {
        Setup {
            name,
            harness: Box::new(|| Box::pin(harness())),
        }
    }
}

/// [`main`] for a store with several set-ups: judges the one that the variable `LEASEHOLD_SETUP`
/// names, or the first one without it. With `?` as its value it only prints the names, a line for
/// each.
pub fn main_of(setups: Vec<Setup>) -> ExitCode {
    let wanted = env::var(SETUP).ok();
    if wanted.as_deref() == Some("?") {
        setups.iter().for_each(|setup| println!("{}", setup.name));
        return ExitCode::SUCCESS;
    }
    let is_wanted = |setup: &Setup| wanted.as_ref().is_none_or(|name| *name == setup.name);
    match setups.into_iter().find(is_wanted) {
        Some(setup) => judge_all(setup.harness),
        None => {
            println!(
                "{SETUP}={}: there is no such set-up",
                wanted.unwrap_or_default()
            );
            ExitCode::FAILURE
        }
    }
}

fn judge_all<F: Future<Output = Arc<dyn Harness>>>(harness: impl FnOnce() -> F) -> ExitCode {
    let mut args = Arguments::from_args();
    // Cases mostly wait for leases: let several wait at once, on a machine of two cores as well.
    args.test_threads.get_or_insert(6);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => Arc::new(runtime),
        Err(e) => {
            println!("no runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    let made = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(harness())));
    let Ok(harness) = made else {
        println!("the harness could not be made, so nothing was judged: this is a failure");
        return ExitCode::FAILURE;
    };
    let store = harness.store_name();
    let matrix = Arc::new(Matrix::default());
    let mut trials = Vec::new();
    let mut lacking = Vec::new();
    for case in CASES {
        let lack = harness.capabilities().lack(case.needs);
        if let Some(lack) = &lack {
            lacking.push(format!("  {}: {lack}", case.name));
        }
        for variant in case.variants() {
            let harness = harness.clone();
            let runtime = runtime.clone();
            let matrix = matrix.clone();
            let trial = Trial::test(case.title(variant), move || {
                let verdict = runtime.block_on(judge(case, harness, variant));
                matrix.note(case.name, verdict.is_ok());
                verdict.map_err(Failed::from)
            });
            trials.push(
                trial
                    .with_kind(format!("{store} {}", case.clauses))
                    .with_ignored_flag(lack.is_some()),
            );
        }
    }
    let listing = args.list;
    let conclusion = libtest_mimic::run(&args, trials);
    if !listing {
        let counts = (
            conclusion.num_passed,
            conclusion.num_failed,
            conclusion.num_ignored,
        );
        println!(
            "{store}: {} cases; {} runs passed, {} failed, {} ignored",
            CASES.len(),
            counts.0,
            counts.1,
            counts.2
        );
        lacking.iter().for_each(|line| println!("{line}"));
        let capabilities = harness.capabilities();
        let mut able = CASES
            .iter()
            .filter(|case| capabilities.lack(case.needs).is_none());
        if able.all(|case| matrix.has(case.name)) {
            matrix
                .rows(store, &capabilities)
                .iter()
                .for_each(|row| println!("matrix: {row}"));
        }
    }
    drop(harness);
    conclusion.exit_code()
}
