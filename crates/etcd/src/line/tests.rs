//! The counting of `line`, case by case and against a model of the store.

use super::*;

fn count(at: i64, ahead: usize) -> Option<Count> {
    Some(Count { at, ahead })
}

fn granted(line: &mut Line<u8>) -> Vec<u8> {
    line.news().granted.into_iter().map(|(id, _)| id).collect()
}

fn opened(revision: i64) -> Line<u8> {
    let mut line = Line::new();
    line.opened(revision);
    line
}

#[test]
fn a_waiter_holds_when_all_before_it_are_gone_whatever_the_order() {
    let mut line = opened(10);
    line.wait(1, 14, count(14, 3));
    line.deleted(15, 12); // died in the middle
    line.deleted(16, 11);
    line.deleted(17, 20); // behind us
    assert!(granted(&mut line).is_empty());
    line.deleted(18, 13);
    assert_eq!(granted(&mut line), [1]);
    assert!(!line.is_over() && line.is_over(), "nobody waits");
    line.deleted(19, 14);
    assert_eq!(line.news().gone, [(1, 14)], "a hold that was deleted is told");
}

#[test]
fn a_deletion_that_the_read_has_seen_does_not_count_and_one_before_the_reply_does() {
    let mut line = opened(10);
    line.deleted(12, 9); // a reused key: the entry before us is another one of the same key
    line.deleted(16, 13); // reported before our reply came
    line.wait(1, 14, count(14, 3));
    line.wait(2, 18, count(18, 9));
    line.deleted(17, 8); // a stream that lags behind the read of 2
    line.wait(2, 18, count(18, 0)); // another claim does not change what is being counted
    assert!(granted(&mut line).is_empty());
    assert_eq!(line.places[&18].1, Stand::Waits(Count { at: 18, ahead: 9 }));
}

#[test]
fn a_lease_that_ends_takes_the_waiter_with_its_predecessor() {
    let mut line = opened(10);
    line.wait(1, 14, count(14, 1));
    line.deleted(15, 11);
    line.deleted(15, 14);
    let news = line.news();
    assert!(news.granted.is_empty());
    assert_eq!(news.gone, [(1, 14)]);
}

#[test]
fn a_read_counts_who_came_before_the_watch() {
    let mut line = Line::new();
    line.wait(1, 8, count(8, 1));
    line.wait(2, 9, None);
    assert!(!line.must_be_read(), "nothing to do before the watch stands");
    line.opened(10);
    assert!(line.must_be_read());
    let news = line.read(11, &[9]);
    assert_eq!((news.gone, news.granted), (vec![(1, 8)], vec![(2, 9)]));
    assert!(!line.must_be_read());
}

#[test]
fn a_claim_whose_reply_took_too_long_is_read_again() {
    let mut line = opened(10);
    (0..=KEPT as i64).for_each(|i| line.deleted(20 + i, 5));
    line.wait(1, 15, count(15, 1));
    assert!(line.must_be_read());
    assert_eq!(line.read(500, &[15]).granted, [(1, 15)]);
}

/// A store with reused keys and entries that die anywhere, a watch that lags and breaks, replies and reads that lag: nobody
/// is granted before its turn or after its own death, and everybody in the end.
#[test]
fn no_grant_is_early_and_none_is_missed() {
    for seed in 0..4000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::default();
        for _ in 0..60 {
            world.step(&mut random);
        }
        world.come_to_rest();
    }
}

#[derive(Default)]
struct World {
    revision: i64,
    live: Vec<i64>,
    /// Deletions that the watch has not reported yet; `None` while there is no watch.
    events: Option<VecDeque<(i64, i64)>>,
    /// Claims of ours whose reply is on its way; without a count for those that claim again.
    replies: Vec<(i64, Option<Count>)>,
    line: Option<Line<i64>>,
    told: Vec<i64>,
    /// A read whose answer is on its way.
    reading: Option<(i64, Vec<i64>)>,
}

