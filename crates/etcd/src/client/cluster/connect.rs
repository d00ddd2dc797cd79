//! Connections to endpoints: at the start to the first one that answers, and to each other one when
//! it is first asked.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::backend::Moment;
use leasehold_core::support::{Home, locked};
use leasehold_core::{Error, Result};
use leasehold_net::race;
use tokio::time::timeout;

use crate::client::cluster::{Cluster, Connection, DOUBLINGS};
use crate::client::reach;
use crate::error::Failure;

/// The time limit of connecting, and the delay after which another endpoint is asked beside one
/// that has not answered.
const CONNECT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(300);

impl Cluster {
    /// Connects, within three seconds. Asks all endpoints, from one at random on, and waits for
    /// none while another was not asked. The first one that answers is in use.
    pub(crate) async fn connect(&self) -> Result<()> {
        #[cfg(feature = "tls")]
        self.config.check_files().await?;
        let first = self.active();
        let all = self.endpoints.len();
        let tries = self.endpoints.len().max(self.attempts());
        let failures = Mutex::new(BTreeMap::new());
        let connect_to = async |at: usize| {
            let failed = |failure: Failure| match failure.is_of_this_endpoint() {
                true => {
                    locked(&failures).insert(at, failure.clone());
                    failure
                }
                false => failure.at(&self.config.endpoints[at]),
            };
            self.connect_to(at).await.map_err(failed)
        };
        let each = (0..tries).map(|i| Box::pin(connect_to((first + i) % all)));
        let step = STEP.min(CONNECT / (2 * u32::try_from(tries).unwrap_or(u32::MAX)));
        let is_final = |failure: &Failure| !failure.is_of_this_endpoint();
        let raced = timeout(CONNECT, race(each, step, is_final)).await;
        match raced.unwrap_or(Err(None)) {
            Ok(at) => {
                self.active.store(at, Relaxed);
                self.check().await;
                Ok(())
            }
            Err(Some(failure)) if !failure.is_of_this_endpoint() => Err(failure.into()),
            Err(failure) => {
                let failures = std::mem::take(&mut *locked(&failures));
                Err(Box::pin(self.explain(failure, failures)).await)
            }
        }
    }

    /// Explains why no endpoint can be used: for each endpoint its own reason, from its answer or
    /// else from one more connection to it.
    async fn explain(
        &self,
        latest: Option<Failure>,
        mut failures: BTreeMap<usize, Failure>,
    ) -> Error {
        if self.config.client.is_some() || self.config.is_simulated() {
            let late = || Failure::new(Unavailable, "no answer within three seconds");
            return latest.unwrap_or_else(late).of_a_read().into();
        }
        let limit = self.config.timeout.min(CONNECT);
        #[cfg(feature = "tls")]
        if self.config.is_secure()
            && let Some(why) = self.config.diagnose(limit).await
        {
            return why;
        }
        let each = self.config.endpoints.iter().enumerate().map(|(at, url)| {
            let failure = failures.remove(&at).map(Failure::of_a_read);
            async move {
                match failure {
                    Some(failure) if !failure.is_unheard() => {
                        Error::from(failure.at(url)).to_string()
                    }
                    _ => reach::explain(url, limit).await,
                }
            }
        });
        Error::new(Unavailable, join_all(each).await.join("; "))
    }

    /// Connects to this endpoint. Any read shows that there is a leader and that the user has the
    /// right.
    async fn connect_to(&self, at: usize) -> Result<usize, Failure> {
        let sent = Moment::now();
        let mut renewed = false;
        loop {
            let Connection { number, client, .. } = self.connection(at, CONNECT).await?;
            match self.probe(client).await.map_err(Failure::from) {
                Err(failure) => {
                    self.forget(at, number);
                    if renewed || !failure.is_stale_token() {
                        return Err(failure);
                    }
                    renewed = true;
                }
                Ok(()) => {
                    // An endpoint that is far away is given longer from the first request on.
                    let far = Moment::now().since(sent) > self.config.timeout;
                    locked(&self.endpoints[at].state).doublings = if far { DOUBLINGS } else { 0 };
                    return Ok(at);
                }
            }
        }
    }

    /// Returns the connection of this endpoint. It is made at the first use, which sends requests
    /// to the server, and anew once the runtime in which it was made has ended or is not driven
    /// any more.
    pub(super) async fn connection(
        &self,
        at: usize,
        limit: Duration,
    ) -> Result<Connection, Failure> {
        let endpoint = &self.endpoints[at];
        let known = locked(&endpoint.state).connection.clone();
        if let Some(known) = known {
            match &known.home {
                Some(home) if !home.is_driven().await => self.forget(at, known.number),
                _ => return Ok(known),
            }
        }
        let connect = || {
            let endpoint = endpoint.clone();
            let url = self.config.endpoints[at].clone();
            let config = self.config.clone();
            async move {
                if let Some(known) = &locked(&endpoint.state).connection {
                    return Ok(known.clone());
                }
                // By then the task that began it has left.
                let late = |_| Failure::unheard(Ambiguous, "no answer in time");
                let connecting = async {
                    let client = config.connect(&url, limit).await?;
                    config.check_member(&client).await?;
                    config.check_cluster(&client).await.map(|()| client)
                };
                let client = timeout(limit * 2, connecting).await.map_err(late)??;
                let home = Home::here();
                let mut state = locked(&endpoint.state);
                if let Some(known) = &state.connection {
                    // Another connection was begun meanwhile and came first.
                    return Ok(known.clone());
                }
                state.number += 1;
                let new = Connection {
                    number: state.number,
                    client,
                    home,
                };
                Ok(state.connection.insert(new).clone())
            }
        };
        let late = || Err(Failure::unheard(Unavailable, "no connection in time"));
        endpoint
            .connecting
            .join((), limit, connect)
            .await
            .unwrap_or_else(late)
    }
}
