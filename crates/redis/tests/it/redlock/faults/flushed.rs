//! Scripts that are flushed at every moment, while clients work: what is sent once more for that comes behind nothing that takes it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claimed, Mode, WaitPolicy};
use leasehold_core::{Guard, Store};
use leasehold_redis::redlock::Redlock;
use leasehold_testbed::{Proxy, Redis};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

/// Longer than a test: what is left at its end was not released.
const LEASE: Duration = Duration::from_secs(120);
/// How long clients work.
const WORK: u64 = 4000;

/// Three nodes whose scripts are flushed while clients work, each of which is further away from one or two of them.
struct Flushed {
    nodes: Arc<Vec<Redis>>,
    links: Vec<Vec<Proxy>>,
    works: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Flushed {
    async fn start() -> Flushed {
        let nodes = Arc::new(nodes(3).await);
        let (works, tasks) = (Arc::new(AtomicBool::new(true)), JoinSet::new());
        Flushed {
            nodes,
            works,
            tasks,
            links: Vec::new(),
        }
    }

    async fn client(&mut self) -> Redlock {
        let (store, links) = linked(&self.nodes, "?timeout=30000").await;
        links[self.links.len() % 3].delay(Duration::from_micros(300));
        links[(self.links.len() + 1) % 3].delay_replies(Duration::from_millis(2));
        self.links.push(links);
        store
    }

    /// Does this again and again.
    fn repeat<F: Future<Output = ()> + Send>(
        &mut self,
        once: impl Fn() -> F + Send + Sync + 'static,
    ) {
        let works = self.works.clone();
        self.tasks.spawn(async move {
            while works.load(Ordering::Relaxed) {
                once().await;
            }
        });
    }

    /// Lets the clients work for a while. Nothing is left when the last of them has ended.
    async fn end(self) {
        let (nodes, works) = (self.nodes.clone(), self.works.clone());
        let flushes = async {
            while works.load(Ordering::Relaxed) {
                nodes[fastrand::usize(..3)]
                    .command(&["SCRIPT", "FLUSH"])
                    .await
                    .unwrap();
                sleep(fastrand::u64(..4).saturating_sub(2)).await;
            }
        };
        let stops = async {
            sleep(WORK).await;
            works.store(false, Ordering::Relaxed);
        };
        tokio::join!(flushes, stops, self.tasks.join_all());
        within(10, until_clean(&self.nodes.iter().collect::<Vec<_>>())).await;
    }
}

/// A lock as its holders see it.
#[derive(Default)]
struct Seen {
    inside: AtomicBool,
    last: AtomicU64,
}

impl Seen {
    /// It is held for a moment, and given back in some way.
    async fn hold(&self, guard: Guard) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two are inside");
        let token = guard.fencing_token().get();
        assert!(
            self.last.swap(token, Ordering::SeqCst) < token,
            "tokens do not rise"
        );
        sleep(fastrand::u64(..2)).await;
        self.inside.store(false, Ordering::SeqCst);
        match fastrand::u8(..3) {
            0 => drop(guard),
            1 => guard.release().await.unwrap(),
            _ => drop(timeout(moment(), guard.release()).await),
        }
    }
}

fn moment() -> Duration {
    Duration::from_micros(fastrand::u64(..6000))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_leave_nothing_where_scripts_are_flushed() {
    bounded(async {
        let (mut all, seen) = (Flushed::start().await, Arc::<[Seen; 3]>::default());
        for _ in 0..3 {
            let store = Store::new(all.client().await).ttl(LEASE);
            for _ in 0..3 {
                let (store, seen) = (store.clone(), seen.clone());
                all.repeat(move || {
                    let (store, seen) = (store.clone(), seen.clone());
                    async move {
                        let nth = fastrand::usize(..3);
                        let lock = store.lock(format!("x{nth}"));
                        let guard = match fastrand::u8(..6) {
                            0 | 1 => lock.try_acquire().await.ok(),
                            2 => lock.acquire().await.ok(),
                            3 => lock.acquire_timeout(moment()).await.ok(),
                            // The caller leaves at any moment.
                            4 => timeout(moment(), lock.try_acquire())
                                .await
                                .ok()
                                .and_then(Result::ok),
                            _ => timeout(moment(), lock.acquire())
                                .await
                                .ok()
                                .and_then(Result::ok),
                        };
                        if let Some(guard) = guard {
                            seen[nth].hold(guard).await;
                        }
                    }
                });
            }
        }
        all.end().await;
    })
    .await;
}

/// A node forgets a hold, which it is given again at the renewal, beside which it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_leave_nothing_where_scripts_are_flushed() {
    bounded(async {
        let mut all = Flushed::start().await;
        for client in 0..3 {
            let store = Arc::new(all.client().await);
            for task in 0..3 {
                let (store, nodes, name) = (
                    store.clone(),
                    all.nodes.clone(),
                    format!("x{}", (client * 3 + task) / 2),
                );
                all.repeat(move || {
                    renewed_and_released(store.clone(), nodes.clone(), name.clone())
                });
            }
        }
        all.end().await;
    })
    .await;
}

async fn renewed_and_released(store: Arc<Redlock>, nodes: Arc<Vec<Redis>>, name: String) {
    let mode = if fastrand::bool() {
        Mode::Exclusive
    } else {
        Mode::Shared
    };
    let policy = if fastrand::bool() {
        WaitPolicy::Try
    } else {
        WaitPolicy::Fast
    };
    let hold = claim(&name, mode, policy, LEASE);
    if let Claimed::Granted(grant) = store.claim(&hold).await.unwrap() {
        let keys = [&*name, &format!("{{{name}}}:rh"), &format!("{{{name}}}:rs")];
        nodes[fastrand::usize(..3)]
            .command(&[&["DEL"], &keys[..]].concat())
            .await
            .unwrap();
        let renewals = async {
            for _ in 0..2 {
                store.renew(&[lease(&hold, grant.token)]).await.unwrap();
            }
        };
        let release = async {
            sleep(fastrand::u64(..4)).await;
            store.release(&hold, None).await.unwrap();
        };
        tokio::join!(renewals, release);
    }
    store.release(&hold, None).await.unwrap();
}
