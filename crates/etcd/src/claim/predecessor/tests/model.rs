//! Waiters that watch two keys, against a model of the store.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// A store with reused keys and with entries that die anywhere; watches that each lag by themselves
/// and all break together; claims and reads that lag. No claim is granted too early, and each is
/// granted in the end.
#[test]
fn no_grant_is_early_and_none_is_missed() {
    for seed in 0..4000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::default();
        for _ in 0..120 {
            world.step(&mut random);
        }
        world.come_to_rest(&mut random);
    }
}

/// The number of keys.
const KEYS: usize = 8;

/// The create_revision and mode of a key at some revision, if it was there.
type Snapshot = Option<(i64, Mode)>;

#[derive(Default)]
struct World {
    revision: i64,
    /// Keys and modes by create_revision.
    live: BTreeMap<i64, (usize, Mode)>,
    /// The waiting claims of this client, by create_revision.
    ours: BTreeMap<i64, Ours>,
    /// One watch of each key, and one of the deletions of each.
    watches: [Watch; 2 * KEYS],
    open: bool,
}

struct Ours {
    key: usize,
    mode: Mode,
    stage: Stage,
}

/// The progress of a claim.
enum Stage {
    /// It was sent.
    Sent,
    /// It was executed, and its answer is under way: `None` for a grant, or the entry to watch.
    Answered(Option<Predecessor>),
    Waits(Predecessor),
    Granted,
}

/// The watch of one key, and its mirror.
struct Watch {
    mirror: Arc<SharedMirror<QueueEntry>>,
    /// The events that it has not reported yet.
    events: VecDeque<Event<QueueEntry>>,
    /// The key is to be read, or the answer is under way.
    reading: Option<Option<(i64, Snapshot)>>,
}

impl Default for Watch {
    fn default() -> Watch {
        let mirror = SharedMirror::new(Range::Key("a".into()), Mirror::default());
        Watch {
            mirror: Arc::new(mirror),
            events: VecDeque::new(),
            reading: None,
        }
    }
}

impl World {
    fn before(&self, created: i64) -> Vec<(i64, usize, Mode)> {
        self.live
            .range(..created)
            .map(|(created, (key, mode))| (*created, *key, *mode))
            .collect()
    }

    fn admission(&self, created: i64, mode: Mode) -> Admission {
        admit(
            &self
                .before(created)
                .iter()
                .map(|(_, _, mode)| *mode)
                .collect::<Vec<_>>(),
            mode,
        )
    }

