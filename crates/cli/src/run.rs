//! `leasehold run`: acquire the lock, run the program under it, release the lock, and report how the run ended.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use leasehold::backend::{Clock, Mode, Moment};
use leasehold::{Guard, Lock, Store};
use tokio::runtime::Builder;

use crate::args::{ProgramArgs, Run};
use crate::exit::{self, Exit};
use crate::guardian::Guardian;
use crate::held::{self, Terms};
use crate::lookup::look_up;
use crate::nested::refuse_to_wait_for_itself;
use crate::open::{Opened, close};
use crate::processes::Status;
use crate::retry::{open_patiently, patience_without_limit, until_answered};
use crate::run_outcome::RunOutcome;
use crate::runtime::in_runtime;
use crate::signals::{Inherited, Signals};
use crate::store_url::{StoreArg, StoreUrl};
use crate::waiting::{self, Wait};

pub(crate) fn main(args: &Run) -> Exit {
    let report = match args.report.as_deref().map(report_file).transpose() {
        Ok(report) => report,
        Err(e) => return exit::bad_usage(format_args!("the report's file: {e}")),
    };
    if args
        .min_hold
        .zip(args.max_hold)
        .is_some_and(|(min, max)| min > max)
    {
        return exit::bad_usage("--min-hold is longer than --max-hold");
    }
    let attempt = async |url: &StoreUrl, signals: &Signals, guardian: &Guardian| {
        attempt(args, url, signals, guardian).await
    };
    reported(&args.name, &args.program, &args.store, report, attempt)
}

/// Opens the report's file, before anything is done.
fn report_file(path: &Path) -> io::Result<File> {
    if path.as_os_str() == "-" {
        return Err(io::Error::other(
            "standard output is CMD's; name a file, such as /dev/stderr",
        ));
    }
    File::create(path)
}

/// Runs the command if its program exists and its store is known, so that no client waits for a
/// program that cannot run. Reports how the run ended.
pub(crate) fn reported(
    name: &str,
    program: &ProgramArgs,
    store: &StoreArg,
    report: Option<File>,
    run: impl AsyncFnOnce(&StoreUrl, &Signals, &Guardian) -> Result<RunOutcome, RunOutcome>,
) -> Exit {
    let url = StoreUrl::choose(store);
    let shown = url
        .as_ref()
        .map_or_else(|_| String::new(), StoreUrl::to_string);
    let ran = || {
        look_up(&program.command[0])?;
        let url = url.map_err(|what| RunOutcome::failed(exit::USAGE, what))?;
        // This comes before there is any other thread.
        let status = Status::read();
        let signals = Inherited::take_over(&status)?;
        let guardian = Guardian::start(&program.command, &signals, &status)?;
        in_runtime(Builder::new_current_thread(), async || {
            let signals = signals.listen()?;
            let guardian = guardian.listen()?;
            let ran = run(&url, &signals, &guardian).await;
            guardian.gone().await;
            // The process ends now, and the kernel closes everything at once.
            std::mem::forget((signals, guardian));
            ran
        })?
    };
    ran()
        .unwrap_or_else(|early| early)
        .report(name, &shown, report)
}

async fn attempt(
    args: &Run,
    url: &StoreUrl,
    signals: &Signals,
    guardian: &Guardian,
) -> Result<RunOutcome, RunOutcome> {
    let began = Moment::now();
    let patience = match args.wait {
        _ if args.no_wait => Duration::ZERO,
        Some(wait) => wait,
        None => patience_without_limit(url),
    };
    let opening = open_patiently(url, patience);
    let opened = RunOutcome::unless_over(signals, url, args.not_acquired, opening).await?;
    let ran = hold(args, url, signals, guardian, &opened, began).await;
    close(&opened.store).await;
    // The process ends now, and the kernel closes everything at once.
    std::mem::forget(opened);
    ran
}

async fn hold(
    args: &Run,
    url: &StoreUrl,
    signals: &Signals,
    guardian: &Guardian,
    opened: &Opened,
    began: Moment,
) -> Result<RunOutcome, RunOutcome> {
    if !args.no_wait {
        let asked = refuse_to_wait_for_itself(&opened.store, url, &args.name, mode(args));
        signals
            .unless_interrupted(asked)
            .await?
            .map_err(RunOutcome::interrupted)??;
    }
    let label = args.lease.label();
    let lock = lock(args, &opened.store, &label);
    let wait = Wait {
        store: &opened.store,
        name: &args.name,
        url,
        label: &label,
        quiet: args.quiet,
    };
    let waiting = waiting::in_queue(acquire(args, &lock, url, began), &wait);
    let guard = RunOutcome::unless_over(signals, url, args.not_acquired, waiting).await;
    let guard = guard.map_err(|refused| if args.quiet { refused.quiet() } else { refused })?;
    let held_since = Moment::now();
    let terms = Terms {
        signals,
        url,
        max_hold: args.max_hold,
        leftovers: args.program.leftovers,
    };
    let ran = held::run(guardian, &opened.life_line, &guard, &terms).await?;
    // The guardian ends while the lock is released.
    guardian.dismiss();
    if let Some(min) = args
        .min_hold
        .filter(|_| !opened.store.guarantees().min_hold_outlives_process())
    {
        guardian.gone().await;
        keep_until(&guard, held_since + min, signals).await?;
    }
    Ok(ran.released(guard.release().await))
}

/// Keeps the lock until this time, for stores that do not do it by themselves. A signal, or the
/// loss of the lock, ends it earlier.
async fn keep_until(guard: &Guard, until: Moment, signals: &Signals) -> io::Result<()> {
    let clock = Clock::boot();
    let over = async {
        tokio::select! {
            () = clock.sleep_until(until) => {}
            _ = guard.lost() => {}
        }
    };
    let _ = signals.unless_interrupted(over).await?;
    Ok(())
}

fn mode(args: &Run) -> Mode {
    match (args.shared, args.permits) {
        (true, _) => Mode::Shared,
        (false, Some(of)) => Mode::Permits { n: 1, of },
        (false, None) => Mode::Exclusive,
    }
}

fn lock(args: &Run, store: &Store, label: &str) -> Lock {
    let lock = match mode(args) {
        Mode::Shared => store.rw_lock(&args.name).read(),
        Mode::Permits { n, of } => store.semaphore(&args.name, of).permits(n),
        Mode::Exclusive => store.lock(&args.name),
    };
    let options = args.lease.options(label);
    lock.with(&match args.min_hold {
        Some(min) if store.guarantees().min_hold_outlives_process() => options.min_hold(min),
        _ => options,
    })
}

async fn acquire(
    args: &Run,
    lock: &Lock,
    url: &StoreUrl,
    began: Moment,
) -> leasehold::Result<Guard> {
    match args.wait {
        _ if args.no_wait => lock.try_acquire().await,
        // This call waits by itself until an unavailable store is back.
        Some(wait) => {
            let left = wait.saturating_sub(Moment::now().since(began));
            lock.acquire_timeout(left).await
        }
        None => until_answered(url, args.lease.ttl, async || lock.acquire().await).await,
    }
}
