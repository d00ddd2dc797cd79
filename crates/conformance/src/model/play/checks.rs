//! The comparison of store and models after each step.

use std::collections::HashSet;

use leasehold_core::Observer;

use super::{Hold, LIMIT, Players, Waiter, in_time, name};
use crate::model::program::NAMES;
use crate::model::spec::Spec;

impl Players<'_> {
    /// Checks that each client that must hold now does, and that each sees the state of the models.
    pub(super) async fn settle(&mut self) -> Result<(), String> {
        while let Some(i) = self
            .waiters
            .iter()
            .position(|w| self.specs[w.at].must_hold(w.id))
        {
            let Waiter { who, at, id, task } = self.waiters.remove(i);
            let answer = in_time(
                &format!("the turn of {id} in {:?}", self.specs[at].queue()),
                task,
            )
            .await?;
            let held = answer
                .map_err(|e| format!("it panicked: {e}"))?
                .map_err(|e| format!("{id}: {e:?}"))?;
            let hold = Hold {
                held,
                entries: vec![(at, id)],
            };
            self.specs[at].grant(id, hold.token(at))?;
            self.holds[who].push(hold);
        }
        for hold in self.holds.iter().flatten() {
            let good = hold
                .entries
                .iter()
                .all(|(at, id)| self.specs[*at].queue().iter().any(|e| e.id == *id));
            let loss = hold.lease().loss();
            ensure!(
                good == loss.is_none(),
                "a hold of {:?} should be good: {good}, and says {loss:?}",
                hold.entries
            );
        }
        let early: HashSet<usize> = self
            .waiters
            .iter()
            .filter(|w| w.task.is_finished())
            .map(|w| w.id)
            .collect();
        ensure!(early.is_empty(), "served before their turn: {early:?}");
        for at in 0..NAMES {
            self.seen(at).await?;
        }
        Ok(())
    }

    /// Checks that the queue of the store is that of the model.
    pub(super) async fn seen(&self, at: usize) -> Result<(), String> {
        let expected = self.specs[at].view();
        let mut last = None;
        let look = async {
            loop {
                let queue = self.stage.store(1).lock(name(at)).inspect().await;
                let label = |e: &leasehold_core::Participant| e.label.clone().unwrap_or_default();
                last = queue.ok().map(|queue| {
                    let holders = queue
                        .holders
                        .iter()
                        .map(|e| (e.token.map_or(0, |token| token.get()), label(e)));
                    let mut holders: Vec<_> = holders.collect();
                    holders.sort();
                    (holders, queue.waiters.iter().map(label).collect::<Vec<_>>())
                });
                if last.as_ref() == Some(&expected) {
                    return;
                }
                self.stage.pause().await;
            }
        };
        let seen = tokio::time::timeout(LIMIT, look).await;
        seen.map_err(|_| format!("the store shows {last:?}, the model {expected:?}"))
    }

    /// Checks that each observer has seen the latest leader.
    pub(super) async fn observed(&self, at: usize, observer: &mut Observer) -> Result<(), String> {
        let holders = self.specs[at].view().0;
        if holders.len() > 1 {
            return Ok(()); // which of several is first is not said
        }
        let expected = holders.first().cloned();
        let now = |o: &Observer| {
            o.current()
                .map(|leader| (leader.token.get(), leader.value.clone()))
        };
        in_time(&format!("an observer to see {expected:?}"), async {
            while now(observer) != expected {
                observer
                    .changed()
                    .await
                    .map_err(|e| format!("watching: {e:?}"))?;
            }
            Ok(())
        })
        .await?
    }

    /// Makes every client leave, and checks that nothing stays.
    pub(super) async fn part(mut self) -> Result<(), String> {
        self.waiters.iter().for_each(|waiter| waiter.task.abort());
        self.waiters.clear();
        self.holds.iter_mut().for_each(Vec::clear);
        self.specs = vec![Spec::default(); NAMES];
        for at in 0..NAMES {
            self.seen(at)
                .await
                .map_err(|e| format!("after all have left: {e}"))?;
        }
        Ok(())
    }
}
