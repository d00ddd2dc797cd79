//! Observers: when they poll, what is a change, and for how long they retry during an outage.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{Notifier, VirtualClock};
use leasehold_core::{ErrorKind, FencingToken, LockQueue, Name, Observer, Participant, Store};

use tokio::task::JoinHandle;

use crate::script::{Log, Script, TTL, driven, error, in_time, ms, settle};

/// Who leads, for the script to show.
#[derive(Clone, Default)]
struct Leaders(Arc<Mutex<Vec<(String, u64)>>>);

impl Leaders {
    fn set(&self, value: &str, token: u64) {
        *self.0.lock().unwrap() = vec![(value.to_owned(), token)];
    }

    fn queue(&self) -> LockQueue {
        let entry = |(value, token): &(String, u64)| {
            Participant::new(value.clone()).token(FencingToken::new(*token))
        };
        LockQueue::new(
            self.0.lock().unwrap().iter().map(entry).collect(),
            Vec::new(),
        )
    }
}

struct Scene {
    store: Store,
    notifier: Option<Notifier>,
    time: VirtualClock,
    log: Log,
    leaders: Leaders,
}

fn scene(pushed: bool) -> Scene {
    let (script, time, log) = Script::new();
    let leaders = Leaders::default();
    let shown = leaders.clone();
    let script = script.inspects(move |_, _| {
        let queue = shown.queue();
        async move { Ok(queue) }
    });
    let notifier = pushed.then(|| script.notifier());
    let script = if pushed { script } else { script.silent() };
    Scene {
        store: script.store(),
        notifier,
        time,
        log,
        leaders,
    }
}

fn value(observer: &Observer) -> Option<(&str, u64)> {
    observer
        .current()
        .map(|leader| (leader.value.as_str(), leader.token.get()))
}

/// A task that waits for the next change.
fn spawn_changed(mut observer: Observer) -> JoinHandle<Observer> {
    tokio::spawn(async move {
        observer.changed().await.unwrap();
        observer
    })
}

/// Polls `changed` until nothing moves any more, and drops it: it must not be done.
async fn is_quiet(observer: &mut Observer) {
    tokio::select! {
        biased;
        changed = observer.changed() => panic!("changed: {changed:?}"),
        () = settle() => {}
    }
}

#[tokio::test]
async fn a_notification_is_read_at_once() {
    let Scene {
        store,
        notifier,
        log,
        leaders,
        ..
    } = scene(true);
    let notifier = notifier.unwrap();
    let mut observer = store.election("a").observe().await.unwrap();
    assert_eq!(value(&observer), None);
    is_quiet(&mut observer).await;
    let inspects = log.inspects();
    notifier.holder_changed(&Name::new("b"));
    leaders.set("one", 1);
    let changed = spawn_changed(observer);
    settle().await;
    // An observer that begins to wait polls once; the notification for another name is no reason to.
    assert!(
        changed.is_finished() && log.inspects() == inspects + 1,
        "{} requests",
        log.inspects() - inspects
    );
    let observer = changed.await.unwrap();
    assert_eq!(value(&observer), Some(("one", 1)));
    let changed = spawn_changed(observer);
    settle().await;
    let inspects = log.inspects();
    notifier.holder_changed(&Name::new("b"));
    settle().await;
    assert_eq!(log.inspects(), inspects, "it asks because of another name");
    leaders.set("one", 2);
    notifier.holder_changed(&Name::new("a"));
    let observer = in_time(changed).await.unwrap();
    assert_eq!(
        value(&observer),
        Some(("one", 2)),
        "the same value of another term is a change"
    );
}

#[tokio::test]
async fn notifications_that_were_missed_may_have_been_for_it() {
    let Scene {
        store,
        notifier,
        leaders,
        ..
    } = scene(true);
    let observer = store.election("a").observe().await.unwrap();
    let changed = spawn_changed(observer);
    settle().await;
    leaders.set("one", 1);
    for i in 0..1000 {
        notifier
            .as_ref()
            .unwrap()
            .holder_changed(&Name::new(format!("other {i}")));
    }
    assert_eq!(value(&in_time(changed).await.unwrap()), Some(("one", 1)));
}

#[tokio::test]
async fn it_polls_without_notifications_and_not_all_the_time() {
    for (pushed, most) in [(false, 8 + 1), (true, 2 + 1)] {
        let Scene {
            store,
            time,
            log,
            leaders,
            ..
        } = scene(pushed);
        let observer = store.election("a").observe().await.unwrap();
        let before = log.inspects();
        let changed = spawn_changed(observer);
        crate::script::pass(&time, Duration::from_secs(2), ms(10)).await;
        let inspects = log.inspects() - before;
        assert!(
            (2..=most).contains(&inspects),
            "{inspects} requests in two seconds, notified: {pushed}"
        );
        leaders.set("one", 1);
        let observer = in_time(driven(&time, changed)).await.unwrap();
        assert_eq!(value(&observer), Some(("one", 1)));
    }
}

#[tokio::test]
async fn dropped_midway_it_finds_the_change_again() {
    let Scene { store, leaders, .. } = scene(false);
    let mut observer = store.election("a").observe().await.unwrap();
    is_quiet(&mut observer).await;
    leaders.set("one", 1);
    leaders.set("two", 1);
    in_time(observer.changed()).await.unwrap();
    assert_eq!(value(&observer), Some(("two", 1)));
    is_quiet(&mut observer).await;
    leaders.0.lock().unwrap().clear();
    in_time(observer.changed()).await.unwrap();
    assert_eq!(value(&observer), None, "a vacancy is a change");
}

#[tokio::test]
async fn an_observer_retries_an_outage_for_one_lease() {
    let (script, time, _) = Script::new();
    // The first answer is good, then the store is away, and comes back.
    let store = script
        .inspects(|_, n| async move {
            match n {
                0 | 60.. => Ok(LockQueue::new(
                    vec![Participant::new("x").token(FencingToken::new(n as u64))],
                    Vec::new(),
                )),
                _ => error(ErrorKind::Unavailable),
            }
        })
        .silent()
        .store();
    let mut observer = store.election("a").observe().await.unwrap();
    let began = time.clock().now();
    let outcome = in_time(driven(&time, observer.changed())).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
    let bore = time.clock().now().since(began);
    assert!(bore >= TTL && bore <= TTL + ms(500), "{bore:?}");
    // Watching goes on by asking again.
    while in_time(driven(&time, observer.changed())).await.is_err() {}
    assert!(observer.current().unwrap().token.get() >= 60);
}

#[tokio::test]
async fn what_will_not_get_better_is_said_at_once() {
    let (script, _time, log) = Script::new();
    let store = script.inspects(|_, n| async move {
        if n == 0 {
            Ok(LockQueue::default())
        } else {
            error(ErrorKind::Denied)
        }
    });
    let mut observer = store.store().election("a").observe().await.unwrap();
    assert_eq!(
        in_time(observer.changed()).await.unwrap_err().kind(),
        ErrorKind::Denied
    );
    assert_eq!(log.inspects(), 2);
}

#[tokio::test]
async fn another_tools_entry_is_no_leader() {
    let (script, _time, _log) = Script::new();
    let store = script
        .inspects(|_, _| async { Ok(LockQueue::new(vec![Participant::foreign()], Vec::new())) })
        .store();
    assert_eq!(store.election("a").leader().await.unwrap(), None);
}
