//! What breaks while the fleet moves: processes are killed and paused, their links break, a store stops, a holder is evicted.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leasehold::Store;
use leasehold_chaos::{Breaks, Recorder, What};
use rustix::process::Signal;

use crate::client::{ORDERS, now};
use crate::fleet::Slot;
use crate::pairs::{Kind, Side};

pub(crate) struct Nemesis<'a> {
    pub(crate) kind: Kind,
    pub(crate) record: &'a Recorder,
    pub(crate) sides: &'a [Side; 2],
    pub(crate) slots: &'a [Slot],
    pub(crate) random: RefCell<fastrand::Rng>,
    pub(crate) ids: Cell<u64>,
}

impl Nemesis<'_> {
    /// Kills so many clients. With `storm` other things break meanwhile. `operator` evicts.
    pub(crate) async fn rage(&self, kills: u64, storm: bool, operator: &Store) {
        let over = Cell::new(false);
        let killer = async {
            for _ in 0..kills {
                self.sleep(self.kind.ttl()).await;
                self.any().kill(self.record).await;
            }
            over.set(true);
        };
        let breaker = async {
            while storm && !over.get() {
                self.one(operator).await;
                self.sleep(self.kind.ttl()).await;
            }
        };
        tokio::join!(killer, breaker);
    }

    async fn one(&self, operator: &Store) {
        let ttl = self.kind.ttl();
        let slot = self.any();
        let which = self.random.borrow_mut().usize(0..2);
        let fault = self.random.borrow_mut().u8(0..10);
        match (fault, &slot.proxies[which], self.sides[which].server()) {
            (0, ..) => {
                self.fault(
                    "evict",
                    Breaks::Exclusion,
                    Some(ORDERS),
                    self.evict(operator),
                )
                .await;
            }
            (1, _, Some(server)) => {
                let stopped = async {
                    server.pause().await.unwrap();
                    self.sleep(2 * ttl).await;
                    server.resume().unwrap();
                };
                self.fault(
                    ["old stops", "new stops"][which],
                    Breaks::Nothing,
                    None,
                    stopped,
                )
                .await;
            }
            (2..6, Some(proxy), _) => {
                let broken = async {
                    match fault {
                        2 => proxy.cut().await,
                        3 => proxy.hold(),
                        4 => proxy.drop_replies(),
                        _ => proxy.delay(self.up_to(ttl / 2)),
                    }
                    self.sleep(3 * ttl / 2).await;
                    proxy.heal().await;
                };
                let kind = [
                    "link is cut",
                    "link is silent",
                    "replies are lost",
                    "link is slow",
                ][usize::from(fault - 2)];
                self.fault(kind, Breaks::Nothing, None, broken).await;
            }
            _ => {
                let paused = async {
                    slot.signal(Signal::STOP).await;
                    self.sleep(5 * ttl / 2).await;
                    slot.signal(Signal::CONT).await;
                };
                self.fault("pause", Breaks::Nothing, None, paused).await;
            }
        }
    }

    async fn fault(
        &self,
        kind: &str,
        breaks: Breaks,
        lock: Option<&str>,
        made: impl Future<Output = ()>,
    ) {
        let id = self.ids.replace(self.ids.get() + 1);
        let begun = What::Fault {
            id,
            kind: kind.into(),
            breaks,
            lock: lock.map(str::to_owned),
        };
        self.record.write(now(), begun).unwrap();
        made.await;
        self.record.write(now(), What::Healed { id }).unwrap();
    }

    /// Whoever holds. An answer may be lost, and is asked for again.
    async fn evict(&self, operator: &Store) {
        let evicted = async {
            loop {
                if let Ok(queue) = operator.lock(ORDERS).inspect().await {
                    let Some(token) = queue.holders.first().and_then(|holder| holder.token) else {
                        return;
                    };
                    if operator.evict(ORDERS, token).await.is_ok() {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        // Without an answer nobody is evicted.
        let _ = tokio::time::timeout(self.kind.settle(), evicted).await;
    }

    fn any(&self) -> &Slot {
        &self.slots[self.random.borrow_mut().usize(0..self.slots.len())]
    }

    fn up_to(&self, d: Duration) -> Duration {
        d.mul_f64(self.random.borrow_mut().f64())
    }

    async fn sleep(&self, d: Duration) {
        tokio::time::sleep(self.up_to(d)).await;
    }
}
