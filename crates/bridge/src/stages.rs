//! The stages of the move in which claims are, as the two stores show them: for an operator, and
//! for the seal.
//!
//! A bridge holds in both stores by one token, so the token shows that two holds are one. A label
//! does not show that: all clients of a service may have one label. But two holds with different
//! labels are two holds, whatever their tokens: two counters may be at one number.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_core::backend::Raises;
use leasehold_core::backend::{Mode, place_of_token};
use leasehold_core::{Error, FencingToken, LockQueue, Name, Participant, Result};

use crate::Bridge;
use crate::check::PROBE_NAME;
use crate::pair::Side;

/// The number of names that are read at once, and the number of those that are looked at side by
/// side.
const PAGE: usize = 1000;
const AT_ONCE: usize = 32;
/// The time within which a bridge that was granted old is granted new or waits there, and the
/// interval between the looks meanwhile.
const ON_ITS_WAY: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);

/// The stage of a move in which a claim is, as far as the two stores show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// The claim holds in old alone.
    One,
    /// The claim holds or waits in old. If it is a bridge's, it has still to be granted new.
    OneOrTwo,
    /// The claim holds in both, by one token: it is a bridge's. A hold of another tool never is.
    Two,
    /// The claim waits in new. If it is a bridge's, it holds in old.
    TwoOrThree,
    /// The claim holds or waits in new alone.
    Three,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stage::One => "1",
            Stage::OneOrTwo => "1 or 2",
            Stage::Two => "2",
            Stage::TwoOrThree => "2 or 3",
            Stage::Three => "3",
        })
    }
}

/// A hold or a waiting claim, and its stage.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InStage {
    /// The lock.
    pub name: Name,
    /// The stage.
    pub stage: Stage,
    /// The claim holds; otherwise it waits.
    pub holds: bool,
    /// The claim holds in old, and did not come to hold in new while it was looked at. Before a
    /// seal there may be no such claim. It is a bridge's only if it waits in new for another
    /// client.
    pub is_alone_in_old: bool,
    /// The holder or waiter: the entry of new, if there is one in both.
    pub participant: Participant,
}

impl Bridge {
    /// All holds and waiting claims of both stores with their stages, in the order of the names.
    ///
    /// A claim that is seen in old alone is looked at again for two seconds: a bridge may be on its
    /// way from one store to the other. A client that neither holds nor waits is in no store, and
    /// not seen.
    ///
    /// # Errors
    ///
    /// The error of a store; the message says which one.
    ///
    /// # Cancel safety
    ///
    /// It only reads.
    pub async fn stages(&self) -> Result<Vec<InStage>> {
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let names = self.list_both("", after.as_ref(), PAGE).await?;
            let Some(last) = names.last().cloned() else {
                break;
            };
            all.extend(self.look(names).await?);
            after = Some(last);
        }
        let enough = self.clock.now() + ON_ITS_WAY;
        loop {
            let began = self.clock.now();
            let alone: Vec<Name> = all
                .iter()
                .filter(|(_, seen)| seen.iter().any(|it| it.is_alone_in_old))
                .map(|(name, _)| name.clone())
                .collect();
            if alone.is_empty() || began > enough {
                break;
            }
            self.clock.sleep(AGAIN).await;
            for (name, mut seen) in self.look(alone).await? {
                let before = all.get(&name).map(Vec::as_slice).unwrap_or_default();
                settle(&mut seen, before);
                all.insert(name, seen);
            }
        }
        Ok(all.into_values().flatten().collect())
    }

    async fn look(&self, mut names: Vec<Name>) -> Result<Vec<(Name, Vec<InStage>)>> {
        names.retain(|name| name.as_str() != PROBE_NAME);
        let raises = [Side::Old, Side::New].map(|side| self.pair.raises(side));
        let mut all = Vec::with_capacity(names.len());
        for some in names.chunks(AT_ONCE) {
            let each = some.iter().map(|name| async {
                let (old, new) = self
                    .both(
                        self.pair.on(Side::Old).inspect(name),
                        self.pair.on(Side::New).inspect(name),
                    )
                    .await?;
                Ok::<_, Error>((name.clone(), sorted(name, &old, &new, raises)))
            });
            all.extend(try_join_all(each).await?);
        }
        Ok(all)
    }
}

