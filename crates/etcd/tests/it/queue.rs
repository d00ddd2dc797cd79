//! Waiters far back in a queue: whatever happens to those before them, one holds at a time, and
//! each gets its turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::common::*;
use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget};
use leasehold_core::Store;
use leasehold_testbed as testbed;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The queue of the lock, the oldest first.
async fn queue(server: &testbed::Etcd) -> Vec<KeyValue> {
    let oldest = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend);
    raw(server)
        .await
        .get("test/a/", Some(oldest))
        .await
        .unwrap()
        .take_kvs()
}

/// Until so many stand in it.
async fn until_queue(server: &testbed::Etcd, n: usize) {
    while queue(server).await.len() != n {
        sleep(Duration::from_millis(2)).await;
    }
}

/// A circle, and the order in which its clients stand.
struct Ordered {
    server: testbed::Etcd,
    circle: Circle,
    order: VecDeque<usize>,
}

impl Ordered {
    async fn of(clients: usize) -> Ordered {
        Ordered::at(server().await, clients).await
    }

    async fn at(server: testbed::Etcd, clients: usize) -> Ordered {
        Ordered {
            circle: Circle::of(&server, clients).await,
            server,
            order: (0..clients).collect(),
        }
    }

    /// The holder comes again when all others are there.
    async fn hand_over(&mut self) {
        self.order.rotate_left(1);
        assert_eq!(
            self.circle.hand_over().await,
            self.order[0],
            "another was before it"
        );
        until_queue(&self.server, self.order.len()).await;
    }

    /// Until each release names its successor, which writes another key.
    async fn until_named(&mut self) {
        let mut named = 0;
        while named < self.order.len() {
            self.hand_over().await;
            named = if !keys(&self.server, "test/%turn/").await.is_empty() {
                named + 1
            } else {
                0
            };
        }
    }
}

