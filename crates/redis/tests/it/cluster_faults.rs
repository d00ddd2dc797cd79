//! A Redis Cluster in its bad days, under clients that hold and wait: slots that move, primaries that die or give way.
//!
//! `LEASEHOLD_FAULTS` says how many faults there are; each says how long its name went without a grant.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use leasehold_core::{ErrorKind, Store};
use leasehold_redis::Redis;
use leasehold_testbed::seen::{Seen, told};
use leasehold_testbed::{RedisCluster, RedisClusterOptions};

/// Long enough for a failover of a node that is taken for dead after the lesser patience.
const LEASE: Duration = Duration::from_secs(15);
/// How long a node may be silent where one is to be taken for dead, and where none is: on a busy machine all are silent at times.
const PATIENCE: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(20)];
const CLIENTS: usize = 4;
const NAMES: usize = 3;

struct World {
    cluster: RedisCluster,
    names: Vec<String>,
    seen: Vec<Arc<Seen>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
}

impl World {
    /// A Cluster whose names are in slots of each primary, and clients that take them in turn.
    async fn start(node_timeout: Duration) -> World {
        let options = RedisClusterOptions {
            node_timeout,
            ..RedisClusterOptions::default()
        };
        let cluster = RedisCluster::start(&options).await.unwrap();
        let mut names: Vec<String> = Vec::new();
        for n in 0.. {
            let name = format!("name/{n}");
            let slot = cluster.slot(&name).await.unwrap();
            if usize::from(slot) * NAMES / 16_384 == names.len() {
                names.push(name);
            }
            if names.len() == NAMES {
                break;
            }
        }
        let seen: Vec<Arc<Seen>> = names.iter().map(|_| Arc::default()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let store = patient(&cluster).await;
            for (name, seen) in names.iter().zip(&seen) {
                let (lock, seen, stop) = (
                    store.lock(name.as_str()).ttl(LEASE),
                    seen.clone(),
                    stop.clone(),
                );
                tasks.push(tokio::spawn(async move {
                    let mut served = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let floor = seen.floor();
                        match lock.acquire_timeout(Duration::from_secs(60)).await {
                            Ok(guard) => {
                                seen.granted(&guard, floor);
                                served += 1;
                                sleep(5).await;
                                seen.write(&guard);
                                let _ = guard.release().await;
                            }
                            // What fails for as long as an outage lasts is tried again, by every program.
                            Err(e) => assert!(
                                e.is_retryable() && e.kind() != ErrorKind::TimedOut,
                                "{e:?}"
                            ),
                        }
                    }
                    served
                }));
            }
        }
        World {
            cluster,
            names,
            seen,
            stop,
            tasks,
        }
    }

    /// How long until this name is granted to somebody after this moment.
    async fn gap(&self, name: usize, fault: Instant) -> Duration {
        let begun = clock();
        loop {
            assert!(
                begun.elapsed() < 6 * LEASE,
                "nobody is granted {} for {:?}",
                self.names[name],
                fault.elapsed()
            );
            if let Some(gap) = self.seen[name].next(fault) {
                return gap;
            }
            sleep(2).await;
        }
    }

    /// Ends the clients. Each was served. Tells and answers how many guards overlapped, how many tokens fell, and how many writes were
    /// refused.
    async fn end(self) -> [u64; 3] {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let served = tokio::time::timeout(Duration::from_secs(120), task)
                .await
                .expect("a waiter hangs")
                .unwrap();
            assert!(served > 0, "a waiter was never served");
        }
        let sum = |number: fn(&Seen) -> &AtomicU64| {
            self.seen
                .iter()
                .map(|seen| number(seen).load(Ordering::SeqCst))
                .sum::<u64>()
        };
        let numbers = [
            sum(|seen| &seen.overlaps),
            sum(|seen| &seen.stale),
            sum(|seen| &seen.refused),
        ];
        let grants: usize = self.seen.iter().map(|seen| seen.grants()).sum();
        println!(
            "{grants} grants; overlaps of guards, tokens that fell, stale writes refused: {numbers:?}"
        );
        numbers
    }
}

