//! Taking and keeping a place: the transactions of a claim.
//!
//! A place is a key under the session's lease. It holds when no other key of its line has a smaller create_revision, and
//! its create_revision is its number: in the line, and of its token.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use leasehold_core::seam::{Claim, Claimed, Mode, Queue, Waiting};
use leasehold_core::{Contention, Error, ErrorKind, Result};
use std::sync::atomic::Ordering::SeqCst;

use crate::error::Failure;
use crate::line::Count;
use crate::store::{Store, by_age, contention, reads, revision};
use crate::table::Entry;
use crate::value::{self, shorten};

/// How often a claim starts over within one call: after an epoch that had passed, a session that had ended.
const TRIES: usize = 12;
/// How many entries a read of the line brings at most. A longer line is read again after so many have gone.
pub(crate) const READ: i64 = 500;

impl Store {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        if claim.mode != Mode::Exclusive {
            let mode = claim.mode;
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("the etcd store does not have the mode {mode:?} yet"),
            ));
        }
        for _ in 0..TRIES {
            self.open()?;
            let known = self.state().claims.get(&claim.id).cloned();
            let entry = match known {
                Some(entry) => {
                    self.change(claim, |entry| entry.leaving = None);
                    entry
                }
                None => {
                    let session = self.session(claim.ttl).await?;
                    let line = self.keys.line(&claim.name);
                    let mut state = self.state();
                    // The session may have ended, or the claim been entered, in the meantime.
                    if session.is_gone() || state.claims.contains_key(&claim.id) {
                        continue;
                    }
                    state.enroll(claim, line, session)
                }
            };
            let claimed =
                if entry.created == 0 { self.enter(claim, &entry).await? } else { self.look(claim, &entry).await? };
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the etcd session changed again and again; claim again"))
    }

    /// Creates the key. `None`: start over with what was learned.
    async fn enter(self: &Arc<Self>, claim: &Claim, entry: &Entry) -> Result<Option<Claimed>> {
        let (session, key, label) = (&entry.session, &*entry.key, shorten(&claim.label));
        let epoch = session.epoch.load(SeqCst);
        let tries = claim.queue == Queue::Try;
        // A try goes in only if the whole line, its own key included, is empty.
        let empty = if tries {
            Compare::create_revision(&*entry.line, CompareOp::Equal, 0).with_prefix()
        } else {
            Compare::create_revision(key, CompareOp::Equal, 0)
        };
        let head = || TxnOp::get(&*entry.line, Some(by_age(1)));
        let put = TxnOp::put(key, value::write(label, entry.since), Some(PutOptions::new().with_lease(session.lease)));
        let then = if tries { vec![put] } else { vec![head(), put] };
        let txn = Txn::new()
            .when([empty, Compare::version(&*session.key, CompareOp::Equal, epoch)])
            .and_then(then)
            .or_else([get_bare(key), get_bare(&session.key), head()]);

        // From here until the answer, the key may come to be without our knowing: also if this future is dropped.
        let doubted = entry.doubt;
        self.change(claim, |entry| entry.doubt = true);
        let answer = self.txn(txn).await;
        if !answer.doubt {
            self.change(claim, |entry| entry.doubt = doubted);
        }
        let response = match answer.outcome {
            Ok(response) => response,
            Err(Failure::LeaseGone) => {
                self.lose(session);
                return Ok(None);
            }
            Err(failure) => return Err(failure.into()),
        };
        let reads = reads(&response);
        if response.succeeded() {
            let created = revision(response.header());
            self.change(claim, |entry| (entry.created, entry.label) = (created, Some(label.into())));
            let (ahead, who) = match reads.first() {
                Some(line) => (line.count(), contention(&entry.line, line.kvs().first(), line.count() - 1)),
                None => (0, Contention::unknown()),
            };
            let count = Count { at: created, ahead: ahead.unsigned_abs(), below: created };
            return Ok(self.stand(claim, entry, created, count, who));
        }
        let [mine, current, line] = &reads[..] else {
            return Err(Error::new(ErrorKind::Internal, "etcd answered a claim in a form that is unknown"));
        };
        session.epoch.store(current.kvs().first().map_or(0, etcd_client::KeyValue::version), SeqCst);
        if let Some(mine) = mine.kvs().first() {
            // An earlier attempt whose answer was lost.
            self.change(claim, |entry| entry.created = mine.create_revision());
        } else if tries && line.count() > 0 {
            // Its own late attempt could still find the line empty.
            self.release(claim.id).await?;
            return Ok(Some(Claimed::Busy(contention(&entry.line, line.kvs().first(), line.count() - 1))));
        }
        Ok(None)
    }

    /// Looks after a key that exists, and stores the label if it is a new one. `None`: the key is gone.
    async fn look(self: &Arc<Self>, claim: &Claim, entry: &Entry) -> Result<Option<Claimed>> {
        let (key, label) = (&*entry.key, shorten(&claim.label));
        let before = by_age(READ).with_keys_only().with_max_create_revision(entry.created - 1);
        let mut then = vec![TxnOp::get(&*entry.line, Some(before)), TxnOp::get(&*entry.line, Some(by_age(1)))];
        if entry.label.as_deref() != Some(label) {
            // A put on a key that exists changes neither its create_revision nor its place.
            let lease = PutOptions::new().with_lease(entry.session.lease);
            then.push(TxnOp::put(key, value::write(label, entry.since), Some(lease)));
        }
        let mine = Compare::create_revision(key, CompareOp::Equal, entry.created);
        let response = match self.txn(Txn::new().when([mine]).and_then(then)).await.outcome {
            Ok(response) => response,
            Err(Failure::LeaseGone) => {
                self.lose(&entry.session);
                return Ok(None);
            }
            Err(failure) => return Err(failure.into()),
        };
        if !response.succeeded() {
            self.state().vanished(claim.id);
            return Ok(None);
        }
        let reads = reads(&response);
        let [before, line] = &reads[..] else {
            return Err(Error::new(ErrorKind::Internal, "etcd answered a claim in a form that is unknown"));
        };
        self.change(claim, |entry| entry.label = Some(label.into()));
        let oldest: Vec<i64> = before.kvs().iter().map(etcd_client::KeyValue::create_revision).collect();
        let count = Count::of(revision(response.header()), &oldest, !before.more(), entry.created);
        let who = contention(&entry.line, line.kvs().first(), line.count() - 2);
        Ok(self.stand(claim, entry, entry.created, count, who))
    }

    /// The key exists: does it hold, or wait? `None` if it is gone by now.
    fn stand(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        created: i64,
        count: Count,
        who: Contention,
    ) -> Option<Claimed> {
        let rings = {
            let mut state = self.state();
            if count.ahead == 0 && count.below == created {
                state.claims.get_mut(&claim.id)?.granted = true;
                if let Some(watched) = state.lines.get_mut(&entry.line) {
                    watched.line.hold(claim.id, created);
                }
                vec![]
            } else {
                state.watched(entry).line.wait(claim.id, created, count);
                self.news(&mut state, &entry.line)
            }
        };
        self.ring(rings);
        let entry = self.state().claims.get(&claim.id).filter(|entry| entry.created == created)?.clone();
        if entry.granted {
            self.bells.stirred(&claim.name);
            return Some(Claimed::Granted(entry.grant()));
        }
        Some(Claimed::Waiting(Waiting::new(entry.place(), who)))
    }

    fn change(&self, claim: &Claim, change: impl FnOnce(&mut Entry)) {
        let mut state = self.state();
        state.claims.get_mut(&claim.id).map(change);
    }
}

/// A key without its value.
pub(crate) fn get_bare(key: &str) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}
