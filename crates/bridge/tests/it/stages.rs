//! Two stages at a time on one counter that nothing else protects, over the whole move and back, with real time: no count is lost,
//! and no token falls. Answers are lost meanwhile, and clients are gone without a word.

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_bridge::{Bridge, InStage};
use leasehold_conformance::faulty::{Faults, Faulty};
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, VirtualClock, WaitPolicy};
use leasehold_core::{ErrorKind, FenceGate, FencingToken, Store};
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
        let faulty = |memory: &Memory, n| {
            Faulty::new(Arc::new(memory.clone()), Faults::frequent(), seed * 2 + n)
        };
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
        let lock = if kind.is_multiple_of(3) {
            lock.fast()
        } else {
            lock
        };
        let Ok(guard) = lock.acquire_timeout(TTL * 20).await else {
            return false;
        };
        let before = self.counted.counter.load(Ordering::Relaxed);
        let fresh = self.counted.gate.write(&guard, |()| ()).is_ok();
        assert!(
            fresh || !guard.is_valid(),
            "{} after {:?}",
            guard.fencing_token(),
            self.counted.gate.seen()
        );
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
            assert!(
                done > rounds / 2,
                "{done} of {rounds} acquires: somebody starves"
            );
        }
        // A dead one's lease, and what a late request has left.
        tokio::time::sleep(TTL * 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_count_is_lost_and_no_token_falls_over_the_move_and_back() {
    let counted = Counted {
        counter: AtomicU64::new(0),
        turns: AtomicU64::new(0),
        gate: FenceGate::new(()),
    };
    let world = World {
        old: Memory::new(),
        new: Memory::new(),
        counted: Arc::new(counted),
    };
    // The new store's tokens are ahead: those of the old one's own clients have to follow.
    world.new.raise(FencingToken::new(1_000_000)).await.unwrap();
    world.phase(&[Stage::One], 10, 100).await;
    world.phase(&[Stage::One, Stage::Bridge], 10, 200).await;
    world.phase(&[Stage::Bridge], 10, 300).await;
    world
        .new
        .raise(world.old.mark().await.unwrap())
        .await
        .unwrap();
    world.phase(&[Stage::Bridge, Stage::Three], 10, 400).await;
    world.phase(&[Stage::Three], 10, 500).await;
    world.phase(&[Stage::Three, Stage::Bridge], 10, 600).await;
    world
        .old
        .raise(world.new.mark().await.unwrap())
        .await
        .unwrap();
    world.phase(&[Stage::Bridge, Stage::One], 10, 700).await;
    let Counted { counter, turns, .. } = &*world.counted;
    assert_eq!(
        counter.load(Ordering::Relaxed),
        turns.load(Ordering::Relaxed)
    );
    // What was not answered is withdrawn in the background.
    let empty = async {
        while (world.old.entries(), world.new.entries()) != (0, 0) {
            tokio::time::sleep(TTL / 100).await;
        }
    };
    tokio::time::timeout(TTL * 30, empty)
        .await
        .expect("something is left");
}

/// What an operator is shown of two stores, with virtual time: what is looked at for two seconds takes none.
async fn seen(bridge: &Bridge, time: &VirtualClock) -> Vec<InStage> {
    let mut stages = std::pin::pin!(bridge.stages());
    loop {
        if let std::task::Poll::Ready(seen) = futures_util::poll!(&mut stages) {
            return seen.unwrap();
        }
        time.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
    }
}

struct Move {
    old: Memory,
    new: Memory,
    bridge: Bridge,
    time: VirtualClock,
}

impl Move {
    fn new() -> Move {
        let (old, time) = Memory::with_virtual_time();
        let new = old.another_store();
        let bridge = Bridge::new(old.another_client(), new.another_client()).unwrap();
        Move {
            old,
            new,
            bridge,
            time,
        }
    }

    async fn alone(&self) -> Vec<String> {
        let seen = seen(&self.bridge, &self.time).await;
        let alone = seen.into_iter().filter(|it| it.is_alone_in_old);
        alone.map(|it| it.name.to_string()).collect()
    }
}

fn named(name: &str, mode: Mode) -> Claim {
    Claim::new(name, mode, WaitPolicy::Fair, TTL * 3600, "svc")
}

async fn holds(store: &impl Backend, claim: &Claim) {
    let claimed = store.claim(claim).await.unwrap();
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
}

/// One client of a service holds in old and another in new. A label for all of them does not make them one.
#[tokio::test]
async fn two_holders_of_one_label_are_two() {
    let m = Move::new();
    m.new.raise(FencingToken::new(1_000)).await.unwrap();
    holds(&m.old, &named("a", Mode::Exclusive)).await;
    holds(&m.new, &named("a", Mode::Exclusive)).await;
    holds(&m.old, &named("shared", Mode::Shared)).await;
    holds(&m.new, &named("shared", Mode::Shared)).await;
    holds(&m.bridge, &named("both", Mode::Exclusive)).await;
    holds(&m.bridge, &named("both, shared", Mode::Shared)).await;
    assert_eq!(m.alone().await, ["a", "shared"]);
    let stages: Vec<_> = seen(&m.bridge, &m.time)
        .await
        .iter()
        .map(|it| format!("{} {}", it.name, it.stage))
        .collect();
    assert_eq!(
        stages,
        [
            "a 1",
            "a 3",
            "both 2",
            "both, shared 2",
            "shared 1",
            "shared 3"
        ]
    );
}

/// The last of many names, behind pages of holders that are on the bridge, and a name that is waited for.
#[tokio::test]
async fn the_last_of_many_names_is_looked_at() {
    let m = Move::new();
    for n in 0..2_500 {
        holds(&m.bridge, &named(&format!("a{n:04}"), Mode::Exclusive)).await;
    }
    holds(&m.old, &named("z", Mode::Exclusive)).await;
    let waits = m.old.claim(&named("z", Mode::Exclusive)).await.unwrap();
    assert!(matches!(waits, Claimed::Waiting(_)));
    assert_eq!(m.alone().await, ["z"]);
}

/// Stage 1 holds and gives back, again and again: each look sees another hold.
#[tokio::test]
async fn short_holds_of_stage_1_are_seen() {
    let m = Move::new();
    let mut stages = std::pin::pin!(m.bridge.stages());
    let mut held = named("a", Mode::Exclusive);
    holds(&m.old, &held).await;
    let seen = loop {
        if let std::task::Poll::Ready(seen) = futures_util::poll!(&mut stages) {
            break seen.unwrap();
        }
        m.old.release(&held, None).await.unwrap();
        held = named("a", Mode::Exclusive);
        holds(&m.old, &held).await;
        m.time.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
    };
    assert!(seen[0].is_alone_in_old && seen[0].stage == leasehold_bridge::Stage::One);
}

/// A bridge that has just been granted old, and one that waits in new: the first comes to hold in new meanwhile.
#[tokio::test]
async fn a_bridge_on_its_way_is_none_of_stage_1() {
    let m = Move::new();
    m.new.raise(FencingToken::new(1_000)).await.unwrap();
    let (leftover, mine) = (named("a", Mode::Exclusive), named("a", Mode::Exclusive));
    holds(&m.new, &leftover).await;
    let waits = m.bridge.claim(&mine).await.unwrap();
    assert!(matches!(waits, Claimed::Waiting(_)));
    let before = seen(&m.bridge, &m.time).await;
    let stages: Vec<_> = before.iter().map(|it| it.stage).collect();
    assert_eq!(
        stages,
        [
            leasehold_bridge::Stage::OneOrTwo,
            leasehold_bridge::Stage::Three,
            leasehold_bridge::Stage::TwoOrThree
        ]
    );
    assert!(before[0].is_alone_in_old, "nobody knows");
    let mut stages = std::pin::pin!(m.bridge.stages());
    assert!(futures_util::poll!(&mut stages).is_pending());
    m.new.release(&leftover, None).await.unwrap();
    holds(&m.bridge, &mine).await;
    m.time.advance(Duration::from_millis(100));
    let seen = stages.await.unwrap();
    assert_eq!(
        seen.iter().map(|it| it.stage).collect::<Vec<_>>(),
        [leasehold_bridge::Stage::Two]
    );
}

/// Each start of a program asks whether both stores are one, and leaves nothing.
#[tokio::test]
async fn a_check_uses_one_name_and_leaves_nothing() {
    let m = Move::new();
    let others = Claim::new(
        "leasehold-bridge",
        Mode::Shared,
        WaitPolicy::Fair,
        TTL * 60,
        "bridge",
    );
    holds(&m.old, &others).await;
    holds(&m.new, &others).await;
    m.bridge.check().await.unwrap();
    m.bridge.check().await.unwrap();
    assert_eq!((m.old.entries(), m.new.entries()), (1, 1));
    let one = Bridge::new(m.old.another_client(), m.old.another_client()).unwrap();
    assert_eq!(one.check().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(m.old.entries(), 1);
}

/// The cause of an error is told once.
#[tokio::test]
async fn an_error_tells_its_cause_once() {
    let m = Move::new();
    m.old.cut_off();
    let bridge = Bridge::new(m.old, m.new).unwrap();
    let error = bridge.inspect(&"a".into()).await.unwrap_err();
    let inner = "the old store: ";
    let whole = format!("{error:?}");
    assert_eq!(whole.matches(inner).count(), 1, "{whole}");
    let cause = error.to_string().split_once(inner).unwrap().1.to_owned();
    assert_eq!(whole.matches(&cause).count(), 1, "{whole}");
}

/// A transaction that depends on a hold of a bridge would cover one of its two stores, and the clients of the other one would begin
/// before its commit: it is refused, in whichever of them it is. A client that holds in the one store alone is let in, and a bridge is kept out
/// until the commit.
#[tokio::test]
async fn a_transaction_depends_on_no_hold_of_a_bridge() {
    use leasehold_core::ErrorKind;
    use leasehold_postgres::client::{NoTls, connect};
    use leasehold_postgres::{HELD, LOST, PASSED_ON, Postgres};

    let server = leasehold_testbed::Postgres::start().await.unwrap();
    let (program, connection) = connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let tables = "CREATE TABLE counter (v bigint); INSERT INTO counter VALUES (0)";
    program.batch_execute(tables).await.unwrap();
    let postgres = async || Arc::new(Postgres::connect(&server.url()).await.unwrap());
    let memory = Memory::new();
    for to_postgres in [true, false] {
        let (part, other) = (postgres().await, memory.another_client());
        let bridge = match to_postgres {
            true => Bridge::new(other, part.clone()),
            false => Bridge::new(part.clone(), other),
        };
        let bridge = Store::new(bridge.unwrap());
        let name = format!("to PostgreSQL: {to_postgres}");
        let readers = bridge.rw_lock(&*name);
        for lock in [bridge.lock(&*name), readers.read(), readers.write().fast()] {
            let guard = lock.acquire().await.unwrap();
            let token = guard.fencing_token().as_i64();
            let refused = program.execute(HELD, &[&name, &token]).await.unwrap_err();
            assert_eq!(refused.code().unwrap().code(), PASSED_ON, "{refused}");
            let refused = part.still_holds(&guard).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            guard.release().await.unwrap();
            let refused = program.execute(HELD, &[&name, &token]).await.unwrap_err();
            assert_eq!(refused.code().unwrap().code(), LOST, "{refused}");
        }

        let alone = Store::new(postgres().await);
        let guard = alone.lock(&*name).acquire().await.unwrap();
        let token = guard.fencing_token().as_i64();
        program.batch_execute("BEGIN").await.unwrap();
        program.execute(HELD, &[&name, &token]).await.unwrap();
        program
            .execute("UPDATE counter SET v = v + 1", &[])
            .await
            .unwrap();
        assert!(guard.release().await.is_err());
        let next = tokio::spawn({
            let lock = bridge.lock(&*name);
            async move { lock.acquire().await.unwrap() }
        });
        for _ in 0..3 {
            let refused = bridge.lock(&*name).try_acquire().await.unwrap_err();
            assert!(refused.is_contended(), "{refused}");
        }
        assert!(!next.is_finished());
        program.batch_execute("COMMIT").await.unwrap();
        next.await.unwrap().release().await.unwrap();
    }
}

/// A file of SQLite as one of the two stores: its condition is made by its client alone, and refused there.
#[tokio::test]
async fn a_transaction_of_sqlite_depends_on_no_hold_of_a_bridge() {
    use leasehold::sqlite::{Config, Sqlite};

    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::new();
    for to_sqlite in [true, false] {
        let file = folder.path().join(format!("{to_sqlite}.db"));
        let part = Arc::new(Sqlite::with_config(Config::new(file)).await.unwrap());
        let bridge = match to_sqlite {
            true => Bridge::new(memory.another_client(), part.clone()),
            false => Bridge::new(part.clone(), memory.another_client()),
        };
        let guard = Store::new(bridge.unwrap())
            .lock("a")
            .acquire()
            .await
            .unwrap();
        let refused = part.still_holds(&guard).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        guard.release().await.unwrap();
    }
}
