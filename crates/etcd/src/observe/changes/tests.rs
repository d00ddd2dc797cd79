//! The changes that are reported of a name, case by case.

mod model;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Participant;
use leasehold_core::backend::{Admission, Claim, Mode, Moment, WaitPolicy, admit, place_of_token};

use self::Mode::{Exclusive, Shared};
use super::*;
use crate::client::leased_key::LeasedKey;
use crate::client::mirror::Event;
use crate::client::session::Session;

/// A claim of this client that waits behind so many entries, or holds.
#[derive(Clone, Copy)]
enum Stand {
    Holds,
    Waits(Option<i64>),
}

/// This client's claims of a name, and the name's mirror.
#[derive(Default)]
struct Watched {
    own: Vec<OwnClaim>,
    mirror: Mirror<QueueEntry>,
    /// The claim whose answer has just come.
    stood: Option<ClaimId>,
}

impl Watched {
    fn changes(&mut self) -> Changes {
        changes(self.own.iter_mut(), &mut self.mirror, self.stood.take())
    }

    fn place(&mut self, created: i64, stand: Stand) {
        self.stood = Some(id(created));
        let session = Arc::new(Session::new(
            1,
            9,
            Duration::from_secs(9),
            String::new(),
            Moment::now(),
        ));
        let (granted, ahead) = match stand {
            Stand::Holds => (true, None),
            Stand::Waits(ahead) => (false, ahead.map(|ahead| ahead as u32)),
        };
        if let Some(known) = self.own.iter_mut().find(|own| own.id == id(created)) {
            known.granted |= granted;
            return;
        }
        let claim = Claim::new("a", Exclusive, WaitPolicy::Fair, Duration::from_secs(9), "");
        let own = OwnClaim::new(&claim, Arc::new(LeasedKey::new(session, "")), 0);
        self.own.push(OwnClaim {
            id: id(created),
            created,
            ahead,
            granted,
            ..own
        });
    }

    fn take_in(&mut self, event: Event<QueueEntry>) {
        self.mirror.take_in(event);
    }

    fn read(&mut self, revision: i64, live: impl Iterator<Item = (Vec<u8>, i64, Mode)>) {
        let live = live.map(|(key, created, mode)| (key, created, created, seen(mode)));
        self.mirror.read(revision, live);
    }
}

fn seen(mode: Mode) -> QueueEntry {
    (mode, Participant::default())
}

fn put(created: i64, key: u8, mode: Mode) -> Event<QueueEntry> {
    Event {
        revision: created,
        key: vec![key],
        put: Some((created, seen(mode))),
    }
}

fn deleted(revision: i64, key: u8) -> Event<QueueEntry> {
    Event {
        revision,
        key: vec![key],
        put: None,
    }
}

/// A name that was read at 10, with these entries: (key, create_revision, mode).
fn read(live: &[(u8, i64, Mode)]) -> Watched {
    let mut watched = Watched::default();
    watched.read(
        10,
        live.iter()
            .map(|(key, created, mode)| (vec![*key], *created, *mode)),
    );
    watched
}

fn granted(watched: &mut Watched) -> Vec<i64> {
    let grants = watched.changes().granted.into_iter();
    grants
        .map(|(_, grant)| place_of_token(grant.token))
        .collect()
}

fn gone(watched: &mut Watched) -> Vec<i64> {
    watched
        .changes()
        .gone
        .into_iter()
        .map(|own| own.created)
        .collect()
}

fn id(number: i64) -> ClaimId {
    ClaimId::parse(&format!("{number:032x}")).unwrap()
}

#[test]
fn a_waiter_holds_when_all_before_it_are_gone_whatever_the_order() {
    let mut watched = read(&[(1, 7, Exclusive), (2, 8, Exclusive), (3, 9, Exclusive)]);
    watched.take_in(put(14, 4, Exclusive));
    watched.place(14, Stand::Waits(Some(3)));
    watched.take_in(deleted(15, 2)); // died in the middle
    watched.take_in(deleted(16, 1));
    watched.take_in(put(17, 5, Exclusive)); // behind us
    assert!(granted(&mut watched).is_empty());
    watched.take_in(deleted(18, 3));
    assert_eq!(granted(&mut watched), [14]);
    watched.take_in(deleted(19, 4));
    assert_eq!(
        gone(&mut watched),
        [14],
        "a hold that was deleted is reported"
    );
}

#[test]
fn events_that_the_read_has_seen_are_ignored() {
    let mut watched = Watched::default();
    watched.place(9, Stand::Waits(Some(1)));
    watched.take_in(deleted(6, 1)); // the watch lags: this was another entry of the same key
    assert!(
        watched.changes().gone.is_empty(),
        "nothing is known before it was read"
    );
    watched.read(
        10,
        [(vec![1], 7, Exclusive), (vec![2], 9, Exclusive)].into_iter(),
    );
    watched.take_in(deleted(8, 1));
    assert!(granted(&mut watched).is_empty());
    watched.take_in(deleted(11, 1));
    assert_eq!(granted(&mut watched), [9]);
}

