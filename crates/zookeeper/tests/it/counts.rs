//! What each operation costs, in requests that the server counted.

use std::time::Duration;

use crate::common::*;
use leasehold_core::Store;
use leasehold_core::backend::{Backend, Claim, Mode, Moment};
use leasehold_zookeeper::ZooKeeper;

/// What some work costs: pings and keep-alives come at any time, but not in each of five attempts.
async fn least(server: &leasehold_testbed::ZooKeeper, work: impl AsyncFn()) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..5 {
        least = least.min(requests(server, work()).await.0);
    }
    least
}

/// Uncontended: create with the lock's node, delete with it. A try lists first.
#[tokio::test]
async fn a_free_lock_costs_two_requests() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let cycle = async |claim: Claim| {
            let grant = granted(&client, &claim).await;
            release(&client, &claim, &grant.place).await;
        };
        cycle(fair("a", LONG)).await; // the root, and the session
        assert_eq!(
            least(&server, async || cycle(fair("a", LONG)).await).await,
            2
        );
        assert_eq!(
            least(&server, async || cycle(trying("a", LONG)).await).await,
            3
        );
        // Where the lock's node was made by others: create, list, delete.
        let raw = zookeeper_client::Client::connect(server.addr())
            .await
            .unwrap();
        let persistent = zookeeper_client::CreateMode::Persistent
            .with_acls(zookeeper_client::Acls::anyone_all());
        raw.create("/test/theirs", b"", &persistent).await.unwrap();
        assert_eq!(
            least(&server, async || cycle(fair("theirs", LONG)).await).await,
            3
        );
        assert_eq!(
            least(&server, async || cycle(trying("theirs", LONG)).await).await,
            4
        );

        let holder = fair("a", LONG);
        let grant = granted(&client, &holder).await;
        let tried = least(&server, async || {
            drop(busy(&client, &trying("a", LONG)).await);
        })
        .await;
        assert_eq!(
            tried, 4,
            "a list, once more when the server has surely caught up, and who it is"
        );
        assert_eq!(
            least(&server, async || drop(granted(&client, &holder).await)).await,
            1,
            "claiming again"
        );
        let nothing = least(&server, async || {
            client.release(&fair("a", LONG), None).await.unwrap();
        })
        .await;
        assert_eq!(nothing, 0, "nothing was ever sent");
        let leases = [leasehold_core::backend::LeaseRef::new(
            holder.into(),
            grant.place,
            Some(grant.token),
        )];
        let renewed = least(&server, async || drop(client.renew(&leases).await.unwrap())).await;
        assert_eq!(renewed, 1, "however many");
    })
    .await;
}

/// A whole queue is filled, then the lock is handed from one to the next until it is empty.
async fn drain(waiters: usize) -> (f64, f64) {
    let server = server().await;
    let clients: Vec<ZooKeeper> = {
        let mut clients = Vec::new();
        for i in 0..4 {
            let client = client(&server).await;
            granted(&client, &fair(&format!("warm {i}"), LONG)).await; // its session
            clients.push(client);
        }
        clients
    };
    let stores: Vec<Store> = clients.iter().cloned().map(Store::new).collect();
    let first = hold(&stores[0], "a", LONG).await;
    let (sent, tasks) = requests(&server, async {
        let mut tasks = Vec::new();
        for i in 0..waiters {
            let store = stores[i % stores.len()].clone();
            tasks.push(tokio::spawn(async move {
                let guard = hold(&store, "a", LONG).await;
                let token = guard.fencing_token();
                guard.release().await.unwrap();
                token
            }));
            until(|| async {
                clients[0].inspect(&"a".into()).await.unwrap().waiters.len() == i + 1
            })
            .await;
        }
        tasks
    })
    .await;
    let enqueued = sent as f64 / waiters as f64;
    let started = Moment::now();
    let (sent, tokens) = requests(&server, async {
        first.release().await.unwrap();
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.push(task.await.unwrap());
        }
        tokens
    })
    .await;
    assert!(tokens.is_sorted(), "{tokens:?}");
    let noise = noise(2 * stores.len(), Moment::now().since(started));
    (enqueued, (sent as f64 - noise) / (waiters + 1) as f64)
}

