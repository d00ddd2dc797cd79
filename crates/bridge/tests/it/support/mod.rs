//! A store in memory behind a wire on which a test loses, refuses and holds back requests, and which may number places when they are
//! taken, as etcd and ZooKeeper do.

#![allow(dead_code, reason = "each test target uses a part")]

use leasehold_core::backend::TokenFloor;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold_core::backend::Raises;
use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, Clock, Grant, LeaseRef, Moment, Notifier, Place, Renewal,
    Subscription, Validity, async_trait,
};
use leasehold_core::{Error, ErrorKind, FencingToken, Guarantees, LockQueue, Name, Result};
use leasehold_memory::Memory;
use tokio::sync::watch;

use plan::Delay;
pub(crate) use plan::{Fault, Plan};

mod plan;

pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A place of a store that numbers places.
struct Numbered {
    number: u64,
    until: Moment,
}

#[derive(Default)]
struct Numbers {
    base: u64,
    last: u64,
    places: HashMap<ClaimId, Numbered>,
}

type Late = Box<dyn FnOnce() -> futures_util::future::BoxFuture<'static, ()> + Send>;

/// One client's wire to one store.
#[derive(Clone)]
pub(crate) struct Wire {
    name: &'static str,
    pub(crate) memory: Memory,
    plan: Plan,
    late: Arc<Mutex<Vec<Late>>>,
    /// Of a store that numbers places when they are taken.
    numbers: Option<Arc<Mutex<Numbers>>>,
    /// A lease is so many times as long as it is asked for.
    longer: u32,
    /// In place of those of the memory store; `Some(None)`: its tokens cannot be raised.
    raises: Option<Option<Raises>>,
    /// The lease of a claim counts from so long ago.
    aged: Duration,
    /// It notifies of nothing.
    silent: bool,
    /// The answer to the next claim comes when this is true again.
    delayed: watch::Sender<Delay>,
    /// A request takes a turn of its caller before it is executed, and one before it is answered.
    slow: bool,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Wire {
    pub(crate) fn to(name: &'static str, memory: &Memory, plan: &Plan) -> Wire {
        let (memory, plan, late) = (memory.another_client(), plan.clone(), Arc::default());
        let (numbers, raises, delayed) = (None, None, watch::Sender::new(Delay::None));
        Wire {
            name,
            memory,
            plan,
            late,
            numbers,
            longer: 1,
            raises,
            aged: Duration::ZERO,
            silent: false,
            delayed,
            slow: false,
        }
    }

    pub(crate) fn numbering_places(self) -> Wire {
        Wire {
            numbers: Some(Arc::default()),
            ..self
        }
    }

    pub(crate) fn granting(self, longer: u32) -> Wire {
        Wire { longer, ..self }
    }

    pub(crate) fn raising(self, raises: Option<Raises>) -> Wire {
        Wire {
            raises: Some(raises),
            ..self
        }
    }

    pub(crate) fn aged(self, aged: Duration) -> Wire {
        Wire { aged, ..self }
    }

    pub(crate) fn silent(self) -> Wire {
        Wire {
            silent: true,
            ..self
        }
    }

    /// The answer to the next request waits.
    pub(crate) fn delay_next(&self) {
        self.delayed.send_replace(Delay::Next);
    }

    pub(crate) fn answer_delayed(&self) {
        self.delayed.send_replace(Delay::None);
    }

    pub(crate) fn slow(self) -> Wire {
        Wire { slow: true, ..self }
    }

    /// Another client of the same store, on a wire of its own.
    pub(crate) fn another(&self) -> Wire {
        Wire {
            memory: self.memory.another_client(),
            late: Arc::default(),
            ..self.clone()
        }
    }

    /// Requests that were held back arrive now.
    pub(crate) async fn deliver(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        for request in late {
            request().await;
        }
    }

    async fn request<T: Send>(
        &self,
        (verb, id): (&'static str, Option<ClaimId>),
        execute: impl AsyncRequest<T>,
    ) -> Result<T> {
        let fault = self.plan.send(self.name, verb, id);
        let ambiguous = || Error::new(ErrorKind::Ambiguous, "no answer, by the test");
        if self.slow {
            tokio::task::yield_now().await;
        }
        match fault {
            Some(Fault::Refused) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "does not arrive, by the test",
                ));
            }
            Some(Fault::Hangs) => std::future::pending().await,
            Some(Fault::HeldBack) => {
                let wire = self.clone();
                self.late.lock().unwrap().push(Box::new(move || {
                    Box::pin(async move {
                        drop(execute.on(wire).await);
                    })
                }));
                return Err(ambiguous());
            }
            _ => {}
        }
        let answer = tokio::task::unconstrained(execute.on(self.clone())).await;
        if self.slow {
            tokio::task::yield_now().await;
        }
        let is_next = |delay: &mut Delay| std::mem::replace(delay, Delay::Waits) == Delay::Next;
        if *self.delayed.borrow() == Delay::Next && self.delayed.send_if_modified(is_next) {
            self.delayed
                .subscribe()
                .wait_for(|delay| *delay == Delay::None)
                .await
                .unwrap();
        }
        match fault {
            Some(Fault::LostReply) => Err(ambiguous()),
            Some(Fault::HangsAfter) => std::future::pending().await,
            _ => answer,
        }
    }

    fn numbers(&self) -> Option<MutexGuard<'_, Numbers>> {
        self.numbers.as_ref().map(|numbers| numbers.lock().unwrap())
    }

    /// The number of a place that was taken or kept now.
    fn number(&self, id: ClaimId, ttl: Duration) -> Option<u64> {
        let now = self.memory.clock().now();
        let mut numbers = self.numbers()?;
        let Numbers { base, last, places } = &mut *numbers;
        let place = places.entry(id).or_insert(Numbered {
            number: 0,
            until: now,
        });
        if place.until <= now {
            *last += 1;
            place.number = *base + (*last << 8);
        }
        place.until = now + ttl;
        Some(place.number)
    }

    fn numbered(&self, id: ClaimId, ttl: Duration, grant: Grant) -> Grant {
        match self.number(id, ttl) {
            Some(number) => {
                Grant::new(grant.place, FencingToken::new(number), grant.validity).turns(256)
            }
            None => grant,
        }
    }
}

