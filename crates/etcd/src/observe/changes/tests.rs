//! What is told of a line, case by case and against a model of the store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Admission, Claim, Moment, WaitPolicy, admit, place_of_token};

use super::Mode::{Exclusive, Shared};
use super::*;
use crate::client::leased_key::LeasedKey;
use crate::client::mirror::Event;
use crate::client::session::Session;

/// A claim of ours that waits behind so many, or holds.
#[derive(Clone, Copy)]
enum Stand {
    Holds,
    Waits(Option<i64>),
}

/// Our claims in a line, and its mirror.
#[derive(Default)]
struct Line {
    own: Vec<OwnClaim>,
    mirror: Mirror<Mode>,
}

impl Line {
    fn changes(&mut self) -> Changes {
        changes(self.own.iter_mut(), &mut self.mirror)
    }

    fn place(&mut self, created: i64, stand: Stand) {
        let session = Arc::new(Session::new(1, 9, Duration::from_secs(9), String::new(), Moment::now()));
        let (granted, ahead) = match stand {
            Stand::Holds => (true, None),
            Stand::Waits(ahead) => (false, ahead),
        };
        if let Some(known) = self.own.iter_mut().find(|own| own.id == id(created)) {
            known.granted |= granted;
            return;
        }
        let claim = Claim::new("a", Exclusive, WaitPolicy::Fair, Duration::from_secs(9), "");
        let own = OwnClaim::new(&claim, Arc::new(LeasedKey::new(session, "")), 0);
        self.own.push(OwnClaim { id: id(created), created, ahead, granted, ..own });
    }

    fn hear(&mut self, event: Event<Mode>) {
        self.mirror.take_in(event);
    }

    fn read(&mut self, revision: i64, live: impl Iterator<Item = (Vec<u8>, i64, Mode)>) {
        let live = live.map(|(key, created, mode)| (key, created, created, mode));
        self.mirror.read(revision, live);
    }
}

fn put(created: i64, key: u8, mode: Mode) -> Event<Mode> {
    Event { revision: created, key: vec![key], put: Some((created, mode)) }
}

fn deleted(revision: i64, key: u8) -> Event<Mode> {
    Event { revision, key: vec![key], put: None }
}

/// A line that was read at 10, with these entries: (key, create_revision, mode).
fn read(live: &[(u8, i64, Mode)]) -> Line {
    let mut line = Line::default();
    line.read(10, live.iter().map(|(key, created, mode)| (vec![*key], *created, *mode)));
    line
}

fn granted(line: &mut Line) -> Vec<i64> {
    let grants = line.changes().granted.into_iter();
    grants.map(|(_, grant)| place_of_token(grant.token)).collect()
}

fn gone(line: &mut Line) -> Vec<i64> {
    line.changes().gone.into_iter().map(|own| own.created).collect()
}

fn id(number: i64) -> ClaimId {
    ClaimId::parse(&format!("{number:032x}")).unwrap()
}

#[test]
fn a_waiter_holds_when_all_before_it_are_gone_whatever_the_order() {
    let mut line = read(&[(1, 7, Exclusive), (2, 8, Exclusive), (3, 9, Exclusive)]);
    line.hear(put(14, 4, Exclusive));
    line.place(14, Stand::Waits(Some(3)));
    line.hear(deleted(15, 2)); // died in the middle
    line.hear(deleted(16, 1));
    line.hear(put(17, 5, Exclusive)); // behind us
    assert!(granted(&mut line).is_empty());
    line.hear(deleted(18, 3));
    assert_eq!(granted(&mut line), [14]);
    line.hear(deleted(19, 4));
    assert_eq!(gone(&mut line), [14], "a hold that was deleted is told");
}

#[test]
fn what_the_read_has_seen_is_not_believed_again() {
    let mut line = Line::default();
    line.place(9, Stand::Waits(Some(1)));
    line.hear(deleted(6, 1)); // the watch lags: this was another entry of the same key
    assert!(line.changes().gone.is_empty(), "nothing is known before it was read");
    line.read(10, [(vec![1], 7, Exclusive), (vec![2], 9, Exclusive)].into_iter());
    line.hear(deleted(8, 1));
    assert!(granted(&mut line).is_empty());
    line.hear(deleted(11, 1));
    assert_eq!(granted(&mut line), [9]);
}

#[test]
fn a_place_waits_for_its_own_put_to_be_told() {
    let mut line = read(&[]);
    line.place(12, Stand::Waits(Some(1)));
    let changes = line.changes();
    assert!(changes.granted.is_empty() && changes.gone.is_empty());
    line.hear(put(11, 1, Exclusive));
    line.hear(put(12, 2, Exclusive));
    assert!(granted(&mut line).is_empty());
    line.hear(deleted(13, 1));
    assert_eq!(granted(&mut line), [12]);
    // One that was told before its reply came is known already, also that it has gone.
    line.hear(put(14, 3, Exclusive));
    line.hear(deleted(15, 3));
    line.place(14, Stand::Waits(Some(1)));
    assert_eq!(gone(&mut line), [14]);
}

