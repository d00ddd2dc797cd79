//! A stream of watches, each of a prefix or of one key, and with a tag.
//!
//! Each watch starts *now*, because etcd serves a watch that starts at a past revision in rounds of
//! 100 ms. Earlier keys are to be read once the watch has started, which its first message says.
//! After any doubt the whole stream ends, and another one is to be opened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, ResponseHeader, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use leasehold_core::Error;
use leasehold_core::support::Home;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::client::cluster::{Cluster, left};
use crate::client::identity::ClusterIdentity;

/// The number of the first watch; others follow.
const FIRST: i64 = 1;

/// The reason why the stream ended, or is to be opened anew.
pub(crate) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// The keys and events that one watch reports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Range {
    /// All keys that begin with this.
    Prefix(Arc<str>),
    /// This key.
    Key(Arc<str>),
    /// The deletions of this key.
    End(Arc<str>),
    /// All keys that begin with this, but not their deletions.
    TurnKeys(Arc<str>),
}

impl Range {
    /// The prefix, or the key.
    pub(crate) fn text(&self) -> &Arc<str> {
        match self {
            Range::Prefix(text) | Range::Key(text) | Range::End(text) | Range::TurnKeys(text) => {
                text
            }
        }
    }

    fn options(&self, id: i64) -> Option<WatchOptions> {
        let options = WatchOptions::new().with_watch_id(id);
        Some(match self {
            Range::Prefix(_) => options.with_prefix(),
            Range::Key(_) => options,
            Range::End(_) => options.with_filters([WatchFilterType::NoPut]),
            Range::TurnKeys(_) => options
                .with_prefix()
                .with_filters([WatchFilterType::NoDelete]),
        })
    }
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Watch<T> {
    sender: WatchRequestSender,
    stream: WatchResponseStream,
    reopened: Receiver<bool>,
    /// The runtime in which its connection lives, if that is known.
    home: Option<Home>,
    identity: Arc<ClusterIdentity>,
    limit: Duration,
    /// By the numbers of the watches.
    tags: BTreeMap<i64, T>,
    next: i64,
}

impl Cluster {
    /// Opens a stream, with its first watch.
    pub(crate) async fn watch<T>(&self, tag: T, range: &Range) -> Result<Watch<T>, Broken> {
        let limit = self.config.timeout;
        // A stream that is opened with an expired token is refused as if the user had no right; a
        // read gets a new token.
        let open = |client: Client| async move {
            let cluster_id = self.probe(client.clone()).await?;
            let watch = client
                .watch_client()
                .watch(&**range.text(), range.options(FIRST))
                .await?;
            Ok((watch, cluster_id))
        };
        // These are two round trips.
        let (watch, _) = Box::pin(self.ask(2 * limit, open))
            .await
            .outcome
            .map_err(Error::from)?;
        let (sender, stream) = watch.split();
        let reopened = self.reopened.subscribe();
        let home = self.home(self.active());
        self.open()?;
        Ok(Watch {
            sender,
            stream,
            reopened,
            home,
            identity: self.identity.clone(),
            limit,
            tags: BTreeMap::from([(FIRST, tag)]),
            next: FIRST + 1,
        })
    }
}

impl<T: Clone> Watch<T> {
    /// Adds a watch.
    pub(crate) async fn add(&mut self, tag: T, range: &Range) -> Result<(), Broken> {
        self.tags.insert(self.next, tag);
        timeout(
            self.limit,
            self.sender.watch(&**range.text(), range.options(self.next)),
        )
        .await??;
        self.next += 1;
        Ok(())
    }

    /// Ends all watches that `keep` does not name.
    pub(crate) async fn retain(&mut self, keep: impl Fn(&T) -> bool) -> Result<(), Broken> {
        let over: Vec<i64> = self
            .tags
            .iter()
            .filter(|(_, tag)| !keep(tag))
            .map(|(id, _)| *id)
            .collect();
        over.iter().for_each(|id| drop(self.tags.remove(id)));
        for id in over {
            timeout(self.limit, self.sender.cancel(id)).await??;
        }
        Ok(())
    }

    /// Returns the next message of a watch. No message is missed if the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<(T, WatchResponse), Broken> {
        loop {
            tokio::select! {
                // This comes first: messages after the client was closed may report the end of its
                // own leases.
                biased;
                _ = self.reopened.changed() => return Err("another connection is in use".into()),
                () = left(self.home.as_ref()) => return Err("its runtime is not driven".into()),
                message = self.stream.message() => {
                    let message = message?.ok_or("the end")?;
                    let cluster_id = message.header().map_or(0, ResponseHeader::cluster_id);
                    self.identity.check(cluster_id).map_err(Error::from)?;
                    let tag = self.tags.get(&message.watch_id());
                    // -1 stands for a watch that could not be opened; other numbers belong to the
                    // last message of a watch that this client ended.
                    if message.canceled() && (tag.is_some() || message.watch_id() < 0) {
                        return Err("a watch was cancelled".into());
                    }
                    if let Some(tag) = tag {
                        return Ok((tag.clone(), message));
                    }
                }
            }
        }
    }
}
