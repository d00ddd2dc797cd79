//! Sequential nodes that live as long as the session that created them. Each has a random name of
//! its own, so it is found again whether or not its creation was answered; Curator calls that
//! protection.

use std::sync::Arc;

use leasehold_core::support::uuid;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteError, MultiWriteResult};

use crate::client::connection::Client;
use crate::client::request::{children, found};
use crate::client::session::{Session, SessionHandler};
use crate::config::Config;
use crate::error::Answer;

/// An ephemeral sequential node, from before its creation until it is surely removed.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its path, without the number at its end until ZooKeeper has answered.
    path: Arc<str>,
    /// The length of its parent's path.
    parent: u32,
    /// It was created together with its parent.
    is_first: bool,
    /// The transaction that created it.
    created: Option<i64>,
}

/// A node that is as it was when it was read, as a condition of a transaction.
pub(crate) struct Unchanged {
    pub(crate) path: String,
    /// The version of its data. `None`: it was not there, and the transaction creates it.
    pub(crate) version: Option<i32>,
}

/// The outcome of an attempt to create a node together with its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    Created,
    /// Nothing was created: most often because the parent exists.
    Refused,
    /// Nothing was created: the condition is not true any more.
    Changed,
}

/// The length of the part of its name that no other node has, with the slash before it.
const UNIQUE: usize = "/_c_00010203-0405-0607-0809-0a0b0c0d0e0f-".len();

impl Node {
    /// Names a node under this parent that is not created yet, with `ending` before its number. Its
    /// name, in the form of Curator's recipes, is never used again: a request for this node affects
    /// no other node, of any session.
    pub(crate) fn new(parent: &str, ending: &str) -> Node {
        let path = format!("{parent}/_c_{}-{ending}", uuid()).into();
        Node {
            path,
            parent: parent.len() as u32,
            is_first: false,
            created: None,
        }
    }

    /// The node at this path, if it is named as [`new`](Node::new) names nodes. The transaction
    /// that created it is not known.
    pub(crate) fn at(path: &str) -> Option<Node> {
        let (parent, name) = path.rsplit_once('/')?;
        let is_ours = name.starts_with("_c_") && path.is_char_boundary(parent.len() + UNIQUE);
        is_ours.then(|| Node {
            path: path.into(),
            parent: parent.len() as u32,
            is_first: false,
            created: Some(0),
        })
    }

    /// The start of its path, which no other node has.
    pub(crate) fn unique(&self) -> &str {
        &self.path[..self.parent as usize + UNIQUE]
    }

    /// Its path, and the transaction that created it; `None` until ZooKeeper has answered.
    pub(crate) fn created(&self) -> Option<(&Arc<str>, i64)> {
        Some((&self.path, self.created?))
    }

    /// Returns whether it was created together with its parent.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// The path of its parent.
    pub(crate) fn parent(&self) -> &str {
        &self.path[..self.parent as usize]
    }

    /// Its name; until ZooKeeper has answered, only the start of it.
    pub(crate) fn name(&self) -> &str {
        &self.path[self.parent as usize + 1..]
    }

    /// The greatest number of bytes that its path takes in a packet, with its length before it.
    pub(crate) fn bytes(&self) -> usize {
        let number = if self.created.is_some() {
            0
        } else {
            "-2147483648".len()
        };
        size_of::<i32>() + self.path.len() + number
    }

    /// Returns whether the other node is this one.
    pub(crate) fn is_same(&self, other: &Node) -> bool {
        self.unique() == other.unique()
    }

    /// Returns whether this is the node's name.
    pub(crate) fn is(&self, name: &str) -> bool {
        name.starts_with(self.name())
    }

