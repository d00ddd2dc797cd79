//! Nodes come and go: that one is not there is an answer in here, and no error. And many are read by one request.

use zookeeper_client::{Client, Error as ZkError, MultiReadResult, MultiReader, Stat};

/// How many nodes one request reads.
pub const AT_ONCE: usize = 128;

/// The children of a node, none if it is not there.
pub async fn children(client: &Client, path: &str) -> Result<Vec<String>, ZkError> {
    match client.list_children(path).await {
        Err(ZkError::NoNode) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Removes a node; `false` if it is not there.
pub async fn remove(client: &Client, path: &str) -> Result<bool, ZkError> {
    match client.delete(path, None).await {
        Err(ZkError::NoNode) => Ok(false),
        deleted => deleted.map(|()| true),
    }
}

/// What these nodes say, each in its turn; `None` for one that is not there.
pub async fn data_of(client: &Client, paths: &[String]) -> Result<Vec<Option<(Vec<u8>, Stat)>>, ZkError> {
    let answers = read(client, paths, MultiReader::add_get_data).await?.into_iter().map(|answer| match answer {
        MultiReadResult::Data { data, stat } => Some((data, stat)),
        _ => None,
    });
    Ok(answers.collect())
}

/// The children of these nodes, each in its turn.
pub async fn children_of(client: &Client, paths: &[String]) -> Result<Vec<Vec<String>>, ZkError> {
    let answers = read(client, paths, MultiReader::add_get_children).await?.into_iter().map(|answer| match answer {
        MultiReadResult::Children { children } => children,
        _ => Vec::new(),
    });
    Ok(answers.collect())
}

async fn read<'a>(
    client: &'a Client,
    paths: &[String],
    what: impl Fn(&mut MultiReader<'a>, &str) -> Result<(), ZkError>,
) -> Result<Vec<MultiReadResult>, ZkError> {
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
