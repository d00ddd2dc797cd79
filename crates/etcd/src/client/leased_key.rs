//! Keys under a session's lease: created by transactions that may be late, and surely removed.
//!
//! Each session may have one key of its own, `%session/<lease>`, which closes it: every transaction
//! that creates keys under the session requires that this key does not exist. It is written when a
//! key is removed while a request that creates that key may still be on its way, so no late request
//! can leave a key under a lease that lives on. Keys in a closed session stay, and its lease ends
//! when no claim is left to renew it.
//!
//! A key is deleted without a condition: a transaction with one costs the server half as much
//! again. A late deletion must therefore not meet the next entry of the same key. If a deletion may
//! still be on its way when its release is confirmed, its session is closed too, but only in this
//! client, which is the only one that uses its keys.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use crate::client::cluster::{Cluster, put};
use crate::client::session::Session;
use crate::error::Failure;

/// A key that is, or may later be, under a session's lease.
#[derive(Debug)]
pub(crate) struct LeasedKey {
    /// The session.
    pub(crate) session: Arc<Session>,
    /// The key.
    pub(crate) path: Arc<str>,
}

impl LeasedKey {
    /// Names a key that is not there yet.
    pub(crate) fn new(session: Arc<Session>, path: impl Into<Arc<str>>) -> LeasedKey {
        LeasedKey {
            session,
            path: path.into(),
        }
    }

    /// The operation that writes the key.
    pub(crate) fn put(&self, value: impl Into<Vec<u8>>) -> TxnOp {
        put(self.session.lease, &self.path, value)
    }

    /// The operation that deletes the key.
    pub(crate) fn delete(&self) -> TxnOp {
        TxnOp::delete(&*self.path, None)
    }

    /// The condition that the key has this create_revision; for 0, that it is not there.
    pub(crate) fn was_created(&self, revision: i64) -> Compare {
        Compare::create_revision(&*self.path, CompareOp::Equal, revision)
    }
}

impl Session {
    /// The condition of each transaction that creates keys of this session: it is not closed.
    pub(crate) fn is_open(&self) -> Compare {
        Compare::create_revision(&*self.key, CompareOp::Equal, 0)
    }
}

impl Cluster {
    /// Removes the key that was created at this revision, which is 0 if none is known. If a request
    /// that creates it may still be on its way (`doubt`), its session is closed. `Lost`: the lease
    /// has ended, and the key with it.
    pub(crate) async fn remove(
        &self,
        key: &LeasedKey,
        created: i64,
        doubt: bool,
    ) -> Result<(), Failure> {
        let session = &key.session;
        if doubt {
            session.close();
            let closed = self
                .txn(Txn::new().and_then([key.delete(), session.closing()]))
                .await
                .outcome;
            if closed.as_ref().is_err_and(Failure::is_full) {
                // No key can be written, but the key can still be deleted. A key that comes later
                // is removed by another release.
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