#[test]
fn a_place_waits_for_its_own_put_to_be_reported() {
    let mut watched = read(&[]);
    watched.place(12, Stand::Waits(Some(1)));
    let changes = watched.changes();
    assert!(changes.granted.is_empty() && changes.gone.is_empty());
    watched.take_in(put(11, 1, Exclusive));
    watched.take_in(put(12, 2, Exclusive));
    assert!(granted(&mut watched).is_empty());
    watched.take_in(deleted(13, 1));
    assert_eq!(granted(&mut watched), [12]);
    // A claim that was reported before its reply came is known already, and so is that it has gone.
    watched.take_in(put(14, 3, Exclusive));
    watched.take_in(deleted(15, 3));
    watched.place(14, Stand::Waits(Some(1)));
    assert_eq!(gone(&mut watched), [14]);
}

#[test]
fn a_lease_that_ends_takes_the_waiter_with_its_predecessor() {
    let mut watched = read(&[(1, 7, Exclusive), (2, 8, Exclusive)]);
    watched.place(8, Stand::Waits(Some(1)));
    watched.take_in(deleted(15, 1));
    watched.take_in(deleted(15, 2));
    let changes = watched.changes();
    assert!(changes.granted.is_empty());
    assert_eq!(
        changes
            .gone
            .iter()
            .map(|own| own.created)
            .collect::<Vec<_>>(),
        [8]
    );
}

#[test]
fn readers_get_in_together_and_after_a_downgrade() {
    let mut watched = read(&[
        (1, 3, Exclusive),
        (2, 4, Shared),
        (3, 5, Shared),
        (4, 6, Exclusive),
        (5, 7, Shared),
    ]);
    for created in 4..8 {
        watched.place(created, Stand::Waits(None));
    }
    assert!(granted(&mut watched).is_empty());
    watched.take_in(Event {
        revision: 11,
        key: vec![1],
        put: Some((3, seen(Shared))),
    });
    assert_eq!(granted(&mut watched), [4, 5]);
    watched.take_in(deleted(12, 4));
    assert_eq!(
        granted(&mut watched),
        [7],
        "the writer died while it waited"
    );
}

#[test]
fn permits_are_handed_on() {
    let two = Mode::Permits { n: 2, of: 3 };
    let mut watched = read(&[
        (1, 3, two),
        (2, 4, two),
        (3, 5, Mode::Permits { n: 1, of: 3 }),
    ]);
    watched.place(4, Stand::Waits(Some(1)));
    watched.place(5, Stand::Waits(Some(2)));
    assert!(granted(&mut watched).is_empty(), "none passes");
    watched.take_in(deleted(11, 1));
    assert_eq!(granted(&mut watched), [4, 5]);
}

#[test]
fn an_entry_that_the_watch_missed_lets_none_in() {
    let mut watched = read(&[]);
    watched.place(14, Stand::Waits(Some(1)));
    watched.take_in(put(14, 2, Exclusive));
    let changes = watched.changes();
    assert!(changes.wrong && changes.granted.is_empty());
}

#[test]
fn changes_of_holders_are_reported_and_newcomers_are_not() {
    let mut watched = read(&[(1, 3, Exclusive)]);
    assert!(watched.changes().holder_changed, "it was read");
    watched.take_in(put(11, 2, Exclusive));
    assert!(!watched.changes().holder_changed);
    for event in [
        Event {
            revision: 12,
            key: vec![1],
            put: Some((3, seen(Exclusive))),
        },
        deleted(13, 1),
        deleted(14, 2),
    ] {
        watched.take_in(event);
        assert!(watched.changes().holder_changed);
    }
    watched.take_in(put(15, 2, Exclusive));
    assert!(watched.changes().holder_changed, "it leads");
}

/// The work may be done. A mirror that is newer than the answer on its way must not turn it into a
/// grant.
#[test]
fn a_claim_for_work_that_is_done_once_is_sent_again_and_not_granted() {
    let mut watched = read(&[(1, 3, Exclusive), (2, 5, Exclusive)]);
    watched.place(5, Stand::Waits(Some(1)));
    let claim = Claim::new("a", Exclusive, WaitPolicy::Fair, Duration::from_secs(9), "").once(0);
    let once = OwnClaim::new(&claim, watched.own[0].key.clone(), 0).once;
    watched.own[0].once = once;
    assert!(watched.changes().again.is_empty());
    watched.take_in(deleted(11, 1));
    let changes = watched.changes();
    assert!(changes.granted.is_empty() && changes.again == [id(5)]);
    assert!(!watched.own[0].granted && watched.own[0].watched.is_none());
}
