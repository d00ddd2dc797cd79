//! Each rule of the bridge by itself: what it asks of which store and in which order, while answers are lost, requests are late, leases
//! end between two steps, and one store is away.

mod away;
mod claiming;
mod ending;

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Fault, Plan, TTL, Wire, drive};
use leasehold_bridge::Bridge;
use leasehold_core::backend::Raises;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Grant, LeaseRef, Mode, Moment, Notification, Place, Renewal,
    VirtualClock, WaitPolicy,
};
use leasehold_core::{ErrorKind, Fairness, FencingToken, Loss, Store};
use leasehold_memory::Memory;

/// A bridge, both its stores, and what is sent to them.
struct World {
    bridge: Bridge,
    old: Wire,
    new: Wire,
    plan: Plan,
    time: VirtualClock,
}

fn world() -> World {
    world_of(|old| old, |new| new)
}

fn world_of(old: impl FnOnce(Wire) -> Wire, new: impl FnOnce(Wire) -> Wire) -> World {
    let (memory, time) = Memory::with_virtual_time();
    let plan = Plan::default();
    let (old, new) = (
        old(Wire::to("old", &memory, &plan)),
        new(Wire::to("new", &memory.another_store(), &plan)),
    );
    let bridge = Bridge::new(old.clone(), new.clone()).unwrap();
    World {
        bridge,
        old,
        new,
        plan,
        time,
    }
}

fn claim(policy: WaitPolicy, label: &str) -> Claim {
    Claim::new("a", Mode::Exclusive, policy, TTL, label)
}

fn fair(label: &str) -> Claim {
    claim(WaitPolicy::Fair, label)
}

async fn granted(backend: &impl Backend, claim: &Claim) -> Grant {
    match drive(backend.claim(claim)).await {
        Some(Ok(Claimed::Granted(grant))) => grant,
        other => panic!("{}: {other:?}", claim.label),
    }
}

/// Two bridges are one store if both of their stores are.
#[tokio::test]
async fn the_identity_of_a_bridge_is_that_of_both_stores() {
    let [one, two, three] = [Memory::new(), Memory::new(), Memory::new()];
    let id = |old: &Memory, new: &Memory| {
        let bridge = Bridge::new(old.another_client(), new.another_client());
        bridge.unwrap().identity().unwrap()
    };
    let first = id(&one, &two);
    assert_eq!(id(&one, &two), first);
    for (old, new) in [(&two, &one), (&one, &three), (&three, &two)] {
        assert_ne!(id(old, new), first);
    }
    for store in [&one, &two] {
        let part = store.identity().unwrap();
        assert!(first.as_str().contains(part.as_str()), "{first}");
    }
}

async fn waits(backend: &impl Backend, claim: &Claim) -> Place {
    match drive(backend.claim(claim)).await {
        Some(Ok(Claimed::Waiting(waiting))) => waiting.place,
        other => panic!("{}: {other:?}", claim.label),
    }
}

async fn failed(backend: &impl Backend, claim: &Claim) -> ErrorKind {
    match drive(backend.claim(claim)).await {
        Some(Err(e)) => e.kind(),
        other => panic!("{}: {other:?}", claim.label),
    }
}

async fn release(backend: &impl Backend, claim: &Claim) {
    drive(backend.release(claim, None)).await.unwrap().unwrap();
}

async fn renewed(backend: &impl Backend, claim: &Claim, grant: &Grant) -> Renewal {
    let lease = LeaseRef::new(
        Arc::new(claim.clone()),
        grant.place.clone(),
        Some(grant.token),
    );
    drive(backend.renew(&[lease]))
        .await
        .unwrap()
        .unwrap()
        .remove(0)
}

impl World {
    fn now(&self) -> Moment {
        self.time.clock().now()
    }

    fn left(&self) -> (usize, usize) {
        (self.old.memory.entries(), self.new.memory.entries())
    }
}
