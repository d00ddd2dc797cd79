//! Looking at lines and ending a hold from outside: `inspect`, `list` and `evict`.

use std::time::{Duration, SystemTime};

use futures_util::future::join;
use leasehold_core::seam::{Mode, holding, place_of_token, token_of_place};
use leasehold_core::{Entry, FencingToken, Line, Name};
use zookeeper_client::{Error as ZkError, MultiReadResult, Stat};

use crate::line::{Child, children, in_order};
use crate::session::Session;
use crate::{names, record};

/// How many nodes one request reads.
const CHUNK: usize = 128;

/// See [`Backend::inspect`](leasehold_core::seam::Backend::inspect).
pub(crate) async fn inspect(session: &Session, name: &Name) -> Result<Line, ZkError> {
    let seen = read(session, &session.config.lock(name)).await?;
    Ok(Line::in_order(seen.into_iter().map(|(child, data, stat)| (child.mode, entry(&data, &stat)))))
}

/// What an entry's node says of it.
pub(crate) fn entry(data: &[u8], stat: &Stat) -> Entry {
    let entry = record::decode(data).map_or_else(Entry::foreign, |(_, label)| Entry::new(label));
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0) as u64);
    entry.since(since).token(token_of_place(stat.czxid))
}

/// See [`Backend::list`](leasehold_core::seam::Backend::list). One request for the names, and one for each 128 of those that are
/// looked at: the node of a lock stays for about a minute after its last use.
pub(crate) async fn list(
    session: &Session,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>, ZkError> {
    let client = session.connected().await?;
    let nodes = children(&client, &session.config.root, true).await?;
    let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
    let mut names: Vec<Name> = nodes.iter().filter_map(|node| names::decode(node)).filter(wanted).collect();
    names.sort();
    let mut found = Vec::new();
    for chunk in names.chunks(CHUNK.min(limit.max(1))) {
        if found.len() >= limit {
            break;
        }
        let mut reader = client.new_multi_reader();
        for name in chunk {
            reader.add_get_children(&session.config.lock(name))?;
        }
        for (name, answer) in chunk.iter().zip(reader.commit().await?) {
            if matches!(answer, MultiReadResult::Children { children } if !in_order(&children).is_empty()) {
                found.push(name.clone());
            }
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// See [`Backend::evict`](leasehold_core::seam::Backend::evict). The entry's session hears of it by the one watch that it has.
pub(crate) async fn evict(session: &Session, name: &Name, token: FencingToken) -> Result<bool, ZkError> {
    let Some((path, owner)) = holder(session, name, token).await? else { return Ok(false) };
    let client = session.connected().await?;
    // Another tool's session has no bell.
    let (deleted, _rung) =
        join(client.delete(&path, None), client.set_data(&session.config.bell(owner), b"", None)).await;
    match deleted {
        Ok(()) => Ok(true),
        Err(ZkError::NoNode) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The node of the hold with this token, any of its turns, and the session that it belongs to.
pub(crate) async fn holder(
    session: &Session,
    name: &Name,
    token: FencingToken,
) -> Result<Option<(String, i64)>, ZkError> {
    let parent = session.config.lock(name);
    let line = read(session, &parent).await?;
    let modes: Vec<Mode> = line.iter().map(|(child, ..)| child.mode).collect();
    let held = line.iter().take(holding(&modes)).find(|(.., stat)| stat.czxid == place_of_token(token));
    Ok(held.map(|(child, _, stat)| (format!("{parent}/{}", child.node), stat.ephemeral_owner)))
}

/// A line, and what its nodes say.
async fn read(session: &Session, parent: &str) -> Result<Vec<(Child, Vec<u8>, Stat)>, ZkError> {
    let client = session.connected().await?;
    let line = in_order(&children(&client, parent, true).await?);
    let mut seen = Vec::with_capacity(line.len());
    for chunk in line.chunks(CHUNK) {
        let mut reader = client.new_multi_reader();
        for child in chunk {
            reader.add_get_data(&format!("{parent}/{}", child.node))?;
        }
        for (child, answer) in chunk.iter().zip(reader.commit().await?) {
            // Others have gone meanwhile.
            if let MultiReadResult::Data { data, stat } = answer {
                let mut child = child.clone();
                child.refine(&data);
                seen.push((child, data, stat));
            }
        }
    }
    Ok(seen)
}