#[test]
fn a_lease_that_ends_takes_the_waiter_with_its_predecessor() {
    let mut line = read(&[(1, 7, Exclusive), (2, 8, Exclusive)]);
    line.place(8, Stand::Waits(Some(1)));
    line.hear(deleted(15, 1));
    line.hear(deleted(15, 2));
    let changes = line.changes();
    assert!(changes.granted.is_empty());
    assert_eq!(changes.gone.iter().map(|own| own.created).collect::<Vec<_>>(), [8]);
}

#[test]
fn readers_get_in_together_and_after_a_downgrade() {
    let mut line = read(&[(1, 3, Exclusive), (2, 4, Shared), (3, 5, Shared), (4, 6, Exclusive), (5, 7, Shared)]);
    for created in 4..8 {
        line.place(created, Stand::Waits(None));
    }
    assert!(granted(&mut line).is_empty());
    line.hear(Event { revision: 11, key: vec![1], put: Some((3, Shared)) });
    assert_eq!(granted(&mut line), [4, 5]);
    line.hear(deleted(12, 4));
    assert_eq!(granted(&mut line), [7], "the writer died while it waited");
}

#[test]
fn permits_are_handed_on() {
    let two = Mode::Permits { n: 2, of: 3 };
    let mut line = read(&[(1, 3, two), (2, 4, two), (3, 5, Mode::Permits { n: 1, of: 3 })]);
    line.place(4, Stand::Waits(Some(1)));
    line.place(5, Stand::Waits(Some(2)));
    assert!(granted(&mut line).is_empty(), "nobody passes");
    line.hear(deleted(11, 1));
    assert_eq!(granted(&mut line), [4, 5]);
}

#[test]
fn an_entry_that_the_watch_forgot_lets_nobody_in() {
    let mut line = read(&[]);
    line.place(14, Stand::Waits(Some(1)));
    line.hear(put(14, 2, Exclusive));
    let changes = line.changes();
    assert!(changes.wrong && changes.granted.is_empty());
}

#[test]
fn observers_hear_of_holders_and_of_no_newcomers() {
    let mut line = read(&[(1, 3, Exclusive)]);
    assert!(line.changes().holder_changed, "it was read");
    line.hear(put(11, 2, Exclusive));
    assert!(!line.changes().holder_changed);
    for event in [Event { revision: 12, key: vec![1], put: Some((3, Exclusive)) }, deleted(13, 1), deleted(14, 2)] {
        line.hear(event);
        assert!(line.changes().holder_changed);
    }
    line.hear(put(15, 2, Exclusive));
    assert!(line.changes().holder_changed, "it leads");
}

/// A store with reused keys, all modes, and entries that die anywhere; a watch that lags and breaks; replies and reads that
/// lag: nobody is granted before its turn or after its own death, and everybody in the end.
#[test]
fn no_grant_is_early_and_none_is_missed() {
    for seed in 0..4000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::default();
        for _ in 0..80 {
            world.step(&mut random);
        }
        world.come_to_rest();
    }
}

/// Keys and modes by create_revision.
type Live = BTreeMap<i64, (u8, Mode)>;

#[derive(Default)]
struct World {
    revision: i64,
    live: Live,
    /// What the watch has not told yet; `None` while there is no watch.
    events: Option<VecDeque<Event<Mode>>>,
    /// Claims of ours whose reply is on its way.
    replies: Vec<(i64, Stand)>,
    ours: BTreeSet<i64>,
    line: Line,
    told: BTreeSet<i64>,
    /// The line is to be read, or its answer is on its way.
    reading: Option<Option<(i64, Live)>>,
}

impl World {
    fn admitted(&self, created: i64) -> bool {
        let before: Vec<Mode> = self.live.range(..created).map(|(_, (_, mode))| *mode).collect();
        admit(&before, self.live[&created].1) == Admission::In
    }