/// Decides which holders count as alone in old. If several may hold, bridges come and go, and each
/// is in old alone for a moment: only a holder that was alone before counts. An exclusive holder
/// always counts, so that short holds of stage 1 that follow each other are seen. Another tool's
/// hold always counts, too, since it is no bridge.
fn settle(seen: &mut [InStage], before: &[InStage]) {
    for it in seen {
        let may_be_others_too = matches!(
            it.participant.mode,
            Some(Mode::Shared | Mode::Permits { .. })
        ) && !it.participant.foreign;
        let was_alone = |other: &InStage| {
            other.is_alone_in_old
                && other.participant.token == it.participant.token
                && other.participant.label == it.participant.label
        };
        if may_be_others_too && it.is_alone_in_old && !before.iter().any(was_alone) {
            it.is_alone_in_old = false;
            it.stage = Stage::OneOrTwo;
        }
    }
}

/// The holders and waiters of a name's two queues, each with its stage.
fn sorted(name: &Name, old: &LockQueue, new: &LockQueue, raises: [Raises; 2]) -> Vec<InStage> {
    let entry = |stage, holds, participant: &Participant| InStage {
        name: name.clone(),
        stage,
        holds,
        is_alone_in_old: false,
        participant: participant.clone(),
    };
    let are_one = |in_old: &Participant, in_new: &Participant| {
        may_be_one(in_old, in_new) && is_one_token(in_old.token, in_new.token, raises)
    };
    let (in_both, in_old): (Vec<_>, Vec<_>) = old
        .holders
        .iter()
        .partition(|holder| new.holders.iter().any(|it| are_one(holder, it)));
    let mut all = Vec::new();
    for holder in &in_old {
        // A bridge has one label in both stores: a waiter in new with another label is another
        // client.
        let may_wait_in_new = new.waiters.iter().any(|waiter| may_be_one(holder, waiter));
        let stage = match may_wait_in_new {
            true => Stage::OneOrTwo,
            false => Stage::One,
        };
        all.push(InStage {
            is_alone_in_old: true,
            ..entry(stage, true, holder)
        });
    }
    all.extend(
        old.waiters
            .iter()
            .map(|waiter| entry(Stage::OneOrTwo, false, waiter)),
    );
    all.extend(new.holders.iter().map(
        |holder| match in_both.iter().any(|it| are_one(it, holder)) {
            true => entry(Stage::Two, true, holder),
            false => entry(Stage::Three, true, holder),
        },
    ));
    // A bridge waits in new only while it holds old.
    all.extend(new.waiters.iter().map(|waiter| {
        match in_old.iter().any(|holder| may_be_one(holder, waiter)) {
            true => entry(Stage::TwoOrThree, false, waiter),
            false => entry(Stage::Three, false, waiter),
        }
    }));
    all
}

/// Returns whether two tokens are of one hold. A store that numbers places shows the first number
/// of the place to which the token belongs.
fn is_one_token(
    in_old: Option<FencingToken>,
    in_new: Option<FencingToken>,
    raises: [Raises; 2],
) -> bool {
    let (Some(old), Some(new)) = (in_old, in_new) else {
        return false;
    };
    let numbers_places = raises
        .iter()
        .any(|raises| matches!(raises, Raises::Places(_)));
    old == new || numbers_places && place_of_token(old) == place_of_token(new)
}

