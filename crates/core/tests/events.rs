//! What Leasehold tells `tracing`: never a claim's id, never a cause that might show credentials. A binary of its own, because
//! `tracing` caches for the whole process who listens.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test binary of its own"
)]

#[path = "engine/script/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "shared with the engine's tests, which use all of it"
)]
mod script;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{Identity, VirtualClock};
use leasehold_core::{Error, ErrorKind, Guard, Loss, Store, StoreId, patiently};
use tokio::sync::Semaphore;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use script::{
    Call, Script, TTL, driven, granted, in_time, ms, pass, renewed, runtime, settle, turns,
    waiting, within_a_minute,
};

#[derive(Clone, Default)]
struct Told(Arc<Mutex<String>>);

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

/// A subscriber that does this with each event.
struct Each<F>(F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Subscriber for Each<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn with_each(event: impl Fn(&Event<'_>) + Send + Sync + 'static) -> DefaultGuard {
    tracing::subscriber::set_default(Each(event))
}

impl Told {
    fn listens(&self) -> DefaultGuard {
        let told = self.clone();
        with_each(move |event| event.record(&mut told.clone()))
    }
}

const SECRET: &str = "redis://admin:hunter2@10.0.0.1";

fn failure<T>() -> leasehold_core::Result<T> {
    Err(Error::new(ErrorKind::Ambiguous, "no answer").with_source(SECRET))
}

/// Every event there is, in one life: a store that warns, waiting, failed, acquired, renewal unknown, lost, release unknown, given up, refused.
#[tokio::test]
async fn no_event_shows_a_secret() {
    let told = Told::default();
    let _listening = told.listens();
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let script = script
            .claims(async |claim, n| match n {
                0 => failure(),
                1 => Ok(waiting(&claim)),
                _ => Ok(granted(&claim, n as u64)),
            })
            .renewals(async |_, _| failure())
            .releases(async |claim, n| match (n, claim.name.as_str()) {
                (_, "refused") => Err(Error::new(ErrorKind::Denied, "no").with_source(SECRET)),
                (0, _) => failure(),
                (_, "hopeless") => failure(),
                _ => Ok(()),
            });
        let store = script.store();
        let guard = driven(&time, store.lock("a").acquire()).await.unwrap();
        pass(&time, TTL / 2, ms(100)).await;
        let id = log.first_id();
        notifier.lost(id, Loss::Evicted);
        pass(&time, TTL, ms(100)).await;
        drop(guard);
        for name in ["refused", "hopeless"] {
            drop(store.lock(name).acquire().await.unwrap());
            pass(&time, TTL * 2, ms(100)).await;
        }
        let told = told.0.lock().unwrap().clone();
        let said = [
            "it may forget",
            "claim failed",
            "claim answered after failures",
            "waiting",
            "acquired",
            "renewal unanswered",
            "lock lost",
            "release unanswered, will",
            "released",
            "release refused",
            "until its lease had run out",
            "lock=a",
            "reason=it was evicted",
        ];
        for words in said {
            assert!(
                told.contains(words),
                "nothing was told of {words:?}:\n{told}"
            );
        }
        for call in log.calls() {
            if let Call::Claim(id) = call {
                let (whole, short) = (id.to_string(), format!("{id:?}"));
                assert!(
                    !told.contains(&whole[..8]) && !told.contains(&short),
                    "{told}"
                );
            }
        }
        assert!(
            !told.contains("hunter2") && !told.contains("admin"),
            "{told}"
        );
    })
    .await;
}

