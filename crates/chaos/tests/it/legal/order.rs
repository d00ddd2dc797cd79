//! Legal histories have an order; with one event changed they have none.

use std::cell::RefCell;
use std::collections::BTreeMap;

use leasehold_chaos::{Breaks, Event, Mode, Ordered, Policy, What, order};
use proptest::prelude::*;

use super::histories;
use super::mutate::{self, MUTATIONS};
use super::queue::MS;
use super::world::World;

/// Those of the mutations after which no order is left. The others break what is no matter of order.
const CAUGHT: [&str; 5] = [
    "granted before the release",
    "valid again after the next grant",
    "a token that falls",
    "a token twice",
    "refused by nobody",
];

#[test]
fn legal_histories_have_an_order() {
    let all = RefCell::new(Ordered::default());
    histories(300, |seed, steps| {
        let found = order(World::run(seed, 1 + steps / 3, false));
        let Ordered {
            pieces,
            steps,
            too_long,
            ..
        } = found.map_err(|none| TestCaseError::fail(none.to_string()))?;
        let mut all = all.borrow_mut();
        (all.pieces, all.steps, all.too_long) = (
            all.pieces + pieces,
            all.steps + steps,
            all.too_long + too_long,
        );
        Ok(())
    });
    let all = all.into_inner();
    println!("{all:?}");
    assert!(
        all.pieces > 800 && all.steps > 10_000 && all.too_long < all.pieces / 10,
        "{all:?}"
    );
}

#[test]
fn with_one_event_changed_they_have_none() {
    let applied = RefCell::new(BTreeMap::<&str, u32>::new());
    histories(450, |seed, steps| {
        let legal = World::run(seed, 20 + steps / 4, false);
        for (name, mutation, _) in MUTATIONS.iter().filter(|(name, ..)| CAUGHT.contains(name)) {
            let mut history = mutate::History::new(legal.clone(), seed);
            if mutation(&mut history).is_none() {
                continue;
            }
            let found = order(history.sorted());
            if found.as_ref().is_ok_and(|it| it.too_long > 0) {
                continue;
            }
            *applied.borrow_mut().entry(name).or_default() += 1;
            prop_assert!(found.is_err(), "{name}: {found:?}");
        }
        Ok(())
    });
    for name in CAUGHT {
        let times = applied.borrow().get(name).copied().unwrap_or_default();
        assert!(times >= 10, "{name:?} was applied {times} times only");
    }
}

/// Acquisitions of one lock, in the order in which they are written down.
#[derive(Default)]
struct Story(Vec<Event>);

impl Story {
    fn say(mut self, ms: u64, what: What) -> Story {
        self.0.push(Event::new(ms * MS, 1, what));
        self
    }

    fn ask(self, ms: u64, op: u64, mode: Mode) -> Story {
        self.say(
            ms,
            What::Invoke {
                op,
                lock: "a".into(),
                mode,
                policy: Policy::Fair,
                deadline: None,
                owner: None,
            },
        )
    }

    fn get(self, ms: u64, op: u64, valid: u64) -> Story {
        self.say(
            ms,
            What::Ok {
                op,
                tok: op,
                valid: valid * MS,
            },
        )
    }

    fn release(self, ms: u64, op: u64) -> Story {
        self.say(ms, What::Release { op, dropped: false })
            .say(ms + 1, What::Released { op })
    }

    fn refuse(self, ms: u64, op: u64) -> Story {
        self.say(ms, What::Fail { op, busy: true })
    }

    fn has_order(&self) -> bool {
        order(&self.0).is_ok()
    }
}

use Mode::{Exclusive, Shared};

#[test]
fn a_lock_is_held_until_its_release_or_until_its_validity_ends() {
    let held = || {
        Story::default()
            .ask(10, 1, Exclusive)
            .get(11, 1, 100)
            .ask(20, 2, Exclusive)
    };
    assert!(!held().get(50, 2, 200).has_order(), "both are valid");
    assert!(held().release(30, 1).get(50, 2, 200).has_order());
    assert!(held().get(100, 2, 200).has_order(), "the validity was over");
    let lost = || {
        held().say(
            40,
            What::Lost {
                op: 1,
                why: "evicted".into(),
                aside: false,
            },
        )
    };
    assert!(
        lost().get(50, 2, 200).has_order()
            && !lost()
                .say(45, What::Use { op: 2, valid: 1 })
                .get(39, 2, 200)
                .has_order()
    );
    let renewed = held().say(
        60,
        What::Use {
            op: 1,
            valid: 160 * MS,
        },
    );
    assert!(!renewed.get(120, 2, 300).has_order(), "it was renewed");
    let unconfirmed = held().say(
        30,
        What::Release {
            op: 1,
            dropped: true,
        },
    );
    assert!(unconfirmed.get(31, 2, 200).has_order());
}

