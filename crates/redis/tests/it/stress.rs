//! Many clients, short leases, and every way to misbehave: no two holds overlap, and tokens rise.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Grant, Mode, Moment, Renewal, WaitPolicy};
use leasehold_redis::Redis;

const LEASE: Duration = Duration::from_millis(120);

/// How many holds are seen at least.
const ENOUGH: usize = 50;

/// How many there are of the permits that some ask for.
const OF: u32 = 2;

/// What a resource would see: who may believe that it holds, until when, and the latest token of each mode.
#[derive(Default)]
struct Resource {
    believers: Vec<(Claim, Moment)>,
    latest: Vec<(Mode, u64)>,
    holds: usize,
}

/// Whether two of these never hold at once.
fn exclude(a: Mode, b: Mode) -> bool {
    a == Mode::Exclusive || a != b
}

/// Whoever comes after the end of its lease, because the machine was busy, enters no more.
fn enter(resource: &Mutex<Resource>, claim: &Claim, grant: &Grant, sent: Moment) {
    let mut resource = resource.lock().unwrap();
    let (token, now) = (grant.token.get(), Moment::now());
    if end(sent) <= now {
        return;
    }
    for (mode, latest) in &resource.latest {
        assert!(
            token > *latest || !exclude(*mode, claim.mode),
            "{token} after {latest}"
        );
    }
    resource
        .believers
        .retain(|(other, until)| *until > now && other.id != claim.id);
    let believers = &resource.believers;
    assert!(
        believers
            .iter()
            .all(|(other, _)| !exclude(other.mode, claim.mode)),
        "two hold at once"
    );
    assert!(
        claim.mode == Mode::Shared || believers.len() < OF as usize,
        "more permits than there are"
    );
    resource.believers.push((claim.clone(), end(sent)));
    resource
        .latest
        .push((claim.mode, token + u64::from(grant.turns) - 1));
    resource.holds += 1;
}

/// This claim believes that it holds until then; or no more.
fn believe(resource: &Mutex<Resource>, claim: &Claim, until: Option<Moment>) {
    let mut resource = resource.lock().unwrap();
    let Some(at) = resource
        .believers
        .iter()
        .position(|(other, _)| other.id == claim.id)
    else {
        return;
    };
    match until {
        Some(until) => resource.believers[at].1 = until,
        None => drop(resource.believers.remove(at)),
    }
}

fn end(sent: Moment) -> Moment {
    sent + (LEASE - LEASE / 100 - Duration::from_millis(2))
}

async fn life(store: Arc<Redis>, resource: Arc<Mutex<Resource>>, modes: &[Mode], seed: u64) {
    let (mut random, mut lives) = (fastrand::Rng::with_seed(seed), 0);
    // On a busy machine most leases end before their holders look.
    while lives < 40 || resource.lock().unwrap().holds <= ENOUGH {
        lives += 1;
        let policy = *random
            .choice([WaitPolicy::Fair, WaitPolicy::Fast, WaitPolicy::Try].iter())
            .unwrap();
        let mode = *random.choice(modes.iter()).unwrap();
        let claim = Claim::new("storm", mode, policy, LEASE, "");
        let mut left = random.usize(1..20);
        let grant = loop {
            let sent = Moment::now();
            if random.u8(..20) == 0 {
                // The caller goes away in the middle of a request.
                let brief = Duration::from_micros(random.u64(0..300));
                let _ = tokio::time::timeout(brief, store.claim(&claim)).await;
                break None;
            }
            match store.claim(&claim).await.unwrap() {
                Claimed::Granted(grant) => {
                    enter(&resource, &claim, &grant, sent);
                    break Some(grant);
                }
                Claimed::Busy(_) | Claimed::Done(_) => break None,
                Claimed::Waiting(_) => sleep(random.u64(1..30)).await,
            }
            left -= 1;
            if left == 0 {
                break None;
            }
        };
        if let Some(grant) = grant {
            sleep(random.u64(0..10)).await;
            let sent = Moment::now();
            if random.bool()
                && matches!(
                    renewed(&store, &claim, Some(grant.token)).await,
                    Renewal::Renewed(_)
                )
            {
                believe(&resource, &claim, Some(end(sent)));
            }
            // Who withdraws stops believing first; who dies does neither.
            if random.u8(..10) > 0 {
                believe(&resource, &claim, None);
                store.release(&claim, None).await.unwrap();
            }
        } else if random.u8(..10) > 0 {
            store.release(&claim, None).await.unwrap();
        }
    }
}

/// So many of the clients have no scripts.
async fn storm(modes: &'static [Mode], plain: u64) {
    bounded(async {
        let server = server().await;
        let resource = Arc::new(Mutex::new(Resource::default()));
        let mut lives = Vec::new();
        for n in 0..4 {
            let scripts = if n < plain { "off" } else { "on" };
            let url = format!("{}?timeout=10000&scripts={scripts}", server.url());
            let store = Arc::new(Redis::connect(&url).await.unwrap());
            for m in 0..3 {
                lives.push(tokio::spawn(life(
                    store.clone(),
                    resource.clone(),
                    modes,
                    n * 10 + m,
                )));
            }
        }
        for life in lives {
            life.await.unwrap();
        }
        // All that was left behind has gone by itself.
        while !traces(&server).await.is_empty() {
            sleep(20).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_never_overlap_and_tokens_rise() {
    storm(&[Mode::Exclusive], 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_and_without_scripts_holds_never_overlap() {
    storm(&[Mode::Exclusive], 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_scripts_holds_never_overlap() {
    storm(&[Mode::Exclusive], 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_exclude_each_other_and_permits_never_run_over() {
    storm(
        &[
            Mode::Exclusive,
            Mode::Shared,
            Mode::Shared,
            Mode::Permits { n: 1, of: OF },
        ],
        0,
    )
    .await;
}
