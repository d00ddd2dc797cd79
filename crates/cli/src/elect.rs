//! `leasehold elect`: run the program only while leader, and again after every election that is won.

use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold::Store;
use leasehold::backend::{Mode, Moment};

use crate::args::Elect;
use crate::exit::{self, Exit, say};
use crate::guardian::Guardian;
use crate::held::{self, Terms};
use crate::nested::refuse_to_wait_for_itself;
use crate::open::{Opened, close};
use crate::retry::{open_patiently, patience_without_limit, until_answered};
use crate::run;
use crate::run_outcome::{Outcome, RunOutcome};
use crate::signals::Signals;
use crate::store_url::StoreUrl;
use crate::waiting::{self, Wait};

/// The shortest time between a term that was lost and the next campaign.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

pub(crate) fn main(args: &Elect) -> Exit {
    let campaigns = async |url: &StoreUrl, signals: &Signals, guardian: &Guardian| {
        campaigns(args, url, signals, guardian).await
    };
    run::reported(&args.name, &args.program, &args.store, None, campaigns)
}

async fn campaigns(
    args: &Elect,
    url: &StoreUrl,
    signals: &Signals,
    guardian: &Guardian,
) -> Result<RunOutcome, RunOutcome> {
    let opening = open_patiently(url, patience_without_limit(url));
    let Opened { store, life_line } =
        RunOutcome::unless_over(signals, url, exit::NOT_ACQUIRED, opening).await?;
    let asked = refuse_to_wait_for_itself(&store, url, &args.name, Mode::Exclusive);
    signals
        .unless_interrupted(asked)
        .await?
        .map_err(RunOutcome::interrupted)??;
    let terms = Terms {
        signals,
        url,
        ends: None,
        leftovers: args.program.leftovers,
    };
    let mut pause = Duration::ZERO;
    let ran = loop {
        let began = Moment::now();
        match term(args, &store, guardian, &life_line, &terms).await {
            // The program must not run again beside processes that it left behind.
            Ok(ran) if ran.outcome == Outcome::Lost && ran.left.is_empty() => {
                say(format_args!("{}; running for election again", ran.detail));
                pause = next_pause(pause, Moment::now().since(began), args.lease.ttl);
                let over = tokio::time::sleep(pause);
                if let Err(signal) = signals.unless_interrupted(over).await? {
                    break Err(RunOutcome::interrupted(signal));
                }
            }
            ran => break ran,
        }
    };
    close(&store).await;
    ran
}

/// Returns the pause after a lost term. `took` is the time of the election and the term together.
/// If it is shorter than a lease, the pause is twice the last one, up to a lease, so that a fault
/// does not start the program in a loop.
fn next_pause(before: Duration, took: Duration, lease: Duration) -> Duration {
    if took >= lease {
        return FIRST_PAUSE;
    }
    (before * 2).clamp(FIRST_PAUSE, lease.max(FIRST_PAUSE))
}

/// One campaign and, if it is won, one term.
async fn term(
    args: &Elect,
    store: &Store,
    guardian: &Guardian,
    life_line: &[OwnedFd],
    terms: &Terms<'_>,
) -> Result<RunOutcome, RunOutcome> {
    let Terms { signals, url, .. } = *terms;
    let ttl = args.lease.ttl;
    let label = args.lease.label();
    let election = store.election(&args.name);
    let election = election.with(&args.order.of(args.lease.options(&label)));
    let value = args.value.clone().unwrap_or(label);
    let campaign = until_answered(url, ttl, async || election.campaign(value.as_str()).await);
    let wait = Wait {
        store,
        name: &args.name,
        url,
        label: &value,
        quiet: false,
    };
    let waiting = waiting::in_queue(campaign, &wait);
    let leadership = RunOutcome::unless_over(signals, url, exit::NOT_ACQUIRED, waiting).await?;
    let ran = held::run(guardian, life_line, &leadership, terms).await?;
    Ok(ran.released(leadership.resign().await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_are_lost_at_once_are_further_and_further_apart() {
        let lease = Duration::from_secs(4);
        let quick = Duration::from_millis(10);
        let mut pauses = vec![next_pause(Duration::ZERO, quick, lease)];
        for _ in 0..6 {
            pauses.push(next_pause(pauses[pauses.len() - 1], quick, lease));
        }
        let in_ms: Vec<u128> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(in_ms, [250, 500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(next_pause(lease, lease, lease), FIRST_PAUSE);
    }
}
