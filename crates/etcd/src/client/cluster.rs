//! The servers of a cluster: one client for each endpoint, of which one is in use, and the next one
//! after a failure. All requests go through here.
//!
//! etcd-client's own balancing knows neither health nor failover: with one of three members down, a
//! third of all requests fail. Also, it never ends a request that is not answered. Every request
//! from here may be sent twice.

mod connect;

use std::future::{Future, pending};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use etcd_client::{
    Client, Compare, DeleteResponse, Error as ClientError, GetOptions, GetResponse, PutOptions,
    SortOrder, SortTarget, Txn, TxnOp, TxnResponse,
};
use leasehold_core::ErrorKind::{Ambiguous, Lost, OtherStore, Unavailable};
use leasehold_core::backend::Moment;
use leasehold_core::support::{Home, locked};
use leasehold_core::{Error, Result};
use leasehold_net::race;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::client::identity::{Answered, ClusterIdentity};
use crate::client::single_flight::SingleFlight;
use crate::config::Config;
use crate::error::Failure;

/// The greatest number of endpoints that one call asks, so that it ends in bounded time.
pub(crate) const ATTEMPTS: u32 = 3;
/// The number of requests in a row without an answer after which the connection itself is taken for
/// dead, if there is time.
const TIMEOUTS: u32 = 2;
/// The number of times that the time limit of an endpoint is doubled after time-outs: it may be far
/// away.
const DOUBLINGS: u32 = 2;
/// The number of keys in one answer while keys are listed.
const PAGE: i64 = 500;

/// An etcd cluster.
pub(crate) struct Cluster {
    /// The addresses of the servers, and the settings of connections and requests.
    pub(crate) config: Config,
    endpoints: Vec<Arc<Endpoint>>,
    active: AtomicUsize,
    /// Notifies the streams that they are to be opened anew; `true` once the client was closed.
    pub(crate) reopened: watch::Sender<bool>,
    /// The warnings from the version and the alarms of the first member that was connected to, and
    /// from endpoints of another cluster.
    pub(crate) warnings: OnceLock<Vec<String>>,
    pub(crate) identity: Arc<ClusterIdentity>,
}

#[derive(Default)]
struct Endpoint {
    state: Mutex<State>,
    /// Many requests at once connect once: for a user each connection costs the server a hash of
    /// the password.
    connecting: Arc<SingleFlight<(), Result<Connection, Failure>>>,
}

/// A connection to an endpoint.
#[derive(Clone)]
struct Connection {
    /// Its number. A refusal of an earlier connection says nothing against a later one.
    number: u64,
    client: Client,
    /// The runtime in which it was made. Nothing is sent over it once that has ended, or is not
    /// driven any more.
    home: Option<Home>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// The number of the latest connection.
    number: u64,
    timeouts: u32,
    /// The number of times that the time limit is doubled.
    doublings: u32,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// The answer of the endpoint that was asked last.
    pub(crate) outcome: Result<T, Failure>,
    /// An attempt stayed unanswered, even if another one was answered; the store may still execute
    /// it.
    pub(crate) doubt: bool,
}

impl Cluster {
    /// Creates the cluster without a request.
    pub(crate) fn new(config: Config) -> Arc<Cluster> {
        Arc::new(Cluster {
            endpoints: config.endpoints.iter().map(|_| Arc::default()).collect(),
            active: AtomicUsize::new(fastrand::usize(..config.endpoints.len())),
            identity: Arc::new(ClusterIdentity::of(&config)),
            config,
            reopened: watch::Sender::new(false),
            warnings: OnceLock::new(),
        })
    }

    /// Drops this connection, so that the next request connects anew, unless another connection is
    /// in use by now.
    fn forget(&self, at: usize, number: u64) {
        locked(&self.endpoints[at].state)
            .connection
            .take_if(|known| known.number == number);
    }

    /// The runtime in which the connection to this endpoint lives, if it is known.
    pub(crate) fn home(&self, at: usize) -> Option<Home> {
        let state = locked(&self.endpoints[at].state);
        state.connection.as_ref()?.home.clone()
    }

    /// A cheap read: it shows that the token is good, or gets it renewed. Returns the id of the
    /// cluster.
    pub(crate) async fn probe(&self, client: Client) -> Result<u64, ClientError> {
        self.config.probe(client).await
    }

    pub(crate) fn session_key(&self, lease: i64) -> String {
        format!("{}%session/{lease:x}", self.config.root)
    }

    /// Fails if the client was closed, and nothing new may begin.
    pub(crate) fn open(&self) -> Result<()> {
        if *self.reopened.borrow() {
            Err(Error::closed())
        } else {
            Ok(())
        }
    }

    /// Closes the client: nothing new begins from here on, and streams end.
    pub(crate) fn shut(&self) {
        self.reopened.send_replace(true);
    }

