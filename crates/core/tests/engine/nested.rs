//! Other people's code: a waker may do anything, so it is called with no lock in hand.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::{future::Future, pin::pin};

use leasehold_core::{Guard, Store};

use crate::script::{Script, TTL, driven, granted, ms, pass, runtime, settle, within_a_minute};

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
            let _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
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
                guards.push(store.lock(("b", i % 10)).fast().max_hold(TTL).try_acquire().await);
            }
            let guards = Mutex::new(guards.into_iter().flatten().collect());
            let woken = Mutex::default();
            let meddler = Arc::new(Meddler { guards, store: Mutex::new(Some(store.clone())), woken });
            let waker = Waker::from(meddler.clone());
            let mut lost: Vec<_> = (0..3).map(|_| Box::pin(watched.lost())).collect();
            for lost in &mut lost {
                assert!(matches!(lost.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending));
            }
            match ending {
                0 => {
                    time.advance(TTL);
                    assert!(!watched.is_valid());
                }
                1 => notifier.lost(id, leasehold_core::Loss::Evicted),
                2 => drop(watched.release().await),
                3 => driven(&time, store.close(TTL)).await.unwrap(),
                4 => drop(watched.confirm().await),
                _ => {
                    time.advance(TTL);
                    settle().await;
                }
            }
            pass(&time, TTL, ms(500)).await;
            assert!(*meddler.woken.lock().unwrap() > 0, "ending {ending} woke nobody");
            drop(meddler.store.lock().unwrap().take());
        };
        within_a_minute(move || runtime().block_on(ends));
    }
}
