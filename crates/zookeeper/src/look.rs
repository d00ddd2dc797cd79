//! Looking at lines and ending a hold from outside: `inspect`, `list` and `evict`.

use futures_util::future::join;
use leasehold_core::seam::{Mode, holding, place_of_token};
use leasehold_core::{Entry, FencingToken, Line, Name};
use leasehold_zookeeper_client::{AT_ONCE, Answer, children, found, read};
use zookeeper_client::{MultiReadResult, MultiReader, Stat};

use crate::claims::Session;
use crate::line::{Child, by_number, line};
use crate::names;

/// See [`Backend::inspect`](leasehold_core::seam::Backend::inspect).
pub(crate) async fn inspect(session: &Session, name: &Name) -> Answer<Line> {
    let seen = look(session, &names::node(session.root(), name)).await?;
    Ok(Line::in_order(seen.into_iter().map(|(child, entry, _)| (child.mode, entry))))
}

/// See [`Backend::list`](leasehold_core::seam::Backend::list). One request for the names, and one for each 128 of those that are
/// looked at: the node of a lock stays for about a minute after its last use.
pub(crate) async fn list(session: &Session, prefix: &str, after: Option<&Name>, limit: usize) -> Answer<Vec<Name>> {
    let (client, root) = (session.connected().await?, session.root());
    client.sync(root).await?;
    let nodes = children(&client, root).await?;
    let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
    let mut names: Vec<Name> = nodes.iter().filter_map(|node| names::decode(node)).filter(wanted).collect();
    names.sort();
    let mut in_use = Vec::new();
    for chunk in names.chunks(AT_ONCE.min(limit.max(1))) {
        if in_use.len() >= limit {
            break;
        }
        let paths: Vec<String> = chunk.iter().map(|name| names::node(root, name)).collect();
        for (name, answer) in chunk.iter().zip(read(&client, &paths, MultiReader::add_get_children).await?) {
            if matches!(answer, MultiReadResult::Children { children } if !by_number(&children).is_empty()) {
                in_use.push(name.clone());
            }
        }
    }
    in_use.truncate(limit);
    Ok(in_use)
}

/// See [`Backend::evict`](leasehold_core::seam::Backend::evict). The entry's session hears of it by the one watch that it has.
pub(crate) async fn evict(session: &Session, name: &Name, token: FencingToken) -> Answer<bool> {
    let Some((path, owner)) = holder(session, name, token).await? else { return Ok(false) };
    let client = session.connected().await?;
    // Another tool's session has no bell.
    let (deleted, _rung) = join(client.delete(&path, None), session.ring(owner)).await;
    Ok(found(deleted)?.is_some())
}

/// The node of the hold with this token, any of its turns, and the session that it belongs to.
pub(crate) async fn holder(session: &Session, name: &Name, token: FencingToken) -> Answer<Option<(String, i64)>> {
    let parent = names::node(session.root(), name);
    let line = look(session, &parent).await?;
    let modes: Vec<Mode> = line.iter().map(|(child, ..)| child.mode).collect();
    let held = line.iter().take(holding(&modes)).find(|(.., stat)| stat.czxid == place_of_token(token));
    Ok(held.map(|(child, _, stat)| (format!("{parent}/{}", child.node), stat.ephemeral_owner)))
}

/// A line, and what its nodes say.
async fn look(session: &Session, parent: &str) -> Answer<Vec<(Child, Entry, Stat)>> {
    let client = session.connected().await?;
    client.sync(parent).await?;
    let line = line(&client, parent).await?;
    let paths: Vec<String> = line.iter().map(|child| format!("{parent}/{}", child.node)).collect();
    let answers = read(&client, &paths, MultiReader::add_get_data).await?;
    let seen = line.into_iter().zip(answers).filter_map(|(mut child, answer)| {
        let MultiReadResult::Data { data, stat } = answer else { return None }; // it has gone meanwhile
        let entry = child.read(&data, &stat);
        Some((child, entry, stat))
    });
    Ok(seen.collect())
}
