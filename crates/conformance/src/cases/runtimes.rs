//! Does a client work in one runtime when another one, in which it was connected, stops?

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold_core::{Guard, Store};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::context::{TestContext, in_time, within};
use crate::harness::Need;

/// The time within which a request or a notification must work in the second runtime: half a second until it
/// takes over, and the time of a new connection on a very busy machine. It is shorter than a lease.
const SOON: Duration = Duration::from_secs(4);

/// The shortest lease here: half a second after its renewal is due, another runtime renews it.
const LEASE: Duration = Duration::from_secs(6);

/// The way in which the first runtime stops.
#[derive(Clone, Copy)]
enum Stop {
    Ends,
    IsNotDriven,
    Blocks,
}

/// The first runtime has ended.
pub(crate) async fn another_goes_on_after_an_end(ctx: TestContext) {
    goes_on(ctx, Stop::Ends).await;
}

/// The first runtime is there, between two calls of `block_on`.
pub(crate) async fn another_goes_on_beside_one_not_driven(ctx: TestContext) {
    goes_on(ctx, Stop::IsNotDriven).await;
}

/// The only thread of the first runtime is blocked.
pub(crate) async fn another_goes_on_beside_a_blocked_one(ctx: TestContext) {
    goes_on(ctx, Stop::Blocks).await;
}

/// The first runtime stops before the second one has used the client, and while it uses it.
async fn goes_on(ctx: TestContext, stop: Stop) {
    tokio::join!(
        goes_on_from(&ctx, stop, "before use"),
        goes_on_from(&ctx, stop, "during use")
    );
}

async fn goes_on_from(ctx: &TestContext, stop: Stop, when: &'static str) {
    let is_used = when == "during use";
    let ttl = ctx.ttl().max(LEASE);
    let other = ctx.store().await;
    let name = |name: &str| format!("{when}/{name}");
    let waited = name("waited");
    let taken = other.lock(&waited).ttl(ttl).acquire().await.unwrap();
    let (first, store, guard) = First::begin(ctx, stop, is_used.then_some(name("first"))).await;
    let mut guards = Vec::from_iter(guard);
    let acquire = async |what: &'static str| {
        within(SOON, what, store.lock(name(what)).ttl(ttl).acquire())
            .await
            .unwrap()
    };
    if is_used {
        guards.push(acquire("an early lock").await);
    }
    let wait = || tokio::spawn(store.lock(&waited).ttl(ttl).acquire());
    let early = is_used.then(wait);
    ctx.queue_reaches(&other, &waited, usize::from(is_used))
        .await;
    let first = first.stop().await;
    guards.push(acquire("a new lock").await);
    let waiter = early.unwrap_or_else(wait);
    ctx.queue_reaches(&other, &waited, 1).await;
    for guard in &guards {
        let lost = in_time(ttl * 3 / 2 / guards.len() as u32, guard.lost()).await;
        assert!(lost.is_none(), "{when}: a guard was lost: {lost:?}");
    }
    taken.release().await.unwrap();
    let pushes = ctx
        .harness()
        .capabilities()
        .lack(&[Need::PushedWake])
        .is_none();
    let limit = if pushes {
        SOON
    } else {
        ttl + ctx.recovery().await + SOON
    };
    guards.push(
        within(limit, "a waiter in the other runtime", waiter)
            .await
            .unwrap()
            .unwrap(),
    );
    for guard in guards {
        within(SOON, "a release in the other runtime", guard.release())
            .await
            .unwrap();
    }
    within(SOON, "the end of the client", store.close(SOON))
        .await
        .unwrap();
    first.join().await;
}

/// A runtime of one thread, in which a client was connected.
struct First {
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
    rest: Rest,
}

/// The thread ends when the sender is dropped.
struct Rest(mpsc::Sender<()>, thread::JoinHandle<()>);

impl First {
    /// Connects a client in a new runtime, and takes a lock of this name there. Returns the client and the guard.
    async fn begin(
        ctx: &TestContext,
        how: Stop,
        name: Option<String>,
    ) -> (First, Store, Option<Guard>) {
        let ctx = ctx.clone();
        let ttl = ctx.ttl().max(LEASE);
        let (made_there, made) = oneshot::channel();
        let (stop, to_stop) = oneshot::channel::<()>();
        let (stopped_there, stopped) = oneshot::channel();
        let (end, to_end) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = ctx.store().await;
                let guard = match name {
                    Some(name) => Some(store.lock(name).ttl(ttl).acquire().await.unwrap()),
                    None => None,
                };
                drop(made_there.send((store, guard)));
                // It is driven until then.
                let _ = to_stop.await;
            });
            match how {
                Stop::Ends => {
                    drop(runtime);
                    let _ = stopped_there.send(());
                }
                Stop::IsNotDriven => {
                    let _ = stopped_there.send(());
                    let _ = to_end.recv();
                }
                Stop::Blocks => runtime.block_on(async {
                    let _ = stopped_there.send(());
                    let _ = to_end.recv();
                }),
            }
        });
        let (store, guard) = made.await.unwrap();
        let rest = Rest(end, thread);
        (
            First {
                stop,
                stopped,
                rest,
            },
            store,
            guard,
        )
    }

    /// Stops the runtime.
    async fn stop(self) -> Rest {
        let _ = self.stop.send(());
        self.stopped.await.unwrap();
        self.rest
    }
}

impl Rest {
    /// Ends the thread.
    async fn join(self) {
        drop(self.0);
        tokio::task::spawn_blocking(|| self.1.join().unwrap())
            .await
            .unwrap();
    }
}