#[test]
fn what_came_before_is_not_undone() {
    let one_after_the_other = Story::default()
        .ask(10, 2, Exclusive)
        .get(11, 2, 100)
        .release(12, 2);
    assert!(
        !one_after_the_other
            .ask(20, 1, Exclusive)
            .get(21, 1, 100)
            .has_order(),
        "the token falls"
    );
    let confirmed = || {
        Story::default()
            .ask(10, 1, Exclusive)
            .get(11, 1, 100)
            .release(12, 1)
            .ask(20, 2, Exclusive)
    };
    assert!(!confirmed().refuse(21, 2).has_order(), "by nobody");
    let unconfirmed = || {
        let released = Story::default().ask(10, 1, Exclusive).get(11, 1, 100);
        released
            .say(
                12,
                What::Release {
                    op: 1,
                    dropped: true,
                },
            )
            .ask(20, 2, Exclusive)
    };
    assert!(
        unconfirmed().refuse(21, 2).has_order(),
        "it may be held still"
    );
    assert!(
        !unconfirmed()
            .get(21, 2, 200)
            .release(22, 2)
            .ask(30, 3, Exclusive)
            .refuse(31, 3)
            .has_order()
    );
    // Somebody left, and may have got the lock for a while.
    let left = Story::default()
        .ask(10, 1, Exclusive)
        .say(11, What::Info { op: 1 });
    assert!(
        left.ask(20, 2, Exclusive)
            .refuse(21, 2)
            .ask(30, 3, Exclusive)
            .get(31, 3, 200)
            .has_order()
    );
}

/// What timed out may have been granted before its withdrawal arrives, and that takes no longer than to wake somebody.
#[test]
fn a_withdrawal_that_is_under_way_is_in_the_way() {
    let left = |ms| {
        Story::default()
            .ask(10, 1, Exclusive)
            .say(30, What::Fail { op: 1, busy: false })
            .ask(ms, 2, Exclusive)
    };
    assert!(left(30).refuse(40, 2).has_order(), "as it leaves");
    assert!(left(60).refuse(70, 2).has_order(), "a moment later");
    assert!(!left(281).refuse(290, 2).has_order(), "long ago");
    let got = left(60).refuse(70, 2).ask(80, 3, Exclusive).get(81, 3, 200);
    assert!(
        got.has_order()
            && !left(60)
                .get(70, 2, 200)
                .ask(80, 3, Exclusive)
                .get(90, 3, 200)
                .has_order()
    );
}

#[test]
fn who_has_no_token_is_in_the_order_like_all_others() {
    let say = |story: Story, ms, tok| {
        story.say(
            ms,
            What::Ok {
                op: 2,
                tok,
                valid: 200 * MS,
            },
        )
    };
    let first = || Story::default().ask(10, 5, Exclusive).get(11, 5, 100);
    let second = |tok| say(first().release(12, 5).ask(20, 2, Exclusive), 21, tok);
    assert!(second(0).has_order() && !second(2).has_order());
    assert!(
        second(0)
            .release(30, 2)
            .ask(40, 6, Exclusive)
            .get(41, 6, 200)
            .has_order()
    );
    assert!(
        !second(0)
            .release(30, 2)
            .ask(40, 4, Exclusive)
            .get(41, 4, 200)
            .has_order(),
        "the token before it counts"
    );
    assert!(
        !second(0).ask(40, 6, Exclusive).get(41, 6, 300).has_order(),
        "it holds"
    );
    assert!(
        !say(first().ask(20, 2, Exclusive), 21, 0).has_order(),
        "another one holds"
    );
}

/// The store keeps what was not released for `settle`, which may be longer than a loss of data is an excuse.
#[test]
fn what_is_left_of_before_a_loss_of_data_has_no_token_among_those_after_it() {
    let s = 1_000;
    let left = |breaks| {
        let held = Story::default().ask(10, 900, Exclusive).get(11, 900, 9 * s);
        let lost = held.say(
            s,
            What::Fault {
                id: 1,
                kind: "test".into(),
                breaks,
                lock: None,
            },
        );
        let dropped = lost.say(2 * s, What::Healed { id: 1 }).say(
            6 * s,
            What::Release {
                op: 900,
                dropped: true,
            },
        );
        // Settled at 14 s; what was dropped may be there until 18 s.
        dropped
            .ask(15 * s, 100, Shared)
            .get(15 * s + 1, 100, 20 * s)
            .release(15 * s + 2, 100)
    };
    let then = |story: Story, op| {
        story
            .ask(16 * s, op, Exclusive)
            .get(16 * s + 1, op, 20 * s)
            .release(16 * s + 2, op)
    };
    assert!(
        then(left(Breaks::Order), 200).has_order(),
        "tokens began anew"
    );
    assert!(
        !then(left(Breaks::Order), 90).has_order(),
        "since then they rise"
    );
    assert!(!left(Breaks::Nothing).has_order(), "nothing was lost");
}

#[test]
fn readers_share_and_permits_are_counted() {
    let readers = || {
        Story::default()
            .ask(10, 1, Shared)
            .get(11, 1, 100)
            .ask(12, 2, Shared)
            .get(13, 2, 100)
    };
    assert!(readers().has_order() && !readers().ask(20, 3, Exclusive).get(21, 3, 200).has_order());
    assert!(
        !readers().ask(20, 3, Shared).refuse(21, 3).has_order(),
        "readers are not in its way"
    );
    assert!(readers().ask(20, 3, Exclusive).refuse(21, 3).has_order());
    let two = Mode::Permits { n: 2, of: 3 };
    let taken = || Story::default().ask(10, 1, two).get(11, 1, 100);
    assert!(!taken().ask(12, 2, two).get(13, 2, 100).has_order());
    assert!(
        taken()
            .ask(12, 2, Mode::Permits { n: 1, of: 3 })
            .get(13, 2, 100)
            .has_order()
    );
    assert!(taken().ask(12, 2, two).refuse(13, 2).has_order());
    let writer = || {
        Story::default()
            .ask(10, 1, Exclusive)
            .get(11, 1, 100)
            .say(20, What::Downgrade { op: 1 })
    };
    assert!(writer().ask(21, 2, Shared).get(22, 2, 100).has_order());
    assert!(!writer().ask(21, 2, Exclusive).get(22, 2, 100).has_order());
}