/// It knows who stood behind it when it held. Were that one named by a waiter that leaves, it would
/// take the lock.
#[tokio::test]
async fn a_waiter_that_leaves_the_middle_of_the_queue_lets_none_in() {
    within(120, async {
        let mut all = Ordered::of(12).await;
        for _ in 0..3 {
            all.until_named().await;
            let left = all.order.remove(4).unwrap();
            all.circle.leaves(left);
            until_queue(&all.server, all.order.len()).await;
            for _ in 0..6 {
                all.hand_over().await;
            }
            all.circle.comes(left);
            all.order.push_back(left);
            until_queue(&all.server, all.order.len()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_waiter_whose_key_is_deleted_by_hand_goes_to_the_end() {
    within(120, async {
        let mut all = Ordered::of(12).await;
        let deleted = queue(&all.server).await[4].key().to_vec();
        raw(&all.server).await.delete(deleted, None).await.unwrap();
        until_queue(&all.server, 12).await;
        let last = all.order.remove(4).unwrap();
        all.order.push_back(last);
        for _ in 0..14 {
            all.hand_over().await;
        }
    })
    .await;
}

/// Each of them knows who stood behind it when it held alone, and expects to be named. Were that
/// one named by a reader, it would write beside another.
#[tokio::test]
async fn a_reader_that_leaves_lets_no_writer_in_beside_another() {
    within(120, async {
        let mut all = Ordered::of(12).await;
        all.until_named().await;
        // All go, each in its turn.
        for _ in 1..12 {
            all.circle.release().await;
            all.circle.next().await;
        }
        all.circle.release().await;
        let (server, stores) = (
            &all.server,
            all.order
                .iter()
                .map(|i| &all.circle.stores[*i])
                .collect::<Vec<_>>(),
        );
        // So many that the writer at the end watches the reader before it.
        let writers = [0, 1, 2, 6, 7, 8, 9, 10, 11].map(|at| stores[at].lock("a"));
        let readers = [3, 4].map(|at| stores[at].rw_lock("a").read());
        let mut tasks = VecDeque::new();
        for lock in writers.iter().chain(&readers).chain([&stores[5].lock("a")]) {
            tasks.push_back(tokio::spawn(lock.acquire()));
            until_queue(server, tasks.len()).await;
        }
        let mut next = async || {
            within(20, tasks.pop_front().unwrap())
                .await
                .unwrap()
                .unwrap()
        };
        for _ in &writers {
            next().await.release().await.unwrap();
        }
        let (one, two) = (next().await, next().await);
        let writer = tasks.pop_front().unwrap();
        let writes = async || {
            let all = requests(server).await;
            all["Txn"] + all["DeleteRange"]
        };
        let before = writes().await;
        two.release().await.unwrap();
        // The release, and the question of the writer.
        while writes().await < before + 2 && !writer.is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
        assert!(one.is_valid() && !writer.is_finished(), "beside a reader");
        one.release().await.unwrap();
        within(20, writer)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}

/// A key that names an earlier entry of the same key, or was written by hand.
#[tokio::test]
async fn what_names_another_entry_lets_nobody_in() {
    within(120, async {
        let mut all = Ordered::of(12).await;
        all.until_named().await;
        let waits = queue(&all.server).await[4].clone();
        let turn = waits.key_str().unwrap().replacen("test/", "test/%turn/", 1);
        let name = async |text: String| {
            raw(&all.server)
                .await
                .put(&*turn, text, None)
                .await
                .unwrap()
        };
        for text in ["", "x", "5 ", "5 1 2-0=1"].map(String::from) {
            drop(name(text).await);
        }
        for _ in 0..3 {
            all.hand_over().await;
        }
        // What it would be if it were the first: so the texts above were read.
        let next = queue(&all.server).await[2].clone();
        let turn = next.key_str().unwrap().replacen("test/", "test/%turn/", 1);
        raw(&all.server)
            .await
            .put(turn, format!("{} ", next.create_revision()), None)
            .await
            .unwrap();
        all.circle.next().await;
        assert_eq!(all.circle.holder(), all.order[2]);
    })
    .await;
}

/// It names nobody, and the one behind it watches nothing of it.
#[tokio::test]
async fn a_holder_that_dies_leaves_the_lock_to_the_next() {
    within(120, async {
        let mut all = Ordered::of(12).await;
        all.until_named().await;
        let lease = queue(&all.server).await[0].lease();
        raw(&all.server).await.lease_revoke(lease).await.unwrap();
        all.circle.next().await;
        assert_eq!(all.circle.holder(), all.order[1]);
    })
    .await;
}

#[tokio::test]
async fn a_long_queue_leaves_no_key() {
    within(120, async {
        let mut all = Ordered::of(12).await;
        all.until_named().await;
        // Some leave the middle, some one after the other, and the others have their turns.
        [3, 6, 7, 8, 11]
            .iter()
            .for_each(|at| all.circle.leaves(all.order[*at]));
        for _ in 1..7 {
            all.circle.release().await;
            all.circle.next().await;
        }
        all.circle.release().await;
        until_keys(&all.server, 0).await;
    })
    .await;
}

/// No key can be written that names another.
#[tokio::test]
async fn a_full_server_frees_a_lock_for_which_many_wait() {
    within(120, async {
        let extra = vec!["--quota-backend-bytes=4000000".into()];
        let server = testbed::Etcd::start_with(&testbed::EtcdOptions {
            extra,
            ..Default::default()
        })
        .await
        .unwrap();
        let mut all = Ordered::at(server, 12).await;
        all.until_named().await;
        let (mut raw, held) = (raw(&all.server).await, queue(&all.server).await[0].clone());
        while raw.put("junk", vec![0; 300_000], None).await.is_ok() {}
        while raw.put("junk", "", None).await.is_ok() {}
        all.circle.release().await;
        assert!(
            queue(&all.server)
                .await
                .iter()
                .all(|kv| kv.create_revision() != held.create_revision())
        );
    })
    .await;
}

/// Clients that come, give up and are cut off, in a crowd that is too long to be mirrored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_comes_and_goes_has_one_holder_at_a_time() {
    const CLIENTS: usize = 24;
    const TURNS: usize = 12;
    within(300, async {
        let server = server().await;
        let holders = Arc::new(AtomicUsize::new(0));
        // They go on with releases that were not answered.
        let (mut stores, mut proxies, mut clients) = (Vec::new(), Vec::new(), JoinSet::new());
        for i in 0..CLIENTS {
            let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
            let store = Store::new(usual(proxy.addr()).await).ttl(LONG);
            proxies.push(proxy);
            let holders = holders.clone();
            stores.push(store.clone());
            clients.spawn(async move {
                let mut random = fastrand::Rng::with_seed(i as u64);
                let mut turns = 0;
                while turns < TURNS {
                    // Some give up before their turn.
                    let patience = if random.u8(..3) == 0 { random.u64(1..100) } else { 60_000 };
                    let acquire = store.lock("a").fair().acquire();
                    let Ok(held) = timeout(Duration::from_millis(patience), acquire).await else { continue };
                    // The links are cut all the time: on a slow machine an acquire may give up.
                    let guard = match held {
                        Ok(guard) => guard,
                        Err(error) => {
                            assert!(error.is_retryable(), "{error:?}");
                            continue;
                        }
                    };
                    assert_eq!(holders.fetch_add(1, SeqCst), 0, "two hold");
                    sleep(Duration::from_micros(random.u64(..1500))).await;
                    assert_eq!(holders.fetch_sub(1, SeqCst), 1, "two hold");
                    give_back(guard).await;
                    turns += 1;
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(7);
        loop {
            tokio::select! {
                ended = clients.join_next() => match ended {
                    Some(ended) => ended.unwrap(),
                    None => break,
                },
                () = sleep(Duration::from_millis(40)) => random.choice(&proxies).unwrap().disconnect().await,
            }
        }
        // A withdrawal in doubt leaves its session's own key.
        while !queue(&server).await.is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
