//! Is a stale holder's write refused, by a resource that compares tokens and by the store's own
//! condition?

use crate::cases::floor::floor_of;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Claim, ClaimedAll, Grant, LeaseRef, Mode, Place, WaitPolicy};
use leasehold_core::{
    ErrorKind, FenceGate, Fenced, FencingToken, Guard, Lease, Loss, Lost, Name, Store,
};

use crate::context::{LONG, TestContext, given_back, taken, within};
use crate::faulty::{Faults, Faulty};
use crate::harness::FencedResource;

async fn next(ctx: &TestContext, store: &Store) -> Guard {
    let limit = ctx.ttl() * 2 + store.guarantees().recovery() + Duration::from_secs(2);
    within(limit, "the next holder", store.lock("a").acquire())
        .await
        .unwrap()
}

/// P2 (Kleppmann 2016): a holder is paused past its lease, wakes after its successor has written, and writes: refused by its
/// token alone, nothing overwritten; it is refused as well once the successor has gone.
pub(crate) async fn refuses_a_paused_holder(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    let rows = FenceGate::new(Vec::new());
    // Nothing of this holder runs: no renewal leaves.
    faults.hang_renewals(true);
    let paused = one.lock("a").acquire().await.unwrap();
    rows.write(&paused, |rows| rows.push("before the pause"))
        .unwrap();
    let successor = next(&ctx, &two).await;
    rows.write(&successor, |rows| rows.push("the successor"))
        .unwrap();
    let stale = rows
        .write(&paused, |rows| rows.push("after the pause"))
        .unwrap_err();
    assert_eq!(
        (stale.token, stale.seen),
        (paused.fencing_token(), successor.fencing_token())
    );
    assert_eq!(leasehold_core::Error::from(stale).kind(), ErrorKind::Stale);
    drop(successor.release().await);
    rows.write(&paused, |rows| rows.push("after the pause"))
        .unwrap_err();
    let third = next(&ctx, &two).await;
    rows.write(&third, |rows| rows.push("the third")).unwrap();
    assert_eq!(
        rows.read(Vec::clone),
        ["before the pause", "the successor", "the third"]
    );
    assert_eq!(rows.seen(), Some(third.fencing_token()));
}

/// A holder that was paused between its look at the clock and its write: it believes that it holds, whatever happened since.
/// Only the store can refuse it.
#[derive(Debug)]
struct Paused {
    name: Name,
    full_name: Name,
    token: FencingToken,
    place: Option<Place>,
}

impl Paused {
    fn holder(by: &impl Fenced) -> Paused {
        let name = by.name().clone();
        let full_name = by.full_name().clone();
        Paused {
            name,
            full_name,
            token: by.fencing_token(),
            place: by.place(),
        }
    }

    fn of(lease: &LeaseRef) -> Paused {
        let name = lease.claim.name.clone();
        let full_name = lease.claim.name.clone();
        Paused {
            name,
            full_name,
            token: lease.token.unwrap(),
            place: Some(lease.place.clone()),
        }
    }
}

