//! `leasehold elect`: run the program only while leader, and again after every election that is won.

use std::io;

use leasehold::Store;

use crate::args::Elect;
use crate::exit::{self, Exit, say};
use crate::guardian::Guardian;
use crate::held::{self, Terms};
use crate::lookup;
use crate::open::{Opened, farewell, open};
use crate::report::{Outcome, ReportFile};
use crate::retry::until_answered;
use crate::run_outcome::RunOutcome;
use crate::signals::Signals;
use crate::store_url::StoreUrl;
use crate::waiting::{self, InLine};

pub(crate) async fn main(args: Elect) -> io::Result<Exit> {
    let url = StoreUrl::choose(args.store.url.as_deref());
    let store = url.as_ref().map_or_else(|_| String::new(), StoreUrl::to_string);
    let ran = match lookup::before_running(&args.program.command[0], url) {
        Ok(url) => campaigns(&args, &url).await.unwrap_or_else(|e| RunOutcome::failed(exit::FAILED, exit::chain(&e))),
        Err(ran) => ran,
    };
    Ok(ran.tell(&args.name, &store, &mut ReportFile::none()))
}

async fn campaigns(args: &Elect, url: &StoreUrl) -> io::Result<RunOutcome> {
    let signals = Signals::take()?;
    let Opened { store, life_line } = match signals.unless_interrupted(open(url)).await? {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => return Ok(RunOutcome::refused(&e, url, exit::NOT_ACQUIRED)),
        Err(signal) => return Ok(RunOutcome::interrupted(signal)),
    };
    let terms =
        Terms { signals: &signals, url, ttl: args.lease.ttl, max_hold: None, leftovers: args.program.leftovers };
    let ran = loop {
        let guardian = Guardian::start(&args.program.command)?;
        let life_line = life_line.iter().map(|line| line.try_clone()).collect::<io::Result<_>>()?;
        match term(args, &store, guardian, life_line, &terms).await? {
            // Beside what is left of it the program must not run again.
            ran if ran.outcome == Outcome::Lost && ran.left.is_empty() => {
                say(format_args!("{}; running for election again", ran.complaint.unwrap_or_default()));
            }
            ran => break ran,
        }
    };
    farewell(&store).await;
    Ok(ran)
}

/// One campaign and, if it is won, one term.
async fn term(
    args: &Elect,
    store: &Store,
    guardian: Guardian,
    life_line: Vec<std::os::fd::OwnedFd>,
    terms: &Terms<'_>,
) -> io::Result<RunOutcome> {
    let election = store.election(&args.name).with(&args.lease.options());
    let value = args.value.clone().unwrap_or_else(|| args.lease.label());
    let campaign = until_answered(terms.url, terms.ttl, async || election.campaign(value.as_str()).await);
    let shown = terms.url.to_string();
    let line = InLine { store, name: &args.name, at: &shown, label: &value, quiet: false };
    let waiting = waiting::in_line(campaign, &line);
    let leadership = match terms.signals.unless_interrupted(waiting).await? {
        Ok(Ok(leadership)) => leadership,
        Ok(Err(e)) => return Ok(RunOutcome::refused(&e, terms.url, exit::NOT_ACQUIRED)),
        Err(signal) => return Ok(RunOutcome::interrupted(signal)),
    };
    let ran = held::run(guardian, life_line, &leadership, terms).await?;
    Ok(match leadership.resign().await {
        Ok(()) => ran,
        Err(e) => ran.released(&e),
    })
}
