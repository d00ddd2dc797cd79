//! The sessions of one client: a lease for each TTL that is asked for.
//!
//! A session with keys is renewed by the claims that have them, and by nothing else: an abandoned
//! key does not live longer because other claims come. Once half of a lease is over, new keys go
//! under another one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use etcd_client::Client;
use futures_util::future::join_all;
use leasehold_core::backend::Moment;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Result};

use crate::client::cluster::{ATTEMPTS, Cluster};
use crate::client::identity::Answered;
use crate::client::session::Session;
use crate::client::single_flight::SingleFlight;
use crate::error::Failure;

/// The longest TTL in seconds that etcd grants.
const LONGEST: u64 = 9_000_000_000;
/// The wait for the grant of a lease, in time limits of one request. The runtime that asked for it
/// may not be driven any more, so another one then asks anew. If the first one is answered after
/// all, it is used like any other, or ends by itself.
const GRANT: u32 = 2 * ATTEMPTS;

/// The sessions of one client.
pub(crate) struct Sessions {
    cluster: Arc<Cluster>,
    /// The grants that are under way, by the TTL that was asked for, in seconds.
    granting: Arc<SingleFlight<u64, Result<Arc<Session>, Failure>>>,
    all: Mutex<Vec<Arc<Session>>>,
}

impl Sessions {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Arc<Sessions> {
        Arc::new(Sessions {
            cluster,
            granting: Arc::default(),
            all: Mutex::default(),
        })
    }

    /// Returns a session for this TTL of which at least half of the lease is left.
    pub(crate) async fn get(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let seconds = seconds(ttl)?;
        if let Some(young) = self.find(seconds, |session| session.is_young()) {
            return Ok(young);
        }
        self.cluster.open()?;
        let grant = || {
            let sessions = self.clone();
            async move { sessions.grant(seconds).await }
        };
        let late = || {
            Err(Failure::new(
                ErrorKind::Unavailable,
                "no lease was granted in time",
            ))
        };
        let granted = self
            .granting
            .join(seconds, self.grant_limit(), grant)
            .await
            .unwrap_or_else(late);
        // If the client was closed meanwhile, the close may have missed this session.
        self.cluster.open()?;
        Ok(granted?)
    }

    /// Returns whether there is a session for this TTL of which at least half of the lease is left,
    /// so that a claim needs no other request.
    pub(crate) fn is_ready(&self, ttl: Duration) -> bool {
        seconds(ttl).is_ok_and(|seconds| self.find(seconds, |session| session.is_young()).is_some())
    }

    async fn grant(&self, seconds: u64) -> Result<Arc<Session>, Failure> {
        if let Some(young) = self.find(seconds, |session| session.is_young()) {
            return Ok(young);
        }
        if let Some(idle) = self.find(seconds, |session| Arc::strong_count(session) == 1) {
            match self.cluster.verify(&idle, &[]).await {
                Err(failure) if failure.kind == ErrorKind::Lost => idle.close(),
                Err(failure) => return Err(failure),
                Ok(_) if idle.is_young() => return Ok(idle),
                Ok(_) => {}
            }
        }
        let (sent, lease, ttl) = self.lease(seconds).await?;
        let session = Arc::new(Session::new(
            lease,
            seconds,
            ttl,
            self.cluster.session_key(lease),
            sent,
        ));
        let mut all = self.all();
        // No key is left under the other sessions, and soon not even their leases.
        all.retain(|other| {
            Arc::strong_count(other) > 1 || other.verified_at() + other.ttl > Moment::now()
        });
        all.push(session.clone());
        Ok(session)
    }

    /// Gets a lease of so many seconds: the time at which it was asked for, its number, and the TTL
    /// that was granted.
    async fn lease(&self, seconds: u64) -> Result<(Moment, i64, Duration), Failure> {
        let request = |client: Client| async move {
            let sent = Moment::now();
            let granted = client
                .lease_client()
                .grant(seconds.max(1).cast_signed(), None)
                .await?;
            let ttl = Duration::from_secs(granted.ttl().unsigned_abs());
            let cluster_id = granted.cluster_id();
            Ok(((sent, granted.id(), ttl), cluster_id))
        };
        // A lease whose grant was not answered ends by itself: no key is under it.
        self.cluster
            .ask(self.cluster.config.timeout, request)
            .await
            .outcome
            .map(|(lease, _)| lease)
            .map_err(Failure::of_a_read)
    }

    /// Gets a lease that is never renewed, for a key that is to outlive this client by `rest`: its
    /// number, and the time by which it has surely ended unless the leader changes.
    pub(crate) async fn last_lease(&self, rest: Duration) -> Result<(i64, Moment)> {
        let (_, lease, ttl) = self.lease(seconds(rest)?).await?;
        Ok((lease, Moment::now() + ttl))
    }

    /// Ends all sessions, and reports each that has ended. Nothing new begins from here on.
    pub(crate) async fn close(&self, ended: impl Fn(&Session)) -> Result<()> {
        self.cluster.shut();
        // A lease that is about to be granted comes first, and is ended too.
        self.granting.settle(self.grant_limit()).await;
        let sessions = self.all().clone();
        let ended = &ended;
        let revocations = sessions.iter().map(|session| async move {
            self.cluster.revoke(session).await?;
            ended(session);
            Ok(())
        });
        join_all(revocations)
            .await
            .into_iter()
            .collect::<Result<(), Failure>>()
            .map_err(Error::from)
    }

    fn grant_limit(&self) -> Duration {
        self.cluster.config.timeout * GRANT
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        locked(&self.all)
    }

    /// Finds an open session for this TTL, in seconds, that is fit.
    fn find(&self, requested: u64, fit: impl Fn(&Arc<Session>) -> bool) -> Option<Arc<Session>> {
        let found = |session: &&Arc<Session>| {
            session.requested == requested && !session.is_closed() && fit(session)
        };
        self.all().iter().find(found).cloned()
    }
}

/// The TTL as etcd is asked for it: whole seconds, rounded up.
pub(crate) fn seconds(ttl: Duration) -> Result<u64> {
    let seconds = ttl
        .as_secs()
        .saturating_add(u64::from(ttl.subsec_nanos() > 0));
    let long = || {
        Error::new(
            ErrorKind::Invalid,
            "etcd grants no lease longer than 9000000000 s",
        )
    };
    if seconds > LONGEST {
        Err(long())
    } else {
        Ok(seconds)
    }
}
