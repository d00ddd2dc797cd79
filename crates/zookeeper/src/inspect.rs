//! Reading queues: `inspect` and `list`.

use leasehold_core::{LockQueue, Name, Participant};
use zookeeper_client::{MultiReadResult, MultiReader, Stat};

use crate::claim::table::Session;
use crate::client::{AT_ONCE, children, read};
use crate::entry::{Child, by_number, loaded, queue};
use crate::error::Answer;
use crate::names;

/// See [`Backend::inspect`](leasehold_core::backend::Backend::inspect).
pub(crate) async fn inspect(session: &Session, name: &Name) -> Answer<LockQueue> {
    let queue = read_queue(session, &names::node(&session.config.root, name)).await?;
    Ok(LockQueue::in_order(
        queue
            .into_iter()
            .map(|(participant, child, _)| (child.mode, participant)),
    ))
}

/// See [`Backend::list`](leasehold_core::backend::Backend::list). One request for the names, and
/// one for each 128 names that are checked: if others have waited for a lock, its node stays for
/// about a minute.
pub(crate) async fn list(
    session: &Session,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Answer<Vec<Name>> {
    let client = session.connected().await?;
    let root = &session.config.root;
    client.sync(root).await?;
    let nodes = children(&client, root).await?;
    let wanted =
        |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
    let mut names: Vec<Name> = nodes
        .iter()
        .filter_map(|node| names::decode(node))
        .filter(wanted)
        .collect();
    names.sort();
    let mut in_use = Vec::new();
    let mut chunks = names.chunks(AT_ONCE.min(limit.max(1)));
    while in_use.len() < limit
        && let Some(chunk) = chunks.next()
    {
        let paths: Vec<String> = chunk.iter().map(|name| names::node(root, name)).collect();
        for (name, answer) in chunk
            .iter()
            .zip(read(&client, &paths, MultiReader::add_get_children).await?)
        {
            if matches!(answer, MultiReadResult::Children { children } if !by_number(&children).is_empty())
            {
                in_use.push(name.clone());
            }
        }
    }
    in_use.truncate(limit);
    Ok(in_use)
}

/// The entries of a queue, with the contents of their nodes.
pub(crate) async fn read_queue(
    session: &Session,
    parent: &str,
) -> Answer<Vec<(Participant, Child, Stat)>> {
    let client = session.connected().await?;
    client.sync(parent).await?;
    let queue = loaded(&client, parent, queue(&client, parent).await?).await?;
    session.learn_base(&client).await?;
    let read = |(mut child, data, stat): (Child, Vec<u8>, Stat)| {
        (
            child.read(&data, &stat, session.number(stat.czxid)),
            child,
            stat,
        )
    };
    Ok(queue.into_iter().map(read).collect())
}
