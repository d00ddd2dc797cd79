//! A pool of connections for independent requests: each is one transaction, and depends on no
//! earlier one of its connection.
//!
//! The store opens them itself, or borrows them from a pool of the program. That pool may be full of
//! transactions that wait for these very locks, so one borrowed connection is kept as long as there
//! are places to look after, and others go back after each request. A request runs on a task: even
//! if its caller leaves, its connection is given back once it is answered, or closed at the time
//! limit.
//!
//! A connection lives in the runtime in which it was opened, and is not driven unless that is. Each
//! runtime that uses the client therefore has connections and limits of its own. They end with it.
//!
//! One connection suffices for everything: if the server accepts no more, a request waits for one
//! that is in use, and renewals come first. Other runtimes then close those that they do not use.
//! A borrowed one goes back for another runtime only if its own has no place: it would come back
//! late.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::backend::{Claim, ClaimId, LeaseRef, Moment, Notifier};
use leasehold_core::support::{fault, locked};
use leasehold_core::{Error, Result};
use leasehold_net::Host;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::client::answer::Row;
use crate::client::identity::DatabaseIdentity;
use crate::client::link::Link;
use crate::client::places::Places;
use crate::client::request::Request;
use crate::client::session::Sessions;
use crate::config::{Config, Server};
use crate::error::Failure;
use crate::pool::ConnectionPool;

/// A connection that was not used for this time is closed, unless it is the only one.
const IDLE: Duration = Duration::from_secs(60);
/// A borrowed connection that was not used for this time goes back to its pool, if its runtime has
/// no place.
const LENT_IDLE: Duration = Duration::from_secs(10);
/// After the server refused a further connection, none is asked for during this time, as long as
/// another one is in use.
const FULL: Duration = Duration::from_secs(1);
/// The number of renewals that may run beside the other requests: two, since one may be late.
const RENEWALS: usize = 2;

/// The connections of one client.
pub(crate) struct Pool {
    source: Source,
    most: usize,
    limit: Duration,
    /// The time that a verb waits while all connections are in use.
    patience: Duration,
    each: Mutex<Vec<Arc<InRuntime>>>,
    closed: AtomicBool,
    /// The sessions have another isolation level than locks need.
    isolates: AtomicBool,
    /// Notified when the client has no connection, and the server refuses one.
    needy: Notify,
    notifier: Notifier,
}

/// Where connections come from.
enum Source {
    /// They are opened, and are the store's own.
    Server(Box<Server>),
    /// They are borrowed.
    Lender(Lender),
}

/// A pool of the program.
struct Lender {
    pool: Arc<dyn ConnectionPool>,
    identity: Arc<DatabaseIdentity>,
    sessions: Arc<Sessions>,
    /// It is being closed, so it gets back every connection.
    is_closing: AtomicBool,
}

/// The connections that live in one runtime, with limits to the requests that run there at once.
struct InRuntime {
    pool: Weak<Pool>,
    runtime: Handle,
    connections: Mutex<Connections>,
    verbs: Semaphore,
    renewals: Semaphore,
    /// A permit for each connection that may be borrowed.
    loans: Arc<Semaphore>,
    places: Places,
    /// A task that stands until the runtime ends; `None` for connections of our own.
    stands: Option<AbortHandle>,
}

/// Gives the kept connection of a runtime back when the runtime ends.
struct End(Weak<InRuntime>);

#[derive(Default)]
struct Connections {
    /// The connections that are not in use, the latest last.
    idle: Vec<Arc<Link>>,
    in_use: usize,
    /// The requests that wait for a connection; the first one gets the next that is given back.
    waiting: VecDeque<oneshot::Sender<Taken>>,
    /// Until this moment no further connection is opened while another one is in use.
    full_until: Option<Moment>,
    /// None is kept any more.
    are_over: bool,
}

/// A connection in use; dropping it gives it back to the pool.
pub(crate) struct Taken {
    link: Arc<Link>,
    home: Arc<InRuntime>,
    goes_back: bool,
}

