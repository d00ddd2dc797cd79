//! `leasehold run`: take the lock, run the program under it, give the lock back, and say how it went.

use std::io;

use leasehold::seam::{Clock, Moment};
use leasehold::{Guard, Lock, Result, Store};

use crate::args::Run;
use crate::exit::{self, Exit};
use crate::guardian::Guardian;
use crate::held::{self, Terms};
use crate::lookup;
use crate::open::{Opened, farewell, open};
use crate::report::ReportFile;
use crate::retry::until_answered;
use crate::run_outcome::RunOutcome;
use crate::signals::Signals;
use crate::store_url::StoreUrl;
use crate::waiting::{self, InLine};

pub(crate) async fn main(args: Run) -> io::Result<Exit> {
    let mut report = match ReportFile::open(args.report.as_deref()) {
        Ok(report) => report,
        Err(e) => return Ok(exit::bad_usage(format_args!("the report's file: {e}"))),
    };
    if args.min_hold.zip(args.max_hold).is_some_and(|(min, max)| min > max) {
        return Ok(exit::bad_usage("--min-hold is longer than --max-hold"));
    }
    let url = StoreUrl::choose(args.store.url.as_deref());
    let store = url.as_ref().map_or_else(|_| String::new(), StoreUrl::to_string);
    let ran = match lookup::before_running(&args.program.command[0], url) {
        Ok(url) => attempt(&args, &url).await.unwrap_or_else(|e| RunOutcome::failed(exit::FAILED, exit::chain(&e))),
        Err(ran) => ran,
    };
    Ok(ran.tell(&args.name, &store, &mut report))
}

async fn attempt(args: &Run, url: &StoreUrl) -> io::Result<RunOutcome> {
    let signals = Signals::take()?;
    let guardian = Guardian::start(&args.program.command)?;
    let opened = match signals.unless_interrupted(open(url)).await? {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => return Ok(RunOutcome::refused(&e, url, args.not_acquired)),
        Err(signal) => return Ok(RunOutcome::interrupted(signal)),
    };
    let store = opened.store.clone();
    let ran = hold(args, url, &signals, guardian, opened).await;
    farewell(&store).await;
    ran
}

async fn hold(
    args: &Run,
    url: &StoreUrl,
    signals: &Signals,
    guardian: Guardian,
    opened: Opened,
) -> io::Result<RunOutcome> {
    let shown = &url.to_string();
    let lock = lock(args, &opened.store);
    let label = args.lease.label();
    let line = InLine { store: &opened.store, name: &args.name, at: shown, label: &label, quiet: args.quiet };
    let waiting = waiting::in_line(acquire(args, &lock, url), &line);
    let guard = match signals.unless_interrupted(waiting).await? {
        Ok(Ok(guard)) => guard,
        Ok(Err(e)) if args.quiet => return Ok(RunOutcome::refused(&e, url, args.not_acquired).silent_if_not_acquired()),
        Ok(Err(e)) => return Ok(RunOutcome::refused(&e, url, args.not_acquired)),
        Err(signal) => return Ok(RunOutcome::interrupted(signal)),
    };
    let held_since = Moment::now();
    let terms = Terms { signals, url, ttl: args.lease.ttl, max_hold: args.max_hold, leftovers: args.program.leftovers };
    let ran = held::run(guardian, opened.life_line, &guard, &terms).await?;
    if let Some(min) = args.min_hold.filter(|_| !opened.store.guarantees().min_hold_outlives_process) {
        stay(&guard, held_since + min, signals).await?;
    }
    match guard.release().await {
        Ok(()) => Ok(ran),
        Err(e) => Ok(ran.released(&e)),
    }
}

/// Keeps the lock until then where no store does it for us, unless a signal comes or it is lost.
async fn stay(guard: &Guard, until: Moment, signals: &Signals) -> io::Result<()> {
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

fn lock(args: &Run, store: &Store) -> Lock {
    let lock = match (args.shared, args.permits) {
        (true, _) => store.rw_lock(&args.name).read(),
        (false, Some(of)) => store.semaphore(&args.name, of).permits(1),
        (false, None) => store.lock(&args.name),
    };
    let options = args.lease.options();
    lock.with(&match args.min_hold {
        Some(min) if store.guarantees().min_hold_outlives_process => options.min_hold(min),
        _ => options,
    })
}

async fn acquire(args: &Run, lock: &Lock, url: &StoreUrl) -> Result<Guard> {
    match args.wait {
        _ if args.no_wait => lock.try_acquire().await,
        // Waits out a store that is away by itself.
        Some(wait) => lock.acquire_timeout(wait).await,
        None => until_answered(url, args.lease.ttl, async || lock.acquire().await).await,
    }
}
