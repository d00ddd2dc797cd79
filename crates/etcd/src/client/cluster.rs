//! The servers: one client for each endpoint, one of them in use, the next one when it fails. All requests go through here.
//!
//! etcd-client's own balancing knows neither health nor failover: with one of three members down, a third of all requests
//! fail; and nothing in it ends a request that is never answered. Everything that is sent from here may be sent twice.

mod connect;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use etcd_client::{
    Client, Compare, DeleteResponse, Error as ClientError, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget,
    Txn, TxnOp, TxnResponse,
};
use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::seam::Moment;
use leasehold_core::support::{locked, race};
use leasehold_core::{Error, Result};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::client::single_flight::SingleFlight;
use crate::config::Config;
use crate::error::Failure;

/// How many endpoints one call asks at most, so that it ends in bounded time.
pub(crate) const ATTEMPTS: u32 = 3;
/// After so many requests in a row without an answer the connection itself is taken for dead, if there is time.
const TIMEOUTS: u32 = 2;
/// After time-outs the time limit of an endpoint is doubled up to so many times: it may be far away.
const DOUBLINGS: u32 = 2;
/// How many keys one request brings while keys are listed.
const PAGE: i64 = 500;

/// An etcd cluster.
pub(crate) struct Cluster {
    /// Where the servers are, and how to talk to them.
    pub(crate) config: Config,
    endpoints: Vec<Arc<Endpoint>>,
    active: AtomicUsize,
    /// Notifies the streams that they are to be opened anew; whether the client was closed.
    pub(crate) reopened: watch::Sender<bool>,
    /// What the member that was connected to first says of itself.
    pub(crate) warnings: OnceLock<Vec<String>>,
}

#[derive(Default)]
struct Endpoint {
    state: Mutex<State>,
    /// Many requests at once connect once: with a user, that costs the server a hash of the password.
    connecting: Arc<SingleFlight<(), Result<Numbered, Failure>>>,
}

/// The number of a connection, and the connection: of what was refused with an earlier one, another is not to blame.
type Numbered = (u64, Client);

#[derive(Default)]
struct State {
    client: Option<Numbered>,
    /// The number of the latest connection.
    number: u64,
    timeouts: u32,
    /// How often the time limit is doubled.
    doublings: u32,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// The answer of the endpoint that was asked last.
    pub(crate) outcome: Result<T, Failure>,
    /// An attempt stayed unanswered, even if another one was answered: it may still be executed.
    pub(crate) doubt: bool,
}

impl Cluster {
    /// Nothing is asked yet.
    pub(crate) fn new(config: Config) -> Arc<Cluster> {
        Arc::new(Cluster {
            endpoints: config.endpoints.iter().map(|_| Arc::default()).collect(),
            active: AtomicUsize::new(fastrand::usize(..config.endpoints.len())),
            config,
            reopened: watch::Sender::new(false),
            warnings: OnceLock::new(),
        })
    }

    /// The next request connects anew, unless another connection is in use by now.
    fn forget(&self, at: usize, number: u64) {
        locked(&self.endpoints[at].state).client.take_if(|(known, _)| *known == number);
    }

    /// A cheap read: it shows that the token is good, or has it renewed.
    pub(crate) async fn probe(&self, client: Client) -> Result<(), ClientError> {
        let count = GetOptions::new().with_count_only();
        client.kv_client().get(self.session_key(0), Some(count)).await.map(drop)
    }

    pub(crate) fn session_key(&self, lease: i64) -> String {
        format!("{}%session/{lease:x}", self.config.root)
    }

    /// Whether anything new may begin.
    pub(crate) fn open(&self) -> Result<()> {
        if *self.reopened.borrow() { Err(Error::closed()) } else { Ok(()) }
    }

    /// Nothing new begins from here on, and streams end.
    pub(crate) fn shut(&self) {
        self.reopened.send_replace(true);
    }

