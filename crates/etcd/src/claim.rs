//! Taking and keeping a place: the one transaction of a claim.
//!
//! A place is a key under the session's lease. It holds when no other key of its line has a smaller create_revision, and
//! its create_revision is its number: in the line, and of its token.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::SystemTime;

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp};
use leasehold_core::seam::{Claim, ClaimId, Claimed, Mode, Queue, Waiting};
use leasehold_core::{Error, ErrorKind, Result};

use crate::error::Failure;
use crate::line::{Count, Line};
use crate::store::{Store, by_age, contention, put, reads, revision};
use crate::table::Entry;
use crate::value;

/// How often a claim or a withdrawal starts over within one call: after an epoch that had passed, a session that had ended.
pub(crate) const TRIES: usize = 12;

impl Store {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        if claim.mode != Mode::Exclusive {
            let text = format!("the etcd store does not have the mode {:?} yet", claim.mode);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
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
            match self.enter(claim, &entry).await {
                Ok(Some(claimed)) => return Ok(claimed),
                Ok(None) => {}
                Err(Failure::LeaseGone) => self.lose(&entry.session),
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the etcd session changed again and again; claim again"))
    }

    /// Creates the key, or looks where it stands if it exists. `None`: start over with what was learned.
    async fn enter(self: &Arc<Self>, claim: &Claim, entry: &Entry) -> Result<Option<Claimed>, Failure> {
        let (session, key) = (&entry.session, &*entry.key);
        // A try goes in only if the whole line, its own key included, is empty.
        let tries = claim.queue == Queue::Try;
        let absent = if tries {
            Compare::create_revision(&*entry.line, CompareOp::Equal, 0).with_prefix()
        } else {
            Compare::create_revision(key, CompareOp::Equal, 0)
        };
        let this_epoch = Compare::version(&*session.key, CompareOp::Equal, session.epoch.load(SeqCst));
        let head = || TxnOp::get(&*entry.line, Some(by_age(1)));
        let fresh = put(session.lease, key, value::write(&claim.label, SystemTime::now()));
        let txn = Txn::new().when([absent, this_epoch]).and_then([head(), fresh]).or_else([
            head(),
            TxnOp::get(key, None),
            TxnOp::get(&*session.key, None),
        ]);

        // From here until the answer, the key may come to be without our knowing: also if this future is dropped.
        self.doubt(claim.id, true);
        let answer = self.txn(txn).await;
        if !answer.doubt {
            self.doubt(claim.id, entry.doubt);
        }
        let response = answer.outcome?;
        let reads = reads(&response);
        let [line, others @ ..] = &reads[..] else { return Err(unknown_form()) };
        let (head, length) = (line.kvs().first(), line.count());
        if response.succeeded() {
            let count = Count { at: revision(response.header()), ahead: usize::try_from(length).unwrap_or(0) };
            return Ok(self.stand(claim, entry, count.at, Some(count), head, length - 1));
        }
        let [mine, current] = others else { return Err(unknown_form()) };
        session.learn(current);
        let Some(mine) = mine.kvs().first() else {
            if !tries || length == 0 {
                return Ok(None);
            }
            // Its own late attempt could still find the line empty.
            self.release(claim.id).await?;
            return Ok(Some(Claimed::Busy(contention(&entry.line, head, length - 1))));
        };
        let created = mine.create_revision();
        if value::label(mine.value()) != *claim.label {
            // A put on a key that exists changes neither its create_revision nor its place.
            let since = value::since(mine.value()).unwrap_or_else(SystemTime::now);
            let anew = put(session.lease, key, value::write(&claim.label, since));
            if !self.change(key.as_bytes(), created, vec![anew]).await? {
                return Ok(None);
            }
        }
        Ok(self.stand(claim, entry, created, None, head, length - 2))
    }

    /// The key exists: does it hold, or wait behind `head` and `others` more? `None` if the claim is gone by now.
    fn stand(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        created: i64,
        count: Option<Count>,
        head: Option<&KeyValue>,
        others: i64,
    ) -> Option<Claimed> {
        let mut state = self.state();
        state.stand(claim.id, created, head.is_none_or(|head| head.create_revision() == created), count)?;
        self.tell(&mut state, &entry.line, Line::news);
        let entry = state.claims.get(&claim.id)?;
        if entry.granted {
            self.bells.stirred(&claim.name);
            return Some(Claimed::Granted(entry.grant()));
        }
        Some(Claimed::Waiting(Waiting::new(entry.place(), contention(&entry.line, head, others))))
    }

    fn doubt(&self, id: ClaimId, doubt: bool) {
        if let Some(entry) = self.state().claims.get_mut(&id) {
            (entry.doubt, entry.leaving) = (doubt, None);
        }
    }
}

fn unknown_form() -> Failure {
    Failure::new(ErrorKind::Internal, "it answered in a form that is unknown")
}
