//! Giving a place up: of a claim that is known well, of one in doubt, and of somebody else's hold.

use std::sync::atomic::Ordering::SeqCst;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use leasehold_core::seam::{ClaimId, Moment};
use leasehold_core::{ErrorKind, FencingToken, Name, Result};

use crate::claim::TRIES;
use crate::error::Failure;
use crate::names;
use crate::store::{Store, by_age, holding, put, reads};
use crate::table::{Entry, created_of};

impl Store {
    pub(crate) async fn release(&self, id: ClaimId) -> Result<(), Failure> {
        let entry = {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id) else { return Ok(()) };
            entry.leaving.get_or_insert_with(Moment::now);
            let entry = entry.clone();
            // Its end is no news from now on.
            state.unwatch(&entry);
            entry
        };
        if entry.doubt {
            return self.withdraw(id, &entry).await;
        }
        if entry.created != 0 {
            let still = Compare::create_revision(&*entry.key, CompareOp::Equal, entry.created);
            self.change(still, vec![TxnOp::delete(&*entry.key, None)]).await?;
        }
        self.state().strike(id);
        Ok(())
    }

    /// Deletes the key, whatever it is by now, and begins an epoch: every request of the claim that is still on its way
    /// comes too late. It has the session's turn until the claim is struck: another withdrawal of the same claim would
    /// delete what the slot's next user put there.
    async fn withdraw(&self, id: ClaimId, entry: &Entry) -> Result<(), Failure> {
        let session = &entry.session;
        let _turn = self.turn(&session.withdrawing).await?;
        for _ in 0..TRIES {
            // Also when the session ended: that strikes all its claims.
            if !self.state().claims.contains_key(&id) {
                return Ok(());
            }
            let epoch = session.epoch.load(SeqCst);
            let txn = Txn::new()
                .when([Compare::version(&*session.key, CompareOp::Equal, epoch)])
                .and_then([TxnOp::delete(&*entry.key, None), put(session.lease, &session.key, "")])
                .or_else([TxnOp::get(&*session.key, None)]);
            match self.txn(txn).await.outcome {
                Ok(response) if response.succeeded() => {
                    session.epoch.fetch_max(epoch + 1, SeqCst);
                    self.state().strike(id);
                    return Ok(());
                }
                Ok(response) => reads(&response).iter().for_each(|read| session.learn(read)),
                Err(Failure::LeaseGone) => self.lose(session),
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::new(ErrorKind::Unavailable, "the session changed again and again"))
    }

    /// Ends the hold with this token, and notes under its session's lease that it did.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.open()?;
        let (line, created) = (self.keys.line(name), created_of(token));
        let read = self.get(&*line, by_age(0)).await?;
        let mut holders = read.kvs().iter().take(holding(&line, &read));
        let Some(hold) = holders.find(|hold| hold.create_revision() == created) else { return Ok(false) };
        let mut then = vec![TxnOp::delete(hold.key(), None)];
        if names::is_ours(&line, hold.key()) {
            then.push(put(hold.lease(), &format!("{}{created}", self.keys.evictions()), ""));
        }
        let still = Compare::create_revision(hold.key(), CompareOp::Equal, created);
        Ok(self.change(still, then).await?)
    }
}
