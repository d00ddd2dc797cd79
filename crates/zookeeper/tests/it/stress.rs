//! Random faults on an ensemble, with clients that contend meanwhile: no two hold at once, tokens
//! rise, no wait lasts for ever, and nothing is left. `LEASEHOLD_CAMPAIGN=1` asks for minutes of
//! it; `LEASEHOLD_SEED` for the same faults again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::Store;
use leasehold_core::backend::{Backend, Moment};
use leasehold_testbed::{Proxy, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions};

const LOCKS: usize = 3;
const CLIENTS: usize = 6;

#[derive(Default)]
struct Seen {
    /// Of each hold: the lock, from when to when it was surely held, and the token.
    holds: Mutex<Vec<(usize, Moment, Moment, u64)>>,
    releases: AtomicU64,
    lost: AtomicU64,
    failed: AtomicU64,
}

impl Seen {
    fn counts(&self) -> String {
        let count = |of: &AtomicU64| of.load(SeqCst);
        format!(
            "{} released, {} lost, {} failed",
            count(&self.releases),
            count(&self.lost),
            count(&self.failed)
        )
    }

    /// Fails if two held at once, or tokens fell.
    fn check(&self, seed: u64) {
        let mut holds = std::mem::take(&mut *self.holds.lock().unwrap());
        holds.sort();
        for pair in holds.windows(2) {
            let ((a, from, till, token), (b, next, _, later)) = (pair[0], pair[1]);
            let overlap = till.since(next);
            assert!(
                a != b || till < next,
                "seed {seed}: two held {a} for {overlap:?}: {from:?} to {till:?}, {next:?}"
            );
            assert!(
                a != b || token < later,
                "seed {seed}: tokens of {a} fell: {token}, {later}"
            );
        }
    }
}

/// Acquires and releases, until it is stopped.
async fn contend(store: Store, seen: Arc<Seen>, stop: Arc<AtomicBool>, mut random: fastrand::Rng) {
    while !stop.load(SeqCst) {
        let which = random.usize(..LOCKS);
        let lock = store.lock(format!("stress/{which}")).ttl(SHORT);
        let guard = match lock.acquire_timeout(Duration::from_secs(20)).await {
            Ok(guard) => guard,
            Err(e) => {
                assert!(
                    e.is_retryable() || e.kind() == leasehold_core::ErrorKind::TimedOut,
                    "{e:?}"
                );
                seen.failed.fetch_add(1, SeqCst);
                continue;
            }
        };
        // For as long as it is valid, as seen after each sleep.
        let from = Moment::now();
        let (mut until, hold) = (
            from,
            Duration::from_millis(if random.u32(..4) == 0 {
                random.u64(..9000)
            } else {
                random.u64(..1000)
            }),
        );
        while guard.is_valid() && until.since(from) < hold {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = Moment::now();
            if guard.is_valid() {
                until = now;
            }
        }
        if guard.is_valid() {
            seen.releases.fetch_add(1, SeqCst);
        } else {
            seen.lost.fetch_add(1, SeqCst);
        }
        seen.holds
            .lock()
            .unwrap()
            .push((which, from, until, guard.fencing_token().get()));
        drop(guard.release().await);
    }
}

async fn one_fault(
    ensemble: &ZooKeeperEnsemble,
    proxies: &[Proxy],
    random: &mut fastrand::Rng,
) -> String {
    let member = random.usize(..3);
    let member = if random.bool() {
        tokio::time::timeout(SHORT, ensemble.leader())
            .await
            .unwrap_or(member)
    } else {
        member
    };
    let lasting = Duration::from_millis(random.u64(50..4000));
    let (server, proxy) = (&ensemble.members()[member], &proxies[member]);
    let kind = random.u32(..7);
    match kind {
        0 => {
            server.kill().await.unwrap();
            tokio::time::sleep(lasting).await;
            server.start_again().await.unwrap();
        }
        1 => {
            server.pause().await.unwrap();
            tokio::time::sleep(lasting).await;
            server.resume().unwrap();
        }
        2 => {
            proxy.cut().await;
            tokio::time::sleep(lasting).await;
            proxy.heal().await;
        }
        3 => {
            proxy.hold();
            tokio::time::sleep(lasting).await;
            proxy.heal().await;
        }
        4 => {
            proxy.drop_replies();
            tokio::time::sleep(lasting).await;
            proxy.heal().await;
        }
        5 => {
            ensemble.isolate(member);
            tokio::time::sleep(lasting).await;
            ensemble.rejoin(member).await;
        }
        _ => {
            for proxy in proxies {
                proxy.disconnect().await;
            }
        }
    }
    format!("{kind} at {member} for {lasting:?}")
}

