//! Taking a place, keeping it and giving it up.
//!
//! A place is a key under the session's lease, and its create_revision is its number: in the line, and of its token. It holds
//! when [`admit`] lets it in behind those with a smaller one. The transaction reads them, and then creates the key.
//!
//! A `try` must not stand in a line for a moment, so it creates its key only if nobody came since a revision at which it would
//! have been let in: into the empty line at first, and else behind those whom the refusal has read.

mod several;

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, ResponseHeader, Txn, TxnOp, TxnResponse};
use leasehold_core::seam::{Admission, Claim, ClaimId, Claimed, Mode, Moment, Queue, Waiting, admit, same_permits};
use leasehold_core::{Error, ErrorKind, Name, Result};

use crate::error::Failure;
use crate::line::Own;
use crate::look::contention;
use crate::store::{Store, by_age, put, reads};
use crate::value::{Value, mode};

/// How often a claim starts over within one call: after a session that had ended or was closed, another one that came first.
const TRIES: usize = 12;

impl Store {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        let prefix = self.keys.line(&claim.name);
        let mut seen = 0;
        for _ in 0..TRIES {
            self.open()?;
            let known = self.state().own(&claim.name, claim.id).map(|own| {
                own.tended = Moment::now();
                own.clone()
            });
            let own = match known {
                // Its release would take the new entry along, or its session lets nobody in.
                Some(own) if own.leaving || own.created == 0 && own.session.is_closed() => {
                    self.release(&claim.name, claim.id).await?;
                    continue;
                }
                Some(own) => own,
                None => {
                    let session = self.session(claim.ttl).await?;
                    self.state().enroll(&claim.name, claim.id, &prefix, session)
                }
            };
            let response = match self.enter(claim, &own, seen).await {
                Err(failure) if failure.lease_is_gone() => continue,
                response => response?,
            };
            let [oldest, mine] = &reads(&response)[..] else {
                return Err(Error::new(ErrorKind::Internal, "etcd answered in a form that is unknown"));
            };
            if let Some(mine) = mine.kvs().first() {
                if let Some(claimed) = self.stand(claim, &own, oldest, mine, response.succeeded()).await? {
                    return Ok(claimed);
                }
            } else if claim.queue == Queue::Try {
                let before = before(&prefix, oldest, i64::MAX);
                same_permits(&before, claim.mode)?;
                if admit(&before, claim.mode) != Admission::In {
                    // Its own late attempt could still find the line empty.
                    self.release(&claim.name, claim.id).await?;
                    return Ok(Claimed::Busy(contention(&prefix, oldest, oldest.count())));
                }
                seen = response.header().map_or(0, ResponseHeader::revision);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the line or the session changed again and again; claim again"))
    }

    /// The transaction: it reads the line's oldest, creates the key unless it exists, and reads it.
    async fn enter(&self, claim: &Claim, own: &Own, seen: i64) -> Result<TxnResponse, Failure> {
        let (prefix, Own { session, key, .. }) = (self.keys.line(&claim.name), own);
        let free = match claim.queue {
            // Its own key is one of them.
            Queue::Try => Compare::create_revision(&*prefix, CompareOp::Less, seen + 1).with_prefix(),
            Queue::Fast | Queue::Fair => Compare::create_revision(&**key, CompareOp::Equal, 0),
        };
        let open = Compare::create_revision(&*session.key, CompareOp::Equal, 0);
        // The oldest entry alone keeps an exclusive claim out.
        let oldest = TxnOp::get(&*prefix, Some(by_age(i64::from(claim.mode == Mode::Exclusive))));
        let (mine, value) = (TxnOp::get(&**key, None), Value::now(&claim.label, claim.mode).write());
        let enters = [oldest.clone(), put(session.lease, key, value), mine.clone()];
        let txn = Txn::new().when([free, open]).and_then(enters).or_else([oldest, mine]);
        let doubt = |doubt| {
            if let Some(own) = self.state().own(&claim.name, claim.id) {
                own.doubt = doubt;
            }
        };
        // From here until the answer, the key may come to be without our knowing: also if this future is dropped.
        doubt(true);
        let answer = self.txn(txn).await;
        doubt(answer.doubt || own.doubt);
        self.under(session, answer.outcome)
    }

    /// What it means that the key stands in line. `None`: start over, it has just changed.
    async fn stand(
        self: &Arc<Self>,
        claim: &Claim,
        own: &Own,
        oldest: &GetResponse,
        mine: &KeyValue,
        is_new: bool,
    ) -> Result<Option<Claimed>> {
        let (prefix, created, said) = (self.keys.line(&claim.name), mine.create_revision(), Value::read(mine.value()));
        // A release knows from now on what to delete.
        if let Some(own) = self.state().own(&claim.name, claim.id) {
            own.stands_at(created);
        }
        let before = before(&prefix, oldest, created);
        if own.created == 0 {
            same_permits(&before, said.mode)?;
        }
        let holds = admit(&before, said.mode) == Admission::In;
        let downgraded = holds && (claim.mode, said.mode) == (Mode::Shared, Mode::Exclusive);
        if downgraded || *said.label != *claim.label {
            // A put on a key that exists changes neither its create_revision nor its place. A late duplicate of an earlier
            // one finds another version of it, and changes nothing.
            let mode = if downgraded { Mode::Shared } else { said.mode };
            let value = Value { label: claim.label.to_string(), mode, ..said }.write();
            let same = Compare::mod_revision(&*own.key, CompareOp::Equal, mine.mod_revision());
            let changed = self.change(same, vec![put(own.session.lease, &own.key, value)]).await;
            if !self.under(&own.session, changed)? {
                return Ok(None);
            }
        }
        let others = oldest.count() - i64::from(!is_new);
        let mut state = self.state();
        let Some(line) = state.lines.get_mut(&claim.name) else { return Ok(None) };
        // It may be gone by now, or on its way.
        let still = |own: &&mut Own| own.created == created && !own.leaving;
        let Some(own) = line.own(claim.id).filter(still) else { return Ok(None) };
        own.granted |= holds;
        own.ahead = if is_new { Some(others) } else { own.ahead };
        if !own.granted {
            self.follow(&claim.name, line);
        }
        self.tell(&mut state, &claim.name);
        Ok(state.own(&claim.name, claim.id).map(|own| match own.granted {
            true => Claimed::Granted(own.grant()),
            false => Claimed::Waiting(Waiting::new(own.place(), contention(&prefix, oldest, others))),
        }))
    }

    /// Leaves nothing of the claim. If a request of it may still be on its way, its session is closed.
    pub(crate) async fn release(&self, name: &Name, id: ClaimId) -> Result<(), Failure> {
        let known = self.state().own(name, id).map(|own| {
            own.leaving = true;
            own.clone()
        });
        let Some(Own { session, key, created, doubt, .. }) = known else { return Ok(()) };
        if doubt {
            session.close();
            let both = Txn::new().and_then([TxnOp::delete(&*key, None), put(session.lease, &session.key, "")]);
            match self.under(&session, self.txn(both).await.outcome) {
                Err(failure) if failure.lease_is_gone() => {}
                outcome => drop(outcome?),
            }
        } else if created != 0 {
            let still = Compare::create_revision(&*key, CompareOp::Equal, created);
            self.change(still, vec![TxnOp::delete(&*key, None)]).await?;
        }
        self.state().strike(name, id);
        Ok(())
    }
}

/// The modes of those who stand before the entry `created`, from a read of the line's oldest.
fn before(prefix: &str, oldest: &GetResponse, created: i64) -> Vec<Mode> {
    let older = oldest.kvs().iter().take_while(|entry| entry.create_revision() < created);
    older.map(|entry| mode(prefix, entry)).collect()
}