impl World {
    fn line(&mut self) -> &mut Line<i64> {
        self.line.get_or_insert_with(Line::new)
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        match random.u8(..11) {
            10 => self.answer_the_read(),
            0..3 => {
                self.revision += 1;
                let created = self.revision;
                let count = Count { at: created, ahead: self.live.len() };
                self.live.push(created);
                if random.bool() {
                    self.replies.push((created, Some(count)));
                }
            }
            3..5 if !self.live.is_empty() => {
                let (first, second) = (random.usize(..self.live.len()), random.u8(..4) == 0);
                let mut dead = vec![self.live.remove(first)];
                if second && !self.live.is_empty() {
                    dead.push(self.live.remove(0));
                }
                self.revision += 1;
                let revision = self.revision;
                if let Some(events) = &mut self.events {
                    events.extend(dead.into_iter().map(|created| (revision, created)));
                }
            }
            5..7 if !self.replies.is_empty() => {
                let (created, count) = self.replies.remove(random.usize(..self.replies.len()));
                self.line().wait(created, created, count);
                self.look();
            }
            7..9 => self.report(random.usize(..3)),
            9 => match (self.events.is_some(), random.u8(..4)) {
                (true, 0) => self.break_off(),
                (false, _) => self.open(),
                _ => {}
            },
            _ => {}
        }
    }

    /// The line is forgotten, and all who waited claim again: the living find their places, the dead are none of ours.
    fn break_off(&mut self) {
        (self.events, self.reading) = (None, None);
        let old = std::mem::replace(self.line(), Line::new());
        let waiting = old.places.into_iter().filter(|(_, (_, stand))| *stand != Stand::Holds);
        let living: Vec<_> = waiting.map(|(created, _)| created).filter(|id| self.live.contains(id)).collect();
        self.replies.extend(living.into_iter().map(|id| (id, None)));
    }

    fn open(&mut self) {
        self.events = Some(VecDeque::new());
        let revision = self.revision;
        self.line().opened(revision);
        self.look();
    }

    /// The watch reports the events of that many revisions.
    fn report(&mut self, revisions: usize) {
        for _ in 0..revisions {
            let Some(revision) = self.events.as_ref().and_then(|events| events.front()).map(|event| event.0) else {
                return;
            };
            while let Some(event) = self.events.as_mut().and_then(|e| e.pop_front_if(|event| event.0 == revision)) {
                self.line().deleted(event.0, event.1);
            }
            self.look();
        }
    }

    fn look(&mut self) {
        let news = self.line().news();
        self.check(&news);
        if self.line().must_be_read() && self.reading.is_none() {
            self.reading = Some((self.revision, self.live.clone()));
        }
    }

    fn answer_the_read(&mut self) {
        let Some((revision, live)) = self.reading.take() else { return };
        let news = self.line().read(revision, &live);
        self.check(&news);
        self.look();
    }

    fn check(&mut self, news: &News<i64>) {
        assert!(news.gone.iter().all(|(id, _)| !self.live.contains(id)), "the living are told that they are gone");
        for (id, _) in &news.granted {
            let older = self.live.iter().filter(|other| *other < id).count();
            assert_eq!(older, 0, "early");
            // It may be dead already, but the watch has not said so: that is what validity is for.
            let told = self.events.iter().flatten().any(|event| event.1 == *id);
            assert!(self.live.contains(id) || told, "granted after its own death was known");
            assert!(!self.told.contains(id), "granted twice");
            self.told.push(*id);
        }
    }

    fn come_to_rest(&mut self) {
        for (created, count) in std::mem::take(&mut self.replies) {
            if !self.told.contains(&created) {
                self.line().wait(created, created, count);
            }
        }
        if self.events.is_none() {
            self.open();
        }
        // One after the other gives up its place: each of ours is told in its turn, and of the dead nobody is left.
        loop {
            self.report(usize::MAX);
            self.look();
            while self.reading.is_some() {
                self.answer_the_read();
            }
            let head = self.live.first().copied();
            let waits = |head| self.line().places.get(&head).is_some_and(|(_, stand)| *stand != Stand::Holds);
            assert!(!head.is_some_and(waits), "the head was not told");
            let Some(head) = head else { break };
            self.revision += 1;
            let revision = self.revision;
            self.live.remove(0);
            self.events.get_or_insert_default().push_back((revision, head));
        }
        assert!(self.line().places.is_empty(), "the dead are not told");
    }
}