    /// Ends all streams: their reports are in doubt.
    pub(crate) fn reopen(&self) {
        self.reopened.send_modify(|_| ());
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Answer<TxnResponse> {
        let request = |client: Client| {
            let txn = txn.clone();
            async move {
                client
                    .kv_client()
                    .max_decoding_message_size(usize::MAX)
                    .txn(txn)
                    .await
            }
        };
        self.ask(self.config.timeout, request).await
    }

    /// Deletes a key. If the answer is in doubt, the deletion may be executed later and delete a
    /// later key of this name.
    pub(crate) async fn delete(&self, key: &str) -> Answer<DeleteResponse> {
        let request = |client: Client| async move { client.kv_client().delete(key, None).await };
        self.ask(self.config.timeout, request).await
    }

    /// Executes `then` if the entry is still the one that `still` names by its revision, so a late
    /// duplicate of the request does no harm. Returns whether it was.
    pub(crate) async fn change(&self, still: Compare, then: Vec<TxnOp>) -> Result<bool, Failure> {
        Ok(self
            .txn(Txn::new().when([still]).and_then(then))
            .await
            .outcome?
            .succeeded())
    }

    /// Reads keys; an unanswered read counts as not executed.
    pub(crate) async fn get(
        &self,
        key: impl Into<Vec<u8>>,
        options: GetOptions,
    ) -> Result<GetResponse, Failure> {
        let key = key.into();
        let request = |client: Client| {
            let key = key.clone();
            let options = options.clone();
            async move {
                client
                    .kv_client()
                    .max_decoding_message_size(usize::MAX)
                    .get(key, Some(options))
                    .await
            }
        };
        self.ask(self.config.timeout, request)
            .await
            .outcome
            .map_err(Failure::of_a_read)
    }

    /// Passes all keys that begin with `prefix` to `visit`, in byte order.
    pub(crate) async fn keys(
        &self,
        prefix: &str,
        mut visit: impl FnMut(&str),
    ) -> Result<(), Failure> {
        let end = after_prefix(prefix);
        // No key is empty.
        let mut from = if prefix.is_empty() {
            vec![0]
        } else {
            prefix.as_bytes().to_vec()
        };
        loop {
            let page = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE)
                .with_keys_only();
            let page = self.get(from, page).await?;
            page.kvs()
                .iter()
                .filter_map(|entry| entry.key_str().ok())
                .for_each(&mut visit);
            match page.kvs().last().filter(|_| page.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Sends a request and waits at most `limit` for each endpoint, longer for one that is slow. It
    /// must do no harm if the request is executed twice.
    pub(crate) async fn ask<T, F>(
        &self,
        limit: Duration,
        request: impl Fn(Client) -> F,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, ClientError>>,
        T: Answered,
    {
        let mut left = self.attempts();
        let began = Moment::now();
        let longest = limit.saturating_mul(ATTEMPTS);
        let mut doubt = false;
        loop {
            let outcome = self.attempt(self.active(), limit, TIMEOUTS, &request).await;
            doubt |= outcome
                .as_ref()
                .is_err_and(|failure| failure.kind == Ambiguous);
            left -= 1;
            let failed = outcome.as_ref().is_err_and(Failure::is_of_this_endpoint);
            if !failed || left == 0 || Moment::now().since(began) >= longest {
                let outcome = outcome.map_err(|failure| {
                    if doubt {
                        failure
                            .instead_of(Unavailable, Ambiguous)
                            .instead_of(OtherStore, Ambiguous)
                    } else {
                        failure
                    }
                });
                return Answer { outcome, doubt };
            }
        }
    }

    /// Sends a request that changes nothing, or only extends a lease, and that is urgent: it waits
    /// for no endpoint longer than `step` while another was not asked. `request` gets the index of
    /// the endpoint that it asks.
    pub(crate) async fn ask_soon<T, F>(
        &self,
        limit: Duration,
        step: Duration,
        request: impl Fn(usize, Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
        T: Answered,
    {
        let first = self.active();
        let all = self.endpoints.len();
        let request = &request;
        let attempt = |at| async move {
            self.attempt(at, limit, 1, &|client| request(at, client))
                .await
        };
        let each = (0..self.attempts()).map(|i| Box::pin(attempt((first + i) % all)));
        let raced = race(each, step, |failure: &Failure| {
            !failure.is_of_this_endpoint()
        })
        .await;
        let none = || Failure::new(Unavailable, "there is no endpoint");
        raced.map_err(|failure| failure.unwrap_or_else(none).of_a_read())
    }

    /// Sends a request to this endpoint. After `timeouts` requests in a row without an answer the
    /// connection itself is taken for dead.
    async fn attempt<T, F>(
        &self,
        at: usize,
        limit: Duration,
        timeouts: u32,
        request: &impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
        T: Answered,
    {
        let mut renewed = false;
        loop {
            let sent = Moment::now();
            let time_limit = limit * (1 << locked(&self.endpoints[at].state).doublings);
            let mut number = 0;
            let attempt = async {
                let connected = self.connection(at, time_limit).await;
                let connection = connected.map_err(Failure::of_connecting)?;
                number = connection.number;
                tokio::select! {
                    biased;
                    answer = self.compared(&connection.client, request) => answer,
                    () = left(connection.home.as_ref()) => {
                        self.forget(at, number);
                        Err(Failure::unheard(Ambiguous, "its runtime is not driven any more"))
                    }
                }
            };
            let answer = timeout(time_limit, attempt).await;
            let took = answer.is_ok().then(|| Moment::now().since(sent));
            let outcome =
                answer.unwrap_or_else(|_| Err(Failure::unheard(Ambiguous, "no answer in time")));
            if outcome
                .as_ref()
                .is_err_and(|failure| failure.kind == OtherStore)
            {
                // The address may lead back to the cluster.
                self.forget(at, number);
            }
            if outcome.as_ref().is_err_and(Failure::is_stale_token) && !renewed {
                // Nothing was executed. A new connection authenticates anew.
                renewed = true;
                self.forget(at, number);
                continue;
            }
            self.judge(
                at,
                outcome.as_ref().is_err_and(Failure::is_of_this_endpoint),
                took,
                timeouts,
            );
            return outcome.map_err(|failure| failure.at(&self.config.endpoints[at]));
        }
    }

    /// Sends a request, and fails if a member of another cluster answers. An error names no
    /// cluster: before a lease counts as ended, a read shows who says so.
    async fn compared<T, F>(
        &self,
        client: &Client,
        request: &impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
        T: Answered,
    {
        match request(client.clone()).await.map_err(Failure::from) {
            Ok(answer) => self.identity.check(answer.cluster_id()).map(|()| answer),
            Err(failure) if failure.kind == Lost => {
                let probe = Box::pin(self.probe(client.clone())).await?;
                self.identity.check(probe)?;
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The number of attempts of one call. A client of the program's may have any number of
    /// endpoints.
    fn attempts(&self) -> usize {
        let endpoints = if self.config.client.is_some() {
            usize::MAX
        } else {
            self.endpoints.len()
        };
        endpoints.min(ATTEMPTS as usize)
    }

    /// The endpoint in use.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }

    /// Judges an attempt: after a failure the next endpoint is in use, and a connection that does
    /// not answer is given up. `took` is the time until the answer, if there was one, and
    /// `timeouts` the number of time-outs in a row that are enough to give the connection up.
    fn judge(&self, at: usize, failed: bool, took: Option<Duration>, timeouts: u32) {
        let mut state = locked(&self.endpoints[at].state);
        state.timeouts = if took.is_none() {
            state.timeouts + 1
        } else {
            0
        };
        match took {
            None => state.doublings = (state.doublings + 1).min(DOUBLINGS),
            Some(took) if took < self.config.timeout / 2 => state.doublings = 0,
            Some(_) => {}
        }
        let dead = state.timeouts >= timeouts;
        if dead {
            (state.connection, state.timeouts) = (None, 0);
        }
        let next = if failed {
            (at + 1) % self.endpoints.len()
        } else {
            at
        };
        let turned = next != at
            && self
                .active
                .compare_exchange(at, next, Relaxed, Relaxed)
                .is_ok();
        if turned || dead {
            self.reopen();
        }
    }
}

/// Completes when this runtime has ended, or is not driven any more.
pub(crate) async fn left(home: Option<&Home>) {
    match home {
        Some(home) => home.left().await,
        None => pending().await,
    }
}

/// Options to read the keys that begin with a prefix, oldest first; all of them for 0. The server
/// sorts all keys before it cuts them off.
pub(crate) fn oldest(limit: i64) -> GetOptions {
    GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend)
        .with_limit(limit)
}

/// Options to read any one of the keys that begin with a prefix, and their number: the server reads
/// no other key.
pub(crate) fn any_one() -> GetOptions {
    GetOptions::new().with_prefix().with_limit(1)
}

/// Options to read the newest of the keys that begin with a prefix and were created before this
/// revision.
pub(crate) fn newest(before: i64) -> GetOptions {
    let newest = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Descend)
        .with_limit(1);
    newest.with_max_create_revision(before - 1)
}

/// The operation that writes a key under a lease.
pub(crate) fn put(lease: i64, key: &str, value: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
}

/// The first key behind all keys that begin with `prefix`; for an empty prefix, the end of all
/// keys. A prefix does not end in 0xFF, because it is UTF-8.
fn after_prefix(prefix: &str) -> Vec<u8> {
    prefix
        .as_bytes()
        .split_last()
        .map_or(vec![0], |(last, all)| [all, &[last + 1]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        assert_eq!(
            (after_prefix("a/"), after_prefix("")),
            (b"a0".to_vec(), vec![0])
        );
    }
}
