//! Taking and keeping a place: the one transaction of a claim.
//!
//! A place is a key under the session's lease, and its create_revision is its number: in the line, and of its token. It holds
//! when [`admit`] lets it in behind those with a smaller one. The transaction reads them, and then creates the key.
//!
//! A `try` must not stand in a line for a moment, so it creates its key only if nobody came since a revision at which it would
//! have been let in: into the empty line at first, and else behind those whom the refusal has read.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use leasehold_core::seam::{Admission, Claim, ClaimId, Claimed, Mode, Queue, Waiting, admit, same_permits};
use leasehold_core::{Contention, Error, ErrorKind, Result};

use crate::error::Failure;
use crate::line::Stand;
use crate::session::Session;
use crate::store::{Store, before, by_age, contention, put, reads, revision};
use crate::table::Entry;
use crate::value::Value;

/// How often a claim or a withdrawal starts over within one call: after an epoch that had passed, a session that had ended,
/// another one that came first.
pub(crate) const TRIES: usize = 12;

impl Store {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        let mut seen = 0;
        for _ in 0..TRIES {
            self.open()?;
            let known = self.state().claims.get(&claim.id).cloned();
            let entry = match known {
                Some(entry) => entry,
                None => {
                    let session = self.session(claim.ttl).await?;
                    self.state().enroll(claim.id, self.keys.line(&claim.name), session)
                }
            };
            if let Some(claimed) = self.enter(claim, &entry, &mut seen).await? {
                return Ok(claimed);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the line or the session changed again and again; claim again"))
    }

    /// Creates the key, or looks where it stands if it exists. `None`: start over with what was learned.
    async fn enter(self: &Arc<Self>, claim: &Claim, entry: &Entry, seen: &mut i64) -> Result<Option<Claimed>> {
        let (session, line, key) = (&entry.session, &*entry.line, &*entry.key);
        let tries = claim.queue == Queue::Try;
        let free = if tries {
            // Its own key is one of them.
            Compare::create_revision(line, CompareOp::Less, *seen + 1).with_prefix()
        } else {
            Compare::create_revision(key, CompareOp::Equal, 0)
        };
        let this_epoch = Compare::version(&*session.key, CompareOp::Equal, session.epoch.load(SeqCst));
        // The oldest entry alone keeps an exclusive claim out.
        let read = || TxnOp::get(line, Some(by_age(i64::from(claim.mode == Mode::Exclusive))));
        let fresh = Value::now(&claim.label, claim.mode);
        let txn = Txn::new()
            .when([free, this_epoch])
            .and_then([read(), put(session.lease, key, fresh.write())])
            .or_else([read(), TxnOp::get(key, None), TxnOp::get(&*session.key, None)]);

        // From here until the answer, the key may come to be without our knowing: also if this future is dropped.
        self.doubt(claim.id, true);
        let answer = self.txn(txn).await;
        if !answer.doubt {
            self.doubt(claim.id, entry.doubt);
        }
        let Some(response) = self.unless_gone(session, answer.outcome)? else { return Ok(None) };
        let revision = revision(response.header());
        let reads = reads(&response);
        let [oldest, others @ ..] = &reads[..] else { return Err(unknown_form()) };
        let (created, said, counted) = if response.succeeded() {
            (revision, fresh, usize::try_from(oldest.count()).ok())
        } else {
            let [mine, current] = others else { return Err(unknown_form()) };
            session.learn(current);
            match mine.kvs().first() {
                Some(mine) => (mine.create_revision(), Value::read(mine.value()), None),
                None if tries => {
                    let before = before(line, oldest, i64::MAX);
                    same_permits(&before, claim.mode)?;
                    if admit(&before, claim.mode) == Admission::In {
                        *seen = revision;
                        return Ok(None);
                    }
                    // Its own late attempt could still find the line empty.
                    self.release(claim.id).await?;
                    return Ok(Some(Claimed::Busy(contention(line, oldest, oldest.count()))));
                }
                None => return Ok(None),
            }
        };
        let before = before(line, oldest, created);
        if entry.created == 0
            && let Err(refusal) = same_permits(&before, said.mode)
        {
            // It stands there, and nobody knows.
            self.doubt(claim.id, true);
            return Err(refusal);
        }
        let holds = admit(&before, said.mode) == Admission::In;
        let mode =
            if holds && claim.mode == Mode::Shared && said.mode == Mode::Exclusive { claim.mode } else { said.mode };
        if *said.label != *claim.label || mode != said.mode {
            // A put on a key that exists changes neither its create_revision nor its place.
            let said = Value { label: claim.label.to_string(), mode, ..said };
            let changed = self.change(key.as_bytes(), created, vec![put(session.lease, key, said.write())]).await;
            if self.unless_gone(session, changed)? != Some(true) {
                return Ok(None);
            }
        }
        let stand = if holds { Stand::Holds } else { Stand::Waits(counted) };
        let others = oldest.count() - i64::from(!response.succeeded());
        Ok(self.stand(claim.id, entry, created, stand, || contention(line, oldest, others)))
    }

    /// The key exists: does it hold, or wait? `None` if the claim is gone by now.
    fn stand(
        self: &Arc<Self>,
        id: ClaimId,
        entry: &Entry,
        created: i64,
        stand: Stand,
        who: impl FnOnce() -> Contention,
    ) -> Option<Claimed> {
        let mut state = self.state();
        state.stand(id, created, stand)?;
        self.tell(&mut state, &entry.line);
        let entry = state.claims.get(&id)?;
        Some(if entry.granted {
            Claimed::Granted(entry.grant())
        } else {
            Claimed::Waiting(Waiting::new(entry.place(), who()))
        })
    }

    /// `None` if the session's lease is gone, and all its claims with it.
    fn unless_gone<T>(&self, session: &Session, outcome: Result<T, Failure>) -> Result<Option<T>> {
        match outcome {
            Err(Failure::LeaseGone) => {
                self.lose(session);
                Ok(None)
            }
            outcome => Ok(Some(outcome?)),
        }
    }

    fn doubt(&self, id: ClaimId, doubt: bool) {
        if let Some(entry) = self.state().claims.get_mut(&id) {
            (entry.doubt, entry.leaving) = (doubt, None);
        }
    }
}

fn unknown_form() -> Error {
    Error::new(ErrorKind::Internal, "etcd answered in a form that is unknown")
}
