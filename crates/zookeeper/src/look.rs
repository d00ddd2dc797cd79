//! Looking at lines and ending a hold from outside: `inspect`, `list` and `evict`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_core::{Contention, Entry, FencingToken, Line, Name, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, Error as ZkError, MultiReadResult, MultiWriteError, Stat};

use crate::claim::{Seat, token};
use crate::error::{reading, writing};
use crate::line::{self, Child};
use crate::record;
use crate::session::Session;

/// How many nodes one request reads.
const CHUNK: usize = 128;

/// See [`Backend::inspect`](leasehold_core::seam::Backend::inspect).
pub(crate) async fn inspect(session: &Session, name: &Name) -> Result<Line> {
    let client = session.connected().await?;
    let parent = session.config.root.lock(name);
    let line = line::in_order(&session.children(&client, &parent, true).await?);
    let holding = line::holding(&line);
    let mut entries: Vec<Entry> = Vec::with_capacity(line.len());
    let mut holders = 0;
    for (at, seen) in read(session, &client, &parent, &line).await?.into_iter().enumerate() {
        let Some((data, stat)) = seen else { continue };
        let entry = match record::label(&data) {
            Some(label) => Entry::new(label),
            None => Entry::foreign(),
        };
        let entry = entry.since(SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0) as u64));
        let holds = at < holding;
        holders += usize::from(holds);
        entries.push(if holds { entry.token(token(stat.czxid)) } else { entry });
    }
    let waiters = entries.split_off(holders);
    Ok(Line::new(entries, waiters))
}

/// See [`Backend::list`](leasehold_core::seam::Backend::list). One request for the names, and one for each 128 of those that are
/// looked at: the node of a lock stays for about a minute after its last use.
pub(crate) async fn list(session: &Session, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
    let client = session.connected().await?;
    let root = &session.config.root;
    let nodes = session.children(&client, root.path(), true).await?;
    let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
    let mut names: Vec<Name> = nodes.iter().filter_map(|node| crate::names::decode(node)).filter(wanted).collect();
    names.sort();
    let mut found = Vec::new();
    for chunk in names.chunks(CHUNK.min(limit.max(1))) {
        if found.len() >= limit {
            break;
        }
        let mut reader = client.new_multi_reader();
        for name in chunk {
            reader.add_get_children(&root.lock(name)).map_err(reading)?;
        }
        let answers = session.limited(reader.commit()).await.map_err(reading)?;
        for (name, answer) in chunk.iter().zip(answers) {
            let MultiReadResult::Children { children } = answer else { continue };
            if children.iter().any(|node| Child::parse(node).is_some()) {
                found.push(name.clone());
            }
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// See [`Backend::evict`](leasehold_core::seam::Backend::evict). In one transaction the entry is removed and its session's bell
/// touched, so that the session hears of it by the one watch that it has.
pub(crate) async fn evict(session: &Session, name: &Name, wanted: FencingToken) -> Result<bool> {
    let client = session.connected().await?;
    let parent = session.config.root.lock(name);
    let mut line = line::in_order(&session.children(&client, &parent, true).await?);
    line.truncate(line::holding(&line));
    let seen = read(session, &client, &parent, &line).await?;
    let held = line.iter().zip(seen).find_map(|(child, seen)| {
        let (_, stat) = seen?;
        (token(stat.czxid).get() >> 8 == wanted.get() >> 8).then_some((child, stat.ephemeral_owner))
    });
    let Some((child, owner)) = held else { return Ok(false) };
    let path = format!("{parent}/{}", child.node);
    let mut both = client.new_multi_writer();
    both.add_delete(&path, None).map_err(writing)?;
    both.add_set_data(&session.config.root.bell(owner), child.node.as_bytes(), None).map_err(writing)?;
    let done = timeout(session.config.timeout, both.commit()).await;
    let removed = match done.unwrap_or(Err(MultiWriteError::RequestFailed { source: ZkError::ConnectionLoss })) {
        Ok(_) => Ok(()),
        // It has no bell: another tool's.
        Err(MultiWriteError::OperationFailed { index: 1, .. }) => session.limited(client.delete(&path, None)).await,
        Err(e) => Err(e.into()),
    };
    match removed {
        Ok(()) => {
            session.bells.stirred(name);
            Ok(true)
        }
        Err(ZkError::NoNode) => Ok(false),
        Err(e) => Err(writing(e)),
    }
}

/// Who holds, and how many wait, in a line without the asking claim.
pub(crate) async fn who(session: &Arc<Session>, client: &Client, seat: &Seat, line: &[Child]) -> Contention {
    let waiters = line.len() - line::holding(line);
    let holder = match line.first() {
        Some(head) => session.limited(client.get_data(&seat.path(&head.node))).await.ok(),
        None => None,
    };
    holder.map_or_else(Contention::unknown, |(data, stat)| contention(&data, &stat)).waiters(waiters)
}

/// What a holder's node says of it.
pub(crate) fn contention(data: &[u8], stat: &Stat) -> Contention {
    let who = match record::label(data) {
        Some(label) => Contention::by(label),
        None => Contention::foreign(),
    };
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0) as u64);
    who.token(token(stat.czxid)).held_for(since.elapsed().unwrap_or_default())
}

/// The data of these entries, `None` for those that have gone meanwhile.
async fn read(
    session: &Session,
    client: &Client,
    parent: &str,
    line: &[Child],
) -> Result<Vec<Option<(Vec<u8>, Stat)>>> {
    let mut seen = Vec::with_capacity(line.len());
    for chunk in line.chunks(CHUNK) {
        let mut reader = client.new_multi_reader();
        for child in chunk {
            reader.add_get_data(&format!("{parent}/{}", child.node)).map_err(reading)?;
        }
        let answers = session.limited(reader.commit()).await.map_err(reading)?;
        seen.extend(answers.into_iter().map(|answer| match answer {
            MultiReadResult::Data { data, stat } => Some((data, stat)),
            _ => None,
        }));
    }
    Ok(seen)
}
