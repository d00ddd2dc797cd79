//! The changes that are reported of a name, against a model of the store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;

use super::*;

/// A store with reused keys, all modes, and entries that die anywhere; a watch that lags and
/// breaks; replies and reads that lag. No claim is granted too early or after its own death, and
/// each is granted in the end.
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
    /// The events that the watch has not reported yet; `None` while there is no watch.
    events: Option<VecDeque<Event<QueueEntry>>>,
    /// Claims of this client whose reply is under way.
    replies: Vec<(i64, Stand)>,
    ours: BTreeSet<i64>,
    watched: Watched,
    reported: BTreeSet<i64>,
    /// The name is to be read, or the answer is under way.
    reading: Option<Option<(i64, Live)>>,
}

impl World {
    fn admitted(&self, created: i64) -> bool {
        let before: Vec<Mode> = self
            .live
            .range(..created)
            .map(|(_, (_, mode))| *mode)
            .collect();
        admit(&before, self.live[&created].1) == Admission::In
    }

    fn happens(&mut self, events: impl IntoIterator<Item = (u8, Option<(i64, Mode)>)>) {
        let revision = self.revision;
        if let Some(reported) = &mut self.events {
            reported.extend(events.into_iter().map(|(key, put)| {
                let put = put.map(|(created, mode)| (created, seen(mode)));
                Event {
                    revision,
                    key: vec![key],
                    put,
                }
            }));
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
                let Some((created, (key, mode))) =
                    self.live.first_key_value().map(|(c, e)| (*c, *e))
                else {
                    return;
                };
                let mode = if mode == Exclusive && random.bool() {
                    Shared
                } else {
                    mode
                };
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
        let free = (0..)
            .find(|key| self.live.values().all(|(other, _)| other != key))
            .unwrap();
        let permits = Mode::Permits {
            n: random.u32(1..3),
            of: 3,
        };
        let mode = [Exclusive, Shared, permits][random.usize(..3)];
        self.revision += 1;
        let created = self.revision;
        let ahead = self.live.len() as i64;
        self.live.insert(created, (free, mode));
        self.happens([(free, Some((created, mode)))]);
        if random.bool() {
            let stand = if self.admitted(created) {
                Stand::Holds
            } else {
                Stand::Waits(Some(ahead))
            };
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
            self.reported.insert(created);
        }
        self.watched.place(created, stand);
        self.check();
    }

    /// The stream ends: the name is read anew once another watch stands.
    fn break_off(&mut self) {
        (self.events, self.reading, self.watched.mirror) = (None, None, Mirror::default());
    }

    fn open(&mut self) {
        (self.events, self.reading) = (Some(VecDeque::new()), Some(None));
    }

    /// The watch reports the events of that many revisions.
    fn report(&mut self, revisions: usize) {
        for _ in 0..revisions {
            let Some(revision) = self
                .events
                .as_ref()
                .and_then(|events| events.front())
                .map(|event| event.revision)
            else {
                return;
            };
            let next = |events: &mut VecDeque<Event<QueueEntry>>| {
                events
                    .front()
                    .is_some_and(|event| event.revision == revision)
                    .then(|| events.pop_front())?
            };
            while let Some(event) = self.events.as_mut().and_then(next) {
                self.watched.take_in(event);
            }
            self.check();
        }
    }

    fn read_on(&mut self) {
        match self.reading.take() {
            Some(None) => self.reading = Some(Some((self.revision, self.live.clone()))),
            Some(Some((revision, live))) => {
                self.watched.read(
                    revision,
                    live.into_iter()
                        .map(|(created, (key, mode))| (vec![key], created, mode)),
                );
                self.check();
            }
            None => {}
        }
    }

    fn check(&mut self) {
        let changes = self.watched.changes();
        assert!(!changes.wrong);
        for own in &changes.gone {
            assert!(
                !self.live.contains_key(&own.created),
                "the living are reported as gone"
            );
            self.ours.remove(&own.created);
            self.reported.remove(&own.created);
        }
        for (_, grant) in changes.granted {
            let created = place_of_token(grant.token);
            // The entry may be dead already, but the watch has not said so: validity covers that
            // case.
            assert!(
                !self.live.contains_key(&created) || self.admitted(created),
                "early"
            );
            let reported = self.live.contains_key(&created)
                || self
                    .events
                    .iter()
                    .flatten()
                    .any(|event| event.put.is_none());
            assert!(reported, "granted after its own death was known");
            assert!(self.reported.insert(created), "granted twice");
        }
    }

    fn come_to_rest(&mut self) {
        for (created, stand) in take(&mut self.replies) {
            self.lands(created, stand);
        }
        if self.events.is_none() {
            self.open();
        }
        // The entries give up their places one after the other. Each claim of this client is
        // reported when it is let in, and none of the dead is left.
        loop {
            self.read_on();
            self.read_on();
            self.report(usize::MAX);
            let living = self
                .live
                .keys()
                .filter(|created| self.ours.contains(created));
            for created in living.filter(|created| self.admitted(**created)) {
                assert!(
                    self.reported.contains(created),
                    "it was let in and not reported"
                );
            }
            let Some(head) = self.live.keys().next().copied() else {
                break;
            };
            self.revision += 1;
            self.dies(head);
        }
        assert!(
            self.watched.own.iter().all(|own| own.created == 0),
            "the dead are not reported"
        );
    }
}
