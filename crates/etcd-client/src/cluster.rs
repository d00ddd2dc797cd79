//! The servers: one client for each endpoint, one of them in use, the next one when it fails. All requests go through here.
//!
//! etcd-client's own balancing knows neither health nor failover: with one of three members down, a third of all requests
//! fail; and nothing in it ends a request that is never answered. All that this crate sends may be sent twice.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{
    Client, Compare, Error as ClientError, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnResponse,
};
use leasehold_core::ErrorKind::{self, Ambiguous, Unavailable};
use leasehold_core::seam::locked;
use leasehold_core::{Error, Result};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::Config;
use crate::error::Failure;
use crate::session::Session;

/// How many endpoints one call asks at most, so that it ends in bounded time.
pub(crate) const ATTEMPTS: u32 = 3;
/// So many silences in a row, and the connection itself is taken for dead.
const SILENCES: u32 = 2;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How many keys one request brings while keys are listed.
const PAGE: i64 = 500;

/// An etcd cluster, and the sessions of one client with it.
pub struct Cluster {
    /// Where the servers are, and how to talk to them.
    pub config: Config,
    endpoints: Vec<Mutex<Endpoint>>,
    active: AtomicUsize,
    /// Tells that streams are to be opened anew.
    pub(crate) moved: watch::Sender<()>,
    closed: AtomicBool,
    /// Leases are granted one by one.
    pub(crate) granting: tokio::sync::Mutex<()>,
    pub(crate) sessions: Mutex<Vec<Arc<Session>>>,
}

#[derive(Default)]
struct Endpoint {
    client: Option<Client>,
    silences: u32,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// The answer of the endpoint that was asked last.
    pub(crate) outcome: Result<T, Failure>,
    /// An attempt stayed unanswered, even if another one was answered: it may still arrive.
    pub(crate) doubt: bool,
}

impl Cluster {
    /// Nothing is asked yet.
    pub fn new(config: Config) -> Arc<Cluster> {
        Arc::new(Cluster {
            endpoints: config.endpoints.iter().map(|_| Mutex::default()).collect(),
            config,
            active: AtomicUsize::new(0),
            moved: watch::Sender::new(()),
            closed: AtomicBool::new(false),
            granting: tokio::sync::Mutex::default(),
            sessions: Mutex::default(),
        })
    }

    /// Connects, within three seconds: any read shows that there is a leader and that we may.
    pub async fn connect(&self) -> Result<()> {
        let probe = self.get(self.session_key(0), GetOptions::new().with_count_only());
        let late = |_| Error::new(Unavailable, "etcd did not answer within three seconds");
        Ok(timeout(CONNECT, probe).await.map_err(late)?.map(drop)?)
    }

    pub(crate) fn session_key(&self, lease: i64) -> String {
        format!("{}%session/{lease:x}", self.config.root)
    }

    /// Whether anything new may begin.
    pub fn open(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "this etcd client was closed");
        if self.closed.load(SeqCst) { Err(closed()) } else { Ok(()) }
    }

    /// Nothing new begins from here on, and streams end.
    pub fn shut(&self) {
        self.closed.store(true, SeqCst);
        self.reopen();
    }

    /// Ends all streams: what they say is in doubt.
    pub fn reopen(&self) {
        self.moved.send_replace(());
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Answer<TxnResponse> {
        let request = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().max_decoding_message_size(usize::MAX).txn(txn).await }
        };
        self.ask(self.config.limit, request).await
    }

    /// Changes something if the entry is still the one that `still` names by its revision: so a late duplicate of the request
    /// can harm nobody. Says whether it was.
    pub async fn change(&self, still: Compare, then: Vec<TxnOp>) -> Result<bool, Failure> {
        Ok(self.txn(Txn::new().when([still]).and_then(then)).await.outcome?.succeeded())
    }

    /// A read; an unanswered one was as good as not executed.
    pub async fn get(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let key = key.into();
        let request = |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().max_decoding_message_size(usize::MAX).get(key, Some(options)).await }
        };
        self.ask(self.config.limit, request).await.outcome.map_err(Failure::of_a_read)
    }

    /// Tells all keys that begin with `prefix`, in byte order.
    pub async fn keys(&self, prefix: &str, mut tell: impl FnMut(&str)) -> Result<(), Failure> {
        let end = after_prefix(prefix);
        // No key is empty.
        let mut from = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        loop {
            let page = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_keys_only();
            let page = self.get(from, page).await?;
            page.kvs().iter().filter_map(|entry| entry.key_str().ok()).for_each(&mut tell);
            match page.kvs().last().filter(|_| page.more()) {
                Some(last) => from = [last.key(), &[0]].concat(),
                None => return Ok(()),
            }
        }
    }

    /// Sends a request, at most `limit` to each endpoint. It must not matter if it is executed twice.
    pub(crate) async fn ask<T, F>(&self, limit: Duration, request: impl Fn(Client) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut doubt = false;
        let mut left = self.endpoints.len().min(ATTEMPTS as usize);
        loop {
            let at = self.active.load(Relaxed);
            let attempt = async { request(self.client(at).await?).await };
            let answer = timeout(limit, attempt).await.map(|answer| answer.map_err(Failure::from));
            let silent = answer.is_err();
            let outcome = answer.unwrap_or_else(|_| Err(Failure::new(Ambiguous, "no answer in time")));
            doubt |= outcome.as_ref().is_err_and(|failure| failure.is(Ambiguous));
            left -= 1;
            let failed = outcome.as_ref().is_err_and(|failure| failure.is(Ambiguous) || failure.is(Unavailable));
            self.judge(at, failed, silent);
            if !failed || left == 0 {
                let outcome = outcome.map_err(|failure| if doubt { failure.after_doubt() } else { failure });
                return Answer { outcome, doubt };
            }
        }
    }

    /// After a failure the next endpoint is in use; a connection that says nothing is given up.
    fn judge(&self, at: usize, failed: bool, silent: bool) {
        let mut endpoint = locked(&self.endpoints[at]);
        endpoint.silences = if silent { endpoint.silences + 1 } else { 0 };
        let dead = endpoint.silences >= SILENCES;
        if dead {
            *endpoint = Endpoint::default();
        }
        let next = if failed { (at + 1) % self.endpoints.len() } else { at };
        let turned = next != at && self.active.compare_exchange(at, next, Relaxed, Relaxed).is_ok();
        if turned || dead {
            self.reopen();
        }
    }

    /// Connects at the first use: with a user, that asks the server.
    async fn client(&self, at: usize) -> Result<Client, ClientError> {
        let known = locked(&self.endpoints[at]).client.clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let Config { endpoints, options, .. } = &self.config;
        let client = Client::connect([&endpoints[at]], Some(options.clone())).await?;
        Ok(locked(&self.endpoints[at]).client.get_or_insert(client).clone())
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

/// The keys that begin with what is read, oldest first; all of them for 0. The server sorts all before it cuts them off.
pub fn oldest(limit: i64) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(limit)
}

/// A key under a lease.
pub fn put(lease: i64, key: &str, value: impl Into<Vec<u8>>) -> TxnOp {
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
