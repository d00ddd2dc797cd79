//! Taking and keeping a place: the one transaction of a claim.
//!
//! A place is a key under the session's lease, and its create_revision is its number: in the line, and of its token. It holds
//! when [`admit`] lets it in behind those with a smaller one. The transaction reads them, and then creates the key.
//!
//! A `try` must not stand in a line for a moment, so it creates its key only if nobody came since a revision at which it would
//! have been let in: into the empty line at first, and else behind those whom the refusal has read.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnResponse};
use leasehold_core::seam::{Admission, Claim, ClaimId, Claimed, Mode, Queue, Waiting, admit, same_permits};
use leasehold_core::{Error, ErrorKind, Result};

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
        let fresh = Value::now(&claim.label, claim.mode);
        let Some(response) = self.create(claim, entry, *seen, &fresh).await? else { return Ok(None) };
        let (revision, reads) = (revision(response.header()), reads(&response));
        let [oldest, others @ ..] = &reads[..] else { return Err(unknown_form()) };
        let mine = match others {
            [] => None,
            [mine, current, ..] => {
                session.learn(current);
                match mine.kvs().first() {
                    None if claim.queue == Queue::Try => {
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
                    mine => mine,
                }
            }
            [_] => return Err(unknown_form()),
        };
        let (created, said) =
            mine.map_or((revision, fresh), |mine| (mine.create_revision(), Value::read(mine.value())));
        let others = oldest.count() - i64::from(mine.is_some());
        let before = before(line, oldest, created);
        if entry.created == 0
            && let Err(refusal) = same_permits(&before, said.mode)
        {
            // It stands there, and nobody knows.
            self.doubt(claim.id, true);
            return Err(refusal);
        }
        let holds = admit(&before, said.mode) == Admission::In;
        let downgraded = holds && claim.mode == Mode::Shared && said.mode == Mode::Exclusive;
        if let Some(mine) = mine.filter(|_| downgraded || *said.label != *claim.label) {
            // A put on a key that exists changes neither its create_revision nor its place. A late duplicate of an earlier
            // one finds another version of it, and changes nothing.
            let mode = if downgraded { Mode::Shared } else { said.mode };
            let said = Value { label: claim.label.to_string(), mode, ..said };
            let same = Compare::mod_revision(key, CompareOp::Equal, mine.mod_revision());
            let changed = self.change(same, vec![put(session.lease, key, said.write())]).await;
            if self.unless_gone(session, changed)? != Some(true) {
                return Ok(None);
            }
        }
        let mut state = self.state();
        let stand = if holds { Stand::Holds } else { Stand::Waits(mine.is_none().then_some(others)) };
        state.stand(claim.id, created, stand);
        self.tell(&mut state, &entry.line);
        // None if the claim is gone by now.
        Ok(state.claims.get(&claim.id).map(|entry| match entry.granted {
            true => Claimed::Granted(entry.grant()),
            false => Claimed::Waiting(Waiting::new(entry.place(), contention(line, oldest, others))),
        }))
    }

    /// The transaction: it reads the line's oldest and creates the key, or else reads them, the key and the session's own.
    async fn create(&self, claim: &Claim, entry: &Entry, seen: i64, fresh: &Value) -> Result<Option<TxnResponse>> {
        let (session, line, key) = (&entry.session, &*entry.line, &*entry.key);
        let free = match claim.queue {
            // Its own key is one of them.
            Queue::Try => Compare::create_revision(line, CompareOp::Less, seen + 1).with_prefix(),
            Queue::Fast | Queue::Fair => Compare::create_revision(key, CompareOp::Equal, 0),
        };
        let this_epoch = Compare::version(&*session.key, CompareOp::Equal, session.epoch.load(SeqCst));
        // The oldest entry alone keeps an exclusive claim out.
        let oldest = || TxnOp::get(line, Some(by_age(i64::from(claim.mode == Mode::Exclusive))));
        let looks = [oldest(), TxnOp::get(key, None), TxnOp::get(&*session.key, None)];
        let enters = [oldest(), put(session.lease, key, fresh.write())];
        let txn = Txn::new().when([free, this_epoch]).and_then(enters).or_else(looks);
        // From here until the answer, the key may come to be without our knowing: also if this future is dropped.
        self.doubt(claim.id, true);
        let answer = self.txn(txn).await;
        if !answer.doubt {
            self.doubt(claim.id, entry.doubt);
        }
        self.unless_gone(session, answer.outcome)
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
