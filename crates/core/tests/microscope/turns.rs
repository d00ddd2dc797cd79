//! Turns of a `fast` lock among the tasks of one client: nobody waits behind a hold that has gone.

use leasehold_core::seam::{Claim, Claimed};
use leasehold_core::{ErrorKind, Loss};

use crate::script::{Call, Script, granted, in_time, settle};

/// The nth claim's grant: sixty-four turns, none of which an earlier one had.
fn turns(claim: &Claim, n: usize) -> Claimed {
    let Claimed::Granted(grant) = granted(claim, 1 + 64 * n as u64) else { unreachable!() };
    Claimed::Granted(grant.turns(64))
}

/// A bell says that the hold is gone. Whoever stands behind it in this process goes to the store at once, not when the keeper
/// next looks, and not when the lost guard is dropped.
#[tokio::test]
async fn whoever_stands_behind_an_evicted_hold_goes_to_the_store() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let bells = script.bells();
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let lock = store.lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let second = tokio::spawn(lock.acquire());
        settle().await;
        let Call::Claim(id) = log.calls()[0] else { panic!("{:?}", log.calls()) };
        bells.lost(id, Loss::Evicted);
        let second = second.await.unwrap().unwrap();
        assert_eq!((second.fencing_token().get(), log.claims()), (65, 2));
        assert_eq!(first.release().await.unwrap_err().loss(), Some(Loss::Evicted));
    })
    .await;
}

/// The same when the holder learns it by asking, and the question took the lock anew.
#[tokio::test]
async fn whoever_stands_behind_a_hold_that_was_gone_goes_to_the_store() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let lock = store.lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let second = tokio::spawn(lock.acquire());
        settle().await;
        assert_eq!(first.confirm().await.unwrap_err().kind(), ErrorKind::Lost);
        let second = second.await.unwrap().unwrap();
        assert_eq!((second.fencing_token().get(), log.claims()), (129, 3));
        drop(first);
    })
    .await;
}
