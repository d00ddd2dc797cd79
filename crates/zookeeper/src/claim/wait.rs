//! Who keeps a claim from its turn, and watches on what must change first. A ring is only a hint: whoever hears it claims again,
//! and reads the line.

use futures_util::future::join_all;
use leasehold_core::Contention;
use leasehold_core::seam::{Admission, Mode, admit, holding};
use zookeeper_client::OneshotWatcher;

use crate::claim::Attempt;
use crate::client::{Node, found};
use crate::entry::{Child, in_order, line, modes};
use crate::error::Answer;

/// More permits than that are not watched one by one. The first that does not get one watches the children, and whoever is
/// behind it watches the one before, which writes to its own node once it holds. So a release still wakes one waiter only.
const MANY: usize = 8;

/// What stands for all children among the nodes that are watched.
const CHILDREN: &str = "";

/// Whether those behind an entry of this mode wait for it to write to its own node.
pub(crate) fn is_awaited(mode: Mode) -> bool {
    matches!(mode, Mode::Permits { of, .. } if of as usize > MANY)
}

impl Attempt<'_> {
    /// Who keeps a claim of this mode out of this line; `None`: nobody does.
    pub(crate) async fn busy(&self, mut line: Vec<Child>, mode: Mode) -> Answer<Option<Contention>> {
        while admit(&modes(&line), mode) != Admission::In {
            if let Some((data, stat)) = found(self.client.get_data(&self.path(&line[0].node)).await)? {
                let holder = line[0].read(&data, &stat);
                let modes = modes(&line);
                let who = Contention::from(&holder).waiters(line.len() - holding(&modes));
                return Ok((admit(&modes, mode) != Admission::In).then_some(who));
            }
            line.remove(0);
        }
        Ok(None)
    }

    /// Whether something `before` it keeps this entry from its turn. `None`: it is in. Otherwise that is watched, and who holds
    /// is said if it was read on the way.
    ///
    /// Nothing can get in before an entry that is in line, so what stood before it when the line was read only gets shorter.
    pub(crate) async fn wait(
        &self,
        entry: &Node,
        mut before: Vec<Child>,
        mode: Mode,
    ) -> Answer<Option<Option<Contention>>> {
        let before_it = |line: Vec<Child>| line.into_iter().take_while(|child| !entry.is(&child.node)).collect();
        let mut holder = None;
        while let Some(nodes) = obstacles(&before, mode) {
            let mut watchers = Vec::new();
            if nodes == [CHILDREN] {
                let (children, watcher) = self.client.list_and_watch_children(&self.parent).await?;
                before = before_it(in_order(&self.client, &self.parent, &children).await?);
                watchers.push(watcher);
            } else {
                // By getData: on a node that is gone it leaves no watch behind.
                let watch = async |node: &String| self.client.get_and_watch_data(&self.path(node)).await;
                for (node, answer) in nodes.iter().zip(join_all(nodes.iter().map(watch)).await) {
                    let Some((data, stat, watcher)) = found(answer)? else {
                        before.retain(|child| child.node != *node);
                        continue;
                    };
                    if let Some(head) = before.first_mut().filter(|head| head.node == *node) {
                        holder = Some(Contention::from(&head.read(&data, &stat)));
                    }
                    watchers.push(watcher);
                }
                if is_awaited(mode) {
                    // It may have written before it was watched.
                    before = before_it(line(&self.client, &self.parent).await?);
                }
            }
            if obstacles(&before, mode).as_ref() == Some(&nodes) {
                self.ring_for(entry, watchers);
                return Ok(Some(holder));
            }
        }
        Ok(None)
    }

    /// Lets these watchers ring for this entry, instead of those before.
    fn ring_for(&self, entry: &Node, watchers: Vec<OneshotWatcher>) {
        let (session, id) = (self.session, self.claim.id);
        let rings = watchers.into_iter().map(|watcher| {
            let (notifier, watching) = (session.notifier.clone(), self.client.watch(watcher));
            async move {
                watching.await;
                notifier.claim_again(id);
            }
        });
        if let Some(kept) = session.tenant().at(id, entry) {
            kept.watches = rings.collect();
        }
    }
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
