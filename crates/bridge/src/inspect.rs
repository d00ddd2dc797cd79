//! `inspect`, `list` and `evict`: they treat both stores as one.

use futures_util::future::join;
use leasehold_core::backend::Mode;
use leasehold_core::{FencingToken, LockQueue, Name, Participant, Result};

use crate::Bridge;
use crate::pair::Side;

impl Bridge {
    /// Returns the answers of both stores, or the error of one of them.
    pub(crate) async fn both<T>(
        &self,
        old: impl Future<Output = Result<T>>,
        new: impl Future<Output = Result<T>>,
    ) -> Result<(T, T)> {
        let (old, new) = join(old, new).await;
        Ok((
            old.map_err(|e| Side::Old.says(e))?,
            new.map_err(|e| Side::New.says(e))?,
        ))
    }

    pub(crate) async fn inspect_both(&self, name: &Name) -> Result<LockQueue> {
        let (old, new) = self
            .both(
                self.pair.on(Side::Old).inspect(name),
                self.pair.on(Side::New).inspect(name),
            )
            .await?;
        Ok(merged(old, new))
    }

    pub(crate) async fn list_both(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let old = self.pair.on(Side::Old);
        let new = self.pair.on(Side::New);
        let (mut names, others) = self
            .both(
                old.list(prefix, after, limit),
                new.list(prefix, after, limit),
            )
            .await?;
        names.extend(others);
        names.sort_unstable();
        names.dedup();
        names.truncate(limit);
        Ok(names)
    }

    pub(crate) async fn evict_both(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let old = self.pair.on(Side::Old);
        let new = self.pair.on(Side::New);
        let (old, new) = self
            .both(old.evict(name, token), new.evict(name, token))
            .await?;
        Ok(old | new)
    }
}

/// Merges the queues of the two stores. A client that holds old and not new is about to claim new,
/// or waits there: for clients that see only old it is the holder.
fn merged(old: LockQueue, new: LockQueue) -> LockQueue {
    let LockQueue {
        holders: in_old,
        waiters: behind,
        ..
    } = old;
    let LockQueue {
        mut holders,
        mut waiters,
        ..
    } = new;
    let shares = |holder: &Participant| holder.mode != Some(Mode::Exclusive);
    let shared = holders.iter().all(shares);
    let is_another = |holder: &Participant| {
        holder
            .token
            .is_none_or(|token| holders.iter().all(|h| h.token != Some(token)))
    };
    let others: Vec<_> = in_old
        .into_iter()
        .filter(|other| (holders.is_empty() || shared && shares(other)) && is_another(other))
        .collect();
    holders.extend(others);
    waiters.extend(behind);
    LockQueue::new(holders, waiters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(label: &str, token: u64, mode: Mode) -> Participant {
        let shown = Participant::new(label).mode(mode);
        if token == 0 {
            shown
        } else {
            shown.token(FencingToken::new(token))
        }
    }

    fn labels(all: &[Participant]) -> Vec<&str> {
        all.iter().filter_map(|one| one.label.as_deref()).collect()
    }

    /// The labels of the holders and of the waiters in the merged queue.
    fn shown(old: LockQueue, new: LockQueue) -> (Vec<String>, Vec<String>) {
        let queue = merged(old, new);
        let owned = |all: &[Participant]| labels(all).into_iter().map(str::to_owned).collect();
        (owned(&queue.holders), owned(&queue.waiters))
    }

    #[test]
    fn a_hold_in_both_is_one_and_the_holder_of_new_is_the_holder() {
        let x = |label, token| entry(label, token, Mode::Exclusive);
        let waits = |label| entry(label, 0, Mode::Exclusive);
        let both = shown(
            LockQueue::new(vec![x("a", 7)], vec![waits("b")]),
            LockQueue::new(vec![x("a", 7)], vec![]),
        );
        assert_eq!(both, (vec!["a".into()], vec!["b".into()]));
        let waits_in_new = shown(
            LockQueue::new(vec![x("a", 7)], vec![waits("b")]),
            LockQueue::new(vec![x("c", 5)], vec![waits("a")]),
        );
        assert_eq!(
            waits_in_new,
            (vec!["c".into()], vec!["a".into(), "b".into()])
        );
        let only_old = shown(
            LockQueue::new(vec![x("a", 7)], vec![]),
            LockQueue::default(),
        );
        assert_eq!(only_old, (vec!["a".into()], vec![]));
    }

    #[test]
    fn readers_of_either_store_hold_together() {
        let reader = |label, token| entry(label, token, Mode::Shared);
        let old = LockQueue::new(vec![reader("a", 7), reader("b", 8)], vec![]);
        let (holders, _) = shown(old.clone(), LockQueue::new(vec![reader("b", 8)], vec![]));
        assert_eq!(holders, ["b", "a"]);
        let writer = LockQueue::new(
            vec![entry("w", 5, Mode::Exclusive)],
            vec![entry("b", 0, Mode::Shared)],
        );
        assert_eq!(shown(old, writer), (vec!["w".into()], vec!["b".into()]));
    }
}
