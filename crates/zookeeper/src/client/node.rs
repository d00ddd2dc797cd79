//! Nodes that live as long as the session that made them, one behind the other. Each can be found again, whatever became of the
//! request that made it, by a random name of its own: what Curator calls protection.

use std::sync::Arc;

use futures_util::future::join;
use uuid::Uuid;
use zookeeper_client::CreateMode;

use crate::client::request::{children, found, mkdir};
use crate::client::session::{Session, Tenant};
use crate::error::Answer;

/// One ephemeral sequential node, from before it is made until it is surely gone.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    parent: Arc<str>,
    /// How its name begins, unlike any other's.
    pub(crate) prefix: Arc<str>,
    /// Its path, and the transaction that made it; `None` until ZooKeeper has said so.
    pub(crate) made: Option<(Arc<str>, i64)>,
}

impl Node {
    /// A node under this one, not made yet. In the form of Curator's recipes, its name never comes again: what is meant for this
    /// node meets no other, of whatever session.
    pub(crate) fn new(parent: &str) -> Node {
        Node { parent: parent.into(), prefix: format!("_c_{}-", Uuid::new_v4()).into(), made: None }
    }

    /// Whether it is called so.
    pub(crate) fn is(&self, name: &str) -> bool {
        name.starts_with(&*self.prefix)
    }

    /// Makes it, with this end before its number. Its parent's children are asked for right behind that: the session's order
    /// makes the list show whatever is before the node.
    pub(crate) async fn make<T: Tenant>(
        &mut self,
        session: &Session<T>,
        ending: &str,
        data: &[u8],
    ) -> Answer<Vec<String>> {
        let client = session.connected().await?;
        let path = format!("{}/{}{ending}", self.parent, self.prefix);
        let options = session.config.make(CreateMode::EphemeralSequential);
        loop {
            let (made, listed) = join(client.create(&path, data, &options), client.list_children(&self.parent)).await;
            if let Some((stat, number)) = found(made)? {
                self.made = Some((format!("{path}{number}").into(), stat.czxid));
                return listed;
            }
            // ZooKeeper removes a container that nobody has used for a minute.
            mkdir(&client, &session.config, &self.parent).await?;
        }
    }

    /// Removes it by its path, or by its name if it is not known where, or whether, it was made.
    ///
    /// Nothing of it can arrive after this: a request that was sent before on the same connection is executed before, and one on
    /// an earlier connection of the session is refused by the server once the session is on another.
    pub(crate) async fn remove<T: Tenant>(&self, session: &Session<T>) -> Answer<()> {
        let client = session.connected().await?;
        if let Some((path, _)) = &self.made {
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