#[tokio::test]
async fn a_hand_over_costs_two_requests_however_many_wait() {
    limited(async {
        for waiters in [2, 8, 40] {
            let (enqueue, each) = drain(waiters).await;
            println!(
                "{waiters} waiters: {enqueue:.2} to take a place (with the test's own inspections), {each:.2} to hand over"
            );
            assert!(each <= 2.0, "{each} requests for each hand-over of {waiters}");
        }
    })
    .await;
}

/// A queue behind many permits: a waiter does not send a request for each of them, and a release
/// wakes one.
#[tokio::test]
async fn permits_cost_no_more_the_more_there_are() {
    limited(async {
        for of in [3, 8, 9, 64] {
            let server = server().await;
            let (client, one) = (client(&server).await, Mode::Permits { n: 1, of });
            let holders: Vec<Claim> = (0..of).map(|_| of_mode(one, "a")).collect();
            for claim in &holders {
                granted(&client, claim).await;
            }
            let store = Store::new(client.clone());
            let mut waiters = Vec::new();
            for i in 0..of.min(6) as usize {
                waiters.push(tokio::spawn(store.semaphore("a", of).ttl(LONG).acquire()));
                until(|| async {
                    client.inspect(&"a".into()).await.unwrap().waiters.len() == i + 1
                })
                .await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let started = Moment::now();
            let (sent, guards) = requests(&server, async {
                let mut guards = Vec::new();
                for (waiter, holder) in waiters.into_iter().zip(&holders) {
                    client.release(holder, None).await.unwrap();
                    guards.push(waiter.await.unwrap().unwrap());
                }
                guards
            })
            .await;
            let each = (sent as f64 - noise(2, Moment::now().since(started))) / guards.len() as f64;
            println!("{of} permits: {each:.2} requests for each that is handed over");
            assert!(
                each <= if of > 8 {
                    8.0
                } else {
                    2.0 * f64::from(of) + 2.0
                },
                "{each} requests of {of} permits"
            );
        }
    })
    .await;
}

/// Releasing to being granted, in a queue of 16, beside three deletions one after the other, which
/// show the server's own pace.
#[tokio::test]
async fn a_hand_over_takes_about_as_long_as_three_deletions() {
    limited(async {
        let server = server().await;
        let mut stores = Vec::new();
        for _ in 0..4 {
            stores.push(store(&server).await);
        }
        let watcher = client(&server).await;
        let raw = zookeeper_client::Client::connect(server.addr())
            .await
            .unwrap();
        let ephemeral =
            zookeeper_client::CreateMode::Ephemeral.with_acls(zookeeper_client::Acls::anyone_all());
        let (mut hand_overs, mut deletions) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let mut guard = hold(&stores[0], "a", LONG).await;
            let mut tasks = Vec::new();
            for i in 0..16 {
                let store = stores[(i + 1) % 4].clone();
                tasks.push(tokio::spawn(async move {
                    (hold(&store, "a", LONG).await, Moment::now())
                }));
                until(|| async {
                    watcher.inspect(&"a".into()).await.unwrap().waiters.len() == i + 1
                })
                .await;
            }
            for task in tasks {
                for i in 0..3 {
                    raw.create(&format!("/test/x{i}"), b"", &ephemeral)
                        .await
                        .unwrap();
                }
                let started = Moment::now();
                for i in 0..3 {
                    raw.delete(&format!("/test/x{i}"), None).await.unwrap();
                }
                deletions.push(Moment::now().since(started));
                let released = Moment::now();
                tokio::spawn(guard.release());
                let (next, at) = task.await.unwrap();
                hand_overs.push(at.since(released));
                guard = next;
            }
            guard.release().await.unwrap();
        }
        hand_overs.sort();
        deletions.sort();
        let (hand_over, three) = (hand_overs[32], deletions[32]);
        println!(
            "hand-over {hand_over:?} (worst {:?}), three deletions {three:?}",
            hand_overs[63]
        );
        assert!(
            hand_over < three * 4,
            "{hand_over:?} to hand over, {three:?} for three deletions"
        );
    })
    .await;
}