    /// Ends all streams: what they report is in doubt.
    pub(crate) fn reopen(&self) {
        self.reopened.send_modify(|_| ());
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Answer<TxnResponse> {
        let request = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().max_decoding_message_size(usize::MAX).txn(txn).await }
        };
        self.ask(self.config.timeout, request).await
    }

    /// It may delete what comes to be later, if the answer is in doubt.
    pub(crate) async fn delete(&self, key: &str) -> Answer<DeleteResponse> {
        let request = |client: Client| async move { client.kv_client().delete(key, None).await };
        self.ask(self.config.timeout, request).await
    }

    /// Changes something if the entry is still the one that `still` names by its revision: so a late duplicate of the request
    /// does no harm. Says whether it was.
    pub(crate) async fn change(&self, still: Compare, then: Vec<TxnOp>) -> Result<bool, Failure> {
        Ok(self.txn(Txn::new().when([still]).and_then(then)).await.outcome?.succeeded())
    }

    /// A read; an unanswered one was as good as not executed.
    pub(crate) async fn get(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let key = key.into();
        let request = |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().max_decoding_message_size(usize::MAX).get(key, Some(options)).await }
        };
        self.ask(self.config.timeout, request).await.outcome.map_err(Failure::of_a_read)
    }

    /// Passes all keys that begin with `prefix` to `visit`, in byte order.
    pub(crate) async fn keys(&self, prefix: &str, mut visit: impl FnMut(&str)) -> Result<(), Failure> {
        let end = after_prefix(prefix);
        // No key is empty.
        let mut from = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_keys_only();
            let page = self.get(from, page).await?;
            page.kvs().iter().filter_map(|entry| entry.key_str().ok()).for_each(&mut visit);
            match page.kvs().last().filter(|_| page.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Sends a request, at most `limit` to each endpoint, and more to one that is slow. It must not matter if it is executed
    /// twice.
    pub(crate) async fn ask<T, F>(&self, limit: Duration, request: impl Fn(Client) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut left = self.attempts();
        let (began, longest, mut doubt) = (Moment::now(), limit.saturating_mul(ATTEMPTS), false);
        loop {
            let outcome = self.attempt(self.active(), limit, TIMEOUTS, &request).await;
            doubt |= outcome.as_ref().is_err_and(|failure| failure.kind == Ambiguous);
            left -= 1;
            let failed = outcome.as_ref().is_err_and(Failure::is_of_this_endpoint);
            if !failed || left == 0 || Moment::now().since(began) >= longest {
                let outcome =
                    outcome.map_err(|failure| if doubt { failure.instead_of(Unavailable, Ambiguous) } else { failure });
                return Answer { outcome, doubt };
            }
        }
    }

    /// The same for what changes nothing, or only extends a lease, and is wanted soon: no endpoint is waited for longer than `step` while
    /// another was not asked. `request` is told which one it asks.
    pub(crate) async fn ask_soon<T, F>(
        &self,
        limit: Duration,
        step: Duration,
        request: impl Fn(usize, Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let (first, all, request) = (self.active(), self.endpoints.len(), &request);
        let attempt = |at| async move { self.attempt(at, limit, 1, &|client| request(at, client)).await };
        let each = (0..self.attempts()).map(|i| Box::pin(attempt((first + i) % all)));
        let raced = race(each, step, |failure: &Failure| !failure.is_of_this_endpoint()).await;
        let none = || Failure::new(Unavailable, "there is no endpoint");
        raced.map_err(|failure| failure.unwrap_or_else(none).of_a_read())
    }

    /// Sends a request to this endpoint. After `timeouts` in a row without an answer the connection itself is taken for dead.
    async fn attempt<T, F>(
        &self,
        at: usize,
        limit: Duration,
        timeouts: u32,
        request: &impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut renewed = false;
        loop {
            let sent = Moment::now();
            let time_limit = limit * (1 << locked(&self.endpoints[at].state).doublings);
            let mut number = 0;
            let attempt = async {
                let client;
                (number, client) = self.client(at, time_limit).await?;
                request(client).await.map_err(Failure::from)
            };
            let answer = timeout(time_limit, attempt).await;
            let took = answer.is_ok().then(|| Moment::now().since(sent));
            let outcome = answer.unwrap_or_else(|_| Err(Failure::new(Ambiguous, "no answer in time")));
            if outcome.as_ref().is_err_and(|failure| failure.is_stale_token() || failure.is_not_sent()) && !renewed {
                // Nothing was executed. A new connection authenticates anew, and lives in this runtime.
                renewed = true;
                self.forget(at, number);
                continue;
            }
            #[cfg(feature = "tls")]
            if self.config.is_secure() && outcome.as_ref().is_err_and(Failure::is_broken) {
                // The client crate would go on with the files as they were.
                self.forget(at, number);
            }
            self.judge(at, outcome.as_ref().is_err_and(Failure::is_of_this_endpoint), took, timeouts);
            return outcome.map_err(|failure| failure.at(&self.config.endpoints[at]));
        }
    }

    /// How often one call asks. Behind a client of the program's are as many endpoints as it likes.
    fn attempts(&self) -> usize {
        let endpoints = if self.config.client.is_some() { usize::MAX } else { self.endpoints.len() };
        endpoints.min(ATTEMPTS as usize)
    }

    /// The endpoint in use.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Relaxed)
    }

    /// After a failure the next endpoint is in use; a connection that does not answer is given up. `took`: how long the answer
    /// took, if there was one. `timeouts`: so many in a row are enough to give it up.
    fn judge(&self, at: usize, failed: bool, took: Option<Duration>, timeouts: u32) {
        let mut state = locked(&self.endpoints[at].state);
        state.timeouts = if took.is_none() { state.timeouts + 1 } else { 0 };
        match took {
            None => state.doublings = (state.doublings + 1).min(DOUBLINGS),
            Some(took) if took < self.config.timeout / 2 => state.doublings = 0,
            Some(_) => {}
        }
        let dead = state.timeouts >= timeouts;
        if dead {
            (state.client, state.timeouts) = (None, 0);
        }
        let next = if failed { (at + 1) % self.endpoints.len() } else { at };
        let turned = next != at && self.active.compare_exchange(at, next, Relaxed, Relaxed).is_ok();
        if turned || dead {
            self.reopen();
        }
    }
}

/// The keys that begin with what is read, oldest first; all of them for 0. The server sorts all before it cuts them off.
pub(crate) fn oldest(limit: i64) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(limit)
}

/// Any one of the keys that begin with what is read, and how many there are: the server reads no other.
pub(crate) fn any_one() -> GetOptions {
    GetOptions::new().with_prefix().with_limit(1)
}

/// The newest of the keys that begin with what is read and were created before this revision.
pub(crate) fn newest(before: i64) -> GetOptions {
    let newest = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(1);
    newest.with_max_create_revision(before - 1)
}

/// A key under a lease.
pub(crate) fn put(lease: i64, key: &str, value: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
}

/// The first key behind all that begin with `prefix`, which does not end in 0xFF (it is UTF-8); for none, the end of all.
fn after_prefix(prefix: &str) -> Vec<u8> {
    prefix.as_bytes().split_last().map_or(vec![0], |(last, all)| [all, &[last + 1]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        assert_eq!((after_prefix("a/"), after_prefix("")), (b"a0".to_vec(), vec![0]));
    }
}
