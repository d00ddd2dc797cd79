//! Many holds, many releases, and several runtimes. `LEASEHOLD_CAMPAIGN=1` asks for the full
//! numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::*;
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use leasehold_core::backend::{Backend, Claim, Claimed, LeaseRef, Mode, Moment, Renewal};
use leasehold_core::{Guard, Store};
use leasehold_testbed::verbs::within;
use leasehold_testbed::{Proxy, ZooKeeper as Server, ZooKeeperOptions};

fn is_campaign() -> bool {
    std::env::var_os("LEASEHOLD_CAMPAIGN").is_some()
}

/// Two ticks of a server as it is shipped: the shortest lease there is.
const SHORTEST: Duration = Duration::from_secs(4);

async fn as_shipped() -> Server {
    let tick = Duration::from_secs(2);
    let options = ZooKeeperOptions {
        tick,
        min_session: tick * 2,
        max_session: tick * 20,
        ..ZooKeeperOptions::default()
    };
    Server::start_with(&options).await.unwrap()
}

/// One client keeps all that it holds, over a slow link that is cut again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_holds_outlast_latency_and_cuts() {
    let (holds, lasting, between_cuts) = if is_campaign() {
        (10_000, Duration::from_secs(30), 10)
    } else {
        (1_000, Duration::from_secs(7), 3)
    };
    tokio::time::timeout(Duration::from_secs(500), async {
        let server = as_shipped().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("zookeeper://{}/test?timeout=3000", proxy.addr());
        let store = Store::new(connected(&url).await);
        let taken = stream::iter(0..holds).map(|i| {
            let store = store.clone();
            async move { hold_patiently(&store, &format!("many/{i}"), SHORTEST).await }
        });
        let started = Moment::now();
        let guards: Vec<_> = taken.buffer_unordered(200).collect().await;
        println!("{holds} taken in {:?}", Moment::now().since(started));
        proxy.delay(Duration::from_millis(50));
        let (started, mut least, mut cuts) = (Moment::now(), SHORTEST, 0);
        while Moment::now().since(started) < lasting {
            for _ in 0..between_cuts * 10 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                least = guards
                    .iter()
                    .map(Guard::remaining)
                    .min()
                    .unwrap()
                    .min(least);
            }
            proxy.disconnect().await;
            cuts += 1;
        }
        tokio::time::sleep(SHORTEST).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        println!("{lost} of {holds} lost, {cuts} cuts, the least that was left {least:?}");
        assert_eq!(lost, 0);
        proxy.heal().await;
        drop(guards);
        store.close(Duration::from_secs(10)).await.unwrap();
    })
    .await
    .unwrap();
}