impl Pool {
    /// Creates a pool without connections. It runs as many requests at once in each runtime as the
    /// configuration has connections, and renewals beside them. The notifier is told when a
    /// connection breaks. With a lender, connections are borrowed there.
    pub(crate) fn new(
        config: &Config,
        lender: Option<Arc<dyn ConnectionPool>>,
        notifier: &Notifier,
    ) -> Arc<Pool> {
        let source = match lender {
            None => Source::Server(Box::new(config.server.clone())),
            Some(pool) => Source::Lender(Lender {
                pool,
                identity: config.server.identity.clone(),
                sessions: Arc::default(),
                is_closing: AtomicBool::new(false),
            }),
        };
        Arc::new(Pool {
            source,
            most: config.connections,
            limit: config.timeout,
            patience: config.patience.unwrap_or(config.timeout),
            each: Mutex::default(),
            closed: AtomicBool::new(false),
            isolates: AtomicBool::new(false),
            needy: Notify::new(),
            notifier: notifier.clone(),
        })
    }

    /// Sends a request once, and returns within about four times the limit.
    pub(crate) async fn call(self: &Arc<Self>, request: Request) -> Result<Vec<Row>, Failure> {
        self.spawn(request, false).await
    }

    /// Sends a renewal, which waits for no other request.
    pub(crate) async fn renew(self: &Arc<Self>, request: Request) -> Result<Vec<Row>, Failure> {
        self.spawn(request, true).await
    }

    async fn spawn(
        self: &Arc<Self>,
        request: Request,
        is_renewal: bool,
    ) -> Result<Vec<Row>, Failure> {
        let pool = self.clone();
        let here = self.here()?;
        let task = here
            .runtime
            .clone()
            .spawn(async move { here.run(&pool, &request, is_renewal).await });
        task.await
            .unwrap_or_else(|_| Err(Failure::new(Ambiguous, "the runtime ends")))
    }

    /// The connections of this runtime. Those of runtimes that have ended are forgotten.
    fn here(self: &Arc<Self>) -> Result<Arc<InRuntime>, Failure> {
        let none = |_| Failure::new(Unavailable, "no tokio runtime is running here");
        let runtime = Handle::try_current().map_err(none)?;
        let mut each = locked(&self.each);
        let known = each.iter().find(|home| home.runtime.id() == runtime.id());
        if let Some(known) = known {
            return Ok(known.clone());
        }
        if self.is_closed() {
            return Err(Failure::closed());
        }
        let unused: Vec<_> = each.extract_if(.., |home| home.is_unused()).collect();
        let is_lent = self.lender().is_some();
        let here = Arc::new_cyclic(|home| InRuntime {
            pool: Arc::downgrade(self),
            stands: is_lent.then(|| {
                let end = End(home.clone());
                let stands = async move {
                    let _end = end;
                    pending::<()>().await;
                };
                runtime.spawn(stands).abort_handle()
            }),
            runtime,
            connections: Mutex::default(),
            verbs: Semaphore::new(self.most),
            renewals: Semaphore::new(RENEWALS),
            loans: Arc::new(Semaphore::new(self.most)),
            places: Places::default(),
        });
        each.push(here.clone());
        drop(each);
        drop(unused);
        Ok(here)
    }