/// An outage at the start is two events, however often connecting fails meanwhile.
#[tokio::test]
async fn a_wait_for_a_store_that_is_away_is_told_when_it_begins_and_when_it_ends() {
    let told = Told::default();
    let _listening = told.listens();
    let time = VirtualClock::new();
    let clock = time.clock();
    let mut attempts = 0;
    let attempt = || {
        attempts += 1;
        let answer = if attempts < 7 { failure() } else { Ok(()) };
        async { answer }
    };
    let connecting = patiently(Duration::MAX, &clock, attempt, |_| ());
    let (connected, ()) = tokio::join!(connecting, time.pass(TTL * 5));
    connected.unwrap();
    let told = told.0.lock().unwrap().clone();
    let lines = |words: &str| told.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        (
            lines("is not available"),
            lines("is available now"),
            lines("message=")
        ),
        (1, 1, 2),
        "{told}"
    );
    assert!(
        told.contains("failures=6") && told.contains("error=no answer"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");
}

/// What a client says that keeps so many locks for five leases, on a store of one thread that needs `each` for a renewal.
async fn told_by(holds: usize, each: Duration) -> String {
    let told = Told::default();
    let _listening = told.listens();
    in_time(async {
        let (script, time, _log) = Script::new();
        let (clock, thread) = (time.clock(), Arc::new(Semaphore::new(1)));
        let script = script.renews_by(1).renewals(move |all, _| {
            let (clock, thread) = (clock.clone(), thread.clone());
            async move {
                let _turn = thread.acquire().await.unwrap();
                clock.sleep(each).await;
                Ok(renewed(&all))
            }
        });
        let store = script.store();
        let mut guards = Vec::new();
        for i in 0..holds {
            guards.push(store.lock(("held", i)).acquire().await.unwrap());
        }
        pass(&time, TTL * 5, ms(10)).await;
        let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "{holds} holds are no more than this store bears");
    })
    .await;
    let told = told.0.lock().unwrap().clone();
    assert!(
        !told.contains("lock lost") && !told.contains("unanswered"),
        "{told}"
    );
    told
}

/// A client near its ceiling says so, once per lease, before it loses anything: when the last of its renewals is answered later
/// than a third of a lease after it was due. That none of them took long by itself does not matter, nor does how many do.
#[tokio::test]
async fn renewals_near_the_ceiling_are_warned_of() {
    const SLOW: &str = "a renewal took longer than a third of its lease";
    // A round of 1.2 s, where a third of the lease is 2 s.
    let told = told_by(20, ms(60)).await;
    assert!(!told.contains(SLOW), "{told}");
    // A round of 3.6 s, of which no request is under way for more than 1 s.
    let told = told_by(60, ms(60)).await;
    let warnings = told.matches(SLOW).count();
    assert!(
        (3..=5).contains(&warnings),
        "{warnings} warnings in five leases:\n{told}"
    );
    for field in ["lock=held/", "holds=60", "took=2.", "ttl=6s"] {
        assert!(told.contains(field), "no {field} in:\n{told}");
    }
}

/// What is told while this happens.
async fn told_of(work: impl Future<Output = ()>) -> String {
    let told = Told::default();
    let _listening = told.listens();
    in_time(work).await;
    std::mem::take(&mut *told.0.lock().unwrap())
}

/// The end of a hold is one event with its reason, whoever sees it first: also where its guard goes at once.
#[tokio::test]
async fn each_end_of_a_hold_is_told_once() {
    for (end, reason) in [
        (Loss::Evicted, "lock lost\nlock=a\nreason=it was evicted"),
        (Loss::Gone, "lock lost\nlock=a\nreason=the store no longer"),
        (Loss::Expired, "lock lost\nlock=a\nreason=its lease ran out"),
        (Loss::MaxHold, "lock lost\nlock=a\nreason=it was held for"),
        (Loss::Released, "message=released\nlock=a\n"),
    ] {
        for at_once in [true, false] {
            let told = told_of(async {
                let (script, time, log) = Script::new();
                let notifier = script.notifier();
                let expires = end == Loss::Expired;
                let script = script.renewals(move |all, _| async move {
                    if expires {
                        std::future::pending::<()>().await;
                    }
                    Ok(renewed(&all))
                });
                let lock = script.store().lock("a");
                let lock = match end {
                    Loss::MaxHold => lock.max_hold(TTL / 2),
                    _ => lock,
                };
                let guard = lock.acquire().await.unwrap();
                match end {
                    Loss::Released => {
                        guard.release().await.unwrap();
                        return pass(&time, TTL * 2, ms(100)).await;
                    }
                    Loss::Evicted | Loss::Gone => notifier.lost(log.first_id(), end),
                    _ if at_once => time.advance(TTL),
                    _ => pass(&time, TTL, ms(100)).await,
                }
                if !at_once {
                    assert_eq!(guard.check().unwrap_err().loss(), Some(end));
                    pass(&time, TTL * 2, ms(100)).await;
                }
                drop(guard);
                pass(&time, TTL * 2, ms(100)).await;
            })
            .await;
            // After a loss what is left is withdrawn.
            let ends = match end {
                Loss::Released => told.matches("=released").count(),
                _ => told.matches("lock lost").count(),
            };
            assert!(told.contains(reason), "{end:?}:\n{told}");
            assert_eq!(ends, 1, "{end:?}:\n{told}");
        }
    }
}

