//! Several servers that are one store: the controls that all kinds of them share.

use std::{ops::Deref, time::Duration};

use crate::{error::Result, links::Links, server::Server};

const GLANCE: Duration = Duration::from_millis(10);
/// The time within which a member has to say whether it leads: it may be paused.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Private servers that are one store. Each member is an ordinary server: kill, pause or restart any of them.
#[derive(Debug)]
pub struct Cluster<S> {
    members: Vec<S>,
    /// The links of each port at which members listen for each other.
    pub(crate) links: Vec<Links>,
}

impl<S: Deref<Target = Server>> Cluster<S> {
    pub(crate) fn new(members: Vec<S>, links: Vec<Links>) -> Self {
        Self { members, links }
    }

    /// The members, in the order of their indices. The index of a ZooKeeper server is one less than its id.
    #[must_use]
    pub fn members(&self) -> &[S] {
        &self.members
    }

    /// The index of the member that leads. Waits until one says so.
    ///
    /// A leader that was isolated or paused can still call itself the leader for a while, beside
    /// its successor. The first member that does so is returned.
    pub async fn leader(&self) -> usize {
        loop {
            for (index, member) in self.members.iter().enumerate() {
                if matches!(
                    tokio::time::timeout(ANSWER_WITHIN, member.is_leader()).await,
                    Ok(Ok(true))
                ) {
                    return index;
                }
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Silently stops everything between one member and the others, both ways. Clients still reach the member; a ZooKeeper
    /// server goes on answering reads until it notices, after
    /// [`ZooKeeperOptions::sync_limit`](crate::ZooKeeperOptions::sync_limit) ticks.
    ///
    /// Without the option `peer_proxies` this does nothing and returns `false`.
    pub fn isolate(&self, member: usize) -> bool {
        self.links
            .iter()
            .flat_map(|links| links.of(member))
            .map(|link| link.hold())
            .count()
            > 0
    }

    /// Joins an isolated member to the others again. Old connections are closed, and the members
    /// make new ones.
    pub async fn rejoin(&self, member: usize) {
        for link in self.links.iter().flat_map(|links| links.of(member)) {
            link.cut().await;
            link.heal().await;
        }
    }

    pub(crate) async fn until_ready(&self) -> Result<()> {
        for member in &self.members {
            member.until_ready().await?;
        }
        Ok(())
    }
}
