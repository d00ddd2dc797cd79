//! Who keeps a claim from its turn, and watches on what must change first. A ring is only a hint: whoever hears it claims again,
//! and reads the line.

use futures_util::future::join_all;
use leasehold_core::Contention;
use leasehold_core::seam::{Admission, Mode, admit, holding};
use tokio::task::JoinSet;
use zookeeper_client::{Client, Error as ZkError, OneshotWatcher};

use crate::line::{Child, in_order, modes};
use crate::look;
use crate::session::Session;
use crate::state::Entry;

/// More permits than that are not watched one by one. The first that does not get one watches the children, and whoever is
/// behind it watches the one before, which writes to its own node once it holds. So a release still wakes one waiter only.
const MANY: usize = 8;

/// What stands for all children among the nodes that are watched.
const CHILDREN: &str = "";

/// Whether those behind an entry of this mode wait for it to write to its own node.
pub(crate) fn is_awaited(mode: Mode) -> bool {
    matches!(mode, Mode::Permits { of, .. } if of as usize > MANY)
}

/// Who keeps a claim of this mode out of this line; `None`: nobody does.
pub(crate) async fn busy(
    client: &Client,
    parent: &str,
    mut line: Vec<Child>,
    mode: Mode,
) -> Result<Option<Contention>, ZkError> {
    while admit(&modes(&line), mode) != Admission::In {
        match client.get_data(&format!("{parent}/{}", line[0].node)).await {
            Ok((data, stat)) => {
                line[0].refine(&data);
                let modes = modes(&line);
                let who = Contention::from(&look::entry(&data, &stat)).waiters(line.len() - holding(&modes));
                return Ok((admit(&modes, mode) != Admission::In).then_some(who));
            }
            Err(ZkError::NoNode) => drop(line.remove(0)),
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Whether something `before` it keeps this entry from its turn. `None`: it is in. Otherwise that is watched, and who holds is
/// said if it was read on the way.
///
/// Nothing can get in before an entry that is in line, so what stood before it when the line was read only gets shorter.
pub(crate) async fn wait(
    session: &Session,
    client: &Client,
    entry: &Entry,
    mut before: Vec<Child>,
    mode: Mode,
) -> Result<Option<Option<Contention>>, ZkError> {
    let before_it = |children: &[String]| in_order(children).into_iter().take_while(|child| !entry.is(child)).collect();
    let mut holder = None;
    while let Some(nodes) = obstacles(&before, mode) {
        let mut watchers = Vec::new();
        if nodes == [CHILDREN] {
            let (children, watcher) = client.list_and_watch_children(&entry.parent).await?;
            before = before_it(&children);
            watchers.push(watcher);
        } else {
            let paths = nodes.iter().map(|node| format!("{}/{node}", entry.parent));
            // By getData: on a node that is gone it leaves no watch behind.
            let answers = join_all(paths.map(|path| client.get_and_watch_data(&path))).await;
            for (node, answer) in nodes.iter().zip(answers) {
                match answer {
                    Ok((data, stat, watcher)) => {
                        if let Some(head) = before.first_mut().filter(|head| head.node == *node) {
                            head.refine(&data);
                            holder = Some(Contention::from(&look::entry(&data, &stat)));
                        }
                        watchers.push(watcher);
                    }
                    Err(ZkError::NoNode) => before.retain(|child| child.node != *node),
                    Err(e) => return Err(e),
                }
            }
            if is_awaited(mode) {
                // It may have written before it was watched.
                before = before_it(&client.list_children(&entry.parent).await?);
            }
        }
        if obstacles(&before, mode).as_ref() == Some(&nodes) {
            ring_for(session, entry, watchers);
            return Ok(Some(holder));
        }
    }
    Ok(None)
}

/// What must change before it can be the turn of an entry behind these; `None` if it is its turn.
fn obstacles(before: &[Child], mode: Mode) -> Option<Vec<String>> {
    let modes = modes(before);
    let Admission::Watch(nearest) = admit(&modes, mode) else { return None };
    match before.last() {
        Some(last) if nearest.len() > MANY => {
            let all_hold = holding(&modes) == before.len();
            Some(vec![if all_hold { CHILDREN.to_owned() } else { last.node.clone() }])
        }
        _ => Some(nearest.into_iter().map(|i| before[i].node.clone()).collect()),
    }
}

/// Lets these watchers ring for this entry, instead of those before.
fn ring_for(session: &Session, entry: &Entry, watchers: Vec<OneshotWatcher>) {
    let mut watches = JoinSet::new();
    for watcher in watchers {
        let (bells, id) = (session.bells.clone(), entry.id);
        watches.spawn(async move {
            watcher.changed().await;
            bells.claim_again(id);
        });
    }
    if let Some(kept) = session.state().at(entry) {
        kept.watches = watches;
    }
}
