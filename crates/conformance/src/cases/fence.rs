//! Is a stale holder's write refused where the token is spent?

use std::time::Duration;

use leasehold_core::{ErrorKind, FenceGate, Store};

use crate::arena::{Arena, within};
use crate::faulty::Weather;

async fn next(arena: &Arena, store: &Store) -> leasehold_core::Guard {
    let limit = arena.ttl() * 2 + store.guarantees().recovery + Duration::from_secs(2);
    within(limit, "the next holder", store.lock("a").acquire()).await.unwrap()
}

/// P2 (Kleppmann 2016): a holder is paused past its lease, wakes after its successor has written, and writes: refused by its
/// token alone, nothing overwritten; it is refused as well once the successor has gone.
pub(crate) async fn refuses_a_paused_holder(arena: Arena) {
    let weather = Weather::default();
    let (one, two) = (arena.store_in(&weather).await, arena.store().await);
    let rows = FenceGate::new(Vec::new());
    // Nothing of this holder runs: no renewal leaves.
    weather.hang_renewals(true);
    let paused = one.lock("a").acquire().await.unwrap();
    rows.write(&paused, |rows| rows.push("before the pause")).unwrap();
    let successor = next(&arena, &two).await;
    rows.write(&successor, |rows| rows.push("the successor")).unwrap();
    let stale = rows.write(&paused, |rows| rows.push("after the pause")).unwrap_err();
    assert_eq!((stale.token, stale.seen), (paused.fencing_token(), successor.fencing_token()));
    assert_eq!(leasehold_core::Error::from(stale).kind(), ErrorKind::Lost);
    drop(successor.release().await);
    rows.write(&paused, |rows| rows.push("after the pause")).unwrap_err();
    let third = next(&arena, &two).await;
    rows.write(&third, |rows| rows.push("the third")).unwrap();
    assert_eq!(rows.read(Vec::clone), ["before the pause", "the successor", "the third"]);
    assert_eq!(rows.seen(), Some(third.fencing_token()));
}
