//! Connections to endpoints: at the start to as many as show which cluster most of them belong to,
//! and to each other one when it is first asked.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::ErrorKind::{Ambiguous, OtherStore, Unavailable};
use leasehold_core::backend::Moment;
use leasehold_core::support::{Home, locked};
use leasehold_core::{Error, Result};
use tokio::time::timeout;

use crate::client::cluster::{Cluster, Connection, DOUBLINGS};
use crate::client::identity::{ClusterIdentity, store_id, warning};
use crate::client::reach;
use crate::error::Failure;

/// The time limit of connecting, and that of the other endpoints once one has answered.
const CONNECT: Duration = Duration::from_secs(3);
const OTHERS: Duration = Duration::from_millis(300);

/// The endpoints that answered, by the clusters that they belong to.
#[derive(Default)]
struct Answers(Vec<(u64, Vec<usize>)>);

impl Answers {
    fn add(&mut self, cluster: u64, at: usize) {
        match self.0.iter_mut().find(|(known, _)| *known == cluster) {
            Some((_, all)) => all.push(at),
            None => self.0.push((cluster, vec![at])),
        }
    }

    /// The number of endpoints of the cluster that has most of them.
    fn most(&self) -> usize {
        self.0
            .iter()
            .map(|(_, all)| all.len())
            .max()
            .unwrap_or_default()
    }

    /// Returns the endpoint to use, and a sentence for each endpoint of another cluster; `None` if
    /// none answered. Fails if the right cluster is not among them, or if none has the most.
    fn judge(
        mut self,
        identity: &ClusterIdentity,
        urls: &[String],
    ) -> Result<Option<(usize, Vec<String>)>> {
        self.0.sort_by_key(|(_, all)| std::cmp::Reverse(all.len()));
        let pinned = identity.id();
        let is_right = |cluster: u64| cluster == 0 || pinned.as_ref() == Some(&store_id(cluster));
        let right = match (&pinned, &self.0[..]) {
            (_, []) => return Ok(None),
            (Some(_), all) => all.iter().position(|(cluster, _)| is_right(*cluster)),
            (None, [(_, most), (_, next), ..]) if most.len() == next.len() => {
                let each = self.0.iter().map(|(cluster, all)| {
                    let urls: Vec<&str> = all.iter().map(|at| &*urls[*at]).collect();
                    format!("{} belongs to {}", urls.join(", "), store_id(*cluster))
                });
                let what = format!(
                    "the endpoints belong to different etcd clusters, whose locks are different ones: {}. \
                     Name the members of one, or pin it by `store`",
                    each.collect::<Vec<_>>().join("; ")
                );
                return Err(Error::new(OtherStore, what));
            }
            (None, _) => Some(0),
        };
        let Some(right) = right else {
            return identity
                .check(self.0[0].0)
                .map(|()| None)
                .map_err(Error::from);
        };
        let (cluster, at) = self.0.remove(right);
        identity.check(cluster)?;
        let others = self.0.iter().flat_map(|(cluster, all)| {
            all.iter().map(|at| {
                format!(
                    "{} belongs to another etcd cluster, {}, and is not used",
                    urls[*at],
                    store_id(*cluster)
                )
            })
        });
        Ok(Some((
            at[0],
            warning(cluster).into_iter().chain(others).collect(),
        )))
    }
}

impl Cluster {
    /// Connects, within three seconds. Asks all endpoints at once, until most of them belong to one
    /// cluster, or the others are silent. The first that answered of the right ones is in use.
    pub(crate) async fn connect(&self) -> Result<()> {
        #[cfg(feature = "tls-no-provider")]
        self.config.check_files().await?;
        // Each request over a client of the program's goes to another member.
        let tries = self.endpoints.len().max(self.attempts());
        let mut asked: FuturesUnordered<_> = (0..tries)
            .map(|i| self.connect_to(i % self.endpoints.len()))
            .collect();
        let mut answers = Answers::default();
        let mut failures = BTreeMap::new();
        let mut latest = None;
        let mut refused = None;
        let until_most_agree = async {
            let mut limit = CONNECT;
            while let Ok(Some((at, answer))) = timeout(limit, asked.next()).await {
                match answer {
                    Ok(cluster) => answers.add(cluster, at),
                    // A member of another cluster may know no such user.
                    Err(failure) if !failure.is_of_this_endpoint() => {
                        refused.get_or_insert(failure.at(&self.config.endpoints[at]));
                    }
                    Err(failure) => {
                        failures.insert(at, failure.clone());
                        latest = Some(failure);
                    }
                }
                match answers.most() {
                    0 => {}
                    most if most > tries / 2 => break,
                    // One that is silent is waited for only for a moment.
                    _ => limit = OTHERS,
                }
            }
        };
        // The time limit may cut it off.
        let _ = timeout(CONNECT, until_most_agree).await;
        drop(asked);
        match answers.judge(&self.identity, &self.config.endpoints)? {
            Some((at, others)) => {
                self.active.store(at, Relaxed);
                self.check(others).await;
                Ok(())
            }
            None => match refused {
                Some(refused) => Err(refused.into()),
                None => Err(Box::pin(self.explain(latest, failures)).await),
            },
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
        #[cfg(feature = "tls-no-provider")]
        if self.config.is_secure()
            && let Some(why) = self.config.diagnose(limit).await
        {
            return why;
        }
        let all_are_others = failures.len() == self.config.endpoints.len()
            && failures.values().all(|failure| failure.kind == OtherStore);
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
        let kind = if all_are_others {
            OtherStore
        } else {
            Unavailable
        };
        Error::new(kind, join_all(each).await.join("; "))
    }

    /// Connects to this endpoint. Any read shows that there is a leader and that the user has the
    /// right. Returns the id of the cluster, beside the endpoint.
    async fn connect_to(&self, at: usize) -> (usize, Result<u64, Failure>) {
        (at, self.try_to_connect(at).await)
    }

    async fn try_to_connect(&self, at: usize) -> Result<u64, Failure> {
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
                Ok(cluster) => {
                    // An endpoint that is far away is given longer from the first request on.
                    let far = Moment::now().since(sent) > self.config.timeout;
                    locked(&self.endpoints[at].state).doublings = if far { DOUBLINGS } else { 0 };
                    return Ok(cluster);
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
            let identity = self.identity.clone();
            async move {
                if let Some(known) = &locked(&endpoint.state).connection {
                    return Ok(known.clone());
                }
                // By then the task that began it has left.
                let late = |_| Failure::unheard(Ambiguous, "no answer in time");
                let connecting = async {
                    let client = config.connect(&url, limit).await?;
                    config.check_member(&client).await?;
                    // The first request may be one that changes something.
                    if identity.id().is_some() {
                        identity.check(config.probe(client.clone()).await?)?;
                    }
                    Ok::<_, Failure>(client)
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
