//! Many clients, short leases, and every way to misbehave: no two holds overlap, and tokens rise.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::seam::{Backend, Claim, Claimed, Grant, Mode, Moment, Queue, Renewal};
use leasehold_redis::Redis;
use support::*;

const LEASE: Duration = Duration::from_millis(120);

/// What a resource would see: the latest token, and until when its holder may believe that it holds.
#[derive(Default)]
struct Resource {
    token: u64,
    until: Option<Moment>,
    holds: usize,
}

fn enter(resource: &Mutex<Resource>, grant: &Grant, sent: Moment) {
    let mut resource = resource.lock().unwrap();
    let (token, now) = (grant.token.get(), Moment::now());
    assert!(token > resource.token, "{token} after {}", resource.token);
    assert!(resource.until.is_none_or(|until| until <= now), "two hold at once");
    resource.token = token + u64::from(grant.turns) - 1;
    resource.until = Some(end(sent));
    resource.holds += 1;
}

/// The holder of this grant believes it now holds until then, if it was not succeeded.
fn believe(resource: &Mutex<Resource>, grant: &Grant, until: Option<Moment>) {
    let mut resource = resource.lock().unwrap();
    if resource.token == grant.token.get() + u64::from(grant.turns) - 1 {
        resource.until = until;
    }
}

fn end(sent: Moment) -> Moment {
    sent + (LEASE - LEASE / 100 - Duration::from_millis(2))
}

async fn life(store: Arc<Redis>, resource: Arc<Mutex<Resource>>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..40 {
        let queue = *random.choice([Queue::Fair, Queue::Fast, Queue::Try].iter()).unwrap();
        let claim = Claim::new("storm", Mode::Exclusive, queue, LEASE, "");
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
                    if sent + LEASE > Moment::now() {
                        enter(&resource, &grant, sent);
                    }
                    break Some(grant);
                }
                Claimed::Busy(_) => break None,
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
            if random.bool() && matches!(renewed(&store, &claim, Some(grant.token)).await, Renewal::Renewed(_)) {
                believe(&resource, &grant, Some(end(sent)));
            }
            // Who withdraws stops believing first; who dies does neither.
            if random.u8(..10) > 0 {
                believe(&resource, &grant, None);
                store.release(&claim, None).await.unwrap();
            }
        } else if random.u8(..10) > 0 {
            store.release(&claim, None).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_never_overlap_and_tokens_rise() {
    bounded(async {
        let server = server().await;
        let resource = Arc::new(Mutex::new(Resource::default()));
        let mut lives = Vec::new();
        for n in 0..4 {
            let store = Arc::new(client(&server).await);
            for m in 0..3 {
                lives.push(tokio::spawn(life(store.clone(), resource.clone(), n * 10 + m)));
            }
        }
        for life in lives {
            life.await.unwrap();
        }
        let holds = resource.lock().unwrap().holds;
        assert!(holds > 50, "only {holds} holds");
        // All that was left behind has gone by itself.
        sleep(3 * LEASE.as_millis() as u64).await;
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}