/// Takes this lock so often, many at once, and renews all after a reconnect: in one session, whose
/// holds are compared with their queues then.
async fn outlast_a_reconnect(holds: usize, link: Duration, claim: impl Fn(usize) -> Claim) {
    let server = Server::start().await.unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let client = at(proxy.addr()).await;
    let taken = stream::iter((0..holds).map(claim)).map(async |claim| {
        // A hundred at once on a busy machine: a request may be given up.
        loop {
            if let Ok(Claimed::Granted(grant)) = client.claim(&claim).await {
                return LeaseRef::new(Arc::new(claim), grant.place, Some(grant.token));
            }
        }
    });
    let leases: Vec<LeaseRef> = taken.buffer_unordered(100).collect().await;
    proxy.delay(link);
    proxy.disconnect().await;
    until(|| async {
        let renewed = client.renew(&leases).await.unwrap();
        assert!(
            !renewed.iter().any(|it| matches!(it, Renewal::Lost(_))),
            "lost, and nobody else was there"
        );
        renewed.iter().all(|it| matches!(it, Renewal::Renewed(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_of_one_lock_outlast_a_reconnect() {
    within(
        40,
        outlast_a_reconnect(2000, Duration::ZERO, |_| of_mode(Mode::Shared, "a")),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_outlast_a_reconnect_over_a_slow_link() {
    within(
        40,
        outlast_a_reconnect(3000, Duration::from_millis(100), |i| {
            of_mode(Mode::Exclusive, &format!("a{i}"))
        }),
    )
    .await;
}

/// Nodes of the same session come and go while its nodes are compared. What stays is verified all
/// the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_short_holds_does_not_starve_the_liveness_of_long_ones() {
    let lease = SHORTEST * 2;
    let proofs = if is_campaign() { 12 } else { 3 };
    tokio::time::timeout(Duration::from_secs(100), async {
        let server = as_shipped().await;
        let store = store(&server).await.ttl(lease);
        let mut long = Vec::new();
        for name in ["a", "b", "c"] {
            long.push(hold(&store, name, lease).await);
        }
        let cycles = Arc::new(AtomicU64::new(0));
        let stream: Vec<_> = (0..100u64)
            .map(|i| {
                let (lock, cycles) = (store.lock(("short", i)), cycles.clone());
                tokio::spawn(async move {
                    loop {
                        // A hundred at once on a busy machine: a request may be given up.
                        let cycle = async { lock.acquire().await?.release().await };
                        match cycle.await {
                            Ok(()) => cycles.fetch_add(1, Relaxed),
                            Err(e) => {
                                assert!(e.is_retryable(), "{e:?}");
                                0
                            }
                        };
                    }
                })
            })
            .collect();
        // A hold that nothing proves ends after its lease. One that is proven again lasts longer
        // than before.
        let mut before: Vec<Duration> = long.iter().map(Guard::remaining).collect();
        let mut proven = vec![0; long.len()];
        while proven.iter().any(|times| *times < proofs) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            for (i, guard) in long.iter().enumerate() {
                let remaining = guard.remaining();
                assert!(
                    !remaining.is_zero(),
                    "{i} has ended, proven {} times",
                    proven[i]
                );
                proven[i] += u32::from(remaining > before[i]);
                before[i] = remaining;
            }
        }
        let cycles = cycles.load(Relaxed);
        println!("{cycles} short holds");
        stream
            .iter()
            .for_each(|task| assert!(!task.is_finished(), "a short hold failed"));
        stream.iter().for_each(tokio::task::JoinHandle::abort);
        assert!(cycles > 100, "{cycles}: no stream");
    })
    .await
    .unwrap();
}

/// The runtime in which a session was opened ends; another one continues it.
#[test]
fn a_session_continues_in_another_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let (server, client, lease) = first.block_on(limited(async {
        let server = server().await;
        let client = client(&server).await;
        let claim = fair("a", SHORT);
        let grant = granted(&client, &claim).await;
        (
            server,
            client,
            LeaseRef::new(claim.into(), grant.place, Some(grant.token)),
        )
    }));
    second.block_on(limited(async {
        let waits = fair("a", SHORT);
        waiting(&client, &waits).await;
        first.shutdown_background();
        let started = Moment::now();
        let mut renewed = 0;
        while Moment::now().since(started) < SHORT * 2 {
            match &client.renew(std::slice::from_ref(&lease)).await.unwrap()[..] {
                [Renewal::Renewed(_)] => renewed += 1,
                [Renewal::Unknown(_)] => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(SHORT / 20).await;
        }
        assert!(renewed > 10, "{renewed}");
        waiting(&client, &waits).await;
        release(&client, &lease.claim, &lease.place).await;
        granted(&client, &waits).await;
        drop(server);
    }));
}

/// The runtime in which a session was opened is there, and driven no more: nothing says so. Another
/// one continues the session at another server before it ends. When the first one is driven again,
/// and its server is reached, what was begun there does not end the session.
#[test]
fn a_session_continues_when_its_runtime_is_driven_no_more() {
    let lease = Duration::from_secs(16);
    let first = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let second = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (ensemble, ways) = second.block_on(limited(async {
        let ensemble = Server::ensemble_with(3, &ZooKeeperOptions::default())
            .await
            .unwrap();
        let ways = try_join_all(
            ensemble.members()[..2]
                .iter()
                .map(|member| Proxy::to(member.addr())),
        )
        .await
        .unwrap();
        (ensemble, ways)
    }));
    let (client, held) = first.block_on(limited(async {
        ways[1].hold();
        let client = connected(&format!(
            "zookeeper://{},{}/test",
            ways[0].addr(),
            ways[1].addr()
        ))
        .await;
        let claim = fair("a", lease);
        let grant = granted(&client, &claim).await;
        (
            client,
            LeaseRef::new(claim.into(), grant.place, Some(grant.token)),
        )
    }));
    let kept_beyond = async |end: Moment| loop {
        match &client.renew(std::slice::from_ref(&held)).await.unwrap()[..] {
            [Renewal::Renewed(validity)] if validity.until(Moment::now()) > end => return,
            [Renewal::Renewed(_) | Renewal::Unknown(_)] => tokio::time::sleep(lease / 100).await,
            other => panic!("{other:?}"),
        }
    };
    let waits = fair("a", lease);
    let stopped = Moment::now();
    second.block_on(limited(async {
        ways[0].hold();
        ways[1].heal().await;
        // More than what was promised up to now.
        kept_beyond(stopped + lease).await;
        waiting(&client, &waits).await;
        ways[0].heal().await;
    }));
    first.block_on(limited(kept_beyond(Moment::now() + lease)));
    second.block_on(limited(async {
        kept_beyond(Moment::now() + lease).await;
        release(&client, &held.claim, &held.place).await;
        granted(&client, &waits).await;
        drop(ensemble);
    }));
}
