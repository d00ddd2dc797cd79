//! Other people's code: a waker may do anything, so it is called with no lock in hand.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::{
    future::Future,
    pin::{Pin, pin},
};

use leasehold_core::{Acquire, Guard, Lock, Loss, Owner, Store};

use crate::script::{
    Log, Script, TTL, driven, granted, ms, pass, runtime, settle, turns, within_a_minute,
};

/// Gives locks back, and takes others, whenever it is woken.
struct Meddler {
    guards: Mutex<Vec<Guard>>,
    store: Mutex<Option<Store>>,
    woken: Mutex<usize>,
}

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() += 1;
        let guard = self.guards.lock().unwrap().pop();
        let store = self.store.lock().unwrap().clone();
        if let Some(guard) = &guard {
            let _ = (guard.is_valid(), guard.remaining(), guard.view());
        }
        drop(guard);
        if let Some(store) = store {
            let mut acquire = pin!(store.lock("another").fast().try_acquire());
            let _ = acquire
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// A hold ends by time, by a notification, by release, by close, by a new grant: the waker that is called gives other locks back.
#[test]
fn a_waker_may_give_locks_back() {
    for ending in 0..6 {
        let ends = async move {
            let (script, time, log) = Script::new();
            let notifier = script.notifier();
            let script = script.claims(async |claim, n| Ok(granted(&claim, n as u64 + 1)));
            let script = script.renewals(async |_, _| std::future::pending().await);
            let store = script.store();
            let watched = store.lock("watched").fast().acquire().await.unwrap();
            let id = log.first_id();
            let mut guards = Vec::new();
            for i in 0..20 {
                guards.push(
                    store
                        .lock(("b", i % 10))
                        .fast()
                        .max_hold(TTL)
                        .try_acquire()
                        .await,
                );
            }
            let guards = Mutex::new(guards.into_iter().flatten().collect());
            let woken = Mutex::default();
            let meddler = Arc::new(Meddler {
                guards,
                store: Mutex::new(Some(store.clone())),
                woken,
            });
            let waker = Waker::from(meddler.clone());
            let mut lost: Vec<_> = (0..3).map(|_| Box::pin(watched.lost())).collect();
            for lost in &mut lost {
                assert!(matches!(
                    lost.as_mut().poll(&mut Context::from_waker(&waker)),
                    Poll::Pending
                ));
            }
            match ending {
                0 => {
                    time.advance(TTL);
                    assert!(!watched.is_valid());
                }
                1 => notifier.lost(id, Loss::Evicted),
                2 => drop(watched.release().await),
                3 => driven(&time, store.close(TTL)).await.unwrap(),
                4 => drop(watched.confirm().await),
                _ => {
                    time.advance(TTL);
                    settle().await;
                }
            }
            pass(&time, TTL, ms(500)).await;
            assert!(
                *meddler.woken.lock().unwrap() > 0,
                "ending {ending} woke nobody"
            );
            drop(meddler.store.lock().unwrap().take());
        };
        within_a_minute(move || runtime().block_on(ends));
    }
}

/// The first to see that a hold has ended may be an owner that looks which of its holds are left. The waker that is called enters with
/// the same owner.
#[test]
fn a_waker_may_enter_with_the_owner_that_looks() {
    struct Enters(Lock, Mutex<usize>);
    impl Wake for Enters {
        fn wake(self: Arc<Self>) {
            *self.1.lock().unwrap() += 1;
            let _ = pin!(self.0.try_acquire())
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    within_a_minute(|| {
        runtime().block_on(async {
            let (script, time, _log) = Script::new();
            let (store, owner) = (script.store(), Owner::new());
            let enter = |i: usize| store.lock(("a", i)).owner(&owner).try_acquire();
            let watched = enter(0).await.unwrap();
            let enters = Arc::new(Enters(
                store.lock("another").owner(&owner),
                Mutex::default(),
            ));
            let mut lost = pin!(watched.lost());
            assert!(
                lost.as_mut()
                    .poll(&mut Context::from_waker(&Waker::from(enters.clone())))
                    .is_pending()
            );
            time.advance(TTL);
            // Its table is full now and then, and it looks.
            for i in 1..100 {
                drop(enter(i).await);
            }
            pass(&time, ms(100), ms(100)).await;
            assert!(*enters.1.lock().unwrap() > 0 && !watched.is_valid());
        });
    });
}

/// A task that gives up all that it has of a client when it is woken, and sees whether the client has gone with that.
struct Leaver {
    all: Mutex<Option<(Guard, Acquire, Lock, Store)>>,
    log: Log,
    clients_gone: Mutex<Option<usize>>,
}

impl Wake for Leaver {
    fn wake(self: Arc<Self>) {
        let all = self.all.lock().unwrap().take();
        drop(all);
        self.clients_gone
            .lock()
            .unwrap()
            .get_or_insert(self.log.dropped());
    }
}

/// A store that notifies of a loss owns nothing of the client: who has it last may go meanwhile, and it ends there. Else a thread of
/// the store would end it, which may have a mutex of its own locked.
#[test]
fn a_notification_is_never_the_last_owner_of_a_client() {
    within_a_minute(|| {
        let (script, _time, log) = Script::new();
        let (notifier, runtime) = (script.notifier(), runtime());
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let lock = store.lock("a").fast();
        let guard = runtime.block_on(lock.acquire()).unwrap();
        let leaver = Arc::new(Leaver {
            all: Mutex::default(),
            log: log.clone(),
            clients_gone: Mutex::default(),
        });
        let mut next = lock.acquire();
        let here = runtime.enter();
        let waits =
            Pin::new(&mut next).poll(&mut Context::from_waker(&Waker::from(leaver.clone())));
        assert!(waits.is_pending());
        drop(here);
        // With it goes the keeper, which has the client too.
        drop(runtime);
        *leaver.all.lock().unwrap() = Some((guard, next, lock, store));
        assert_eq!(log.dropped(), 0);
        notifier.lost(log.first_id(), Loss::Evicted);
        assert_eq!(
            *leaver.clients_gone.lock().unwrap(),
            Some(1),
            "the notification had it still"
        );
    });
}
