//! A program under a lock that is held: the one place where locks and guardian meet.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold::Fenced;
use leasehold::seam::{Clock, Moment};

use crate::guardian::Guardian;
use crate::guardian::deadline::Plan;
use crate::guardian::wire::{Leftovers, Start};
use crate::run_outcome::RunOutcome;
use crate::signals::Signals;
use crate::store_url::{StoreUrl, VARIABLE};
use crate::supervise::{Watch, supervise};
use crate::terminal::Terminal;

/// How a program is run under a lock.
#[derive(Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) signals: &'a Signals,
    /// The store. The program sees it without credentials.
    pub(crate) url: &'a StoreUrl,
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) leftovers: Leftovers,
}

/// Runs the guardian's program for as long as the lock is held. It has ended when this returns.
pub(crate) async fn run(
    guardian: &Guardian,
    life_line: &[OwnedFd],
    lock: &dyn Fenced,
    terms: &Terms<'_>,
) -> io::Result<RunOutcome> {
    let plan = Plan::for_ttl(terms.ttl);
    let terminal = Terminal::open();
    let deadline = || {
        // Read the clock first: the deadline may be early, never late.
        let now = Moment::now();
        now + lock.remaining()
    };
    let (name, token) = (lock.name().as_str(), lock.fencing_token());
    let start = Start {
        environment: vec![
            ("LEASEHOLD_NAME".into(), name.into()),
            ("LEASEHOLD_FENCING_TOKEN".into(), token.to_string()),
            (VARIABLE.into(), terms.url.to_string()),
        ],
        deadline: deadline().as_nanos(),
        plan,
        foreground: terminal.as_ref().is_some_and(Terminal::is_ours),
        leftovers: terms.leftovers,
    };
    let max_hold = async {
        match terms.max_hold {
            Some(max) => Clock::boot().sleep_until(Moment::now() + max).await,
            None => std::future::pending().await,
        }
    };
    let mut loss = None;
    let stop = async {
        tokio::select! {
            reason = lock.lost() => {
                // Another client may hold it by now: no grace.
                loss = Some(reason);
                true
            }
            () = max_hold => false,
        }
    };
    let watch = Watch { signals: terms.signals, terminal: terminal.as_ref(), ttl: terms.ttl, plan };
    let outcome = supervise(guardian, start, life_line, watch, deadline, stop).await?;
    Ok(RunOutcome { token: Some(token.get()), ..RunOutcome::of(name, outcome, loss) })
}