    fn happens(&mut self, key: usize, put: Option<(i64, Mode)>) {
        if self.open {
            let put = put.map(|(created, mode)| (created, seen(mode)));
            let event = Event {
                revision: self.revision,
                key: vec![1],
                put,
            };
            if event.put.is_none() {
                self.watches[KEYS + key].events.push_back(event.clone());
            }
            self.watches[key].events.push_back(event);
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        match random.u8(..16) {
            0..4 => self.comes(random),
            4..6 => {
                // A lease that ends takes all its keys at once.
                self.revision += 1;
                for _ in 0..random.usize(1..3) {
                    let at = random.usize(..self.live.len().max(1));
                    if let Some(created) = self.live.keys().nth(at).copied() {
                        self.dies(created);
                    }
                }
            }
            6 => {
                // The first of the queue gets another label, or becomes shared.
                let Some((created, (key, mode))) =
                    self.live.first_key_value().map(|(c, e)| (*c, *e))
                else {
                    return;
                };
                let mode = if random.bool() { Shared } else { mode };
                self.revision += 1;
                self.live.insert(created, (key, mode));
                self.happens(key, Some((created, mode)));
            }
            7..11 => {
                let at = random.usize(..self.ours.len().max(1));
                if let Some(created) = self.ours.keys().nth(at).copied() {
                    self.proceeds(created);
                }
            }
            11..14 => self.report(random.usize(..2 * KEYS), random.usize(..3)),
            14 => self.read_on(random.usize(..2 * KEYS)),
            _ if !self.open => self.opens(),
            _ if random.u8(..4) == 0 => self.breaks(),
            _ => {}
        }
        self.check();
    }

    fn comes(&mut self, random: &mut fastrand::Rng) {
        let used = |key: &usize| self.live.values().any(|(other, _)| other == key);
        let Some(key) = (0..KEYS).find(|key| !used(key)) else {
            return;
        };
        let mode = if random.u8(..3) == 0 {
            Shared
        } else {
            Exclusive
        };
        self.revision += 1;
        let created = self.revision;
        self.live.insert(created, (key, mode));
        self.happens(key, Some((created, mode)));
        if random.bool() {
            self.ours.insert(
                created,
                Ours {
                    key,
                    mode,
                    stage: Stage::Sent,
                },
            );
            self.proceeds(created);
        }
    }

    fn dies(&mut self, created: i64) {
        if let Some((key, _)) = self.live.remove(&created) {
            self.happens(key, None);
        }
    }

    /// A claim that was sent is executed, or its answer arrives.
    fn proceeds(&mut self, created: i64) {
        let Some(Ours { key, mode, stage }) = self.ours.remove(&created) else {
            return;
        };
        let stage = match stage {
            // It would create another key.
            Stage::Sent if !self.live.contains_key(&created) => return,
            Stage::Sent => match self.admission(created, mode) {
                Admission::In => Stage::Answered(None),
                Admission::Watch(those) => {
                    let before = self.before(created);
                    let at = those[0];
                    let (other, theirs, _) = before[at];
                    let mirror = |key: usize| self.watches[key].mirror.clone();
                    let own = mirror(key);
                    let other_key = mirror(if mode == Exclusive {
                        KEYS + theirs
                    } else {
                        theirs
                    });
                    Stage::Answered(Some(Predecessor {
                        own,
                        other: other_key,
                        created: other,
                        first: at == 0,
                    }))
                }
            },
            Stage::Answered(None) => Stage::Granted,
            Stage::Answered(Some(before)) => Stage::Waits(before),
            as_it_is => as_it_is,
        };
        self.ours.insert(created, Ours { key, mode, stage });
    }

    fn report(&mut self, key: usize, events: usize) {
        for _ in 0..events {
            if let Some(event) = self.watches[key].events.pop_front() {
                self.watches[key].mirror.lock().take_in(event);
                self.check();
            }
        }
    }

    fn read_on(&mut self, key: usize) {
        let revision = self.revision;
        let live = self
            .live
            .iter()
            .find(|(_, (other, _))| *other == key % KEYS)
            .map(|(created, (_, mode))| (*created, *mode));
        let watch = &mut self.watches[key];
        match watch.reading.take() {
            Some(None) => watch.reading = Some(Some((revision, live))),
            Some(Some((revision, live))) => {
                let live = live
                    .into_iter()
                    .map(|(created, mode)| (vec![1], created, created, seen(mode)));
                watch.mirror.lock().read(revision, live);
            }
            None => {}
        }
    }

    fn breaks(&mut self) {
        self.open = false;
        for watch in &mut self.watches {
            (watch.events, watch.reading) = (VecDeque::new(), None);
            *watch.mirror.lock() = Mirror::default();
        }
    }

    fn opens(&mut self) {
        self.open = true;
        self.watches
            .iter_mut()
            .for_each(|watch| watch.reading = Some(None));
    }

    fn check(&mut self) {
        for created in self.ours.keys().copied().collect::<Vec<_>>() {
            let Ours {
                mode,
                stage: Stage::Waits(before),
                ..
            } = &self.ours[&created]
            else {
                continue;
            };
            let (mode, news) = (*mode, before.news(*mode, created));
            let lives = self.live.contains_key(&created);
            let stage = match news {
                News::None => continue,
                News::Granted => {
                    // The entry may be dead already, and its watch has not said so: validity covers
                    // that case.
                    assert!(
                        !lives || self.admission(created, mode) == Admission::In,
                        "early"
                    );
                    Stage::Granted
                }
                News::ClaimAgain => Stage::Sent,
                News::Gone => {
                    assert!(!lives, "the living are reported as gone");
                    self.ours.remove(&created);
                    continue;
                }
            };
            self.ours.get_mut(&created).unwrap().stage = stage;
        }
    }

    /// The entries give up their places one after the other; each of our claims is granted when it
    /// is let in.
    fn come_to_rest(&mut self, random: &mut fastrand::Rng) {
        if !self.open {
            self.opens();
        }
        loop {
            for _ in 0..5 {
                for key in 0..2 * KEYS {
                    self.read_on(key);
                    self.report(key, self.watches[key].events.len());
                }
                for created in self.ours.keys().copied().collect::<Vec<_>>() {
                    self.proceeds(created);
                }
                self.check();
            }
            for (created, ours) in self
                .ours
                .iter()
                .filter(|(created, _)| self.live.contains_key(created))
            {
                let granted = matches!(ours.stage, Stage::Granted);
                assert_eq!(
                    granted,
                    self.admission(*created, ours.mode) == Admission::In,
                    "stuck, or early"
                );
            }
            let Some(head) = self.live.keys().next().copied() else {
                break;
            };
            let dying = if random.u8(..4) == 0 {
                self.live.keys().last().copied().unwrap_or(head)
            } else {
                head
            };
            self.revision += 1;
            self.dies(dying);
        }
    }
}