    /// Returns a connection that is not in use, or a new one, or else the next one that is given
    /// back.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Taken, Failure> {
        self.here()?.take_for(self, false).await
    }

    /// The greatest number of connections for requests in each runtime.
    pub(crate) fn at_most(&self) -> usize {
        match self.source {
            Source::Server(_) => self.most + RENEWALS,
            Source::Lender(_) => self.most,
        }
    }

    /// The number of connections for requests in each runtime that has nothing to do.
    pub(crate) fn at_rest(&self) -> usize {
        match self.source {
            Source::Server(_) => 1,
            Source::Lender(_) => 0,
        }
    }

    fn lender(&self) -> Option<&Lender> {
        match &self.source {
            Source::Server(_) => None,
            Source::Lender(lender) => Some(lender),
        }
    }

    /// The warning for an operator about the sessions that were borrowed, if there is one.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        self.lender()?.sessions.warning()
    }

    /// Notes that this runtime claims places.
    pub(crate) fn claims(self: &Arc<Self>, claims: &[Claim]) {
        if self.lender().is_some()
            && let Ok(here) = self.here()
        {
            here.places
                .add(claims.iter().map(|claim| (claim.id, claim.ttl)));
        }
    }

    /// Notes that this runtime renews places, and so looks after them from now on.
    pub(crate) fn renews(self: &Arc<Self>, leases: &[&LeaseRef]) {
        if self.lender().is_none() {
            return;
        }
        let Ok(here) = self.here() else { return };
        let claims = leases.iter().map(|lease| &lease.claim);
        here.places
            .add(claims.clone().map(|claim| (claim.id, claim.ttl)));
        for home in locked(&self.each).iter() {
            if !Arc::ptr_eq(home, &here) {
                home.places.remove(claims.clone().map(|claim| claim.id));
            }
        }
    }

    /// Notes that there is no place of this claim any more.
    pub(crate) fn leaves(&self, claim: ClaimId) {
        if self.lender().is_some() {
            for home in locked(&self.each).iter() {
                home.places.remove([claim].into_iter());
            }
        }
    }

    /// Closes connections that are not used, or gives them back, for ever. When their pool is closed
    /// it gets all of them back.
    pub(crate) async fn tidy(&self) {
        let Some(lender) = self.lender() else {
            loop {
                sleep(IDLE / 2).await;
                self.each_home(|home| drop(home.old()));
            }
        };
        let mut closed = lender.pool.closed();
        loop {
            tokio::select! {
                biased;
                () = &mut closed => break,
                () = sleep(LENT_IDLE / 2) => self.each_home(|home| drop(home.unneeded())),
            }
        }
        lender.is_closing.store(true, Ordering::Release);
        self.close_idle();
    }

    fn each_home(&self, act: impl Fn(&InRuntime)) {
        let each = locked(&self.each).clone();
        each.iter().for_each(|home| act(home));
    }

    /// Waits until the server refuses the only connection. The caller then closes its own
    /// connection to the server, if it can spare it.
    pub(crate) async fn needs_a_connection(&self) {
        self.needy.notified().await;
    }

    /// Closes the connections that no request uses, in all runtimes.
    fn close_idle(&self) {
        self.each_home(InRuntime::close_idle);
    }

    /// Refuses requests from now on, and closes the idle connections.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for home in locked(&self.each).iter() {
            home.verbs.close();
            home.renewals.close();
            home.stands.iter().for_each(AbortHandle::abort);
        }
        self.close_idle();
    }

    /// Gives back the borrowed connections of other runtimes that do not need theirs: one of them
    /// may have the only one that the pool lends.
    fn make_room(&self, needy: &Arc<InRuntime>) {
        self.each_home(|home| {
            if !std::ptr::eq(home, &**needy) && !home.places.any() {
                home.close_idle();
            }
        });
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Lender {
    /// Borrows a connection. This goes on if nobody waits for it any more, because a connection
    /// that is being looked at could only be closed; then it is given back.
    fn lend(
        &self,
        home: Arc<InRuntime>,
        limit: Duration,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = Result<Taken, Failure>> + Send + 'static {
        let pool = self.pool.clone();
        let identity = self.identity.clone();
        let sessions = self.sessions.clone();
        async move {
            let link = Link::borrow_from(&*pool, &identity, &sessions, limit, permit).await?;
            locked(&home.connections).in_use += 1;
            Ok(home.taken(Arc::new(link)))
        }
    }
}

impl InRuntime {
    async fn run(
        self: &Arc<Self>,
        pool: &Pool,
        request: &Request,
        is_renewal: bool,
    ) -> Result<Vec<Row>, Failure> {
        let (slots, patience) = if is_renewal {
            (&self.renewals, pool.limit)
        } else {
            (&self.verbs, pool.patience)
        };
        let _slot = match timeout(patience, slots.acquire()).await {
            Ok(Ok(slot)) => slot,
            Ok(Err(_)) => return Err(Failure::closed()),
            Err(_) => {
                return Err(Failure::new(
                    Unavailable,
                    "all connections of this client wait for answers",
                ));
            }
        };
        let link = self
            .take_for(pool, is_renewal)
            .await
            .map_err(Failure::of_another_connection)?;
        let isolates = pool.isolates.load(Ordering::Acquire);
        let mut answer = if isolates {
            link.ask_isolated(request, pool.limit).await
        } else {
            link.ask(request, pool.limit).await
        };
        if !isolates && answer.as_ref().is_err_and(|failure| failure.is_isolation) {
            pool.isolates.store(true, Ordering::Release);
            answer = link.ask_isolated(request, pool.limit).await;
        }
        if answer
            .as_ref()
            .is_ok_and(|rows| !request.is_answered_by(rows))
        {
            answer = Err(Failure::broken(
                Ambiguous,
                "the answer is to another request",
            ));
        }
        link.ended(&answer);
        answer
    }

    async fn take_for(self: &Arc<Self>, pool: &Pool, is_renewal: bool) -> Result<Taken, Failure> {
        match &pool.source {
            Source::Server(server) => self.take_own(pool, server, is_renewal).await,
            Source::Lender(lender) => self.borrow(pool, lender, is_renewal).await,
        }
    }

    /// Returns the connection that is kept, or borrows another one, whichever is there first.
    async fn borrow(
        self: &Arc<Self>,
        pool: &Pool,
        lender: &Lender,
        is_renewal: bool,
    ) -> Result<Taken, Failure> {
        let mut late = pin!(sleep(pool.limit * 2));
        let mut refusal = None;
        loop {
            let mut next = match self.idle_or_next(is_renewal) {
                Ok(link) => return Ok(self.taken(link)),
                Err(next) => next,
            };
            let borrowing = async {
                let permit = self.loans.clone().acquire_owned().await;
                let permit = permit.map_err(|_| Failure::closed())?;
                let task = self
                    .runtime
                    .spawn(lender.lend(self.clone(), pool.limit, permit));
                task.await
                    .unwrap_or_else(|_| Err(Failure::new(Unavailable, "the runtime ends")))
            };
            tokio::select! {
                biased;
                given = &mut next => match given {
                    Ok(taken) => return Ok(taken),
                    // The last connection broke.
                    Err(_) => refusal = None,
                },
                borrowed = borrowing, if refusal.is_none() => match borrowed {
                    Ok(taken) => return Ok(taken),
                    Err(failure) if locked(&self.connections).in_use == 0 => {
                        if failure.lacks_room {
                            pool.make_room(self);
                        }
                        return Err(failure);
                    }
                    Err(failure) => refusal = Some(failure),
                },
                () = &mut late => {
                    return Err(refusal.unwrap_or_else(|| {
                        let name = lender.pool.name();
                        let why = format!("{name} lends no further connection, and those of this client are busy");
                        Failure::new(Unavailable, why)
                    }));
                }
            }
        }
    }

    async fn take_own(
        self: &Arc<Self>,
        pool: &Pool,
        server: &Server,
        is_renewal: bool,
    ) -> Result<Taken, Failure> {
        loop {
            let is_alone = is_renewal && fault("renewals-connect");
            if let Some(link) = (!is_alone).then(|| self.idle()).flatten() {
                return Ok(self.taken(link));
            }
            let Some(next) = self.queue(is_renewal) else {
                // A renewal that is late is worth nothing.
                let limit = match is_renewal {
                    true => pool.limit,
                    false => server.connect_limit(pool.limit),
                };
                match Link::open(server, limit).await {
                    Ok((link, _)) => {
                        locked(&self.connections).in_use += 1;
                        return Ok(self.taken(Arc::new(link)));
                    }
                    Err(e) if locked(&self.connections).are_none() => {
                        pool.needy.notify_waiters();
                        pool.close_idle();
                        return Err(Failure::of(&e));
                    }
                    Err(_) => {
                        locked(&self.connections).full_until = Some(Moment::now() + FULL);
                        continue;
                    }
                }
            };
            match timeout(pool.limit, next).await {
                Ok(Ok(taken)) => return Ok(taken),
                // The last connection broke.
                Ok(Err(_)) => {}
                Err(_) => {
                    let why =
                        "the server takes no further connection, and those of this client are busy";
                    return Err(Failure::new(Unavailable, why));
                }
            }
        }
    }

    fn taken(self: &Arc<Self>, link: Arc<Link>) -> Taken {
        Taken {
            link,
            home: self.clone(),
            goes_back: true,
        }
    }

    fn idle(self: &Arc<Self>) -> Option<Arc<Link>> {
        let mut connections = locked(&self.connections);
        let link = connections.idle.pop()?;
        if link.is_open() {
            connections.in_use += 1;
            return Some(link);
        }
        drop(connections);
        self.interrupted();
        None
    }

    /// Returns the connection that is kept if no request uses it, or else queues for the next one
    /// that is given back.
    fn idle_or_next(
        self: &Arc<Self>,
        is_renewal: bool,
    ) -> Result<Arc<Link>, oneshot::Receiver<Taken>> {
        let mut connections = locked(&self.connections);
        let mut ended = None;
        if let Some(link) = connections.idle.pop() {
            if link.is_open() {
                connections.in_use += 1;
                return Ok(link);
            }
            ended = Some(link);
        }
        let next = connections.enqueue(is_renewal);
        drop(connections);
        if ended.is_some() {
            self.interrupted();
        }
        Err(next)
    }

    /// Takes out the idle connections that were not used for long, all but one.
    fn old(&self) -> Vec<Arc<Link>> {
        let idle = &mut locked(&self.connections).idle;
        // The one that was used last is the last one.
        let kept = idle.pop();
        let old = idle.extract_if(.., |link| link.idle() >= IDLE).collect();
        idle.extend(kept);
        old
    }

    /// Queues for the next connection that is given back; `None` if another one may be opened.
    fn queue(&self, is_renewal: bool) -> Option<oneshot::Receiver<Taken>> {
        let mut connections = locked(&self.connections);
        let is_full = connections
            .full_until
            .is_some_and(|until| Moment::now() < until);
        if !is_full || connections.in_use == 0 {
            return None;
        }
        Some(connections.enqueue(is_renewal))
    }

    /// Gives a connection to the next request that waits for one, or puts it among the idle ones.
    fn give_back(self: &Arc<Self>, link: &Arc<Link>) {
        if !link.is_open() {
            let mut connections = locked(&self.connections);
            connections.in_use -= 1;
            drop(connections);
            return self.interrupted();
        }
        if link.is_useless() {
            // It goes back to its pool, and those who wait have to borrow another one.
            return locked(&self.connections).ended();
        }
        loop {
            let mut connections = locked(&self.connections);
            let Some(next) = connections.waiting.pop_front() else {
                connections.in_use -= 1;
                let worse = match self.keeps(link) && !connections.are_over {
                    true => connections.keep(link.clone()),
                    false => None,
                };
                drop(connections);
                drop(worse);
                return;
            };
            drop(connections);
            let Err(mut refused) = next.send(self.taken(link.clone())) else {
                return;
            };
            // That request has reached its limit and gone.
            refused.goes_back = false;
        }
    }

    /// Handles a broken connection: the idle ones may be dead as well, and the server may have lost
    /// its data. A borrowed one that is kept is asked, since its pool may lend no other.
    fn interrupted(self: &Arc<Self>) {
        let mut connections = locked(&self.connections);
        let mut dead = std::mem::take(&mut connections.idle);
        let kept = dead.pop_if(|link| link.is_lent() && link.is_open());
        connections.in_use += usize::from(kept.is_some());
        let kept = kept.map(|link| self.taken(link));
        if connections.in_use == 0 {
            // No connection is left that could be given back.
            connections.waiting.clear();
        }
        drop(connections);
        drop(dead);
        if let Some(pool) = self.pool.upgrade() {
            if let Some(kept) = kept {
                let limit = pool.limit;
                self.runtime.spawn(async move {
                    let answer = kept.execute("SELECT 1", limit).await;
                    kept.ended(&answer);
                });
            }
            pool.notifier.interrupted(Moment::now());
        }
    }

    /// Takes out the borrowed connection that is kept, if it was not used for long and there is no
    /// place.
    fn unneeded(&self) -> Option<Arc<Link>> {
        let is_needed = self.places.any();
        let idle = &mut locked(&self.connections).idle;
        idle.pop_if(|link| !is_needed && link.idle() >= LENT_IDLE)
    }

    fn close_idle(&self) {
        let idle = std::mem::take(&mut locked(&self.connections).idle);
        drop(idle);
    }

    /// Returns whether a connection may be kept after its use.
    fn keeps(&self, link: &Link) -> bool {
        self.pool.upgrade().is_some_and(|pool| {
            let is_wanted = match &pool.source {
                Source::Lender(lender) => !lender.is_closing.load(Ordering::Acquire),
                Source::Server(_) => true,
            };
            !pool.is_closed() && is_wanted && link.is_open()
        })
    }

    /// Returns whether it has no connection, as after the end of its runtime.
    fn is_unused(&self) -> bool {
        if let Some(stands) = &self.stands {
            return stands.is_finished();
        }
        let connections = locked(&self.connections);
        connections.in_use == 0 && !connections.idle.iter().any(|link| link.is_open())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(home) = self.0.upgrade() {
            locked(&home.connections).are_over = true;
            home.close_idle();
        }
    }
}

impl Connections {
    /// Notes that one that was in use is gone.
    fn ended(&mut self) {
        self.in_use -= 1;
        if self.in_use == 0 {
            // No connection is left that could be given back.
            self.waiting.clear();
        }
    }

    /// Puts this connection among the idle ones. Of borrowed connections one is kept; the answer is
    /// the other one.
    fn keep(&mut self, link: Arc<Link>) -> Option<Arc<Link>> {
        let kept = self.idle.first_mut().filter(|_| link.is_lent());
        match kept {
            None => self.idle.push(link),
            Some(kept) if kept.has_failed() && !link.has_failed() => {
                return Some(std::mem::replace(kept, link));
            }
            Some(_) => return Some(link),
        }
        None
    }

    fn are_none(&self) -> bool {
        self.in_use == 0 && self.idle.is_empty()
    }

    /// Queues for the next connection that is given back, a renewal before other requests.
    fn enqueue(&mut self, is_renewal: bool) -> oneshot::Receiver<Taken> {
        let (sender, next) = oneshot::channel();
        self.waiting.retain(|sender| !sender.is_closed());
        if is_renewal {
            self.waiting.push_front(sender);
        } else {
            self.waiting.push_back(sender);
        }
        next
    }
}

impl Deref for Taken {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.goes_back {
            self.home.give_back(&self.link);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Server(server) => {
                let hosts: Vec<String> = server.hosts.iter().map(Host::to_string).collect();
                write!(f, "{}/{}", hosts.join(","), server.database)
            }
            Source::Lender(lender) => f.write_str(lender.pool.name()),
        }
    }
}

impl Failure {
    fn closed() -> Failure {
        Failure::of(&Error::closed())
    }
}