impl Lease for Paused {
    fn loss(&self) -> Option<Loss> {
        None
    }
    fn remaining(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn lost(&self) -> Lost {
        unreachable!("no store waits for a loss")
    }
}

impl Fenced for Paused {
    fn name(&self) -> &Name {
        &self.name
    }
    fn fencing_token(&self) -> FencingToken {
        self.token
    }
    fn full_name(&self) -> &Name {
        &self.full_name
    }
    fn place(&self) -> Option<Place> {
        self.place.clone()
    }
}

/// Fails unless this write is accepted.
async fn accepted(resource: &dyn FencedResource, by: &dyn Fenced, who: &str) {
    let before = resource.written().await;
    let answer = resource.write(by).await;
    assert!(matches!(answer, Ok(true)), "{who} was refused: {answer:?}");
    assert_eq!(resource.written().await, before + 1, "{who} did not write");
}

/// Fails unless this write is refused, by the store or by its client.
async fn refused(resource: &dyn FencedResource, by: &dyn Fenced, who: &str) {
    let before = resource.written().await;
    let answer = resource.write(by).await;
    let refused = answer
        .as_ref()
        .map_or_else(|e| e.kind() == ErrorKind::Lost, |written| !written);
    assert!(refused, "{who}: {answer:?}");
    assert_eq!(resource.written().await, before, "{who} wrote");
}

/// A holder's write is accepted at once, after renewals and after a confirmation. The write of a
/// holder that has released is refused, also if the next holder is the same client, and after that
/// one has gone.
pub(crate) async fn lets_in_who_holds_and_not_who_did(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let one = ctx.over(client);
    let two = ctx.store().await;
    let resource = &*resource;
    let guard = one.lock("a").acquire().await.unwrap();
    let first = Paused::holder(&guard);
    accepted(resource, &guard, "the holder").await;
    accepted(resource, &first, "the holder").await;
    tokio::time::sleep(ctx.ttl()).await;
    accepted(resource, &guard, "the holder after renewals").await;
    guard.confirm().await.unwrap();
    accepted(resource, &guard.view(), "the holder after a confirmation").await;
    guard.release().await.unwrap();
    refused(resource, &first, "one that has released").await;
    let guard = two.lock("a").acquire().await.unwrap();
    refused(resource, &first, "one that has released, beside the next").await;
    guard.release().await.unwrap();
    let guard = one.lock("a").acquire().await.unwrap();
    let second = Paused::holder(&guard);
    refused(
        resource,
        &first,
        "one that has released, beside a later hold of its own",
    )
    .await;
    accepted(resource, &guard, "the later hold").await;
    guard.release().await.unwrap();
    refused(resource, &first, "the first").await;
    refused(resource, &second, "the second").await;
}

/// An evicted holder is refused from the eviction on, and not only from the moment when it hears of
/// it.
pub(crate) async fn refuses_the_evicted(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let one = ctx.over(client);
    let two = ctx.store().await;
    let resource = &*resource;
    let guard = one.lock("a").ttl(LONG).acquire().await.unwrap();
    let evicted = Paused::holder(&guard);
    accepted(resource, &evicted, "the holder").await;
    assert!(two.evict("a", guard.fencing_token()).await.unwrap());
    refused(resource, &evicted, "the evicted").await;
    let next = two.lock("a").ttl(LONG).acquire().await.unwrap();
    refused(resource, &evicted, "the evicted, beside the next").await;
    next.release().await.unwrap();
    drop(guard);
}

/// A holder whose lease has run out is refused, before and after another has taken the lock.
pub(crate) async fn refuses_the_expired(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let faults = Faults::default();
    let resource = &*resource;
    faults.hang_renewals(true);
    let one = ctx.over(Arc::new(Faulty::new(client, faults, ctx.seed())));
    let two = ctx.store().await;
    let guard = one.lock("a").acquire().await.unwrap();
    let expired = Paused::holder(&guard);
    accepted(resource, &expired, "the holder").await;
    guard.lost().await;
    refused(resource, &guard, "one that knows that it has expired").await;
    ctx.becomes_empty("a").await;
    refused(resource, &expired, "the expired").await;
    let successor = next(&ctx, &two).await;
    refused(resource, &expired, "the expired, beside the next").await;
    successor.release().await.unwrap();
    drop(guard);
}

/// Names that are taken in one step are told apart, also where one ends like another: each holds by itself.
pub(crate) async fn tells_names_of_one_step_apart(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let two = ctx.store().await;
    let resource = &*resource;
    let names = ["a", "b", "b/a", "x", "x/b/a"];
    let claims = names.map(|name| ctx.claim(name, WaitPolicy::Try));
    let Ok(ClaimedAll::Granted(grants)) = client.claim_all(&claims).await else {
        panic!("all are free")
    };
    let lease = |(claim, grant): (Claim, Grant)| {
        LeaseRef::new(Arc::new(claim), grant.place, Some(grant.token))
    };
    let leases: Vec<LeaseRef> = claims.into_iter().zip(grants).map(lease).collect();
    let holders: Vec<Paused> = leases.iter().map(Paused::of).collect();
    for holder in &holders {
        accepted(resource, holder, holder.name.as_str()).await;
    }
    for (gone, lease) in leases.iter().enumerate() {
        if gone % 2 == 0 {
            given_back(&*client, lease).await;
        } else {
            assert!(
                client
                    .evict(&lease.claim.name, holders[gone].token)
                    .await
                    .unwrap()
            );
        }
        for (i, holder) in holders.iter().enumerate() {
            match i > gone {
                true => accepted(resource, holder, holder.name.as_str()).await,
                false => refused(resource, holder, holder.name.as_str()).await,
            }
        }
    }
    // With guards: one of the names is lost to another client, which takes it anew.
    let guard = ctx
        .over(client)
        .multi_lock(names)
        .ttl(LONG)
        .acquire()
        .await
        .unwrap();
    let lost = Paused::holder(guard.get("a").unwrap());
    assert!(two.evict("a", lost.token).await.unwrap());
    let next = two.lock("a").ttl(LONG).acquire().await.unwrap();
    refused(resource, &lost, "the evicted of several").await;
    accepted(
        resource,
        guard.get("b/a").unwrap(),
        "the one whose name ends like the evicted",
    )
    .await;
    next.release().await.unwrap();
    drop(guard);
}

/// A name goes by its namespaces: a holder is let in under them, and not because another namespace's lock of that name, or a
/// longer one that ends like it, is held.
pub(crate) async fn goes_by_the_full_name(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let store = ctx.over(client);
    let resource = &*resource;
    let (inner, other) = (
        store.clone().namespace("inner"),
        store.clone().namespace("b").namespace("inner"),
    );
    let mut guards = Vec::new();
    for store in [&store, &inner, &other] {
        guards.push(store.lock("a").ttl(LONG).acquire().await.unwrap());
    }
    let holders: Vec<Paused> = guards.iter().map(Paused::holder).collect();
    for (holder, guard) in holders.iter().zip(guards) {
        accepted(resource, &guard, holder.full_name.as_str()).await;
        guard.release().await.unwrap();
        refused(resource, holder, holder.full_name.as_str()).await;
    }
}

/// Each mode's holder is let in as long as its own entry is there, beside others; a downgrade changes nothing.
pub(crate) async fn serves_every_mode(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let resource = &*resource;
    for mode in [Mode::Shared, Mode::Permits { n: 2, of: 5 }] {
        let claim = || ctx.claim_as("a", mode, WaitPolicy::Fair);
        let leases = [
            taken(&*client, claim()).await,
            taken(&*client, claim()).await,
        ];
        let [first, second] = leases.each_ref().map(Paused::of);
        accepted(resource, &first, "one of two").await;
        accepted(resource, &second, "the other of two").await;
        given_back(&*client, &leases[0]).await;
        refused(resource, &first, "one that has left another").await;
        accepted(resource, &second, "the one that is left").await;
        assert!(client.evict(&second.name, second.token).await.unwrap());
        refused(resource, &second, "the evicted").await;
    }
    let guard = ctx
        .over(client)
        .rw_lock("a")
        .write()
        .ttl(LONG)
        .acquire()
        .await
        .unwrap();
    let writer = Paused::holder(&guard);
    guard.downgrade().await.unwrap();
    accepted(resource, &guard, "a writer that became a reader").await;
    accepted(resource, &writer, "a writer that became a reader").await;
    guard.release().await.unwrap();
    refused(resource, &writer, "a reader that was a writer").await;
}

/// Tasks take turns under one claim: each one's write is accepted during its own turn, and the last
/// one is refused after it like any other holder. If a condition lasts until a transaction ends,
/// every write is refused with an error, because the next turn would begin before that end.
pub(crate) async fn serves_each_turn(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let store = ctx.over(client);
    let resource = &*resource;
    let lock = store.lock("a").ttl(LONG).fast();
    let first = lock.acquire().await.unwrap();
    let before = first.view();
    let mut waiter = std::pin::pin!(lock.acquire());
    // It stands in the local line before the first leaves.
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut waiter)
            .await
            .is_err()
    );
    let lets_in = match resource.write(&first).await {
        Ok(let_in) => {
            assert!(let_in, "the first turn was refused");
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
            assert_eq!(resource.written().await, 0);
            false
        }
    };
    first.release().await.unwrap();
    let second = within(LONG, "the second turn", waiter).await.unwrap();
    if !lets_in {
        let refused = resource.write(&second).await.map_err(|e| e.kind());
        assert_eq!(refused, Err(ErrorKind::Unsupported));
        assert_eq!(resource.written().await, 0);
        return;
    }
    accepted(resource, &second, "the second turn").await;
    refused(resource, &before, "the first turn, when it is over").await;
    let last = Paused::holder(&second);
    second.release().await.unwrap();
    refused(resource, &last, "the last turn").await;
}

