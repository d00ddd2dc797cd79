//! Looking at lines and ending a hold from outside: `inspect`, `list` and `evict`.

use futures_util::future::join;
use leasehold_core::seam::{Mode, holding, place_of_token};
use leasehold_core::{Entry, FencingToken, Line, Name};
use leasehold_zookeeper_client::{AT_ONCE, children, children_of, data_of, remove};
use zookeeper_client::{Error as ZkError, Stat};

use crate::claims::Session;
use crate::line::{Child, in_order, line};
use crate::names;

/// See [`Backend::inspect`](leasehold_core::seam::Backend::inspect).
pub(crate) async fn inspect(session: &Session, name: &Name) -> Result<Line, ZkError> {
    let seen = read(session, &names::node(session.root(), name)).await?;
    Ok(Line::in_order(seen.into_iter().map(|(child, entry, _)| (child.mode, entry))))
}

/// See [`Backend::list`](leasehold_core::seam::Backend::list). One request for the names, and one for each 128 of those that are
/// looked at: the node of a lock stays for about a minute after its last use.
pub(crate) async fn list(
    session: &Session,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>, ZkError> {
    let (client, root) = (session.connected().await?, session.root());
    client.sync(root).await?;
    let nodes = children(&client, root).await?;
    let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
    let mut names: Vec<Name> = nodes.iter().filter_map(|node| names::decode(node)).filter(wanted).collect();
    names.sort();
    let mut found = Vec::new();
    for chunk in names.chunks(AT_ONCE.min(limit.max(1))) {
        if found.len() >= limit {
            break;
        }
        let paths: Vec<String> = chunk.iter().map(|name| names::node(root, name)).collect();
        let lines = children_of(&client, &paths).await?;
        let in_use = chunk.iter().zip(lines).filter(|(_, line)| !in_order(line).is_empty());
        found.extend(in_use.map(|(name, _)| name.clone()));
    }
    found.truncate(limit);
    Ok(found)
}

/// See [`Backend::evict`](leasehold_core::seam::Backend::evict). The entry's session hears of it by the one watch that it has.
pub(crate) async fn evict(session: &Session, name: &Name, token: FencingToken) -> Result<bool, ZkError> {
    let Some((path, owner)) = holder(session, name, token).await? else { return Ok(false) };
    let client = session.connected().await?;
    // Another tool's session has no bell.
    let (removed, _rung) = join(remove(&client, &path), session.ring(owner)).await;
    removed
}

/// The node of the hold with this token, any of its turns, and the session that it belongs to.
pub(crate) async fn holder(
    session: &Session,
    name: &Name,
    token: FencingToken,
) -> Result<Option<(String, i64)>, ZkError> {
    let parent = names::node(session.root(), name);
    let line = read(session, &parent).await?;
    let modes: Vec<Mode> = line.iter().map(|(child, ..)| child.mode).collect();
    let held = line.iter().take(holding(&modes)).find(|(.., stat)| stat.czxid == place_of_token(token));
    Ok(held.map(|(child, _, stat)| (format!("{parent}/{}", child.node), stat.ephemeral_owner)))
}

/// A line, and what its nodes say.
async fn read(session: &Session, parent: &str) -> Result<Vec<(Child, Entry, Stat)>, ZkError> {
    let client = session.connected().await?;
    client.sync(parent).await?;
    let line = line(&client, parent).await?;
    let paths: Vec<String> = line.iter().map(|child| format!("{parent}/{}", child.node)).collect();
    let seen = line.into_iter().zip(data_of(&client, &paths).await?).filter_map(|(mut child, answer)| {
        let (data, stat) = answer?; // others have gone meanwhile
        let entry = child.read(&data, &stat);
        Some((child, entry, stat))
    });
    Ok(seen.collect())
}
