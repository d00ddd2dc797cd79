//! Looking at lines and ending a hold from outside: `inspect`, `list` and `evict`.

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

/// One entry of a line, with what its node says.
struct Seen {
    child: Child,
    label: Option<String>,
    stat: Stat,
}

/// See [`Backend::inspect`](leasehold_core::seam::Backend::inspect).
pub(crate) async fn inspect(session: &Session, name: &Name) -> Result<Line> {
    let (holders, waiters) = read(session, name).await?;
    let entry = |seen: &Seen| {
        let entry = seen.label.as_ref().map_or_else(Entry::foreign, Entry::new);
        entry.since(since(&seen.stat))
    };
    let holders = holders.iter().map(|seen| entry(seen).token(token(seen.stat.czxid))).collect();
    Ok(Line::new(holders, waiters.iter().map(entry).collect()))
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
    let Some((path, owner)) = holder(session, name, wanted).await? else { return Ok(false) };
    let mut both = client.new_multi_writer();
    both.add_delete(&path, None).map_err(writing)?;
    both.add_set_data(&session.config.root.bell(owner), path.as_bytes(), None).map_err(writing)?;
    let done = timeout(session.config.timeout, both.commit()).await;
    let removed = match done.unwrap_or(Err(MultiWriteError::RequestFailed { source: ZkError::ConnectionLoss })) {
        Ok(_) => Ok(()),
        // It has no bell: another tool's.
        Err(MultiWriteError::OperationFailed { index: 1, .. }) => session.limited(client.delete(&path, None)).await,
        Err(e) => Err(e.into()),
    };
    match removed {
        Ok(()) => Ok(true),
        Err(ZkError::NoNode) => Ok(false),
        Err(e) => Err(writing(e)),
    }
}

/// The node of the hold with this token, any of its turns, and the session that it belongs to.
pub(crate) async fn holder(session: &Session, name: &Name, wanted: FencingToken) -> Result<Option<(String, i64)>> {
    let (holders, _) = read(session, name).await?;
    let held = holders.into_iter().find(|seen| token(seen.stat.czxid).get() >> 8 == wanted.get() >> 8);
    let path =
        |seen: Seen| (format!("{}/{}", session.config.root.lock(name), seen.child.node), seen.stat.ephemeral_owner);
    Ok(held.map(path))
}

/// Who holds, and how many wait, in a line without the asking claim.
pub(crate) async fn who(session: &Session, client: &Client, seat: &Seat, line: &[Child]) -> Contention {
    let mut line = line.to_vec();
    let Some(head) = line.first_mut() else { return Contention::unknown().waiters(0) };
    let holder = session.limited(client.get_data(&seat.path(&head.node))).await;
    let who = holder.map_or_else(
        |_| Contention::unknown(),
        |(data, stat)| {
            head.refine(&data);
            contention(&data, &stat)
        },
    );
    who.waiters(line.len() - line::holding(&line))
}

/// What a holder's node says of it.
pub(crate) fn contention(data: &[u8], stat: &Stat) -> Contention {
    let who = record::label(data).map_or_else(Contention::foreign, Contention::by);
    who.token(token(stat.czxid)).held_for(since(stat).elapsed().unwrap_or_default())
}

fn since(stat: &Stat) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0) as u64)
}

/// The line of a name: who holds, and who waits.
async fn read(session: &Session, name: &Name) -> Result<(Vec<Seen>, Vec<Seen>)> {
    let client = session.connected().await?;
    let parent = session.config.root.lock(name);
    let mut line = line::in_order(&session.children(&client, &parent, true).await?);
    let mut nodes = Vec::with_capacity(line.len());
    for chunk in line.chunks(CHUNK) {
        let mut reader = client.new_multi_reader();
        for child in chunk {
            reader.add_get_data(&format!("{parent}/{}", child.node)).map_err(reading)?;
        }
        nodes.extend(session.limited(reader.commit()).await.map_err(reading)?);
    }
    let (mut children, mut seen) = (Vec::new(), Vec::new());
    for (mut child, node) in line.drain(..).zip(nodes) {
        // Others have gone meanwhile.
        if let MultiReadResult::Data { data, stat } = node {
            child.refine(&data);
            children.push(child.clone());
            seen.push(Seen { child, label: record::label(&data).map(str::to_owned), stat });
        }
    }
    let waiters = seen.split_off(line::holding(&children));
    Ok((seen, waiters))
}
