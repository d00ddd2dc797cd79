//! Nodes come and go: that one is not there is an answer in here, and no error. And many are read by one request.

use zookeeper_client::{Client, Error as ZkError, MultiReadResult, MultiReader};

use crate::error::Answer;

/// How many nodes one request reads.
pub const AT_ONCE: usize = 128;

/// What was answered, or `None` if the node is not there.
pub fn found<R>(answer: Answer<R>) -> Answer<Option<R>> {
    match answer {
        Err(ZkError::NoNode) => Ok(None),
        other => other.map(Some),
    }
}

/// Whether a node is there, as the leader and a quorum see it; no server that lags behind is believed. `NoNode` if not.
pub async fn exists(client: &Client, path: &str) -> Answer<()> {
    let mut writer = client.new_multi_writer();
    writer.add_check_version(path, -1)?;
    Ok(writer.commit().await.map(drop)?)
}

/// The children of a node, none if it is not there.
pub async fn children(client: &Client, path: &str) -> Answer<Vec<String>> {
    Ok(found(client.list_children(path).await)?.unwrap_or_default())
}

/// Reads `what` of these nodes. One answer for each, in their order.
pub async fn read<'a>(
    client: &'a Client,
    paths: &[String],
    what: impl Fn(&mut MultiReader<'a>, &str) -> Answer<()>,
) -> Answer<Vec<MultiReadResult>> {
    let mut answers = Vec::with_capacity(paths.len());
    for chunk in paths.chunks(AT_ONCE) {
        let mut reader = client.new_multi_reader();
        for path in chunk {
            what(&mut reader, path)?;
        }
        answers.extend(reader.commit().await?);
    }
    Ok(answers)
}
