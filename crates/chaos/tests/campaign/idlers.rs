//! A thread whose runtimes give back what they have, and do nothing then: that is to cost nothing.

use std::{thread, time::Duration};

use leasehold::{Guard, Store};
use leasehold_chaos::What;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    runtime::Runtime,
    sync::{oneshot, watch},
    task::LocalSet,
    time::sleep,
};

use super::{
    client::{MOST, Plan, connect, runtime},
    kind::nanos,
    recorder::Record,
};

/// For how long it does nothing, at least, and how much longer at most.
const NOTHING: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

/// Acquires in two runtimes, of which one is soon driven no more, gives back both, and notes what the processor does in the other
/// one meanwhile. Again and again with another client, until it drains.
pub(crate) fn idle(plan: &Plan, draining: &watch::Receiver<bool>) {
    let (record, mut random) = (
        Record::new(&plan.folder, plan.p),
        fastrand::Rng::with_seed(plan.seed),
    );
    let gauge = |value, baseline| What::Gauge {
        name: "milliseconds of an idle runtime's processor".into(),
        value,
        baseline,
    };
    record.now(gauge(MOST, true));
    while !*draining.borrow() {
        let here = runtime();
        let Some(store) = LocalSet::new().block_on(&here, connect(plan, draining)) else {
            return;
        };
        // The other one may be driven until it has planned renewals of both, or only for a moment.
        let [length, pause, rest] =
            [1.0, 0.3, 0.3].map(|most| plan.kind.ttl().mul_f64(most * random.f64()));
        let both = async { tokio::join!(elsewhere(store.clone(), length), later(&store, pause)) };
        let ((there, first), second) = here.block_on(both);
        here.block_on(async { sleep(rest).await });
        for guard in [first, second].into_iter().flatten() {
            // What is not released now ends with its lease.
            let _ = here.block_on(guard.release());
        }
        let before = used();
        here.block_on(async { sleep(NOTHING[0] + NOTHING[1].mul_f64(random.f64())).await });
        record.now(gauge(
            nanos(used().saturating_sub(before)) / 1_000_000,
            false,
        ));
        there.shutdown_background();
        let _ = here.block_on(store.close(NOTHING[1]));
    }
}

/// Acquires after a while.
async fn later(store: &Store, pause: Duration) -> Option<Guard> {
    sleep(pause).await;
    store.lock("idle/here").try_acquire().await.ok()
}

/// Acquires in a runtime of its own, which is driven for a while. Nothing is acquired while servers are down.
async fn elsewhere(store: Store, length: Duration) -> (Runtime, Option<Guard>) {
    let (send, acquired) = oneshot::channel();
    thread::spawn(move || {
        let there = runtime();
        let guard = there.block_on(async {
            let guard = store.lock("idle/there").try_acquire().await.ok();
            sleep(length).await;
            guard
        });
        // Whoever waits for it is still there.
        drop(send.send((there, guard)));
    });
    acquired.await.unwrap()
}

/// By this thread.
fn used() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
