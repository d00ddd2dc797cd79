//! A program under a lock that is held. This is the only module that knows both locks and the
//! guardian.

use std::io;
use std::os::fd::OwnedFd;

use leasehold::Fenced;
use leasehold::backend::{Clock, Moment};

use crate::guardian::Guardian;
use crate::guardian::deadline::Deadline;
use crate::guardian::wire::{Leftovers, Start};
use crate::processes;
use crate::run_outcome::RunOutcome;
use crate::signals::Signals;
use crate::store_url::StoreUrl;
use crate::supervise::{Watch, supervise};
use crate::terminal::Terminal;

/// The variables that give the program its lock's name and token, beside those of the
/// store.
pub(crate) const NAME: &str = "LEASEHOLD_NAME";
pub(crate) const TOKEN: &str = "LEASEHOLD_FENCING_TOKEN";

/// The terms on which a program is run under a lock.
#[derive(Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) signals: &'a Signals,
    /// The store. The program sees it without credentials.
    pub(crate) url: &'a StoreUrl,
    /// The moment when `--max-hold` is over.
    pub(crate) ends: Option<Moment>,
    pub(crate) leftovers: Leftovers,
}

/// Runs the guardian's program for as long as the lock is held. The program has ended when this
/// returns.
pub(crate) async fn run(
    guardian: &Guardian,
    life_line: &[OwnedFd],
    lock: &dyn Fenced,
    terms: &Terms<'_>,
) -> io::Result<RunOutcome> {
    let terminal = Terminal::open();
    let deadline = || {
        // The clock is read first: the deadline may be early, but never late.
        let now = Moment::now();
        let left = lock.remaining();
        (!left.is_zero()).then(|| Deadline::new(now + left, lock.granted_ttl()))
    };
    let name = lock.name().as_str();
    let token = lock.fencing_token();
    let mut environment = terms.url.variables();
    environment.push((NAME.into(), name.into()));
    environment.push((TOKEN.into(), token.to_string()));
    let start = Start {
        command: processes::own_pid(),
        environment,
        // A lock that was lost already ends the program at once.
        deadline: deadline().unwrap_or_else(|| Deadline::new(Moment::now(), lock.granted_ttl())),
        foreground: terminal.as_ref().is_some_and(Terminal::is_ours),
        leftovers: terms.leftovers,
    };
    let max_hold = async {
        match terms.ends {
            Some(ends) => Clock::boot().sleep_until(ends).await,
            None => std::future::pending().await,
        }
    };
    let mut loss = None;
    let stop = async {
        tokio::select! {
            reason = lock.lost() => {
                // Another client may hold the lock by now, so the program gets no grace.
                loss = Some(reason);
                true
            }
            () = max_hold => false,
        }
    };
    let watch = Watch {
        signals: terms.signals,
        terminal: terminal.as_ref(),
    };
    let outcome = supervise(guardian, start, life_line, watch, deadline, stop).await?;
    Ok(RunOutcome {
        token: Some(token.get()),
        ..RunOutcome::of(name, outcome, loss)
    })
}
