//! `leasehold once`: run the program unless its work is done, and record that it is.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold::backend::{Clock, Mode, Moment};
use leasehold::{Error, ErrorKind, Store};
use leasehold_core::{Begun, Completion, Keep, MAX_RESULT_BYTES, OnceGuard};
use rustix::fs::OFlags;

use crate::args::Once;
use crate::exit::{self, Exit, say};
use crate::fires::Every;
use crate::guardian::Guardian;
use crate::held::{self, Terms};
use crate::nested::refuse_to_wait_for_itself;
use crate::open::Opened;
use crate::record;
use crate::retry::{Limit, Patience};
use crate::run::{self, Scene};
use crate::run_outcome::RunOutcome;
use crate::signals::Signals;
use crate::store_url::StoreUrl;
use crate::waiting::{self, Wait};

/// The time for which the store's answer to a completion is waited for after a signal.
const GRACE: Duration = Duration::from_secs(2);
/// The pauses before a program that failed is run again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

pub(crate) fn main(args: &Once) -> Exit {
    let report = match args
        .outcome
        .report
        .as_deref()
        .map(run::report_file)
        .transpose()
    {
        Ok(report) => report,
        Err(e) => return exit::bad_usage(format_args!("the report's file: {e}")),
    };
    let work = match Work::of(args, SystemTime::now()) {
        Ok(work) => work,
        Err(what) => return exit::bad_usage(what),
    };
    if let Some(warning) = &work.warning {
        say(warning);
    }
    let attempt = async |url: &StoreUrl, signals: &Signals, guardian: &Guardian| {
        let patience = match args.wait {
            None => Patience::None,
            Some(wait) => Patience::new(wait),
        };
        let scene = Scene {
            url,
            signals,
            guardian,
            patience,
            not_acquired: args.outcome.not_acquired,
        };
        let held =
            scene.with_store(async |opened| Box::pin(attempt(args, &work, scene, opened)).await);
        Box::pin(held).await
    };
    run::reported(&work.name, &args.program, &args.store, report, attempt)
}

/// The work that is to be done once.
#[derive(Debug)]
struct Work {
    name: String,
    fire: u64,
    keep: Keep,
    /// A text about the time of the start.
    warning: Option<String>,
}

impl Work {
    /// The work that these arguments name at this time.
    fn of(args: &Once, now: SystemTime) -> Result<Work, String> {
        let name = match &args.key {
            None => args.name.clone(),
            Some(key) if key.is_empty() => return Err("--key is empty".into()),
            Some(key) => format!("{}/{key}", args.name),
        };
        if let Some(result) = &args.result {
            can_be_result(result)?;
        }
        let every = args
            .every
            .map(|period| Every::new(period, args.offset))
            .transpose()?;
        let least = every.map_or(Duration::ZERO, |every| every.least_keep());
        let keep = match (args.keep, every) {
            (Some(Keep::For(keep)), _) if keep < args.lease.ttl => {
                return Err("--keep is shorter than --ttl".into());
            }
            (Some(Keep::For(keep)), Some(_)) if keep < least => {
                return Err(format!(
                    "--keep is shorter than two periods of --every, {}",
                    humantime::format_duration(least)
                ));
            }
            (Some(keep), _) => keep,
            (None, Some(_)) => Keep::For(least.max(args.lease.ttl)),
            (None, None) => Keep::Forever,
        };
        let fire = every.map(|every| (every, every.fire(now)));
        Ok(Work {
            name,
            fire: fire.map_or(0, |(_, fire)| fire.number),
            keep,
            warning: fire
                .and_then(|(every, fire)| fire.near_boundary.map(|near| every.warning(near))),
        })
    }

    fn once(&self, args: &Once, store: &Store, label: &str) -> leasehold_core::Once {
        let once = store
            .once(&*self.name)
            .fire(self.fire)
            .ttl(args.lease.ttl)
            .label(label);
        match self.keep {
            Keep::For(keep) => once.keep(keep),
            Keep::Forever => once.keep_forever(),
        }
    }

    /// The outcome if it was done before.
    fn was_done(&self, done: &Completion, code: u8) -> RunOutcome {
        let name = &self.name;
        let token = done.token;
        // An ordinary clock is at most one fire behind.
        if self.fire != 0 && done.fire > self.fire + 1 {
            say(format_args!(
                "the record of {name:?} is {} fires ahead of this machine's clock, and nothing \
                 runs until the clock is there or the record ends (in {}): \
                 if it is wrong, `leasehold forget {name:?} {token}` removes it",
                done.fire - self.fire,
                record::left(done),
            ));
        }
        let result = record::result(done, true).map_or_else(String::new, |it| format!(": {it}"));
        let by = record::by(done);
        let at = crate::participant::time(done.at);
        let detail =
            format!("{name:?} is done, nothing was run: by {by}, {at}, token {token}{result}");
        RunOutcome::done(token, code, detail)
    }
}

