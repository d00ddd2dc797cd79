//! The news that two watched keys give a waiter, case by case: the orders that a real server does
//! not produce at will.

mod model;

use leasehold_core::Participant;

use super::Mode::{Exclusive, Shared};
use super::*;
use crate::client::mirror::{Event, Mirror};
use crate::client::watch::Range;

fn seen(mode: Mode) -> QueueEntry {
    (mode, Participant::default())
}

fn put(revision: i64, created: i64, mode: Mode) -> Event<QueueEntry> {
    Event {
        revision,
        key: vec![1],
        put: Some((created, seen(mode))),
    }
}

fn deleted(revision: i64) -> Event<QueueEntry> {
    Event {
        revision,
        key: vec![1],
        put: None,
    }
}

/// A mirror of one key that was read at 10: its create_revision and mode, if it was there.
fn read(live: Option<(i64, Mode)>) -> Arc<SharedMirror<QueueEntry>> {
    let mirror = SharedMirror::new(Range::Key("a".into()), Mirror::default());
    mirror.lock().read(
        10,
        live.into_iter()
            .map(|(created, mode)| (vec![1], created, created, seen(mode))),
    );
    Arc::new(mirror)
}

/// A waiter whose key was created at 9, behind an exclusive entry of 7.
fn waiter(first: bool) -> Predecessor {
    Predecessor {
        own: read(Some((9, Exclusive))),
        other: read(Some((7, Exclusive))),
        created: 7,
        first,
    }
}

/// The watch of the other key reports deletions alone, and the deletion of an earlier entry of that
/// key grants nothing.
#[test]
fn a_deletion_after_the_entry_came_is_its_own() {
    let before = Predecessor {
        created: 12,
        other: read(Some((7, Exclusive))),
        ..waiter(true)
    };
    before.own.lock().take_in(put(13, 13, Exclusive));
    before.other.lock().take_in(deleted(11));
    assert_eq!(
        before.news(Exclusive, 13),
        News::None,
        "that was an earlier one"
    );
    before.other.lock().take_in(deleted(14));
    assert_eq!(before.news(Exclusive, 13), News::Granted);
}

#[test]
fn the_end_of_the_first_of_the_queue_is_a_grant_and_that_of_another_is_a_question() {
    for (first, then) in [(true, News::Granted), (false, News::ClaimAgain)] {
        let before = waiter(first);
        assert_eq!(before.news(Exclusive, 9), News::None);
        before.other.lock().take_in(deleted(11));
        assert_eq!(before.news(Exclusive, 9), then);
        // Another entry has taken its key since.
        before.other.lock().take_in(put(12, 12, Exclusive));
        assert_eq!(before.news(Exclusive, 9), then);
    }
}

#[test]
fn a_deletion_of_an_earlier_entry_of_the_same_key_is_none_of_this_one() {
    // The watch lags: it has not reported yet that another entry took the key at 12.
    let before = Predecessor {
        created: 12,
        other: read(Some((7, Exclusive))),
        ..waiter(true)
    };
    before.own.lock().take_in(put(13, 13, Exclusive));
    assert_eq!(before.news(Exclusive, 13), News::None);
    before.other.lock().take_in(deleted(11));
    assert_eq!(before.news(Exclusive, 13), News::None);
    before.other.lock().take_in(put(12, 12, Exclusive));
    assert_eq!(before.news(Exclusive, 13), News::None);
    before.other.lock().take_in(deleted(14));
    assert_eq!(before.news(Exclusive, 13), News::Granted);
}

#[test]
fn an_entry_that_the_watch_has_not_seen_come_has_not_gone() {
    let before = Predecessor {
        created: 11,
        other: read(None),
        ..waiter(true)
    };
    assert_eq!(before.news(Exclusive, 9), News::None);
    before.other.lock().take_in(put(11, 11, Exclusive));
    assert_eq!(before.news(Exclusive, 9), News::None);
    before.other.lock().take_in(deleted(12));
    assert_eq!(before.news(Exclusive, 9), News::Granted);
}

#[test]
fn a_claim_whose_own_key_is_gone_or_not_reported_yet_is_not_granted() {
    let before = waiter(true);
    before.other.lock().take_in(deleted(11));
    assert_eq!(
        before.news(Exclusive, 12),
        News::None,
        "its put is still to be reported"
    );
    before.own.lock().take_in(deleted(12));
    assert_eq!(before.news(Exclusive, 9), News::Gone);
    before.own.lock().take_in(put(13, 13, Exclusive));
    assert_eq!(
        (before.news(Exclusive, 9), before.news(Exclusive, 13)),
        (News::Gone, News::Granted)
    );
}

#[test]
fn a_downgrade_lets_readers_in_and_writers_wait_on() {
    for (first, then) in [(true, News::Granted), (false, News::ClaimAgain)] {
        let before = waiter(first);
        before.other.lock().take_in(put(11, 7, Shared));
        assert_eq!(
            (before.news(Shared, 9), before.news(Exclusive, 9)),
            (then, News::None)
        );
    }
    // Another label changes nothing.
    let before = waiter(true);
    before.other.lock().take_in(put(11, 7, Exclusive));
    assert_eq!(
        (before.news(Shared, 9), before.news(Exclusive, 9)),
        (News::None, News::None)
    );
}

#[test]
fn after_a_stream_that_broke_nothing_is_believed_before_both_were_read_anew() {
    let before = waiter(true);
    *before.other.lock() = Mirror::default();
    assert_eq!(before.news(Exclusive, 9), News::None);
    before.other.lock().read(15, std::iter::empty());
    assert_eq!(
        before.news(Exclusive, 9),
        News::Granted,
        "it went while no watch stood"
    );
    *before.own.lock() = Mirror::default();
    assert_eq!(before.news(Exclusive, 9), News::None);
    before.own.lock().read(16, std::iter::empty());
    assert_eq!(before.news(Exclusive, 9), News::Gone);
}
