//! The server goes by other terms, and a promise gets shorter: the only news that brings an end forward.

use leasehold_core::Loss;
use leasehold_core::backend::Validity;

use crate::runtimes::pass;
use crate::script::{Script, TTL, ms, runtime, settle};

/// The keeper's runtime ends before the keeper has heard of it. The next keeper sees the new end when it comes, and not only when the
/// renewal was due.
#[test]
fn the_next_keeper_plans_an_end_that_the_last_one_had_not_heard_of() {
    for heard in [true, false] {
        let (script, time, log) = Script::new();
        let (notifier, clock) = (script.notifier(), time.clock());
        let store = script
            .renewals(async |_, _| std::future::pending().await)
            .store();
        let (first, second) = (runtime(), runtime());
        let guard = first.block_on(store.lock("a").acquire()).unwrap();
        first.block_on(settle());
        let lost = second.spawn(guard.lost());
        second.block_on(settle());
        // It was to be renewed after a third, and to end after all of it; now it ends after a sixth.
        let since = clock.now();
        notifier.shortened(log.first_id(), Validity::since(since, TTL / 6));
        assert!(guard.remaining() < TTL / 6, "{:?}", guard.remaining());
        if heard {
            first.block_on(settle());
        }
        drop(first);
        let runtimes = [Some(second)];
        pass(&time, &runtimes, TTL / 6 - ms(200));
        assert!(!lost.is_finished());
        pass(&time, &runtimes, ms(400));
        assert!(
            lost.is_finished(),
            "heard: {heard}; {:?} after the news",
            clock.now().since(since)
        );
        let [Some(second)] = runtimes else {
            unreachable!()
        };
        assert_eq!(second.block_on(lost).unwrap(), Loss::Expired);
        drop(guard);
    }
}
