//! The client of the simple store: each verb is a message there and one back, and may be lost on either way.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, LeaseRef, Moment, Notifier, Place,
    Renewal, Subscription, async_trait,
};
use leasehold_core::support::locked;
use leasehold_core::{
    Completion, Error, ErrorKind, Fairness, Fencing, FencingToken, Guarantees, LockQueue, Name,
    Result,
};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::network::{Closed, End, Network};
use crate::plan::{Request, Way};
use crate::simple::server::{Client, Server};

/// The time for which a client waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(400);

/// One client.
pub(crate) struct Remote {
    network: Network,
    server: Arc<Mutex<Server>>,
    client: Client,
    observers: Arc<AtomicU64>,
}

impl Remote {
    pub(crate) fn new(network: Network, server: Arc<Mutex<Server>>, process: usize) -> Remote {
        let client = Client {
            process,
            notifier: Notifier::new(),
        };
        let notifier = client.notifier.clone();
        network.when_closed((process, 0), move || {
            notifier.interrupted(Moment::now());
            notifier.notify_all();
        });
        Remote {
            network,
            server,
            client,
            observers: Arc::default(),
        }
    }

    /// Asks the server. The server's messages to others are sent, too.
    async fn ask<T: Send + 'static>(
        &self,
        kind: Request,
        request: impl FnOnce(&mut Server, &Client, Moment) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let network = self.network.clone();
        let server = self.server.clone();
        let client = self.client.clone();
        let process = client.process;
        let there = move || {
            let it = request(&mut locked(&server), &client, Moment::now());
            push(&network, &server);
            // If the link was closed meanwhile, the answer is lost.
            let back = Box::new(move || drop(answer.send(it)));
            drop(network.send((process, 0), Way::Back, End::Process(process), kind, back));
        };
        let sent = self.network.send(
            (process, 0),
            Way::There,
            End::Server(0),
            kind,
            Box::new(there),
        );
        sent.map_err(|Closed| Error::new(ErrorKind::Unavailable, "the connection is closed"))?;
        let ambiguous = |why: &str| Error::new(ErrorKind::Ambiguous, why.to_owned());
        let answer = timeout(TIMEOUT, answered)
            .await
            .map_err(|_| ambiguous("no answer in time"))?;
        answer.map_err(|_| ambiguous("the connection was closed"))
    }
}

/// Sends the waiting messages of the server.
pub(crate) fn push(network: &Network, server: &Mutex<Server>) {
    let pushes = std::mem::take(&mut locked(server).pushes);
    for (Client { process, notifier }, push) in pushes {
        let job = Box::new(move || push(&notifier));
        // A client that is gone is not told.
        drop(network.send(
            (process, 0),
            Way::Back,
            End::Process(process),
            Request::Push,
            job,
        ));
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.client.process)
    }
}

#[async_trait]
impl Backend for Remote {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let claim = claim.clone();
        let sent = Moment::now();
        self.ask(Request::Claim, move |server, client, now| {
            server.claim(&claim, client, sent, now)
        })
        .await?
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let leases = leases.to_vec();
        let sent = Moment::now();
        let all = move |server: &mut Server, _: &Client, now| {
            leases
                .iter()
                .map(|lease| server.renew(lease, sent, now))
                .collect()
        };
        self.ask(Request::Renew, all).await
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        let name = claim.name.clone();
        let id = claim.id;
        self.ask(Request::Release, move |server, _, now| {
            server.release(&name, id, now);
        })
        .await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let name = name.clone();
        self.ask(Request::Look, move |server, _, now| {
            server.inspect(&name, now)
        })
        .await
    }

    async fn list(&self, _prefix: &str, _after: Option<&Name>, _limit: usize) -> Result<Vec<Name>> {
        Err(Error::new(ErrorKind::Unsupported, "nobody lists"))
    }

    async fn evict(&self, _name: &Name, _token: FencingToken) -> Result<bool> {
        Err(Error::new(ErrorKind::Unsupported, "the world evicts"))
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("simple")
            .with_fencing(Fencing::SurvivesDataLoss)
            .with_fairness(Fairness::Strict)
            .with_pushed_wake(true)
            .with_once(true)
            .with_ttl(Duration::from_millis(50), Duration::from_nanos(1))
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.client.notifier)
    }

    fn observe(&self, name: &Name) -> Subscription {
        let client = self.client.clone();
        let server = self.server.clone();
        let number = self.observers.fetch_add(1, Ordering::Relaxed) << 8 | client.process as u64;
        locked(&server)
            .observers
            .push((number, name.clone(), client.clone()));
        client.notifier.holder_changed(name);
        Subscription::new(Observation(server, number))
    }
}

#[async_trait]
impl Completions for Remote {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let claim = claim.clone();
        let request = request.clone();
        self.ask(Request::Release, move |server, _, now| {
            server.complete(&claim, &request, now)
        })
        .await
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let name = name.clone();
        self.ask(Request::Look, move |server, _, now| {
            server.completion(&name, now)
        })
        .await
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let name = name.clone();
        self.ask(Request::Release, move |server, _, now| {
            server.forget(&name, token, now)
        })
        .await
    }

    async fn list_completions(
        &self,
        _prefix: &str,
        _after: Option<&Name>,
        _limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        Err(Error::new(ErrorKind::Unsupported, "nobody lists"))
    }
}

/// Ends the observation when it is dropped.
struct Observation(Arc<Mutex<Server>>, u64);

impl Drop for Observation {
    fn drop(&mut self) {
        locked(&self.0)
            .observers
            .retain(|(number, ..)| *number != self.1);
    }
}
