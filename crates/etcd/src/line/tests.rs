//! The counting of `line`, case by case and against a model of the store.

use super::*;

fn whole(created: i64, ahead: u64) -> Count {
    Count { at: created, ahead, below: created }
}

fn granted(line: &mut Line<u8>) -> Vec<u8> {
    line.news().granted.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn a_waiter_holds_when_all_before_it_are_gone_whatever_the_order() {
    let mut line = Line::new();
    line.opened(10);
    line.wait(1, 14, whole(14, 3));
    line.deleted(15, Some(12)); // died in the middle
    line.deleted(16, Some(11));
    line.deleted(17, Some(20)); // behind us
    assert!(granted(&mut line).is_empty());
    line.deleted(18, Some(13));
    assert_eq!(granted(&mut line), [1]);
}

#[test]
fn a_deletion_that_the_read_has_seen_does_not_count_and_one_before_the_reply_does() {
    let mut line = Line::new();
    line.opened(10);
    line.deleted(12, Some(9)); // a reused key: the entry before us is another one of the same key
    line.deleted(16, Some(13)); // reported before our reply came
    line.wait(1, 14, whole(14, 2));
    assert!(granted(&mut line).is_empty());
    line.deleted(17, Some(11));
    assert_eq!(granted(&mut line), [1]);
}

#[test]
fn a_lease_that_ends_takes_the_waiter_with_its_predecessor() {
    let mut line = Line::new();
    line.opened(10);
    line.wait(1, 14, whole(14, 1));
    line.deleted(15, Some(11));
    line.deleted(15, Some(14));
    let news = line.news();
    assert!(news.granted.is_empty());
    assert_eq!(news.gone, [1]);
}

#[test]
fn a_read_settles_who_came_before_the_watch() {
    let mut line = Line::new();
    line.wait(1, 8, whole(8, 1));
    line.wait(2, 9, whole(9, 2));
    assert!(!line.news().read, "nothing to do before the watch stands");
    line.opened(10);
    assert!(line.news().read);
    assert_eq!(line.read(11, 9, &[9], true), [1], "1 is gone");
    assert_eq!(granted(&mut line), [2]);
}

#[test]
fn a_read_that_was_cut_off_grants_nobody_it_did_not_see() {
    let mut line = Line::new();
    line.opened(10);
    line.wait(1, 9, whole(9, 3));
    assert!(line.read(12, 9, &[5, 6], false).is_empty());
    line.deleted(13, Some(5));
    line.deleted(14, Some(6));
    let news = line.news();
    assert!(news.granted.is_empty() && news.read);
}

#[test]
fn an_event_that_names_nobody_unsettles_all() {
    let mut line = Line::new();
    line.opened(10);
    line.wait(1, 14, whole(14, 1));
    line.deleted(15, None);
    assert!(line.news().read);
    assert!(line.read(15, 14, &[14], true).is_empty());
    assert_eq!(granted(&mut line), [1]);
}

/// A store with reused keys and entries that die anywhere, a watch that lags and breaks, replies that lag, reads cut
/// off at two: nobody is granted before its turn or after its own death, and everybody in the end.
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
    /// Claims of ours whose reply is on its way.
    replies: Vec<(i64, Count)>,
    line: Option<Line<i64>>,
    told: Vec<i64>,
    /// A read whose answer is on its way: revision, youngest, oldest, all.
    reading: Option<(i64, i64, Vec<i64>, bool)>,
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
                let count = Count { at: created, ahead: self.live.len() as u64, below: created };
                self.live.push(created);
                if random.bool() {
                    self.replies.push((created, count));
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
                (true, 0) => {
                    self.events = None;
                    self.line().closed();
                }
                (false, _) => self.open(),
                _ => {}
            },
            _ => {}
        }
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
                self.line().deleted(event.0, Some(event.1));
            }
            self.look();
        }
    }

    fn look(&mut self) {
        let news = self.line().news();
        self.check(&news.granted);
        if news.read && self.reading.is_none() {
            let youngest = self.line().youngest().unwrap();
            let mut oldest: Vec<i64> = self.live.iter().copied().filter(|created| *created <= youngest).collect();
            let all = oldest.len() <= 2;
            oldest.truncate(2);
            self.reading = Some((self.revision, youngest, oldest, all));
        }
    }

    fn answer_the_read(&mut self) {
        let Some((revision, youngest, oldest, all)) = self.reading.take() else { return };
        let gone = self.line().read(revision, youngest, &oldest, all);
        assert!(gone.iter().all(|id| !self.live.contains(id)), "the living are told that they are gone");
        self.look();
    }

    fn check(&mut self, granted: &[(i64, i64)]) {
        for (id, _) in granted {
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
            self.line().wait(created, created, count);
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
            assert!(head.is_none_or(|head| !self.line().waiting.contains_key(&head)), "the head was not told");
            let Some(head) = head else { break };
            self.revision += 1;
            let revision = self.revision;
            self.live.remove(0);
            self.events.get_or_insert_default().push_back((revision, head));
        }
        assert!(self.line().waiting.is_empty(), "the dead are not told");
    }
}
