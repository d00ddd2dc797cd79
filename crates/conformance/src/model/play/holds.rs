//! The steps of holders.

use leasehold_core::{ErrorKind, Result as Answer};

use super::{Held, Players, in_time, name};
use crate::model::program::Style;

impl Players<'_> {
    pub(super) async fn release(
        &mut self,
        who: usize,
        nth: usize,
        told: bool,
    ) -> Result<(), String> {
        let Some(hold) = self.nth(who, nth) else {
            return Ok(());
        };
        let good = self.is_good(&hold);
        for (at, id) in hold.entries {
            let last = self.specs[at].entry(id).is_some_and(|entry| {
                entry.guards -= 1;
                entry.guards == 0
            });
            if last {
                self.specs[at].leave(id);
            }
        }
        if !told {
            return Ok(());
        }
        let answer = match hold.held {
            Held::One(guard) => guard.release().await,
            Held::Lead(leadership) => leadership.resign().await,
            Held::All(all) => all.release().await,
        };
        expected(good, answer)
    }

    pub(super) fn leave(&mut self, who: usize, nth: usize) {
        let mine: Vec<usize> = (0..self.waiters.len())
            .filter(|i| self.waiters[*i].who == who)
            .collect();
        if !mine.is_empty() {
            let waiter = self.waiters.remove(mine[nth % mine.len()]);
            waiter.task.abort();
            self.specs[waiter.at].leave(waiter.id);
        }
    }

    pub(super) async fn confirm(&mut self, who: usize, nth: usize) -> Result<(), String> {
        let Some(hold) = self.nth(who, nth) else {
            return Ok(());
        };
        let answer = match &hold.held {
            Held::One(guard) => guard.confirm().await,
            Held::Lead(leadership) => leadership.confirm().await,
            Held::All(all) => all.check(),
        };
        let good = self.is_good(&hold);
        self.holds[who].push(hold);
        expected(good, answer)
    }

    pub(super) async fn downgrade(&mut self, who: usize, nth: usize) -> Result<(), String> {
        let Some(hold) = self.nth(who, nth) else {
            return Ok(());
        };
        let good = self.is_good(&hold);
        if let (Held::One(guard), [(at, id)]) = (&hold.held, &hold.entries[..]) {
            let answer = guard.downgrade().await;
            match self.specs[*at].entry(*id) {
                Some(entry) if entry.mode == Style::Read.mode() => expected(good, answer)?,
                Some(entry) if entry.mode == Style::Write.mode() && entry.guards == 1 => {
                    entry.mode = Style::Read.mode();
                    expected(good, answer)?;
                }
                Some(entry) => {
                    let refused = answer
                        .as_ref()
                        .is_err_and(|e| e.kind() == ErrorKind::Invalid);
                    ensure!(refused, "a downgrade of {entry:?} answered {answer:?}");
                }
                None => expected(false, answer)?,
            }
        }
        self.holds[who].push(hold);
        Ok(())
    }

    pub(super) async fn proclaim(
        &mut self,
        who: usize,
        nth: usize,
        value: u8,
    ) -> Result<(), String> {
        let Some(at) = self.holds[who]
            .iter()
            .position(|hold| matches!(hold.held, Held::Lead(_)))
        else {
            return Ok(());
        };
        let Some(hold) = self.nth(who, if nth.is_multiple_of(2) { at } else { nth }) else {
            return Ok(());
        };
        if let (Held::Lead(leadership), [(at, id)]) = (&hold.held, &hold.entries[..]) {
            let value = format!("{id} proclaims {value}");
            expected(
                self.is_good(&hold),
                leadership.proclaim(value.clone()).await,
            )?;
            if let Some(entry) = self.specs[*at].entry(*id) {
                entry.label = value;
            }
        }
        self.holds[who].push(hold);
        Ok(())
    }

    pub(super) async fn evict(&mut self, at: usize, nth: usize) -> Result<(), String> {
        let holders: Vec<_> = self.specs[at]
            .queue()
            .iter()
            .filter_map(|e| Some((e.id, e.token?)))
            .collect();
        if holders.is_empty() {
            return Ok(());
        }
        let (id, token) = holders[nth % holders.len()];
        let token = leasehold_core::FencingToken::new(token);
        for there in [true, false] {
            let was = self
                .stage
                .store(0)
                .evict(name(at), token)
                .await
                .map_err(|e| format!("{e:?}"))?;
            ensure!(was == there, "an eviction by token {token:?} said {was}");
        }
        self.specs[at].leave(id);
        for hold in self
            .holds
            .iter()
            .flatten()
            .filter(|hold| hold.entries.contains(&(at, id)))
        {
            in_time("the evicted to hear of it", hold.lease().lost()).await?;
        }
        Ok(())
    }

    pub(super) async fn crash(&mut self, who: usize) -> Result<(), String> {
        while self.waiters.iter().any(|waiter| waiter.who == who) {
            self.leave(who, 0);
        }
        self.settle().await?;
        self.stage.crash(who).await;
        for spec in &mut self.specs {
            let dead: Vec<usize> = spec
                .queue()
                .iter()
                .filter(|e| e.who == who)
                .map(|e| e.id)
                .collect();
            dead.into_iter().for_each(|id| spec.leave(id));
        }
        for hold in self.holds[who].drain(..) {
            in_time("a dead client's loss", hold.lease().lost()).await?;
        }
        Ok(())
    }
}

/// Checks the answer of a hold: `Ok` if it is valid, the loss if it is lost.
fn expected(good: bool, answer: Answer<()>) -> Result<(), String> {
    match answer {
        Ok(()) if good => Ok(()),
        Err(e) if !good && e.kind() == ErrorKind::Lost => Ok(()),
        other => Err(format!(
            "a hold that should be good ({good}) answered {other:?}"
        )),
    }
}
