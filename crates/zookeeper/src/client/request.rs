//! Single requests. A node may be removed at any time, so its absence is an answer here and no error. Many nodes are read by one
//! request.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, MultiReadResult, MultiReader};

use crate::config::Config;
use crate::error::Answer;

/// The number of nodes in one request.
pub(crate) const AT_ONCE: usize = 128;

/// The delay before a failed request is repeated.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The answer, or `None` if the node is not there.
pub(crate) fn found<R>(answer: Answer<R>) -> Answer<Option<R>> {
    match answer {
        Err(ZkError::NoNode) => Ok(None),
        other => other.map(Some),
    }
}

/// Fails unless a node is there according to the leader and a quorum, not to a server that may lag
/// behind. `NoNode` if it is not there.
pub(crate) async fn exists(client: &Client, path: &str) -> Answer<()> {
    let mut writer = client.new_multi_writer();
    writer.add_check_version(path, -1)?;
    Ok(writer.commit().await.map(drop)?)
}

/// The children of a node, none if it is not there.
pub(crate) async fn children(client: &Client, path: &str) -> Answer<Vec<String>> {
    Ok(found(client.list_children(path).await)?.unwrap_or_default())
}

/// Reads `what` of these nodes. One answer for each, in their order.
pub(crate) async fn read<'a>(
    client: &'a Client,
    paths: &[impl AsRef<str>],
    what: impl Fn(&mut MultiReader<'a>, &str) -> Answer<()>,
) -> Answer<Vec<MultiReadResult>> {
    let mut answers = Vec::with_capacity(paths.len());
    for chunk in paths.chunks(AT_ONCE) {
        let mut reader = client.new_multi_reader();
        for path in chunk {
            what(&mut reader, path.as_ref())?;
        }
        answers.extend(reader.commit().await?);
    }
    Ok(answers)
}

/// Creates a container node and its missing ancestors. Nodes above the root are not this store's:
/// each inherits the access rights of the node above it.
pub(crate) async fn mkdir(client: &Client, config: &Config, path: &str) -> Answer<()> {
    let ours = config.create_options(CreateMode::Container);
    let mut above = "/";
    for (end, _) in config.root.match_indices('/').skip(1) {
        let folder = &config.root[..end];
        if client.check_stat(folder).await?.is_none() {
            let created = match client.get_acl(above).await {
                Ok((acl, _)) => {
                    client
                        .create(
                            folder,
                            b"",
                            &CreateMode::Container.with_acls(Acls::new(&acl)),
                        )
                        .await
                }
                Err(ZkError::NoAuth) => client.create(folder, b"", &ours).await,
                Err(e) => Err(e),
            };
            match created {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(e) => return Err(e),
            }
        }
        above = folder;
    }
    client.mkdir(path, &ours).await
}
