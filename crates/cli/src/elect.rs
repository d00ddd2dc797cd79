//! `leasehold elect`: run the program only while leader, and again after every election that is won.

use std::os::fd::OwnedFd;

use leasehold::Store;

use crate::args::Elect;
use crate::exit::{self, Exit, say};
use crate::guardian::Guardian;
use crate::held::{self, Terms};
use crate::open::{Opened, close, open};
use crate::retry::until_answered;
use crate::run;
use crate::run_outcome::{Outcome, RunOutcome};
use crate::signals::Signals;
use crate::store_url::StoreUrl;
use crate::waiting::{self, Wait};

pub(crate) fn main(args: &Elect) -> Exit {
    let campaigns =
        async |url: &StoreUrl, signals: &Signals, guardian: &Guardian| campaigns(args, url, signals, guardian).await;
    run::reported(&args.name, &args.program, &args.store, None, campaigns)
}

async fn campaigns(
    args: &Elect,
    url: &StoreUrl,
    signals: &Signals,
    guardian: &Guardian,
) -> Result<RunOutcome, RunOutcome> {
    let Opened { store, life_line } = RunOutcome::unless_over(signals, url, exit::NOT_ACQUIRED, open(url)).await?;
    let terms = Terms { signals, url, ttl: args.lease.ttl, max_hold: None, leftovers: args.program.leftovers };
    let ran = loop {
        match term(args, &store, guardian, &life_line, &terms).await {
            // Beside what is left of it the program must not run again.
            Ok(ran) if ran.outcome == Outcome::Lost && ran.left.is_empty() => {
                say(format_args!("{}; running for election again", ran.detail));
            }
            ran => break ran,
        }
    };
    close(&store).await;
    ran
}

/// One campaign and, if it is won, one term.
async fn term(
    args: &Elect,
    store: &Store,
    guardian: &Guardian,
    life_line: &[OwnedFd],
    terms: &Terms<'_>,
) -> Result<RunOutcome, RunOutcome> {
    let Terms { signals, url, ttl, .. } = *terms;
    let label = args.lease.label();
    let election = store.election(&args.name).with(&args.lease.options(&label));
    let value = args.value.clone().unwrap_or(label);
    let campaign = until_answered(url, ttl, async || election.campaign(value.as_str()).await);
    let wait = Wait { store, name: &args.name, url, label: &value, quiet: false };
    let waiting = waiting::in_queue(campaign, &wait);
    let leadership = RunOutcome::unless_over(signals, url, exit::NOT_ACQUIRED, waiting).await?;
    let ran = held::run(guardian, life_line, &leadership, terms).await?;
    Ok(ran.released(leadership.resign().await))
}
