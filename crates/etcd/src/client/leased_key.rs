//! Keys under a session's lease: created by transactions that may be late, and surely removed.
//!
//! Each session may have one key of its own, `%session/<lease>`. Once it has, it is closed: no transaction that creates keys is
//! executed in it any more. It is written when a key is removed of which a request may still be on its way: so no late
//! request can leave a key under a lease that lives on. What stands in a closed session stays, and its lease ends when nothing
//! is left to be renewed.
//!
//! A key is deleted without a condition: a transaction with one costs the server half as much again. So a deletion that is late must
//! not meet the next entry of the same key. If it may still be on its way when its release is confirmed, its session is
//! closed too, but only in this client: that is the only one that uses its keys.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnResponse};

use crate::client::cluster::{Answer, Cluster, put};
use crate::client::session::Session;
use crate::error::Failure;

/// A key that is, or may come to be, under a session's lease.
#[derive(Debug)]
pub(crate) struct LeasedKey {
    /// The session.
    pub(crate) session: Arc<Session>,
    /// The key.
    pub(crate) path: Arc<str>,
}

impl LeasedKey {
    /// A key that is not there yet.
    pub(crate) fn new(session: Arc<Session>, path: impl Into<Arc<str>>) -> LeasedKey {
        LeasedKey { session, path: path.into() }
    }

    /// Writes it.
    pub(crate) fn put(&self, value: impl Into<Vec<u8>>) -> TxnOp {
        put(self.session.lease, &self.path, value)
    }

    /// Deletes it.
    pub(crate) fn delete(&self) -> TxnOp {
        TxnOp::delete(&*self.path, None)
    }

    /// Whether it is the one with this create_revision; 0: whether it is not there.
    pub(crate) fn was_created(&self, revision: i64) -> Compare {
        Compare::create_revision(&*self.path, CompareOp::Equal, revision)
    }
}

impl Cluster {
    /// A transaction that may create these keys of this session, and does not if that is closed.
    pub(crate) async fn create(
        &self,
        session: &Session,
        mut when: Vec<Compare>,
        then: Vec<TxnOp>,
        or_else: Vec<TxnOp>,
    ) -> Answer<TxnResponse> {
        when.push(Compare::create_revision(&*session.key, CompareOp::Equal, 0));
        self.txn(Txn::new().when(when).and_then(then).or_else(or_else)).await
    }

    /// Leaves nothing of the key that was created at this revision, 0 if at none that is known. If a request that creates it
    /// may still be on its way (`doubt`), its session is closed. `Lost`: nothing of it is left either.
    pub(crate) async fn remove(&self, key: &LeasedKey, created: i64, doubt: bool) -> Result<(), Failure> {
        let session = &key.session;
        if doubt {
            session.close();
            let closed = self.txn(Txn::new().and_then([key.delete(), session.closing()])).await.outcome;
            if closed.as_ref().is_err_and(Failure::is_full) {
                // Nothing can be written. What is there can still be deleted, and what comes later is removed by another release.
                self.delete(&key.path).await.outcome?;
            }
            closed?;
        } else if created != 0 {
            let answer = self.delete(&key.path).await;
            if answer.doubt {
                session.close();
            }
            answer.outcome?;
        }
        Ok(())
    }
}