/// A client that holds the lock of that name elsewhere, by the very same number, holds nothing here.
pub(crate) async fn refuses_holders_of_another_store(ctx: TestContext) {
    let (client, resource) = ctx.harness().fenced_client().await;
    let store = ctx.over(client);
    let there = ctx.private().await;
    let resource = &*resource;
    let here = store.lock("a").ttl(LONG);
    let elsewhere = there.store().await.lock("a").ttl(LONG);
    let guard = here.acquire().await.unwrap();
    let foreign = elsewhere.acquire().await.unwrap();
    let impostor = Paused {
        token: guard.fencing_token(),
        ..Paused::holder(&foreign)
    };
    refused(resource, &impostor, "a holder of another store").await;
    accepted(resource, &guard, "the holder").await;
    guard.release().await.unwrap();
    refused(
        resource,
        &impostor,
        "a holder of another store, when no client holds here",
    )
    .await;
    drop(foreign);
}

/// S16: a hold whose token was raised is let in by the new one, and by no other.
pub(crate) async fn knows_a_raised_hold(ctx: TestContext) {
    let ctx = ctx.private().await;
    let (client, resource) = ctx.harness().fenced_client().await;
    let resource = &*resource;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut claim = ctx.claim_as("a", mode, WaitPolicy::Fair);
        claim.ttl = LONG;
        let before = taken(&*client, claim.clone()).await;
        claim.floor = Some(FencingToken::new(
            floor_of(&*client).mark().await.unwrap().get() + 1_000_000,
        ));
        let raised = taken(&*client, claim).await;
        accepted(resource, &Paused::of(&raised), "the raised").await;
        refused(
            resource,
            &Paused::of(&before),
            "the raised, by its token from before",
        )
        .await;
        given_back(&*client, &raised).await;
        refused(resource, &Paused::of(&raised), "one that has released").await;
    }
}