/// Refuses a path of which no result could be read.
fn can_be_result(path: &Path) -> Result<(), String> {
    let cannot = |why: &str| Err(format!("the result's file, {}: {why}", path.display()));
    if path.as_os_str() == "-" {
        return cannot("standard output may have secrets, and is not recorded; name a file");
    }
    match path.metadata() {
        Ok(about) if !about.is_file() => cannot("it is no file"),
        // The program may make it, and its folder.
        _ => Ok(()),
    }
}

async fn attempt(
    args: &Once,
    work: &Work,
    scene: Scene<'_>,
    opened: &Opened,
) -> Result<RunOutcome, RunOutcome> {
    let Scene {
        url,
        signals,
        guardian,
        ..
    } = scene;
    let label = args.lease.label();
    let once = work.once(args, &opened.store, &label);
    let nested = async {
        let refused = refuse_to_wait_for_itself(&opened.store, url, &work.name, Mode::Exclusive);
        match refused.await {
            // Work that is done waits for nothing.
            Err(_) if once.done().await.is_ok_and(|done| done.is_some()) => Ok(()),
            refused => refused,
        }
    };
    signals
        .unless_interrupted(nested)
        .await?
        .map_err(RunOutcome::interrupted)??;
    let wait = Wait {
        store: &opened.store,
        name: &work.name,
        url,
        label: &label,
        quiet: args.outcome.quiet,
    };
    let ask = async |limit| match limit {
        Limit::Try => once.try_begin().await,
        Limit::Within(left) => once.clone().wait(left).begin().await,
        Limit::Forever => once.begin().await,
    };
    let acquiring = scene.patience.acquire(url, args.lease.ttl, ask);
    let begun = Box::pin(scene.unless_over(waiting::in_queue(acquiring, &wait)))
        .await
        .map_err(|refused| refused.quiet_if(args.outcome.quiet))?;
    let guard = match begun {
        Begun::Attempt(guard) => guard,
        Begun::AlreadyDone(done) => {
            let done = work.was_done(&done, args.done_code);
            return Ok(done.quiet_if(args.outcome.quiet));
        }
    };
    let terms = Terms {
        signals,
        url,
        ends: args.max_hold.map(|max| Moment::now() + max),
        leftovers: args.program.leftovers,
    };
    let ran = run_again(args.retries, guardian, opened, &guard, &terms).await?;
    // The guardian ends while the store is asked.
    guardian.dismiss();
    if !ran.is_good() {
        return Ok(ran.released(guard.release().await));
    }
    if let Some(path) = &args.result {
        match result(path) {
            Ok(text) => guard.attempt().result(text),
            Err(e) => say(format_args!(
                "the result's file, {}: {e}; the work is recorded without a result",
                path.display()
            )),
        }
    }
    match complete(guard, signals).await? {
        Ok(done) => {
            if done.is_cut {
                say(format_args!(
                    "the result was cut to {MAX_RESULT_BYTES} bytes"
                ));
            }
            Ok(ran)
        }
        Err(e) => Ok(ran.recorded(&e)),
    }
}

/// Runs the program under the hold, and again if it fails, so many times.
async fn run_again(
    retries: u32,
    guardian: &Guardian,
    opened: &Opened,
    guard: &OnceGuard,
    terms: &Terms<'_>,
) -> Result<RunOutcome, RunOutcome> {
    let mut pause = FIRST_PAUSE;
    let mut retry = 0;
    loop {
        let ran = held::run(guardian, &opened.life_line, guard, terms).await?;
        if retry == retries || !ran.may_be_retried() {
            return Ok(ran);
        }
        let again_at = Moment::now() + pause;
        if terms.ends.is_some_and(|ends| ends <= again_at) {
            return Ok(ran);
        }
        retry += 1;
        say(format_args!(
            "the program failed ({}); it is run again in {} s, retry {retry} of {retries}",
            ran.how_it_failed(),
            pause.as_secs()
        ));
        let clock = Clock::boot();
        let over = async {
            tokio::select! {
                () = clock.sleep_until(again_at) => true,
                // The release says then that the lock was lost.
                _ = guard.lost() => false,
            }
        };
        let again = terms.signals.unless_interrupted(over).await?;
        if !again.map_err(RunOutcome::interrupted)? {
            return Ok(ran);
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The text that a program has left in this file, without the end of its last line.
fn result(path: &Path) -> io::Result<String> {
    // A pipe in its place is not waited for.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)?;
    read_result(&file)
}

fn read_result(file: &File) -> io::Result<String> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    // A character may begin at the limit, and the text may end with an empty line beyond it.
    let most = MAX_RESULT_BYTES as u64 + 16;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Records that the work is done. After a signal, the answer is waited for a little longer.
async fn complete(
    guard: OnceGuard,
    signals: &Signals,
) -> io::Result<leasehold::Result<Completion>> {
    let completing = waiting::during(guard.complete(), "recording", "that the work is done");
    let hurried = async {
        signals.interruption().await?;
        Clock::boot().sleep(GRACE).await;
        let why = "a signal ended the wait for the store's answer";
        Ok(Err(Error::new(ErrorKind::Ambiguous, why)))
    };
    tokio::select! {
        biased;
        completed = completing => Ok(completed),
        hurried = hurried => hurried,
    }
}
