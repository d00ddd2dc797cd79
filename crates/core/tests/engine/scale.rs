//! What one client of thousands of locks costs its runtime: one task, and after the last lock none.

use std::pin::pin;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Guard;
use tokio::runtime::Handle;

use crate::script::{Call, Script, TTL, granted, in_time, ms, pass, settle, waiting};

/// Tasks of this runtime. The test itself is none.
fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Holds, waiters and releases are all of one task, however many they are.
#[tokio::test]
async fn one_task_keeps_all_of_a_client() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.renews_by(256).claims(async |claim, n| {
            Ok(if claim.name.as_str() == "busy" { waiting(&claim) } else { granted(&claim, n as u64 + 1) })
        });
        let store = script.store();
        assert_eq!(tasks(), 0);
        let mut guards: Vec<Guard> = Vec::new();
        for i in 0..2_000 {
            guards.push(store.lock(("held", i)).acquire().await.unwrap());
            assert_eq!(tasks(), 1, "with {i} holds");
        }
        let mut waiters: FuturesUnordered<_> = (0..500).map(|_| store.lock("busy").acquire()).collect();
        tokio::select! {
            biased;
            one = waiters.next() => panic!("{one:?}"),
            () = pass(&time, TTL * 2, ms(100)) => {}
        }
        assert_eq!(tasks(), 1, "with 500 waiters");
        assert!(guards.iter().all(Guard::is_valid));
        drop((guards, waiters));
        let mut most = 0;
        let mut released = pin!(log.until_released(2_500));
        while futures_util::poll!(&mut released).is_pending() {
            most = most.max(tasks());
            tokio::task::yield_now().await;
        }
        assert!(most <= 1, "{most} tasks while all of them are released");
        drop(store);
        log.until(1, |call| *call == Call::Dropped).await;
        settle().await;
        assert_eq!(tasks(), 0, "when the client has gone");
    })
    .await;
}
