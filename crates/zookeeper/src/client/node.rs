//! Sequential nodes that live as long as the session that created them. Each has a random name of its own, so it is found again
//! whether or not its creation was answered: what Curator calls protection.

use std::sync::Arc;

use futures_util::future::join;
use uuid::Uuid;
use zookeeper_client::CreateMode;

use crate::client::request::{children, found, mkdir};
use crate::client::session::{Session, SessionHandler};
use crate::error::Answer;

/// One ephemeral sequential node, from before its creation until it is surely removed.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    parent: Arc<str>,
    /// How its name begins, unlike any other's.
    pub(crate) prefix: Arc<str>,
    /// Its path, and the transaction that created it; `None` until ZooKeeper has answered.
    pub(crate) created: Option<(Arc<str>, i64)>,
}

impl Node {
    /// A node under this parent, not created yet. Its name, in the form of Curator's recipes, is never used again: a request for
    /// this node affects no other node, of whatever session.
    pub(crate) fn new(parent: &str) -> Node {
        Node { parent: parent.into(), prefix: format!("_c_{}-", Uuid::new_v4()).into(), created: None }
    }

    /// Whether this is its name.
    pub(crate) fn is(&self, name: &str) -> bool {
        name.starts_with(&*self.prefix)
    }

    /// Creates it, with `ending` before its number, and lists its parent's children right after that: a session's requests are
    /// executed in order, so the list has every node that is before this one.
    pub(crate) async fn create<T: SessionHandler>(
        &mut self,
        session: &Session<T>,
        ending: &str,
        data: &[u8],
    ) -> Answer<Vec<String>> {
        let client = session.connected().await?;
        let path = format!("{}/{}{ending}", self.parent, self.prefix);
        let options = session.config.create_options(CreateMode::EphemeralSequential);
        loop {
            let (created, listed) =
                join(client.create(&path, data, &options), client.list_children(&self.parent)).await;
            if let Some((stat, number)) = found(created)? {
                self.created = Some((format!("{path}{number}").into(), stat.czxid));
                return listed;
            }
            // ZooKeeper removes a container about a minute after its last use.
            mkdir(&client, &session.config, &self.parent).await?;
        }
    }

    /// Removes it by its path, or by its name if its creation was not answered.
    ///
    /// Nothing of it can arrive after this: a request that was sent before on the same connection is executed before, and one on
    /// an earlier connection of the session is refused once the session has moved.
    pub(crate) async fn remove<T: SessionHandler>(&self, session: &Session<T>) -> Answer<()> {
        let client = session.connected().await?;
        if let Some((path, _)) = &self.created {
            return found(client.delete(path, None).await).map(drop);
        }
        client.sync(&self.parent).await?;
        for name in children(&client, &self.parent).await?.iter().filter(|name| self.is(name)) {
            found(client.delete(&format!("{}/{name}", self.parent), None).await)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_as_curator_names_it_and_never_as_another() {
        let (one, other) = (Node::new("/a"), Node::new("/a"));
        let groups: Vec<usize> = one.prefix.split('-').map(str::len).collect();
        assert!(one.prefix.starts_with("_c_") && groups == [3 + 8, 4, 4, 4, 12, 0], "{one:?}");
        assert_ne!(one.prefix, other.prefix);
        assert!(one.is(&format!("{}lock-0000000007", one.prefix)) && !one.is(&other.prefix));
    }
}
