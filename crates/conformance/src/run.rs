//! Runs the table against a harness, as a test binary: every case is a named test, filtered openly.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::sync::RwLock;

use crate::arena::Arena;
use crate::case::{CASES, Case};
use crate::harness::Harness;
use crate::matrix::Matrix;

/// A case that makes no step for so long is stuck. How long it takes in all is its machine's affair.
const LIMIT: Duration = Duration::from_secs(120);

/// What stands between core and the store while a case runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dressing {
    /// Nothing: the client as `Arc<dyn Backend>`.
    Bare,
    /// The client in a `Box<dyn Backend>`.
    Boxed,
    /// A decorator that loses requests and replies and delays ([`Weather::bad`](crate::faulty::Weather::bad)).
    Faulty,
}

impl Dressing {
    const ALL: [Dressing; 3] = [Dressing::Bare, Dressing::Boxed, Dressing::Faulty];

    fn suffix(self) -> &'static str {
        match self {
            Dressing::Bare => "",
            Dressing::Boxed => " (boxed)",
            Dressing::Faulty => " (faulty)",
        }
    }

    fn fits(self, case: &Case) -> bool {
        match self {
            Dressing::Bare => true,
            Dressing::Boxed => case.name == "exclusion/contenders",
            Dressing::Faulty => case.in_bad_weather,
        }
    }
}

/// Held for reading by every case, and for writing by one that runs alone.
static ALONE: RwLock<()> = RwLock::const_new(());

/// One case against one harness: `Err` says why it failed.
pub async fn judge(case: &'static Case, harness: Arc<dyn Harness>, dressing: Dressing) -> Result<(), String> {
    let (_alone, _together) = match case.alone {
        true => (Some(ALONE.write().await), None),
        false => (None, Some(ALONE.read().await)),
    };
    let seed = said_seed().unwrap_or_else(|| fastrand::u64(..));
    let arena = Arena::new(harness, dressing, case.name, seed);
    let steps = arena.clone();
    let mut work = tokio::spawn(async move { (case.run)(arena).await });
    loop {
        let before = steps.steps();
        match tokio::time::timeout(LIMIT, &mut work).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) => return Err(format!("seed {seed:x}: {}", panic_text(e))),
            Err(_) if steps.steps() > before => {}
            Err(_) => {
                work.abort();
                return Err(format!("seed {seed:x}: no step within {LIMIT:?}, after {before} of them"));
            }
        }
    }
}

/// The seed of a failure that is to be seen again.
fn said_seed() -> Option<u64> {
    u64::from_str_radix(&std::env::var("LEASEHOLD_SEED").ok()?, 16).ok()
}

fn panic_text(e: tokio::task::JoinError) -> String {
    match e.try_into_panic() {
        Ok(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(text), _) => text.clone(),
            (_, Some(text)) => (*text).to_owned(),
            _ => "it panicked".to_owned(),
        },
        Err(e) => e.to_string(),
    }
}

/// The whole of a store's test binary: makes the harness, runs every case in every fitting dressing, prints the count and, if
/// nothing was filtered out, the row of this store in the matrix of `docs/guarantees.md`.
///
/// Understands the usual arguments of a Rust test binary. Cases that the harness has no power for are listed as ignored.
pub fn main<F: Future<Output = Arc<dyn Harness>>>(harness: impl FnOnce() -> F) -> ExitCode {
    let mut args = Arguments::from_args();
    // Cases mostly wait for leases: let several wait at once, on a machine of two cores as well.
    args.test_threads.get_or_insert(6);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
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
    let store = harness.store();
    let matrix = Arc::new(Matrix::default());
    let mut trials = Vec::new();
    let mut lacking = Vec::new();
    for case in CASES {
        let lack = harness.powers().lack(case.needs);
        if let Some(lack) = &lack {
            lacking.push(format!("  {}: {lack}", case.name));
        }
        for dressing in Dressing::ALL.into_iter().filter(|dressing| dressing.fits(case)) {
            let (harness, runtime, matrix) = (harness.clone(), runtime.clone(), matrix.clone());
            let trial = Trial::test(format!("{}{}", case.name, dressing.suffix()), move || {
                let verdict = runtime.block_on(judge(case, harness, dressing));
                matrix.note(case.name, verdict.is_ok());
                verdict.map_err(Failed::from)
            });
            trials.push(trial.with_kind(format!("{store} {}", case.clauses)).with_ignored_flag(lack.is_some()));
        }
    }
    let listing = args.list;
    let everything = args.filter.is_none() && args.skip.is_empty();
    let conclusion = libtest_mimic::run(&args, trials);
    if !listing {
        let counts = (conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored);
        println!("{store}: {} cases; {} runs passed, {} failed, {} ignored", CASES.len(), counts.0, counts.1, counts.2);
        lacking.iter().for_each(|line| println!("{line}"));
        if everything {
            matrix.rows(store, &harness.powers()).iter().for_each(|row| println!("matrix: {row}"));
        }
    }
    drop(harness);
    conclusion.exit_code()
}