/// Returns whether two entries may be those of one bridge, which has equal ones in both stores.
/// Other clients may have equal ones as well, so this alone proves nothing. Another tool is no
/// bridge.
fn may_be_one(holder: &Participant, other: &Participant) -> bool {
    !holder.foreign && !other.foreign && (&holder.label, holder.mode) == (&other.label, other.mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDS: Raises = Raises::Holds(FencingToken::new(1 << 60));
    const PLACES: Raises = Raises::Places(FencingToken::new(1 << 60));

    fn entry(label: &str, token: u64) -> Participant {
        let shown = Participant::new(label).mode(Mode::Exclusive);
        match token {
            0 => shown,
            _ => shown.token(FencingToken::new(token)),
        }
    }

    /// The stages, and the tokens of the claims that are alone in old.
    fn of(old: &LockQueue, new: &LockQueue, raises: [Raises; 2]) -> (Vec<String>, Vec<u64>) {
        let all = sorted(&Name::new("a"), old, new, raises);
        let stages = all.iter().map(|it| it.stage.to_string()).collect();
        let alone = all.iter().filter(|it| it.is_alone_in_old);
        let tokens = alone
            .filter_map(|it| it.participant.token)
            .map(FencingToken::get);
        (stages, tokens.collect())
    }

    #[test]
    fn a_label_says_nothing_of_a_hold() {
        let old = LockQueue::new(vec![entry("svc", 7)], vec![entry("svc", 0)]);
        let new = LockQueue::new(vec![entry("svc", 8)], vec![]);
        let seen = of(&old, &new, [HOLDS, HOLDS]);
        assert_eq!(
            seen,
            (["1", "1 or 2", "3"].map(String::from).to_vec(), vec![7])
        );
        let both = LockQueue::new(vec![entry("svc", 7)], vec![]);
        assert_eq!(
            of(&old, &both, [HOLDS, HOLDS]),
            (["1 or 2", "2"].map(String::from).to_vec(), vec![])
        );
        // Two counters may be at one number.
        let new = LockQueue::new(vec![entry("other", 7)], vec![]);
        assert_eq!(of(&old, &new, [HOLDS, HOLDS]).1, [7]);
    }

    #[test]
    fn who_waits_in_new_may_hold_old_if_its_label_is_the_same() {
        let old = LockQueue::new(vec![entry("svc", 7)], vec![]);
        let new = LockQueue::new(vec![entry("svc", 8)], vec![entry("svc", 0)]);
        assert_eq!(
            of(&old, &new, [HOLDS, HOLDS]),
            (
                ["1 or 2", "3", "2 or 3"].map(String::from).to_vec(),
                vec![7]
            )
        );
        let new = LockQueue::new(vec![entry("svc", 8)], vec![entry("other", 0)]);
        assert_eq!(
            of(&old, &new, [HOLDS, HOLDS]),
            (["1", "3", "3"].map(String::from).to_vec(), vec![7])
        );
    }

    #[test]
    fn a_place_is_known_by_any_of_its_numbers_and_only_where_places_are_numbered() {
        let old = LockQueue::new(vec![entry("a", 0x1_0007)], vec![]);
        let new = LockQueue::new(vec![entry("a", 0x1_0000)], vec![]);
        assert_eq!(of(&old, &new, [HOLDS, PLACES]).1, [0; 0]);
        assert_eq!(of(&new, &old, [PLACES, HOLDS]).1, [0; 0]);
        assert_eq!(of(&old, &new, [HOLDS, HOLDS]).1, [0x1_0007]);
        let next = LockQueue::new(vec![entry("a", 0x1_0100)], vec![]);
        assert_eq!(of(&old, &next, [HOLDS, PLACES]).1, [0x1_0007]);
    }

    #[test]
    fn another_tool_in_old_is_alone_whatever_is_in_new() {
        let foreign = LockQueue::new(vec![Participant::foreign()], vec![]);
        let all = sorted(&Name::new("a"), &foreign, &foreign, [HOLDS, HOLDS]);
        assert!(all[0].is_alone_in_old && all[0].stage == Stage::One);
        assert_eq!(all[1].stage, Stage::Three);
    }

    #[test]
    fn a_reader_counts_as_alone_when_it_was_so_before() {
        let reader = |token| {
            let shown = Participant::new("r")
                .mode(Mode::Shared)
                .token(FencingToken::new(token));
            LockQueue::new(vec![shown], vec![])
        };
        let look = |token| {
            sorted(
                &Name::new("a"),
                &reader(token),
                &LockQueue::default(),
                [HOLDS, HOLDS],
            )
        };
        let before = look(1);
        let mut same = look(1);
        let mut next = look(2);
        settle(&mut same, &before);
        settle(&mut next, &before);
        assert!(same[0].is_alone_in_old && !next[0].is_alone_in_old);
        assert_eq!(
            [same[0].stage, next[0].stage],
            [Stage::One, Stage::OneOrTwo]
        );
    }

    #[test]
    fn another_tool_is_alone_in_old_whatever_its_token_was_before_and_is_in_new() {
        let key = |token| {
            let shown = Participant::foreign().token(FencingToken::new(token));
            LockQueue::new(vec![shown], vec![])
        };
        let look = |token| sorted(&Name::new("a"), &key(token), &key(7), [HOLDS, HOLDS]);
        let mut seen = look(8);
        settle(&mut seen, &look(9));
        assert!(seen[0].is_alone_in_old && seen[0].stage == Stage::One);
        // A key with one value in both, as after a copy of the data, is no bridge.
        let both = look(7);
        assert!(both[0].is_alone_in_old && both[0].stage == Stage::One);
        assert_eq!(both[1].stage, Stage::Three);
    }
}