/// Connects, whatever outage a busy machine brings about.
async fn patient(cluster: &RedisCluster) -> Store {
    loop {
        match Redis::connect(&cluster.url()).await {
            Ok(store) => return Store::new(store),
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

fn faults(default: usize) -> usize {
    env::var("LEASEHOLD_FAULTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// A slot moves to and fro while its name is held and waited for: no fault at all for those who do.
#[tokio::test]
async fn slots_move_under_load() {
    let faults = faults(3);
    within(240 + 20 * faults as u64, async {
        let world = World::start(PATIENCE[1]).await;
        let mut gaps = Vec::new();
        for n in 0..faults {
            let name = n % NAMES;
            let slot = world.cluster.slot(&world.names[name]).await.unwrap();
            let owner = world.cluster.owner(slot).await.unwrap();
            let others: Vec<usize> = world.cluster.primaries().await.unwrap();
            let to = others.into_iter().find(|to| *to != owner).unwrap();
            world.cluster.open_slot(slot, to).await.unwrap();
            let fault = clock();
            while world.cluster.move_keys(slot, to, 100).await.unwrap() > 0 {}
            world.cluster.close_slot(slot, to).await.unwrap();
            gaps.push(world.gap(name, fault).await);
        }
        told("a slot moved", gaps);
        assert_eq!(world.end().await, [0; 3]);
    })
    .await;
}

/// A primary gives way to its replica, as an operator asks it to: nothing is lost.
#[tokio::test]
async fn primaries_give_way_under_load() {
    let faults = faults(1);
    within(240 + 30 * faults as u64, async {
        let world = World::start(PATIENCE[1]).await;
        let mut gaps = Vec::new();
        for n in 0..faults {
            let name = n % NAMES;
            let replica = replica_of(&world, name).await;
            let slot = world.cluster.slot(&world.names[name]).await.unwrap();
            let (begun, mut fault) = (clock(), clock());
            // Refused while the replica has no link to its primary, which a busy machine may have brought about.
            let _ = world.cluster.nodes()[replica]
                .command(&["CLUSTER", "FAILOVER"])
                .await;
            while world.cluster.owner(slot).await.ok() != Some(replica) {
                assert!(begun.elapsed() < 6 * LEASE, "the replica is not promoted");
                sleep(20).await;
                // On a busy machine a replica gives up after five seconds.
                if fault.elapsed() > Duration::from_secs(7) {
                    fault = clock();
                    let _ = world.cluster.nodes()[replica]
                        .command(&["CLUSTER", "FAILOVER"])
                        .await;
                }
            }
            gaps.push(world.gap(name, fault).await);
            world.cluster.until_ok().await.unwrap();
        }
        told("a primary gave way", gaps);
        assert_eq!(world.end().await, [0; 3]);
    })
    .await;
}

/// A primary is killed, and its replica promoted. What was acknowledged and not replicated is lost (class F): so two guards may be valid
/// at once, and only the tokens are judged, as [`Seen::granted`] does, and that everybody is served.
#[tokio::test]
async fn primaries_die_under_load() {
    let faults = faults(1);
    within(240 + 60 * faults as u64, async {
        let world = World::start(PATIENCE[0]).await;
        let mut gaps = Vec::new();
        for n in 0..faults {
            let name = n % NAMES;
            let slot = world.cluster.slot(&world.names[name]).await.unwrap();
            let owner = world.cluster.owner(slot).await.unwrap();
            let node = &world.cluster.nodes()[owner];
            node.kill().await.unwrap();
            let fault = clock();
            let promoted = async {
                while world
                    .cluster
                    .owner(slot)
                    .await
                    .map_or(true, |now| now == owner)
                {
                    sleep(20).await;
                }
                fault.elapsed()
            };
            let (gap, promoted) = tokio::join!(world.gap(name, fault), promoted);
            println!(
                "{} ms without a grant; after {} a replica was promoted",
                gap.as_millis(),
                promoted.as_millis()
            );
            gaps.push(gap);
            node.start_again().await.unwrap();
            world.cluster.until_ok().await.unwrap();
        }
        told("a primary died", gaps);
        world.end().await;
    })
    .await;
}

/// A holder that is idle when its primary dies keeps its lock at the replica, and no other is granted it.
#[tokio::test]
async fn a_hold_lives_through_the_death_of_its_primary() {
    within(300, async {
        let options = RedisClusterOptions {
            node_timeout: PATIENCE[0],
            ..RedisClusterOptions::default()
        };
        let cluster = RedisCluster::start(&options).await.unwrap();
        let (one, two) = (patient(&cluster).await, patient(&cluster).await);
        let ttl = Duration::from_secs(120);
        let held = one.lock("x").ttl(ttl).acquire().await.unwrap();
        let waiter = tokio::spawn(two.lock("x").ttl(ttl).acquire());
        let owner = cluster
            .owner(cluster.slot("x").await.unwrap())
            .await
            .unwrap();
        until(async || {
            one.lock("x")
                .inspect()
                .await
                .is_ok_and(|queue| queue.waiters.len() == 1)
        })
        .await;
        // Its replica has what it has.
        let node = cluster.nodes()[owner].clone();
        let written = number_of(
            &node.info("replication").await.unwrap(),
            "master_repl_offset:",
        );
        until(async || number_of(&node.info("replication").await.unwrap(), ",offset=") >= written)
            .await;
        cluster.nodes()[owner].kill().await.unwrap();
        // Whoever claims anew waits behind both, once there is a node again.
        until(async || one.lock("x").inspect().await.is_ok()).await;
        assert!(held.is_valid() && !waiter.is_finished());
        while let Err(e) = held.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
        }
        let token = held.fencing_token();
        // What is not answered is released in the background.
        if let Err(e) = held.release().await {
            assert!(e.is_retryable(), "{e:?}");
        }
        let guard = tokio::time::timeout(Duration::from_secs(100), waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(guard.fencing_token() > token);
    })
    .await;
}

/// The replica of the primary that serves this name.
async fn replica_of(world: &World, name: usize) -> usize {
    let slot = world.cluster.slot(&world.names[name]).await.unwrap();
    let port = world.cluster.nodes()[world.cluster.owner(slot).await.unwrap()].port();
    for (at, node) in world.cluster.nodes().iter().enumerate() {
        let info = node.info("replication").await.unwrap();
        if info.contains("role:slave") && info.contains(&format!("master_port:{port}")) {
            return at;
        }
    }
    panic!("no replica of {port}");
}

/// The number behind these words.
fn number_of(info: &str, words: &str) -> u64 {
    let rest = info.split_once(words).map_or("", |(_, rest)| rest);
    rest.chars()
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap_or_default()
}
