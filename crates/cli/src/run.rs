//! `leasehold run`: acquire the lock, run the program under it, release the lock, and report how the run ended.

use std::fs::File;
use std::io;
use std::path::Path;

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
use crate::retry::{Limit, Patience, open_patiently};
use crate::run_outcome::RunOutcome;
use crate::runtime::in_runtime;
use crate::signals::{Inherited, Signals};
use crate::store_url::{StoreArg, StoreUrl};
use crate::waiting::{self, Wait};

pub(crate) fn main(args: &Run) -> Exit {
    let report = match args.outcome.report.as_deref().map(report_file).transpose() {
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
        let patience = if args.no_wait {
            Patience::None
        } else {
            Patience::new(args.wait)
        };
        let scene = Scene {
            url,
            signals,
            guardian,
            patience,
            not_acquired: args.outcome.not_acquired,
        };
        scene
            .with_store(async |opened| hold(args, scene, opened).await)
            .await
    };
    reported(&args.name, &args.program, &args.store, report, attempt)
}

/// The surroundings of a command that runs a program under a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) url: &'a StoreUrl,
    pub(crate) signals: &'a Signals,
    pub(crate) guardian: &'a Guardian,
    pub(crate) patience: Patience,
    /// The exit code if the lock is not acquired.
    pub(crate) not_acquired: u8,
}

impl Scene<'_> {
    /// Opens the store, does the work, and closes the store.
    pub(crate) async fn with_store(
        self,
        work: impl AsyncFnOnce(&Opened) -> Result<RunOutcome, RunOutcome>,
    ) -> Result<RunOutcome, RunOutcome> {
        let opening = open_patiently(self.url, self.patience.for_store(self.url));
        let opened = self.unless_over(opening).await?;
        let ran = work(&opened).await;
        close(&opened.store).await;
        // The process ends now, and the kernel closes everything at once.
        std::mem::forget(opened);
        ran
    }

    /// The store's answer; the run ends if the store refuses, or a signal comes first.
    pub(crate) async fn unless_over<T>(
        self,
        work: impl Future<Output = leasehold::Result<T>>,
    ) -> Result<T, RunOutcome> {
        RunOutcome::unless_over(self.signals, self.url, self.not_acquired, work).await
    }
}

/// Opens the report's file, before anything is done.
pub(crate) fn report_file(path: &Path) -> io::Result<File> {
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

async fn hold(args: &Run, scene: Scene<'_>, opened: &Opened) -> Result<RunOutcome, RunOutcome> {
    let Scene {
        url,
        signals,
        guardian,
        ..
    } = scene;
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
        quiet: args.outcome.quiet,
    };
    let ask = async |limit| match limit {
        Limit::Try => lock.try_acquire().await,
        Limit::Within(left) => lock.acquire_timeout(left).await,
        Limit::Forever => lock.acquire().await,
    };
    let acquiring = scene.patience.acquire(url, args.lease.ttl, ask);
    let waiting = waiting::in_queue(acquiring, &wait);
    let guard = scene
        .unless_over(waiting)
        .await
        .map_err(|refused| refused.quiet_if(args.outcome.quiet))?;
    let held_since = Moment::now();
    let terms = Terms {
        signals,
        url,
        ends: args.max_hold.map(|max| held_since + max),
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
    let options = args.order.of(args.lease.options(label));
    lock.with(&match args.min_hold {
        Some(min) if store.guarantees().min_hold_outlives_process() => options.min_hold(min),
        _ => options,
    })
}
