//! A server of leases: exclusive claims, first come, first served. Each request is executed at one instant, and any thread may go on before
//! it and after it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, ClaimedAll, Clock, Grant, LeaseRef, Moment, Notifier, Place,
    Renewal, VirtualClock, WaitPolicy, Waiting, async_trait,
};
use leasehold_core::{
    Contention, Fairness, FencingToken, Guarantees, Guard, LockQueue, Loss, Name, Result, Store,
};
use shuttle::sync::atomic::{AtomicBool, Ordering};

pub(crate) const TTL: Duration = Duration::from_secs(6);

/// One server, of which clients are made.
#[derive(Clone, Default)]
pub(crate) struct Server {
    pub(crate) time: Arc<VirtualClock>,
    queues: Arc<Mutex<HashMap<String, Vec<Entry>>>>,
    grants: Arc<Mutex<Vec<(FencingToken, Moment)>>>,
}

/// Who waits or holds: the first of a queue holds.
#[derive(Clone)]
struct Entry {
    id: ClaimId,
    ends: Moment,
    token: Option<FencingToken>,
    notifier: Notifier,
}

impl Server {
    pub(crate) fn client(&self) -> Store {
        Store::with_random_seed(
            Client {
                server: self.clone(),
                notifier: Notifier::new(),
            },
            1,
        )
        .ttl(TTL)
    }

    fn with_queue<T>(&self, name: &Name, work: impl FnOnce(&mut Vec<Entry>) -> T) -> T {
        let now = self.time.clock().now();
        let mut queues = self.queues.lock().unwrap();
        let queue = queues.entry(name.as_str().to_owned()).or_default();
        queue.retain(|entry| entry.ends > now);
        work(queue)
    }

    fn claim(&self, claim: &Claim, notifier: &Notifier) -> Claimed {
        let now = self.time.clock().now();
        self.with_queue(&claim.name, |queue| {
            let place = Place::new("place");
            let entry = Entry {
                id: claim.id,
                ends: now + claim.ttl,
                token: None,
                notifier: notifier.clone(),
            };
            match queue.iter().position(|entry| entry.id == claim.id) {
                Some(at) => queue[at].ends = entry.ends,
                None if queue.is_empty() || claim.policy != WaitPolicy::Try => queue.push(entry),
                None => return Claimed::Busy(Contention::by("somebody")),
            }
            let first = &mut queue[0];
            if first.id != claim.id {
                return Claimed::Waiting(Waiting::new(place, Contention::by("somebody")));
            }
            let token = *first.token.get_or_insert_with(|| {
                let mut grants = self.grants.lock().unwrap();
                let token = FencingToken::new(1 + 64 * grants.len() as u64);
                grants.push((token, now));
                token
            });
            Claimed::Granted(Grant::new(place, token, claim.ttl).turns(claim.turns().min(64)))
        })
    }

    fn renew(&self, lease: &LeaseRef) -> Renewal {
        let ends = self.time.clock().now() + lease.claim.ttl;
        self.with_queue(&lease.claim.name, |queue| {
            match queue.iter_mut().find(|entry| entry.id == lease.claim.id) {
                Some(mine) if mine.token == lease.token || lease.token.is_none() => {
                    mine.ends = ends;
                    Renewal::Renewed(lease.claim.ttl.into())
                }
                _ => Renewal::Lost(Loss::Gone),
            }
        })
    }

    fn remove(&self, name: &Name, which: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let (gone, next) = self.with_queue(name, |queue| {
            let at = queue.iter().position(which);
            (at.map(|at| queue.remove(at)), queue.first().cloned())
        });
        if let Some(next) = next {
            next.notifier.claim_again(next.id);
        }
        gone
    }

    /// Ends the hold of this name, whoever has it.
    pub(crate) fn evict(&self, name: &str) {
        if let Some(gone) = self.remove(&Name::new(name), |entry| entry.token.is_some()) {
            gone.notifier.lost(gone.id, Loss::Evicted);
        }
    }

    /// Says of every hold and waiter that it may have changed, which is not so.
    pub(crate) fn notify_of_nothing(&self) {
        let all: Vec<Entry> = self
            .queues
            .lock()
            .unwrap()
            .values()
            .flatten()
            .cloned()
            .collect();
        all.iter()
            .for_each(|entry| entry.notifier.claim_again(entry.id));
    }

    /// How many entries are left that have not ended.
    pub(crate) fn left(&self) -> usize {
        let now = self.time.clock().now();
        self.queues
            .lock()
            .unwrap()
            .values()
            .flatten()
            .filter(|entry| entry.ends > now)
            .count()
    }

    /// Fails if this guard says that it is valid, and a later claim was granted before it was asked.
    pub(crate) fn judge(&self, guard: &Guard) {
        let asked = self.time.clock().now();
        let valid = guard.is_valid();
        let first = FencingToken::new((guard.fencing_token().get() - 1) / 64 * 64 + 1);
        let grants = self.grants.lock().unwrap();
        let later = grants
            .iter()
            .find(|(token, at)| *token > first && *at < asked);
        assert!(
            !valid || later.is_none(),
            "{:?} is valid at {asked:?} beside {later:?}",
            guard.fencing_token()
        );
    }
}

/// One client's connection.
struct Client {
    server: Server,
    notifier: Notifier,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// A request on its way to the server, and its answer on its way back.
async fn sent<T>(request: impl FnOnce() -> T) -> Result<T> {
    pause();
    let answer = request();
    pause();
    Ok(answer)
}

/// Any thread may go on here. (One that yields comes last under priorities, so that a schedule in which it runs to its end is never
/// tried.)
pub(crate) fn pause() {
    AtomicBool::new(false).load(Ordering::SeqCst);
}

#[async_trait]
impl Backend for Client {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        sent(|| self.server.claim(claim, &self.notifier)).await
    }

    async fn claim_all(&self, _: &[Claim]) -> Result<ClaimedAll> {
        unreachable!("it takes names one after the other")
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        sent(|| {
            leases
                .iter()
                .map(|lease| self.server.renew(lease))
                .collect()
        })
        .await
    }

    async fn release(&self, claim: &Claim, _: Option<&Place>) -> Result<()> {
        sent(|| {
            drop(
                self.server
                    .remove(&claim.name, |entry| entry.id == claim.id),
            )
        })
        .await
    }

    async fn release_after(&self, _: &Claim, _: Option<&Place>, _: Duration) -> Result<()> {
        unreachable!("it lets nothing lapse")
    }

    async fn inspect(&self, _: &Name) -> Result<LockQueue> {
        Ok(LockQueue::default())
    }

    async fn list(&self, _: &str, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
        Ok(Vec::new())
    }

    async fn evict(&self, _: &Name, _: FencingToken) -> Result<bool> {
        Ok(false)
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("server").with_fairness(Fairness::Strict)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.notifier)
    }

    fn clock(&self) -> Clock {
        self.server.time.clock()
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