/// What a request does when it arrives.
trait AsyncRequest<T>: Send + 'static {
    fn on(self, wire: Wire) -> futures_util::future::BoxFuture<'static, Result<T>>;
}

impl<T, F> AsyncRequest<T> for F
where
    F: FnOnce(Wire) -> futures_util::future::BoxFuture<'static, Result<T>> + Send + 'static,
{
    fn on(self, wire: Wire) -> futures_util::future::BoxFuture<'static, Result<T>> {
        self(wire)
    }
}

#[async_trait]
impl Backend for Wire {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let mut asked = claim.clone();
        asked.ttl *= self.longer;
        let execute =
            move |wire: Wire| -> futures_util::future::BoxFuture<'static, Result<Claimed>> {
                Box::pin(async move {
                    Ok(match wire.memory.claim(&asked).await? {
                        Claimed::Granted(mut grant) => {
                            if wire.aged > Duration::ZERO {
                                let since = wire.memory.clock().now().as_nanos()
                                    - wire.aged.as_nanos() as u64;
                                grant.validity =
                                    Validity::since(Moment::from_nanos(since), asked.ttl);
                            }
                            Claimed::Granted(wire.numbered(asked.id, asked.ttl, grant))
                        }
                        Claimed::Waiting(waiting) => {
                            wire.number(asked.id, asked.ttl);
                            Claimed::Waiting(waiting)
                        }
                        busy => busy,
                    })
                })
            };
        self.request(("claim", Some(claim.id)), execute).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let leases = leases.to_vec();
        let execute =
            move |wire: Wire| -> futures_util::future::BoxFuture<'static, Result<Vec<Renewal>>> {
                Box::pin(async move {
                    let answers = wire.memory.renew(&leases).await?;
                    let answer = |(lease, answer): (&LeaseRef, Renewal)| match answer {
                        Renewal::Granted(grant) => {
                            let grant =
                                wire.numbered(lease.claim.id, lease.claim.ttl * wire.longer, grant);
                            if lease.token == Some(grant.token) {
                                Renewal::Renewed(grant.validity)
                            } else {
                                Renewal::Granted(grant)
                            }
                        }
                        Renewal::Renewed(validity) => {
                            wire.number(lease.claim.id, lease.claim.ttl * wire.longer);
                            Renewal::Renewed(validity)
                        }
                        other => other,
                    };
                    Ok(leases.iter().zip(answers).map(answer).collect())
                })
            };
        self.request(("renew", None), execute).await
    }

    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
        let (claim, place) = (claim.clone(), place.cloned());
        let id = claim.id;
        let execute = move |wire: Wire| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                if let Some(mut numbers) = wire.numbers() {
                    numbers.places.remove(&claim.id);
                }
                wire.memory.release(&claim, place.as_ref()).await
            })
        };
        self.request(("release", Some(id)), execute).await
    }

    async fn release_after(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        let (claim, place) = (claim.clone(), place.cloned());
        let id = claim.id;
        let execute = move |wire: Wire| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                wire.memory
                    .release_after(&claim, place.as_ref(), rest)
                    .await
            })
        };
        self.request(("release_after", Some(id)), execute).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let name = name.clone();
        let execute =
            move |wire: Wire| -> futures_util::future::BoxFuture<'static, Result<LockQueue>> {
                Box::pin(async move { wire.memory.inspect(&name).await })
            };
        self.request(("inspect", None), execute).await
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.memory.list(prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.memory.evict(name, token).await
    }

    fn guarantees(&self) -> Guarantees {
        let gives = self.memory.guarantees();
        match (self.raises, &self.numbers) {
            (None, Some(_)) => gives.with_min_hold_outlives_process(false),
            _ => gives,
        }
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        (self.raises != Some(None)).then_some(self as &dyn TokenFloor)
    }

    fn notifier(&self) -> Option<&Notifier> {
        self.memory.notifier().filter(|_| !self.silent)
    }

    fn observe(&self, name: &Name) -> Subscription {
        self.memory.observe(name)
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }
}

#[async_trait]
impl TokenFloor for Wire {
    fn raises(&self) -> Raises {
        match (self.raises.flatten(), &self.numbers) {
            (Some(raises), _) => raises,
            (None, Some(_)) => Raises::Places(FencingToken::new(1 << 60)),
            (None, None) => self.memory.raises(),
        }
    }

    async fn mark(&self) -> Result<FencingToken> {
        let numbered = self
            .numbers()
            .map(|numbers| numbers.base + (numbers.last << 8) + 255);
        match numbered {
            Some(mark) => Ok(FencingToken::new(mark)),
            None => self.memory.mark().await,
        }
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        let execute = move |wire: Wire| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                if let Some(mut numbers) = wire.numbers() {
                    numbers.base = numbers.base.max(number.get());
                    return Ok(());
                }
                wire.memory.raise(number).await
            })
        };
        self.request(("raise", None), execute).await
    }
}

/// Polls it so often that everything is done which needs no time; `None`, and drops it, if it goes on waiting.
pub(crate) async fn drive<T>(request: impl Future<Output = T>) -> Option<T> {
    let mut request = std::pin::pin!(request);
    for _ in 0..200 {
        if let std::task::Poll::Ready(done) = futures_util::poll!(&mut request) {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}
