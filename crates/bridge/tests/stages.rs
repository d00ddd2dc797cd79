//! Two stages at a time on one counter that nothing else protects, over the whole move and back, with real time: no count is lost,
//! and no token falls. Answers are lost meanwhile, and clients are gone without a word.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_bridge::Bridge;
use leasehold_conformance::faulty::{Faults, Faulty};
use leasehold_core::seam::Backend;
use leasehold_core::{FenceGate, Store};
use leasehold_memory::Memory;

const TTL: Duration = Duration::from_secs(1);
const NAME: &str = "counter";

/// What is counted, and what must not be.
struct Counted {
    counter: AtomicU64,
    turns: AtomicU64,
    gate: FenceGate<()>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    One,
    Bridge,
    Three,
}

#[derive(Clone)]
struct World {
    old: Memory,
    new: Memory,
    counted: Arc<Counted>,
}

impl World {
    /// A client of this stage, some of whose answers are lost; and what cuts it off.
    fn client(&self, stage: Stage, seed: u64) -> (Store, [Memory; 2]) {
        let [old, new] = [self.old.another_client(), self.new.another_client()];
        let faulty = |memory: &Memory, n| Faulty::new(Arc::new(memory.clone()), Faults::frequent(), seed * 2 + n);
        let backend: Box<dyn Backend> = match stage {
            Stage::One => Box::new(faulty(&old, 0)),
            Stage::Three => Box::new(faulty(&new, 1)),
            Stage::Bridge => Box::new(Bridge::new(faulty(&old, 0), faulty(&new, 1)).unwrap()),
        };
        (Store::new(backend), [old, new])
    }

    /// Counts under the lock, and takes so long for it. The gate refuses a token that is no greater than those before: never that of a
    /// valid guard.
    async fn count(&self, store: &Store, kind: usize, work: Duration) -> bool {
        let lock = store.lock(NAME).ttl(TTL);
        let lock = if kind.is_multiple_of(3) { lock.fast() } else { lock };
        let Ok(guard) = lock.acquire_timeout(TTL * 20).await else { return false };
        let before = self.counted.counter.load(Ordering::Relaxed);
        let fresh = self.counted.gate.write(&guard, |()| ()).is_ok();
        assert!(fresh || !guard.is_valid(), "{} after {:?}", guard.fencing_token(), self.counted.gate.seen());
        tokio::task::yield_now().await;
        tokio::time::sleep(work).await;
        if guard.is_valid() {
            self.counted.counter.store(before + 1, Ordering::Relaxed);
            self.counted.turns.fetch_add(1, Ordering::Relaxed);
        }
        drop(guard.release().await);
        true
    }

    /// Clients of these stages, each of which counts so many times at least. The first of each stage once holds for longer than a
    /// lease while all others want it, and is killed in the middle of its last hold.
    async fn phase(&self, stages: &[Stage], rounds: usize, seed: u64) {
        let mut all = Vec::new();
        let long_ones = Arc::new(AtomicUsize::new(stages.len()));
        for (n, stage) in stages.iter().flat_map(|stage| [*stage; 3]).enumerate() {
            let (world, long_ones) = (self.clone(), long_ones.clone());
            all.push(tokio::spawn(async move {
                let (store, parts) = world.client(stage, seed + n as u64);
                let (mut done, mut round) = (0, 0);
                while round < rounds || long_ones.load(Ordering::Relaxed) > 0 {
                    let long = n.is_multiple_of(3) && round == 1;
                    let work = if long { TTL * 3 / 2 } else { Duration::ZERO };
                    done += usize::from(world.count(&store, round + n, work).await);
                    long_ones.fetch_sub(usize::from(long), Ordering::Relaxed);
                    round += 1;
                }
                if n.is_multiple_of(3) {
                    let _held = store.lock(NAME).ttl(TTL).acquire_timeout(TTL * 20).await;
                    parts.iter().for_each(Memory::cut_off);
                }
                done
            }));
        }
        for client in all {
            let done = client.await.unwrap();
            assert!(done > rounds / 2, "{done} of {rounds} acquires: somebody starves");
        }
        // A dead one's lease, and what a late request has left.
        tokio::time::sleep(TTL * 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_count_is_lost_and_no_token_falls_over_the_move_and_back() {
    let counted = Counted { counter: AtomicU64::new(0), turns: AtomicU64::new(0), gate: FenceGate::new(()) };
    let world = World { old: Memory::new(), new: Memory::new(), counted: Arc::new(counted) };
    // The new store's tokens are ahead: those of the old one's own clients have to follow.
    world.new.raise(leasehold_core::FencingToken::new(1_000_000)).await.unwrap();
    world.phase(&[Stage::One], 10, 100).await;
    world.phase(&[Stage::One, Stage::Bridge], 10, 200).await;
    world.phase(&[Stage::Bridge], 10, 300).await;
    world.new.raise(world.old.mark().await.unwrap()).await.unwrap();
    world.phase(&[Stage::Bridge, Stage::Three], 10, 400).await;
    world.phase(&[Stage::Three], 10, 500).await;
    world.phase(&[Stage::Three, Stage::Bridge], 10, 600).await;
    world.old.raise(world.new.mark().await.unwrap()).await.unwrap();
    world.phase(&[Stage::Bridge, Stage::One], 10, 700).await;
    let Counted { counter, turns, .. } = &*world.counted;
    assert_eq!(counter.load(Ordering::Relaxed), turns.load(Ordering::Relaxed));
    // What was not answered is withdrawn in the background.
    let empty = async {
        while (world.old.entries(), world.new.entries()) != (0, 0) {
            tokio::time::sleep(TTL / 100).await;
        }
    };
    tokio::time::timeout(TTL * 30, empty).await.expect("something is left");
}
