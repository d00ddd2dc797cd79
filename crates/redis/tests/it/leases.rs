//! What may become of a lease: nothing but `release_after` shortens it, a step of the server's clock does not lengthen it, no
//! crowd makes a script long, and a hold that is given back early ends on time without its client.

mod load;

use std::time::{Duration, SystemTime};

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, Renewal, WaitPolicy};
use leasehold_core::{Loss, Store};
use leasehold_redis::Redis;

const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 1, of: 2 }];
const HOUR: u64 = 3_600_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn of_mode(name: &str, mode: Mode, ttl: Duration) -> Claim {
    Claim::new(name, mode, WaitPolicy::Fair, ttl, "mine")
}

fn with_ttl(claim: &Claim, ttl: Duration) -> Claim {
    let mut claim = claim.clone();
    claim.ttl = ttl;
    claim
}

/// As after a step back of an hour: what stood before is an hour further away.
async fn step_back(server: &Server, claim: &Claim) {
    let (lock, id) = (claim.name.as_str(), claim.id.to_string());
    let [line, sharers] = ["l", "s"].map(|key| format!("{{{lock}}}:{key}"));
    if let Some((ticket, entry)) = place(server, claim).await {
        let (deadline, record) = entry.split_once(' ').unwrap();
        let further = deadline.parse::<u64>().unwrap() + HOUR;
        server
            .command(&["HSET", &line, &ticket, &format!("{further} {record}")])
            .await
            .unwrap();
    }
    server
        .command(&["ZADD", &sharers, "XX", "INCR", &HOUR.to_string(), &id])
        .await
        .unwrap();
    for key in [&line, &sharers] {
        server.command(&["PEXPIRE", key, "7200000"]).await.unwrap();
    }
    if text(server, &["GET", lock]).await.is_some() {
        server
            .command(&["PEXPIRE", lock, &HOUR.to_string()])
            .await
            .unwrap();
    }
}

/// Claims until it is granted.
async fn soon(store: &Redis, claim: &Claim) {
    while !matches!(store.claim(claim).await.unwrap(), Claimed::Granted(_)) {
        sleep(20).await;
    }
}

/// For how long the server keeps a claim from now.
async fn left(server: &Server, claim: &Claim) -> i64 {
    let (lock, id) = (claim.name.as_str(), claim.id.to_string());
    let deadline = match place(server, claim).await {
        Some((_, entry)) => entry.split(' ').next().map(str::to_owned),
        None => text(server, &["ZSCORE", &format!("{{{lock}}}:s"), &id]).await,
    };
    let Some(deadline) = deadline else {
        return number(server, &["PTTL", lock]).await;
    };
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    deadline.parse::<i64>().unwrap() - now
}

#[tokio::test]
async fn a_clock_that_stepped_back_lengthens_no_lease() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for (n, mode) in MODES.into_iter().enumerate() {
            // Who holds, and has died.
            let name = format!("held/{n}");
            let dead = [of_mode(&name, mode, ms(400)), of_mode(&name, mode, ms(300))];
            granted(&store, &dead[0]).await;
            if mode != Mode::Exclusive {
                granted(&store, &dead[1]).await;
            }
            for claim in &dead {
                step_back(&server, claim).await;
            }
            soon(&store, &fair(&name)).await;
        }
        // Who waits, and has died.
        let (holder, next) = (fair("waits"), fair("waits"));
        granted(&store, &holder).await;
        let dead: Vec<Claim> = (0..20)
            .map(|n| of_mode("waits", MODES[n % 2], ms(400)))
            .collect();
        for claim in &dead {
            waiting(&store, claim).await;
        }
        waiting(&store, &next).await;
        for claim in &dead {
            step_back(&server, claim).await;
        }
        server
            .command(&["PEXPIRE", "waits", "10000"])
            .await
            .unwrap();
        store.release(&holder, None).await.unwrap();
        soon(&store, &next).await;
    })
    .await;
}