/// An acquire that nobody polls is told of, and so is the end of a turn among tasks of one process.
#[tokio::test]
async fn what_nobody_takes_and_what_is_passed_on_is_told() {
    let told = told_of(async {
        let (script, time, _log) = Script::new();
        let lock = script
            .claims(async |claim, n| Ok(turns(&claim, n)))
            .store()
            .lock("a")
            .fast();
        let first = lock.acquire().await.unwrap();
        let second = tokio::spawn(lock.acquire());
        settle().await;
        let mut idle = lock.acquire();
        assert!(futures_util::poll!(&mut idle).is_pending());
        first.release().await.unwrap();
        second.await.unwrap().unwrap().release().await.unwrap();
        pass(&time, TTL * 2, ms(100)).await;
        drop(idle);
    })
    .await;
    for (words, times) in [
        ("message=acquired", 2),
        ("passed to another task of this process", 2),
        ("neither polled nor dropped", 1),
        ("lock lost", 0),
    ] {
        assert_eq!(told.matches(words).count(), times, "{words}:\n{told}");
    }
}

/// An outage is told when it begins and when it ends, not with each request that fails: of claims, of renewals and of releases.
#[tokio::test]
async fn an_outage_is_told_when_it_begins_and_when_it_ends() {
    let told = told_of(async {
        let (script, time, log) = Script::new();
        let (clock, back) = (time.clock(), time.clock().now() + TTL * 3);
        let lasts = move || clock.now() < back;
        let (claims, renewals, releases) = (lasts.clone(), lasts.clone(), lasts);
        let store = script
            .claims(move |claim, n| {
                let fails = n >= 20 && claims();
                async move {
                    if fails {
                        failure()
                    } else {
                        Ok(granted(&claim, n as u64 + 1))
                    }
                }
            })
            .renewals(move |all, _| {
                let fails = renewals();
                async move {
                    if fails {
                        return failure();
                    }
                    Ok(renewed(&all))
                }
            })
            .releases(move |_, _| {
                let fails = releases();
                async move { if fails { failure() } else { Ok(()) } }
            })
            .store()
            .ttl(TTL * 4);
        let mut guards = Vec::new();
        for i in 0..20 {
            guards.push(store.lock(("held", i)).acquire().await.unwrap());
        }
        drop(guards.pop());
        let waits = tokio::spawn(store.lock("wanted").acquire());
        pass(&time, TTL * 4, ms(100)).await;
        assert!(waits.await.unwrap().is_ok() && guards.iter().all(Guard::is_valid));
        assert!(log.renewals() > 3 && log.claims() > 25 && log.releases() > 3);
        drop(guards);
        pass(&time, TTL, ms(100)).await;
    })
    .await;
    for (words, times) in [
        ("claim failed", 1),
        ("claim answered after failures", 1),
        ("renewal unanswered", 1),
        ("claims=19", 1),
        ("renewals are answered again", 1),
        ("release unanswered, will", 1),
    ] {
        assert_eq!(told.matches(words).count(), times, "{words}:\n{told}");
    }
}

type Shared<T> = Arc<Mutex<T>>;

