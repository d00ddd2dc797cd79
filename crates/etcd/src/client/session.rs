//! A session: one lease. All keys of claims with its TTL are under it, and one request renews them.
//!
//! What is under a session lives since its last *verified* renewal: the send of the last keep-alive that surely counted (see
//! `liveness`), or of the grant of the lease. Never since a key was written, which extends nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use etcd_client::TxnOp;
use leasehold_core::seam::Moment;

use crate::client::cluster::put;
use crate::client::keep_alive::KeepAlives;

/// One lease.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its number.
    pub(crate) lease: i64,
    /// The TTL that was asked for, in seconds.
    pub(crate) requested: u64,
    /// As granted: whole seconds, and not less than the server's minimum.
    pub(crate) ttl: Duration,
    /// The session's own key, which closes it: see `leased_key`.
    pub(crate) key: String,
    closed: AtomicBool,
    verified_at: AtomicU64,
    /// The stream of its keep-alives, unless one is under way.
    pub(crate) keep_alives: Mutex<Option<KeepAlives>>,
}

impl Session {
    /// A session whose lease was asked for at `sent`.
    pub(crate) fn new(lease: i64, requested: u64, ttl: Duration, key: String, sent: Moment) -> Session {
        let (closed, verified_at) = (AtomicBool::new(false), AtomicU64::new(sent.as_nanos()));
        Session { lease, requested, ttl, key, closed, verified_at, keep_alives: Mutex::default() }
    }

    /// When it surely lived: its lease ends no sooner than a TTL later.
    pub(crate) fn verified_at(&self) -> Moment {
        Moment::from_nanos(self.verified_at.load(SeqCst))
    }

    /// It lived then.
    pub(crate) fn set_verified(&self, moment: Moment) {
        self.verified_at.fetch_max(moment.as_nanos(), SeqCst);
    }

    /// At least half of its lease is left.
    pub(crate) fn is_young(&self) -> bool {
        self.age() <= self.ttl / 2
    }

    /// For how long it has not been verified.
    pub(crate) fn age(&self) -> Duration {
        Moment::now().since(self.verified_at())
    }

    /// No key is created under it from here on: its own key is about to be written, or its lease is no more.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Writes its own key: no transaction that creates keys is executed in it from then on.
    pub(crate) fn closing(&self) -> TxnOp {
        put(self.lease, &self.key, "")
    }

    /// Whether no key is created under it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}