#[tokio::test]
async fn no_request_but_release_after_shortens_a_lease() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for (n, mode) in MODES.into_iter().enumerate() {
            let name = format!("x/{n}");
            let holder = of_mode(&name, mode, TTL);
            let token = granted(&store, &holder).await.token;
            let waiter = claim(&name, WaitPolicy::Fair, TTL, "waits");
            waiting(&store, &waiter).await;
            let short = [with_ttl(&holder, ms(300)), with_ttl(&waiter, ms(300))];
            for _ in 0..2 {
                assert!(matches!(
                    renewed(&store, &short[0], Some(token)).await,
                    Renewal::Renewed(_)
                ));
                assert!(matches!(
                    renewed(&store, &short[1], None).await,
                    Renewal::Renewed(_)
                ));
                granted(&store, &short[0]).await;
                waiting(&store, &short[1]).await;
            }
            for claim in [&holder, &waiter] {
                assert!(
                    left(&server, claim).await > 5000,
                    "{mode:?} of {}",
                    claim.label
                );
            }
            for claim in [&holder, &waiter] {
                let token = (claim.id == holder.id).then_some(token);
                assert!(matches!(
                    renewed(&store, &with_ttl(claim, TTL * 3), token).await,
                    Renewal::Renewed(_)
                ));
                assert!(
                    left(&server, claim).await > 20_000,
                    "{mode:?} of {}",
                    claim.label
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_late_claim_brings_no_old_label_back() {
    bounded(async {
        let server = server().await;
        let proxy = leasehold_testbed::Proxy::to(server.addr()).await.unwrap();
        let store = Redis::connect(&format!("redis://{}?timeout=4000", proxy.addr()))
            .await
            .unwrap();
        let (direct, mut claim) = (client(&server).await, fair("x"));
        let token = granted(&store, &claim).await.token;
        // An older request of the same id comes after a newer one.
        let trap = proxy.hold_matching(claim.id.to_string());
        let late = tokio::spawn({
            let claim = claim.clone();
            async move { store.claim(&claim).await }
        });
        trap.sprung().await;
        claim.label = "newer".into();
        assert_eq!(granted(&direct, &claim).await.token, token);
        proxy.deliver_held();
        trap.done().await;
        let _ = late.await;
        let line = direct.inspect(&claim.name).await.unwrap();
        assert_eq!(line.holders[0].label.as_deref(), Some("newer"));
    })
    .await;
}

/// In each of these an older claim comes after a newer one, or a renewal before the claim that was sent first.
#[tokio::test]
async fn a_label_is_that_of_the_latest_claim_whatever_renews_meanwhile() {
    bounded(async {
        let server = server().await;
        let proxy = leasehold_testbed::Proxy::to(server.addr()).await.unwrap();
        let direct = client(&server).await;
        for (n, mode) in MODES.into_iter().enumerate() {
            for overtakes in ["renewal", "shorter claim"] {
                let claim = of_mode(&format!("{n}/{overtakes}"), mode, TTL);
                let token = granted(&direct, &claim).await.token;
                // This request is the first to be sent and the last to come.
                let store = Redis::connect(&format!("redis://{}?timeout=20000", proxy.addr()))
                    .await
                    .unwrap();
                let trap = proxy.hold_matching(claim.id.to_string());
                let late = tokio::spawn({
                    let mut claim = claim.clone();
                    claim.label = "late".into();
                    async move { drop(store.claim(&claim).await.unwrap()) }
                });
                trap.sprung().await;
                let expected = match overtakes {
                    "renewal" => {
                        let renewal = renewed(&direct, &claim, Some(token)).await;
                        assert!(
                            matches!(renewal, Renewal::Renewed(_)),
                            "{mode:?}: {renewal:?}"
                        );
                        "late"
                    }
                    _ => {
                        let mut newer = with_ttl(&claim, ms(300));
                        newer.label = "newer".into();
                        assert_eq!(granted(&direct, &newer).await.token, token);
                        "newer"
                    }
                };
                proxy.deliver_held();
                trap.done().await;
                late.await.unwrap();
                let queue = direct.inspect(&claim.name).await.unwrap();
                assert_eq!(
                    queue.holders[0].label.as_deref(),
                    Some(expected),
                    "{mode:?}: {overtakes}"
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn release_after_ends_a_hold_on_time_without_its_client() {
    bounded(async {
        let server = server().await;
        for (n, mode) in MODES.into_iter().enumerate() {
            for (ttl, rest) in [(TTL, ms(1200)), (ms(1500), ms(2500))] {
                let name = format!("x/{n}/{}", rest.as_millis());
                let (store, other) = (client(&server).await, client(&server).await);
                let (holder, next) = (of_mode(&name, mode, ttl), fair(&name));
                let token = granted(&store, &holder).await.token;
                for _ in 0..2 {
                    store.release_after(&holder, None, rest).await.unwrap();
                }
                let given_back = now();
                let left = left(&server, &holder).await;
                assert!(
                    left <= rest.as_millis() as i64 && left > 0,
                    "{mode:?}: {left}"
                );
                // Nothing renews it, not even a late request.
                assert!(matches!(
                    renewed(&store, &holder, Some(token)).await,
                    Renewal::Lost(Loss::Gone)
                ));
                assert!(
                    matches!(store.claim(&holder).await.unwrap(), Claimed::Busy(_)),
                    "{mode:?}"
                );
                assert!(
                    matches!(other.claim(&next).await.unwrap(), Claimed::Waiting(_)),
                    "{mode:?}"
                );
                drop(store);
                soon(&other, &next).await;
                let took = now() - given_back;
                assert!(
                    took + ms(100) > rest && took < rest + ms(8000),
                    "{mode:?}: {took:?}"
                );
            }
        }
        // A release ends it before.
        let store = client(&server).await;
        let (holder, next) = (fair("y"), fair("y"));
        granted(&store, &holder).await;
        waiting(&store, &next).await;
        store.release_after(&holder, None, TTL).await.unwrap();
        store.release(&holder, None).await.unwrap();
        granted(&store, &next).await;
    })
    .await;
}

/// A place polls after a death by how many wait before it: not by how many have been there.
#[tokio::test]
async fn places_that_were_left_make_nobody_poll_later() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let long = || of_mode("x", Mode::Exclusive, TTL * 6);
        let [holder, first, last] = [long(), long(), long()];
        granted(&store, &holder).await;
        waiting(&store, &first).await;
        let left: Vec<Claim> = (0..500).map(|_| long()).collect();
        for claim in &left {
            waiting(&store, claim).await;
        }
        for claim in &left {
            store.release(claim, None).await.unwrap();
        }
        for (before, n) in [(1, 2), (0, 1)] {
            let left = number(&server, &["PTTL", "x"]).await as u64;
            let place = waiting(&store, &last).await;
            assert_eq!(place.who.waiters, Some(n - 1));
            let latest = ms(left + 1 + 2 * before);
            assert!(
                place.retry_after.unwrap() <= latest,
                "{place:?}, {latest:?}"
            );
            if before == 1 {
                store.release(&first, None).await.unwrap();
            }
        }
    })
    .await;
}

/// Places that were left long ago keep nobody waiting who comes late to the queue: thousands of them are one script.
#[tokio::test]
async fn places_that_were_left_keep_nobody_waiting() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [holder, first, last] = [fair("x"), fair("x"), fair("x")];
        // The server knows the script.
        store.release(&holder, None).await.unwrap();
        granted(&store, &holder).await;
        waiting(&store, &first).await;
        // As if so many had come after the first, and gone.
        server
            .command(&["HINCRBY", "{x}:l", "t", "3000"])
            .await
            .unwrap();
        waiting(&store, &last).await;
        for (held, next) in [(&holder, &first), (&first, &last)] {
            let count = Count::from_here(&server).await;
            store.release(held, None).await.unwrap();
            assert_eq!(count.requests().await, 1, "{next:?}");
            assert_eq!(held_by(&server, "x").await, next.id.to_string());
        }
    })
    .await;
}

#[tokio::test]
async fn whoever_waits_learns_that_the_hold_ends_sooner() {
    bounded(async {
        let server = server().await;
        let (raw, store) = (client(&server).await, Store::new(client(&server).await));
        let ttl = Duration::from_secs(60);
        let holder = claim("x", WaitPolicy::Fair, ttl, "");
        granted(&raw, &holder).await;
        // Places that others have left stand before the only waiter.
        let left: Vec<Claim> = (0..20)
            .map(|_| claim("x", WaitPolicy::Fair, ttl, ""))
            .collect();
        for claim in &left {
            waiting(&raw, claim).await;
        }
        for claim in &left[1..] {
            raw.release(claim, None).await.unwrap();
        }
        let waiter = tokio::spawn(store.lock("x").ttl(ttl).acquire());
        while in_line(&server, "x").await == 1 {
            sleep(1).await;
        }
        raw.release(&left[0], None).await.unwrap();
        raw.release_after(&holder, None, ms(500)).await.unwrap();
        drop(raw);
        // Far sooner than it would look by itself.
        let guard = tokio::time::timeout(Duration::from_secs(15), waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        guard.release().await.unwrap();
    })
    .await;
}
