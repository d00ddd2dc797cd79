//! `leasehold run`: take the lock, run the program under it, give the lock back, and say how it went.

use std::io;
use std::time::Duration;

use leasehold::seam::{Clock, Moment};
use leasehold::{Acquire, Error, Guard, Lock, Store};
use nix::sys::signal::Signal;

use crate::args::Run;
use crate::exit::{self, Exit, say};
use crate::guardian::Guardian;
use crate::guardian::deadline::Plan;
use crate::guardian::wire::{Start, Status, Why};
use crate::lookup::{self, Missing};
use crate::report::{Outcome, Report, ReportFile};
use crate::signals::{self, Signals};
use crate::store_url::{self, StoreUrl};
use crate::supervise::{self, Watch, supervise};
use crate::terminal::Terminal;
use crate::waiting;

/// How long the last words to the store may take.
const FAREWELL: Duration = Duration::from_secs(2);

pub(crate) async fn main(args: Run) -> Exit {
    let program = &args.program.command[0];
    if let Err(missing) = lookup::look_up(program) {
        let (what, code) = match missing {
            Missing::NotFound => ("there is no such program", exit::NOT_FOUND),
            Missing::NotExecutable => ("it cannot be executed", exit::NOT_EXECUTABLE),
        };
        say(format_args!("{}: {what}", program.display()));
        return Exit::Code(code);
    }
    let url = match StoreUrl::choose(args.store.url.as_deref()) {
        Ok(url) => url,
        Err(what) => {
            say(what);
            return Exit::Code(exit::USAGE);
        }
    };
    let mut report = match ReportFile::open(args.report.as_deref()) {
        Ok(file) => file,
        Err(e) => {
            say(format_args!("the report's file: {e}"));
            return Exit::Code(exit::USAGE);
        }
    };
    let ran = match attempt(&args, &url).await {
        Ok(ran) => ran,
        Err(e) => Ran::failed(exit::chain(&e)),
    };
    if let Some(what) = &ran.complaint {
        say(what);
    }
    let (code, signal) = match ran.status {
        Some(Status::Code(code)) => (Some(code), None),
        Some(Status::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let written = report.write(&Report {
        outcome: ran.outcome,
        name: &args.name,
        store: &url.to_string(),
        token: ran.token,
        code,
        signal,
        detail: ran.complaint.unwrap_or_default(),
    });
    if let Err(e) = written {
        say(format_args!("the report's file: {e}"));
    }
    ran.exit
}

/// How a run went.
struct Ran {
    outcome: Outcome,
    exit: Exit,
    token: Option<u64>,
    status: Option<Status>,
    complaint: Option<String>,
}

impl Ran {
    fn new(outcome: Outcome, exit: Exit) -> Ran {
        Ran { outcome, exit, token: None, status: None, complaint: None }
    }

    fn failed(what: String) -> Ran {
        Ran::new(Outcome::Failed, Exit::Code(exit::FAILED)).because(what)
    }

    fn because(self, what: String) -> Ran {
        Ran { complaint: Some(what), ..self }
    }

    fn refused(e: &Error, not_acquired: u8) -> Ran {
        let (outcome, code) = match exit::of_error(e) {
            exit::NOT_ACQUIRED => (Outcome::NotAcquired, not_acquired),
            exit::USAGE => (Outcome::Failed, exit::USAGE),
            code => (Outcome::Unavailable, code),
        };
        Ran::new(outcome, Exit::Code(code)).because(exit::chain(e))
    }

    fn interrupted(signal: Signal) -> Ran {
        Ran::new(Outcome::Interrupted, Exit::Signal(signal as i32))
    }
}

async fn attempt(args: &Run, url: &StoreUrl) -> io::Result<Ran> {
    let signals = Signals::take()?;
    let guardian = Guardian::start(&args.program.command)?;
    let shown = url.to_string();
    tracing::debug!(store = %shown, "connecting");
    let store = match unless_interrupted(&signals, leasehold::connect(url.secret())).await? {
        Ok(Ok(store)) => store,
        Ok(Err(e)) => return Ok(Ran::refused(&e, args.not_acquired)),
        Err(signal) => return Ok(Ran::interrupted(signal)),
    };
    let lock = store.lock(&args.name).with(&args.lease.options());
    let ran = hold(args, &shown, &signals, guardian, &lock).await;
    farewell(&store).await;
    ran
}

async fn hold(args: &Run, shown: &str, signals: &Signals, guardian: Guardian, lock: &Lock) -> io::Result<Ran> {
    let label = args.lease.label();
    let waiting = async {
        tokio::select! {
            acquired = acquire(args, lock) => acquired,
            () = waiting::show(lock, shown, &label) => Err(Error::new(leasehold::ErrorKind::Internal, "")),
        }
    };
    let guard = match unless_interrupted(signals, waiting).await? {
        Ok(Ok(guard)) => guard,
        Ok(Err(e)) => return Ok(Ran::refused(&e, args.not_acquired)),
        Err(signal) => return Ok(Ran::interrupted(signal)),
    };
    let token = guard.fencing_token();
    let mut ran = under(args, shown, signals, guardian, &guard).await?;
    ran.token = Some(token.get());
    if let Err(e) = guard.release().await {
        match e.loss() {
            Some(_) if ran.outcome == Outcome::Ended => {
                let what = format!("the program had ended, but {e}: it was not protected to its end");
                ran = Ran { outcome: Outcome::Lost, exit: Exit::Code(exit::LOST), complaint: Some(what), ..ran };
            }
            None if ran.outcome == Outcome::Ended => say(format_args!("releasing: {}", exit::chain(&e))),
            _ => tracing::debug!(error = %e, "releasing"),
        }
    }
    Ok(ran)
}

fn acquire(args: &Run, lock: &Lock) -> Acquire {
    match args.wait {
        _ if args.no_wait => lock.try_acquire(),
        Some(wait) => lock.acquire_timeout(wait),
        None => lock.acquire(),
    }
}

/// Runs the program under the lock.
async fn under(args: &Run, shown: &str, signals: &Signals, guardian: Guardian, guard: &Guard) -> io::Result<Ran> {
    let plan = Plan::for_ttl(args.lease.ttl);
    let terminal = Terminal::open();
    let deadline = || {
        // Read the clock first: the deadline may be early, never late.
        let now = Moment::now();
        now + guard.remaining()
    };
    let start = Start {
        environment: vec![
            ("LEASEHOLD_NAME".into(), args.name.clone()),
            ("LEASEHOLD_FENCING_TOKEN".into(), guard.fencing_token().to_string()),
            (store_url::VARIABLE.into(), shown.to_owned()),
        ],
        deadline: deadline().as_nanos(),
        plan,
        foreground: terminal.as_ref().is_some_and(Terminal::is_ours),
        leftovers: args.program.leftovers,
        blocked: signals.blocked_before().to_vec(),
    };
    let max_hold = async {
        match args.max_hold {
            Some(max) => Clock::boot().sleep_until(Moment::now() + max).await,
            None => std::future::pending().await,
        }
    };
    let mut loss = None;
    let stop = async {
        tokio::select! {
            reason = guard.lost() => {
                loss = Some(reason);
                true
            }
            () = max_hold => false,
        }
    };
    let watch = Watch { signals, terminal: terminal.as_ref(), ttl: args.lease.ttl, plan };
    let outcome = supervise(guardian, start, None, watch, deadline, stop).await?;
    Ok(judge(outcome, loss, args))
}

fn judge(outcome: supervise::Outcome, loss: Option<leasehold::Loss>, args: &Run) -> Ran {
    let (ended, foreground) = match outcome {
        supervise::Outcome::Ended { ended, foreground } => (ended, foreground),
        supervise::Outcome::NotStarted(what) => return Ran::failed(what),
        supervise::Outcome::GuardianDied { left } => {
            return Ran::failed(format!("the guardian died, and the program was ended{}", still_there(&left)));
        }
    };
    let lost = |why: String| {
        let what =
            format!("the lock {:?} was lost: {why}; the program was ended{}", args.name, still_there(&ended.left));
        Ran::new(Outcome::Lost, Exit::Code(exit::LOST)).because(what)
    };
    let ran = match (ended.why, loss) {
        (Why::Deadline, None) => lost("its lease could not be renewed in time".into()),
        (Why::Deadline | Why::Ordered, Some(loss)) => lost(loss.to_string()),
        (Why::Ordered, None) => {
            let what = format!("--max-hold is over; the program was ended{}", still_there(&ended.left));
            Ran::new(Outcome::MaxHold, Exit::Code(exit::MAX_HOLD)).because(what)
        }
        (Why::Itself, _) => {
            if !ended.left.is_empty() {
                say(format_args!("the program left processes behind: {}", numbers(&ended.left)));
            }
            Ran::new(
                Outcome::Ended,
                match ended.status {
                    Some(Status::Code(code)) => Exit::Code(u8::try_from(code).unwrap_or(exit::FAILED)),
                    Some(Status::Signal(signal)) if signal == Signal::SIGINT as i32 && foreground => {
                        // From the keyboard: the rest of our job, and whoever waits for it, is to see it too.
                        signals::tell_own_group(Signal::SIGINT);
                        Exit::Signal(signal)
                    }
                    Some(Status::Signal(signal)) => Exit::Code(exit::of_signal(signal)),
                    None => Exit::Code(exit::FAILED),
                },
            )
        }
    };
    Ran { status: ended.status, ..ran }
}

fn still_there(left: &[i32]) -> String {
    match left {
        [] => String::new(),
        left => format!(", but these processes could not be: {}", numbers(left)),
    }
}

fn numbers(pids: &[i32]) -> String {
    pids.iter().map(i32::to_string).collect::<Vec<_>>().join(", ")
}

/// Does the work, unless a signal ends it; stops and continues with its job meanwhile.
async fn unless_interrupted<T>(signals: &Signals, work: impl Future<Output = T>) -> io::Result<Result<T, Signal>> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(Ok(done)),
            signal = signals.next() => match signal? {
                stop @ (Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU) => signals::stop_own_group(stop),
                Signal::SIGCONT => {}
                signal => return Ok(Err(signal)),
            },
        }
    }
}

/// Lets the background releases be answered.
async fn farewell(store: &Store) {
    if let Err(e) = store.close(FAREWELL).await {
        tracing::debug!(error = %e, "closing the store");
    }
}
