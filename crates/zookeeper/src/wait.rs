//! Waiting in line: a watch on what must go first. Its ring is only a hint; whoever hears it claims again, and reads the line.

use std::sync::Arc;

use futures_util::future::join_all;
use leasehold_core::Contention;
use leasehold_core::seam::{Admission, ClaimId, Mode, admit};
use zookeeper_client::{Client, Error as ZkError, EventType, OneshotWatcher, Stat};

use crate::claim::Seat;
use crate::line::{self, Child};
use crate::look;
use crate::session::Session;

/// More permits than that are not watched one by one. The first that does not get one watches the children, and whoever is
/// behind it watches the one before, which writes to its own node once it holds. So a release still wakes one waiter only.
const MANY: u32 = 8;

/// What stands for all children among the nodes that are watched.
const CHILDREN: &str = "";

/// Whether those behind an entry of this mode wait for it to write to its own node.
pub(crate) fn is_awaited(mode: Mode) -> bool {
    matches!(mode, Mode::Permits { of, .. } if of > MANY)
}

/// Whether something `before` it keeps an entry of this mode from its turn. `None`: it is in. Otherwise who holds, if that was
/// read on the way. What keeps it is watched, if somebody waits for it.
///
/// Nothing can get in before an entry that is in line, so what stood before it when the line was read only gets shorter.
pub(crate) async fn obstacle(
    session: &Arc<Session>,
    client: &Client,
    seat: &Seat,
    mut before: Vec<Child>,
    mode: Mode,
    waiter: Option<ClaimId>,
) -> Result<Option<Option<Contention>>, ZkError> {
    let mut seen = waiter.map(|id| session.places().watched(id)).unwrap_or_default();
    let mut holder = None;
    loop {
        let Admission::Watch(mut nearest) = admit(&line::modes(&before), mode) else { return Ok(None) };
        let many = waiter.is_some() && nearest.len() > MANY as usize;
        if many && line::holding(&before) == before.len() {
            if !seen.insert(CHILDREN.to_owned()) {
                return Ok(Some(holder));
            }
            let (children, watcher) = session.limited(client.list_and_watch_children(&seat.parent)).await?;
            before = seat.before(&children);
            waiter.inspect(|id| watch(session, *id, CHILDREN.to_owned(), watcher));
            continue;
        }
        if many {
            nearest.drain(..nearest.len() - 1);
        }
        nearest.retain(|&i| !seen.contains(&before[i].node));
        // What their data says, a downgrade, matters to shared entries alone.
        if nearest.is_empty() || (waiter.is_none() && mode != Mode::Shared) {
            return Ok(Some(holder));
        }
        let answers = nearest.iter().map(|&i| read(client, seat.path(&before[i].node), waiter.is_some()));
        let answers = session.limited(futures_util::FutureExt::map(join_all(answers), Ok)).await?;
        for (i, answer) in nearest.into_iter().zip(answers).rev() {
            match answer {
                Ok((data, stat, watcher)) => {
                    if i == 0 {
                        holder = Some(look::contention(&data, &stat));
                    }
                    before[i].refine(&data);
                    seen.insert(before[i].node.clone());
                    if let (Some(id), Some(watcher)) = (waiter, watcher) {
                        watch(session, id, before[i].node.clone(), watcher);
                    }
                }
                Err(ZkError::NoNode) => drop(before.remove(i)),
                Err(e) => return Err(e),
            }
        }
        if many {
            // It may have written before it was watched.
            before = seat.before(&session.limited(client.list_children(&seat.parent)).await?);
        }
    }
}

/// By getData: on a node that is gone it leaves no watch behind.
async fn read(client: &Client, path: String, watch: bool) -> Result<(Vec<u8>, Stat, Option<OneshotWatcher>), ZkError> {
    if watch {
        client.get_and_watch_data(&path).await.map(|(data, stat, watcher)| (data, stat, Some(watcher)))
    } else {
        client.get_data(&path).await.map(|(data, stat)| (data, stat, None))
    }
}

/// Rings for the claim when this node changes or goes.
fn watch(session: &Arc<Session>, id: ClaimId, node: String, watcher: OneshotWatcher) {
    // While the places are locked the task cannot be done before it is known.
    let mut places = session.places();
    let (ringing, watched) = (session.clone(), node.clone());
    let task = tokio::spawn(async move {
        // The session's end rings for all.
        if watcher.changed().await.event_type != EventType::Session {
            ringing.places().unwatch(id, &watched);
            ringing.bells.claim_again(id);
        }
    });
    places.watch(id, node, task.abort_handle());
}