/// An ensemble, and a proxy before each member.
struct Cluster {
    ensemble: ZooKeeperEnsemble,
    proxies: Vec<Proxy>,
}

impl Cluster {
    async fn start() -> Cluster {
        let options = ZooKeeperOptions {
            tick: Duration::from_millis(500),
            min_session: Duration::from_secs(1),
            sync_limit: 8,
            init_limit: 10,
            peer_proxies: true,
            ..ZooKeeperOptions::default()
        };
        let ensemble = Server::ensemble_with(3, &options).await.unwrap();
        let proxies = join_all(
            ensemble
                .members()
                .iter()
                .map(|member| Proxy::to(member.addr())),
        )
        .await;
        Cluster {
            ensemble,
            proxies: proxies.into_iter().map(Result::unwrap).collect(),
        }
    }

    fn addrs(&self) -> String {
        self.proxies
            .iter()
            .map(Proxy::addr)
            .collect::<Vec<_>>()
            .join(",")
    }

    fn open_connections(&self) -> usize {
        self.proxies.iter().map(Proxy::open_connections).sum()
    }

    /// Waits until no connection is open, and then fails if a queue has an entry.
    async fn until_nothing_is_left(&self) {
        let gone = until(|| async { self.open_connections() == 0 });
        tokio::time::timeout(Duration::from_secs(30), gone)
            .await
            .expect("connections are left");
        let watcher = at(&self.ensemble.connect_string()).await;
        for lock in 0..LOCKS {
            let name = format!("stress/{lock}").as_str().into();
            let queue = loop {
                // The ensemble may still be electing its leader.
                if let Ok(queue) = watcher.inspect(&name).await {
                    break queue;
                }
            };
            assert!(
                queue.holders.is_empty() && queue.waiters.is_empty(),
                "{queue:?}"
            );
        }
    }
}