/// With each event it gives two locks back, and takes another.
fn meddle(
    guards: &Shared<Vec<Guard>>,
    store: &Shared<Option<Store>>,
    events: &Shared<usize>,
) -> DefaultGuard {
    let (guards, store, events) = (guards.clone(), store.clone(), events.clone());
    with_each(move |event| {
        // Nothing else gives back what is to be there when the losses are told.
        if *event.metadata().level() != Level::WARN {
            return;
        }
        let events = {
            let mut events = events.lock().unwrap();
            *events += 1;
            *events
        };
        // The first may be lost, and its end be told as it goes.
        let pop = || guards.lock().unwrap().pop();
        let given_back = [pop(), pop()];
        let store = store.lock().unwrap().clone();
        drop(given_back);
        // Each of these is told of in turn.
        if let (Some(store), Ok(here)) = (
            store.filter(|_| events < 200),
            tokio::runtime::Handle::try_current(),
        ) {
            here.spawn(store.lock("another").try_acquire());
        }
    })
}

/// No event is told while a lock is held: every one there is meets a subscriber that comes back in.
#[test]
fn a_subscriber_may_give_locks_back() {
    within_a_minute(|| {
        let (guards, store, events) = (Arc::default(), Arc::default(), Arc::default());
        let _listening = meddle(&guards, &store, &events);
        let runtime = runtime();
        runtime.block_on(async {
            let (script, time, _log) = Script::new();
            let script = script
                .claims(async |claim, n| {
                    if n == 3 {
                        failure()
                    } else {
                        Ok(granted(&claim, n as u64 + 1))
                    }
                })
                .renewals(async |all, n| {
                    if n == 0 {
                        return Ok(all
                            .iter()
                            .map(|_| leasehold_core::backend::Renewal::Lost(Loss::Gone))
                            .collect());
                    }
                    failure()
                })
                .releases(async |_, n| if n % 3 == 0 { failure() } else { Ok(()) });
            let all = script.store();
            *store.lock().unwrap() = Some(all.clone());
            let mut taken = Vec::new();
            for i in 0..40 {
                taken.push(driven(&time, all.lock(("a", i)).acquire()).await.unwrap());
            }
            *guards.lock().unwrap() = taken;
            // Some are lost to the store, the others to time.
            pass(&time, TTL * 2, ms(100)).await;
            let (left, told) = (guards.lock().unwrap().len(), *events.lock().unwrap());
            // Those whose loss was told first are left: each took two others with it.
            assert!(left < 20 && told >= 10, "{left} left, {told} events");
            drop((
                store.lock().unwrap().take(),
                std::mem::take(&mut *guards.lock().unwrap()),
            ));
        });
    });
}

/// A notification may say that a hold is gone after it was granted and before its turn has begun. That turn ends, too: the next task
/// does not wait until its guard is dropped.
#[tokio::test]
async fn a_turn_of_a_hold_that_has_just_gone_ends() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let (notifier, told) = (script.notifier(), log.clone());
        let _listening = with_each(move |event| {
            // The first grant is known, and no guard has it yet.
            if event.fields().any(|field| field.name() == "waited") && told.claims() == 1 {
                notifier.lost(told.first_id(), Loss::Evicted);
            }
        });
        let lock = script
            .claims(async |claim, n| Ok(turns(&claim, n)))
            .store()
            .lock("a")
            .fast();
        let (first, mut second) = (tokio::spawn(lock.acquire()), tokio::spawn(lock.acquire()));
        let first = first.await.unwrap().unwrap();
        assert_eq!(first.lost().await, Loss::Evicted);
        settle().await;
        assert!(
            futures_util::poll!(&mut second).is_ready(),
            "it waits behind a guard of nothing"
        );
        assert_eq!(log.claims(), 2);
    })
    .await;
}

/// Servers of two stores answer by turns, as behind a balancer.
#[test]
fn an_identity_that_comes_and_goes_is_told_once() {
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    let _listening = with_each(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let [one, two] = ["1", "2"].map(|id| StoreId::of("x", id));
    let kept = Identity::default();
    for _ in 0..3 {
        assert!(kept.check(&one).is_ok() && kept.check(&two).is_err());
    }
    assert_eq!(told.load(Ordering::Relaxed), 1);
    // A store that may lose its identity with its data: each of both is told of once.
    let renewed = Identity::default();
    for _ in 0..3 {
        renewed.renew(&one);
        renewed.renew(&two);
    }
    assert_eq!(told.load(Ordering::Relaxed), 3);
}
