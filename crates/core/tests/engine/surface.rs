//! What the compiler promises users about our types, and what it must refuse.

use std::fmt::Debug;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};

use leasehold_core::backend::{
    Backend, Claim, Claimed, Clock, LeaseRef, Notifier, Renewal, TokenFloor, VirtualClock,
};
use leasehold_core::{
    Acquire, Contention, DistributedLock, Election, Error, FenceGate, Fenced, FencingToken,
    Guarantees, Guard, Held, Leader, Leadership, Lease, Lock, LockQueue, Loss, Lost, MultiGuard,
    MultiLock, Name, Observer, Options, Owner, RunOutcome, RwLock, Semaphore, Store,
};

use crate::script::{Script, TTL};

fn everywhere<T: Send + Sync + Unpin + Debug + 'static>() {}
fn anywhere<T: Send + Unpin + Debug + 'static>() {}
fn future<T: Future + Send + Unpin + 'static>() {}

#[test]
fn types_go_everywhere() {
    everywhere::<Store>();
    everywhere::<Lock>();
    everywhere::<Guard>();
    everywhere::<Held>();
    everywhere::<Lost>();
    everywhere::<Loss>();
    everywhere::<Owner>();
    everywhere::<Options>();
    everywhere::<RwLock>();
    everywhere::<Semaphore>();
    everywhere::<Election>();
    everywhere::<Leadership>();
    everywhere::<Leader>();
    everywhere::<MultiLock>();
    everywhere::<MultiGuard>();
    everywhere::<FenceGate<u64>>();
    anywhere::<Observer>();
    everywhere::<Name>();
    everywhere::<FencingToken>();
    everywhere::<Error>();
    everywhere::<Contention>();
    everywhere::<LockQueue>();
    everywhere::<Guarantees>();
    everywhere::<RunOutcome<()>>();
    everywhere::<Notifier>();
    everywhere::<Clock>();
    everywhere::<VirtualClock>();
    everywhere::<Claim>();
    everywhere::<Claimed>();
    everywhere::<Renewal>();
    everywhere::<LeaseRef>();
    anywhere::<Acquire>();
    future::<Acquire>();
    future::<Lost>();
}

/// The object-safe ones are objects, and the futures that they give can be spawned.
#[test]
fn traits_are_objects() {
    fn sized<T: ?Sized + Send + Sync>() {}
    sized::<dyn DistributedLock>();
    sized::<dyn Lease>();
    sized::<dyn Fenced>();
    sized::<dyn Backend>();
    sized::<dyn TokenFloor>();
    fn spawned(lock: &Lock, guard: Guard) {
        fn spawn(_: impl Future + Send + 'static) {}
        spawn(lock.acquire());
        spawn(lock.acquire_timeout(std::time::Duration::ZERO));
        spawn(lock.run(|held| async move { held.is_valid() }));
        spawn(lock.try_run(|_| async {}));
        spawn(guard.lost());
        spawn(guard.release());
    }
    let _ = spawned;
}

/// A guard is one owner: whatever else changes, it must not become `Clone`, and neither must an `Acquire`.
#[test]
fn a_guard_has_no_twin() {
    trait IsClone {
        const CLONE: bool = false;
    }
    impl<T: ?Sized> IsClone for T {}
    struct Probe<T>(std::marker::PhantomData<T>);
    impl<T: Clone> Probe<T> {
        const CLONE: bool = true;
    }
    let twins = (
        Probe::<Guard>::CLONE,
        Probe::<Acquire>::CLONE,
        Probe::<Lost>::CLONE,
    );
    assert_eq!(twins, (false, false, false));
    let (views, stores) = (Probe::<Held>::CLONE, Probe::<Store>::CLONE);
    assert!(views && stores);
}

/// A panic of the user's own code does not make these unusable for the compiler.
#[test]
fn errors_cross_panics() {
    fn safe<T: UnwindSafe + RefUnwindSafe>() {}
    safe::<Name>();
    safe::<Loss>();
    safe::<FencingToken>();
    safe::<Contention>();
}

/// A primitive shows its own name and settings, not the lock that it is made of.
#[test]
fn each_primitive_shows_what_it_is() {
    let (script, _time, _log) = Script::new();
    let store = script.store().namespace("billing");
    let shown = [
        ("Lock {", format!("{:?}", store.lock("a").ttl(TTL * 7))),
        ("RwLock {", format!("{:?}", store.rw_lock("a").ttl(TTL * 7))),
        (
            "Semaphore {",
            format!("{:?}", store.semaphore("a", 4321).ttl(TTL * 7)),
        ),
        (
            "Election {",
            format!("{:?}", store.election("a").ttl(TTL * 7)),
        ),
        (
            "MultiLock {",
            format!("{:?}", store.multi_lock(["a"]).ttl(TTL * 7)),
        ),
    ];
    for (begins, text) in &shown {
        assert!(text.starts_with(begins), "{text}");
        assert_eq!(
            text.matches("Lock {").count(),
            begins.matches("Lock {").count(),
            "another type shows: {text}"
        );
        for setting in ["Script", "billing", "\"a\"", "42s"] {
            assert!(text.contains(setting), "no {setting} in {text}");
        }
    }
    assert!(shown[2].1.contains("permits: 4321"), "{}", shown[2].1);
    assert!(
        shown.iter().skip(1).all(|(_, text)| !text.contains("mode")),
        "{shown:?}"
    );
}
