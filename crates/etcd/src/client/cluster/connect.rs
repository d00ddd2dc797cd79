//! How an endpoint is connected to: the first that answers, and each other one when it is first asked.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::seam::Moment;
use leasehold_core::support::{locked, race};
use leasehold_core::{Error, Result};
use tokio::time::timeout;

use crate::client::cluster::{Cluster, DOUBLINGS, Numbered};
use crate::error::Failure;

/// How long connecting may take, and after how long another endpoint is asked beside one that has not answered.
const CONNECT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(300);

impl Cluster {
    /// Connects, within three seconds. Asks all endpoints, from one at random on, and waits for none while another was not asked. The one
    /// that answers first is in use.
    pub(crate) async fn connect(&self) -> Result<()> {
        #[cfg(feature = "tls")]
        self.config.check_files().await?;
        let (first, all, tries) = (self.active(), self.endpoints.len(), self.endpoints.len().max(self.attempts()));
        let connect_to = async |at: usize| {
            // What another endpoint may do better is said of all of them.
            let said = |failure: Failure| match failure.is_of_this_endpoint() {
                true => failure,
                false => failure.at(&self.config.endpoints[at]),
            };
            self.connect_to(at).await.map_err(said)
        };
        let each = (0..tries).map(|i| Box::pin(connect_to((first + i) % all)));
        let step = STEP.min(CONNECT / (2 * u32::try_from(tries).unwrap_or(u32::MAX)));
        let is_final = |failure: &Failure| !failure.is_of_this_endpoint();
        match timeout(CONNECT, race(each, step, is_final)).await.unwrap_or(Err(None)) {
            Ok(at) => {
                self.active.store(at, Relaxed);
                self.check().await;
                Ok(())
            }
            Err(failure) => {
                let late = || Failure::new(Unavailable, "no answer within three seconds");
                Err(Box::pin(self.explain(failure.unwrap_or_else(late).of_a_read())).await)
            }
        }
    }

    /// Why no endpoint can be used.
    async fn explain(&self, failure: Failure) -> Error {
        if failure.kind != Unavailable || self.config.client.is_some() {
            return failure.into();
        }
        let at =
            |failure| Error::new(Unavailable, format!("{}: {}", self.config.endpoints.join(","), Error::from(failure)));
        #[cfg(feature = "tls")]
        if self.config.is_secure() {
            let why = self.config.diagnose(self.config.timeout.min(CONNECT)).await;
            return why.unwrap_or_else(|| at(failure));
        }
        at(failure.of_plain_connect())
    }

    /// Connects to this endpoint. Any read shows that there is a leader and that we may.
    async fn connect_to(&self, at: usize) -> Result<usize, Failure> {
        let (sent, mut renewed) = (Moment::now(), false);
        loop {
            let (number, client) = self.client(at, CONNECT).await?;
            match self.probe(client).await.map_err(Failure::from) {
                Err(failure) => {
                    self.forget(at, number);
                    if renewed || !failure.is_stale_token() {
                        return Err(failure);
                    }
                    renewed = true;
                }
                Ok(()) => {
                    // One that is far away is given longer from the first request on.
                    let far = Moment::now().since(sent) > self.config.timeout;
                    locked(&self.endpoints[at].state).doublings = if far { DOUBLINGS } else { 0 };
                    return Ok(at);
                }
            }
        }
    }

    /// Connects at the first use: with a user, that asks the server.
    pub(super) async fn client(&self, at: usize, limit: Duration) -> Result<Numbered, Failure> {
        let endpoint = &self.endpoints[at];
        if let Some(known) = &locked(&endpoint.state).client {
            return Ok(known.clone());
        }
        let connect = || {
            let (endpoint, url) = (endpoint.clone(), self.config.endpoints[at].clone());
            let config = self.config.clone();
            async move {
                if let Some(known) = &locked(&endpoint.state).client {
                    return Ok(known.clone());
                }
                // The task that began it has left by then.
                let late = |_| Failure::new(Ambiguous, "no answer in time");
                let connecting = async {
                    let client = config.connect(&url, limit).await?;
                    config.check_cluster(&client).await.map(|()| client)
                };
                let client = timeout(limit * 2, connecting).await.map_err(late)??;
                let mut state = locked(&endpoint.state);
                if let Some(known) = &state.client {
                    // Another was begun meanwhile, and came first.
                    return Ok(known.clone());
                }
                state.number += 1;
                let new = (state.number, client);
                Ok(state.client.insert(new).clone())
            }
        };
        let late = || Err(Failure::new(Unavailable, "no connection in time"));
        endpoint.connecting.join((), limit, connect).await.unwrap_or_else(late)
    }
}