/// Contends for so long under one fault after the other, and then until each client has held twice
/// again on average.
async fn contend_under_faults(
    cluster: &Cluster,
    stores: &[Store],
    seen: &Arc<Seen>,
    lasting: Duration,
    random: &mut fastrand::Rng,
) {
    let stop = Arc::new(AtomicBool::new(false));
    let contend = |store: &Store| {
        tokio::spawn(contend(
            store.clone(),
            seen.clone(),
            stop.clone(),
            random.fork(),
        ))
    };
    let contenders: Vec<_> = stores.iter().map(contend).collect();
    let began = Moment::now();
    while Moment::now().since(began) < lasting {
        let fault = one_fault(&cluster.ensemble, &cluster.proxies, random).await;
        println!(
            "{:?}: {fault}; {}; {} tasks, {} connections",
            Moment::now().since(began),
            seen.counts(),
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks(),
            cluster.open_connections()
        );
        tokio::time::sleep(Duration::from_millis(random.u64(0..2500))).await;
    }
    let before = seen.releases.load(SeqCst);
    until(|| async { seen.releases.load(SeqCst) > before + CLIENTS as u64 * 2 }).await;
    stop.store(true, SeqCst);
    for contender in contenders {
        tokio::time::timeout(Duration::from_secs(60), contender)
            .await
            .expect("a client waits for ever")
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_give_no_two_holders_and_leave_nothing() {
    let campaign = std::env::var_os("LEASEHOLD_CAMPAIGN").is_some();
    let lasting = Duration::from_secs(if campaign { 180 } else { 4 });
    let seed = std::env::var("LEASEHOLD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("LEASEHOLD_SEED={seed}");
    tokio::time::timeout(lasting * 2 + Duration::from_secs(120), async {
        let (cluster, seen) = (Cluster::start().await, Arc::new(Seen::default()));
        let mut stores = Vec::new();
        for _ in 0..CLIENTS {
            stores.push(Store::new(at(&cluster.addrs()).await));
        }
        contend_under_faults(
            &cluster,
            &stores,
            &seen,
            lasting,
            &mut fastrand::Rng::with_seed(seed),
        )
        .await;
        println!("{}", seen.counts());
        seen.check(seed);
        // At most a session for each TTL is left of each client, and none after its end.
        let open = cluster.open_connections();
        assert!(
            open <= CLIENTS * 2,
            "{open} connections of {CLIENTS} clients"
        );
        for store in &stores {
            store.close(Duration::from_secs(20)).await.unwrap();
        }
        cluster.until_nothing_is_left().await;
    })
    .await
    .expect("hangs");
}

/// Without a server a client retries a few times a second, and once it is closed no longer than its
/// holds could last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_servers_a_client_connects_a_few_times_a_second_and_after_its_end_never() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let client = at(proxy.addr()).await;
        granted(&client, &fair("a", SHORT)).await;
        proxy.cut().await;
        let (listener, attempts) = (
            tokio::net::TcpListener::bind(proxy.addr()).await.unwrap(),
            Arc::new(AtomicU64::new(0)),
        );
        let counting = tokio::spawn({
            let attempts = attempts.clone();
            async move {
                while listener.accept().await.is_ok() {
                    attempts.fetch_add(1, SeqCst);
                }
            }
        });
        // Two sessions: one for the hold, one for the default lease. Each waits 200 ms between two
        // attempts.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let meanwhile = attempts.swap(0, SeqCst);
        assert!(
            (2..=40).contains(&meanwhile),
            "{meanwhile} attempts in two seconds"
        );
        client.close().await.unwrap();
        // The hold's session could be closed until it has surely expired.
        tokio::time::sleep(SHORT * 3 / 2).await;
        let closing = attempts.swap(0, SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!(
            "{meanwhile} attempts in 2 s, {closing} after the end, {} later",
            attempts.load(SeqCst)
        );
        assert_eq!(attempts.load(SeqCst), 0);
        counting.abort();
    })
    .await;
}

/// The connection dies or falls silent before, while or after the client is closed: nothing of the
/// client is left running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_beside_a_dying_connection_leaves_no_task() {
    limited(async {
        let server = server().await;
        // The clients' own, so that only their tasks are counted.
        let theirs = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let rounds = (0..12u64).map(|round| {
            let (addr, theirs) = (server.addr().to_owned(), theirs.handle());
            async move {
                let proxy = Arc::new(Proxy::to(addr).await.unwrap());
                let link = proxy.clone();
                let client = theirs.spawn(async move {
                    let client = at(link.addr()).await;
                    let name = format!("a{round}");
                    granted(&client, &fair(&name, SHORT)).await;
                    waiting(&client, &fair(&name, SHORT)).await;
                    let closing = async {
                        tokio::time::sleep(Duration::from_millis(round / 3)).await;
                        client.close().await.unwrap();
                    };
                    let dying = async {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        if round % 2 == 0 {
                            link.disconnect().await;
                        } else {
                            link.hold();
                        }
                    };
                    tokio::join!(closing, dying);
                });
                client.await.unwrap();
                proxy
            }
        });
        let proxies = join_all(rounds).await;
        let ended = async {
            while theirs.metrics().num_alive_tasks() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
        assert!(
            ended.is_ok(),
            "{} tasks are left",
            theirs.metrics().num_alive_tasks()
        );
        theirs.shutdown_background();
        drop(proxies);
        // Their sessions end at the latest with their leases.
        until_entries(&server, 0, 0).await;
    })
    .await;
}