    fn happens(&mut self, events: impl IntoIterator<Item = (u8, Option<(i64, Mode)>)>) {
        let revision = self.revision;
        if let Some(told) = &mut self.events {
            told.extend(events.into_iter().map(|(key, put)| Event { revision, key: vec![key], put }));
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        match random.u8(..14) {
            0..4 => self.comes(random),
            4..6 => {
                let dying = if random.u8(..4) == 0 { 2 } else { 1 };
                self.revision += 1;
                for _ in 0..dying {
                    let at = random.usize(..self.live.len().max(1));
                    if let Some(created) = self.live.keys().nth(at).copied() {
                        self.dies(created);
                    }
                }
            }
            6 => {
                // A new label, or a downgrade.
                let Some((created, (key, mode))) = self.live.first_key_value().map(|(c, e)| (*c, *e)) else { return };
                let mode = if mode == Exclusive && random.bool() { Shared } else { mode };
                self.revision += 1;
                self.live.insert(created, (key, mode));
                self.happens([(key, Some((created, mode)))]);
            }
            7..9 if !self.replies.is_empty() => {
                let (created, stand) = self.replies.remove(random.usize(..self.replies.len()));
                self.lands(created, stand);
            }
            9..11 => self.report(random.usize(..3)),
            11 => self.read_on(),
            12 => match (self.events.is_some(), random.u8(..4)) {
                (true, 0) => self.break_off(),
                (false, _) => self.open(),
                _ => {}
            },
            _ => {}
        }
    }

    fn comes(&mut self, random: &mut fastrand::Rng) {
        let free = (0..).find(|key| self.live.values().all(|(other, _)| other != key)).unwrap();
        let permits = Mode::Permits { n: random.u32(1..3), of: 3 };
        let mode = [Exclusive, Shared, permits][random.usize(..3)];
        self.revision += 1;
        let (created, ahead) = (self.revision, self.live.len() as i64);
        self.live.insert(created, (free, mode));
        self.happens([(free, Some((created, mode)))]);
        if random.bool() {
            let stand = if self.admitted(created) { Stand::Holds } else { Stand::Waits(Some(ahead)) };
            self.replies.push((created, stand));
            self.ours.insert(created);
        }
    }

    fn dies(&mut self, created: i64) {
        if let Some((key, _)) = self.live.remove(&created) {
            self.happens([(key, None)]);
        }
    }

    fn lands(&mut self, created: i64, stand: Stand) {
        if matches!(stand, Stand::Holds) {
            self.told.insert(created);
        }
        self.line.place(created, stand);
        self.look();
    }

    /// The stream ends: the line is read anew once another watch stands.
    fn break_off(&mut self) {
        (self.events, self.reading, self.line.mirror) = (None, None, Mirror::default());
    }

    fn open(&mut self) {
        (self.events, self.reading) = (Some(VecDeque::new()), Some(None));
    }

    /// The watch tells the events of that many revisions.
    fn report(&mut self, revisions: usize) {
        for _ in 0..revisions {
            let Some(revision) = self.events.as_ref().and_then(|events| events.front()).map(|event| event.revision)
            else {
                return;
            };
            let next = |events: &mut VecDeque<Event<Mode>>| events.pop_front_if(|event| event.revision == revision);
            while let Some(event) = self.events.as_mut().and_then(next) {
                self.line.hear(event);
            }
            self.look();
        }
    }

    fn read_on(&mut self) {
        match self.reading.take() {
            Some(None) => self.reading = Some(Some((self.revision, self.live.clone()))),
            Some(Some((revision, live))) => {
                self.line.read(revision, live.into_iter().map(|(created, (key, mode))| (vec![key], created, mode)));
                self.look();
            }
            None => {}
        }
    }

    fn look(&mut self) {
        let changes = self.line.changes();
        assert!(!changes.wrong);
        for own in &changes.gone {
            assert!(!self.live.contains_key(&own.created), "the living are told that they are gone");
            self.ours.remove(&own.created);
            self.told.remove(&own.created);
        }
        for (_, grant) in changes.granted {
            let created = place_of_token(grant.token);
            // It may be dead already, but the watch has not said so: that is what validity is for.
            assert!(!self.live.contains_key(&created) || self.admitted(created), "early");
            let told =
                self.live.contains_key(&created) || self.events.iter().flatten().any(|event| event.put.is_none());
            assert!(told, "granted after its own death was known");
            assert!(self.told.insert(created), "granted twice");
        }
    }

    fn come_to_rest(&mut self) {
        for (created, stand) in take(&mut self.replies) {
            self.lands(created, stand);
        }
        if self.events.is_none() {
            self.open();
        }
        // One after the other gives up its place: each of ours is told in its turn, and of the dead nobody is left.
        loop {
            self.read_on();
            self.read_on();
            self.report(usize::MAX);
            let living = self.live.keys().filter(|created| self.ours.contains(created));
            for created in living.filter(|created| self.admitted(**created)) {
                assert!(self.told.contains(created), "it was let in and not told");
            }
            let Some(head) = self.live.keys().next().copied() else { break };
            self.revision += 1;
            self.dies(head);
        }
        assert!(self.line.own.iter().all(|own| own.created == 0), "the dead are not told");
    }
}
