//! A session: one lease. All keys of claims with its TTL are under it, and one request renews them.
//!
//! The keys under a session live since its last *verified* renewal: the send of the last keep-alive
//! that surely counted (see `liveness`), or of the grant of the lease. The writing of a key extends
//! nothing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use etcd_client::TxnOp;
use leasehold_core::backend::Moment;

use crate::client::cluster::put;
use crate::client::keep_alive::KeepAlives;

/// One lease.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its number.
    pub(crate) lease: i64,
    /// The TTL that was asked for, in seconds.
    pub(crate) requested: u64,
    /// The TTL as granted: whole seconds, and not less than the server's minimum.
    pub(crate) ttl: Duration,
    /// The key that closes the session once it exists: see `leased_key`.
    pub(crate) key: String,
    closed: AtomicBool,
    verified_at: AtomicU64,
    /// The stream of its keep-alives, unless a keep-alive is under way.
    pub(crate) keep_alives: Mutex<Option<KeepAlives>>,
}

impl Session {
    /// Creates a session whose lease was asked for at `sent`.
    pub(crate) fn new(
        lease: i64,
        requested: u64,
        ttl: Duration,
        key: String,
        sent: Moment,
    ) -> Session {
        let closed = AtomicBool::new(false);
        let verified_at = AtomicU64::new(sent.as_nanos());
        Session {
            lease,
            requested,
            ttl,
            key,
            closed,
            verified_at,
            keep_alives: Mutex::default(),
        }
    }

    /// The last time at which it surely lived: its lease ends no sooner than a TTL later.
    pub(crate) fn verified_at(&self) -> Moment {
        Moment::from_nanos(self.verified_at.load(SeqCst))
    }

    /// Records that it lived at this moment.
    pub(crate) fn set_verified(&self, moment: Moment) {
        self.verified_at.fetch_max(moment.as_nanos(), SeqCst);
    }

    /// Returns whether at least half of its lease is left.
    pub(crate) fn is_young(&self) -> bool {
        self.age() <= self.ttl / 2
    }

    /// The time since it was last verified.
    pub(crate) fn age(&self) -> Duration {
        Moment::now().since(self.verified_at())
    }

    /// Closes it in this client: no key is created under it from here on. Its own key is about to
    /// be written, or its lease has ended, or a deletion may be late.
    pub(crate) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// The operation that writes its own key: from then on no transaction creates keys under it.
    pub(crate) fn closing(&self) -> TxnOp {
        put(self.lease, &self.key, "")
    }

    /// Returns whether it is closed, so that no key is created under it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }
}
