//! The servers: one client for each endpoint, one of them in use, the next one when it fails.
//!
//! etcd-client's own balancing knows neither health nor failover: with one of three members down, a third of all requests
//! fail; and nothing in it ends a request that is never answered. All that this crate sends may be sent twice.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{Client, Error as ClientError};
use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::Config;
use crate::error::Failure;

/// How many endpoints one call asks at most, so that it ends in bounded time.
const ATTEMPTS: usize = 3;
/// So many silences in a row, and the connection itself is taken for dead.
const SILENCES: u32 = 2;

pub(crate) struct Cluster {
    pub(crate) config: Config,
    endpoints: Vec<Mutex<Endpoint>>,
    active: AtomicUsize,
    /// Tells when another connection came into use.
    pub(crate) moved: watch::Sender<()>,
}

#[derive(Default)]
struct Endpoint {
    client: Option<Client>,
    silences: u32,
}

/// What came of a call.
pub(crate) struct Answer<T> {
    pub(crate) outcome: Result<T, Failure>,
    /// An attempt stayed unanswered, even if another one was answered: it may still arrive.
    pub(crate) doubt: bool,
}

impl Cluster {
    pub(crate) fn new(config: Config) -> Cluster {
        let endpoints = config.endpoints.iter().map(|_| Mutex::default()).collect();
        Cluster { config, endpoints, active: AtomicUsize::new(0), moved: watch::Sender::new(()) }
    }

    /// Sends a request, at most `limit` to each endpoint. It must not matter if it is executed twice.
    pub(crate) async fn ask<T, F>(&self, limit: Duration, request: impl Fn(Client) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let mut doubt = false;
        let mut left = self.endpoints.len().min(ATTEMPTS);
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
        let mut endpoint = self.endpoint(at);
        endpoint.silences = if silent { endpoint.silences + 1 } else { 0 };
        let dead = endpoint.silences >= SILENCES;
        if dead {
            *endpoint = Endpoint::default();
        }
        let next = if failed { (at + 1) % self.endpoints.len() } else { at };
        let turned = next != at && self.active.compare_exchange(at, next, Relaxed, Relaxed).is_ok();
        if turned || dead {
            self.moved.send_replace(());
        }
    }

    fn endpoint(&self, at: usize) -> MutexGuard<'_, Endpoint> {
        self.endpoints[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects at the first use: with a user, that asks the server.
    async fn client(&self, at: usize) -> Result<Client, ClientError> {
        let known = self.endpoint(at).client.clone();
        if let Some(client) = known {
            return Ok(client);
        }
        let Config { endpoints, options, .. } = &self.config;
        let client = Client::connect([&endpoints[at]], Some(options.clone())).await?;
        Ok(self.endpoint(at).client.get_or_insert(client).clone())
    }
}