    /// Creates its parent and, in the same step, this node, which is the first one there. The step
    /// may have a condition.
    pub(crate) async fn create_first(
        &mut self,
        client: &Client,
        config: &Config,
        data: &[u8],
        condition: Option<&Unchanged>,
    ) -> Answer<First> {
        let mut writer = client.new_multi_writer();
        writer.add_create(
            self.parent(),
            b"",
            &config.create_options(CreateMode::Container),
        )?;
        let options = config.create_options(CreateMode::EphemeralSequential);
        writer.add_create(&self.path, data, &options)?;
        // Some servers do not report the transaction that created a node in a transaction, but all
        // report the one that wrote last.
        writer.add_set_data(self.parent(), b"", None)?;
        let before_condition = 3;
        if let Some(Unchanged { path, version }) = condition {
            match version {
                Some(version) => writer.add_check_version(path, *version)?,
                None => {
                    let options = config.create_options(CreateMode::Persistent);
                    writer.add_create(path, b"", &options)?;
                }
            }
        }
        match writer.commit().await {
            Err(MultiWriteError::OperationFailed { index, source })
                if index >= before_condition =>
            {
                match source {
                    ZkError::NoNode | ZkError::NodeExists | ZkError::BadVersion => {
                        Ok(First::Changed)
                    }
                    // The work could not be completed either.
                    source => Err(source),
                }
            }
            Err(MultiWriteError::OperationFailed { .. }) => Ok(First::Refused),
            Err(MultiWriteError::RequestFailed { source }) => Err(source),
            Ok(done) => match &done[..] {
                [
                    _,
                    MultiWriteResult::Create { path, .. },
                    MultiWriteResult::SetData { stat },
                    ..,
                ] => {
                    (self.path, self.created, self.is_first) =
                        (path.as_str().into(), Some(stat.mzxid), true);
                    Ok(First::Created)
                }
                _ => Err(ZkError::UnexpectedError(
                    "another transaction was answered".to_owned(),
                )),
            },
        }
    }

    /// Creates it. `false` if there is no parent.
    pub(crate) async fn create(
        &mut self,
        client: &Client,
        config: &Config,
        data: &[u8],
    ) -> Answer<bool> {
        let options = config.create_options(CreateMode::EphemeralSequential);
        let Some((stat, number)) = found(client.create(&self.path, data, &options).await)? else {
            return Ok(false);
        };
        (self.path, self.created) = (format!("{}{number}", self.path).into(), Some(stat.czxid));
        Ok(true)
    }

    /// Removes it by its path, or by its name if its creation was not answered. If it came first,
    /// its parent is removed with it, unless others came meanwhile or another client created the
    /// parent. Returns whether the parent was removed.
    ///
    /// No request for it can arrive after this: a request that was sent before on the same
    /// connection is executed before, and one on an earlier connection of the session is refused
    /// once the session has moved.
    pub(crate) async fn remove<T: SessionHandler>(&self, session: &Session<T>) -> Answer<bool> {
        let client = session.connected().await?;
        if let Some((path, _)) = self.created() {
            if self.is_first && self.remove_with_parent(&client, path).await? {
                return Ok(true);
            }
            return found(client.delete(path, None).await).map(|_| false);
        }
        let parent = self.parent();
        client.sync(parent).await?;
        for name in children(&client, parent)
            .await?
            .iter()
            .filter(|name| self.is(name))
        {
            found(client.delete(&format!("{parent}/{name}"), None).await)?;
        }
        Ok(false)
    }

    /// Removes both, or nothing.
    async fn remove_with_parent(&self, client: &Client, path: &str) -> Answer<bool> {
        let mut writer = client.new_multi_writer();
        writer.add_delete(path, None)?;
        writer.add_delete(self.parent(), None)?;
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { .. }) => Ok(false),
            Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Node {
        /// The node as ZooKeeper would have created it with this number.
        pub(crate) fn as_created(&self, number: u32, czxid: i64) -> Node {
            Node {
                path: format!("{}{number:010}", self.path).into(),
                created: Some(czxid),
                ..self.clone()
            }
        }
    }

    #[test]
    fn a_node_is_named_as_curator_names_it_and_never_as_another() {
        let one = Node::new("/a", "lock-");
        let other = Node::new("/a", "lock-");
        let groups: Vec<usize> = one.name().split('-').map(str::len).collect();
        assert!(
            one.name().starts_with("_c_") && groups == [3 + 8, 4, 4, 4, 12, 4, 0],
            "{one:?}"
        );
        assert!(one.is_same(&one) && !one.is_same(&other));
        let created = one.as_created(7, 70);
        assert!(created.name().ends_with("-lock-0000000007") && created.parent() == "/a");
        assert!(created.is_same(&one) && one.is(created.name()) && !one.is(other.name()));
        assert!((0..2).contains(&(one.bytes() - created.bytes())));
        let found = Node::at(&created.path).unwrap();
        assert!(found.is_same(&one) && found.parent() == "/a" && found.bytes() == created.bytes());
        for other in [
            "/a/.leasehold/1-notify",
            "/a/_c_0-lock-0000000007",
            "/_c_a/x",
            "_c_",
            "",
        ] {
            assert!(Node::at(other).is_none(), "{other}");
        }
    }
}
