//! The obstacles of a waiting claim, and the watches on the nodes that must change first. A
//! notification is only a hint: the waiter claims again and reads the queue.

use std::borrow::Cow;

use futures_util::future::join_all;
use leasehold_core::Contention;
use leasehold_core::backend::{Admission, Mode, admit, holding};
use scopeguard::guard;
use tokio::task::JoinSet;
use zookeeper_client::OneshotWatcher;

use crate::claim::Attempt;
use crate::claim::table::{Hint, Wait};
use crate::client::{Node, found};
use crate::completion::Looked;
use crate::entry::{Child, in_order, modes, queue};
use crate::error::Answer;
use crate::names;

/// The greatest number of permits that are watched one by one. With more, the first waiter watches
/// the children, and each later one watches its predecessor, which writes to its own node once it
/// holds. A release then still wakes only one waiter.
const MANY: usize = 8;

/// Stands for all children in the list of nodes to watch.
const CHILDREN: &str = "";

/// Returns whether the waiters behind an entry of this mode wait for it to write to its own node.
pub(crate) fn is_awaited(mode: Mode) -> bool {
    matches!(mode, Mode::Permits { of, .. } if of as usize > MANY)
}

impl Attempt<'_> {
    /// The holder, if this queue keeps a claim of this mode out.
    pub(crate) async fn contention(
        &self,
        mut queue: Vec<Child>,
        mode: Mode,
    ) -> Answer<Option<Contention>> {
        while admit(&modes(&queue), mode) != Admission::In {
            if let Some((data, stat)) =
                found(self.client.get_data(&self.path(&queue[0].node)).await)?
            {
                self.session.learn_base(&self.client).await?;
                let holder = queue[0].read(&data, &stat, self.session.number(stat.czxid));
                let modes = modes(&queue);
                let who = Contention::from(&holder).waiters(queue.len() - holding(&modes));
                return Ok((admit(&modes, mode) != Admission::In).then_some(who));
            }
            queue.remove(0);
        }
        Ok(None)
    }

    /// `None` if this entry holds. Otherwise its obstacles in `before` are watched. The answer has
    /// the holder if that was read for a watch.
    ///
    /// A claim of work that is done once also watches the completion, which ends its wait at once.
    ///
    /// No entry is ever added before another one, so the entries that were before it when the queue
    /// was read only become fewer.
    pub(crate) async fn wait(
        &self,
        entry: &Node,
        before: &[Child],
        mode: Mode,
        looked: Option<&Looked>,
    ) -> Answer<Option<(Wait, Option<Contention>)>> {
        let before_it = |queue: Vec<Child>| {
            queue
                .into_iter()
                .take_while(|child| !entry.is(&child.node))
                .collect()
        };
        let mut before = Cow::Borrowed(before);
        let mut holder = None;
        while let Some(nodes) = obstacles(&before, mode) {
            let hint = Hint::default();
            let mut watched = vec![];
            let mut watchers = vec![];
            if nodes == [CHILDREN] {
                let (children, watcher) = self.client.list_and_watch_children(&self.parent).await?;
                before = Cow::Owned(before_it(
                    in_order(&self.client, &self.parent, &children).await?,
                ));
                watchers.push(watcher);
            } else {
                // By getData: it leaves no watch behind if the node is gone.
                let watch =
                    async |node: &String| self.client.get_and_watch_data(&self.path(node)).await;
                for (node, answer) in nodes.iter().zip(join_all(nodes.iter().map(watch)).await) {
                    let Some((data, stat, watcher)) = found(answer)? else {
                        before.to_mut().retain(|child| child.node != *node);
                        continue;
                    };
                    if before.first().is_some_and(|head| head.node == *node) {
                        self.session.learn_base(&self.client).await?;
                        let number = self.session.number(stat.czxid);
                        holder = Some(Contention::from(
                            &before.to_mut()[0].read(&data, &stat, number),
                        ));
                    }
                    watched.push(self.path(node).into());
                    watchers.push(watcher);
                }
                if is_awaited(mode) {
                    // It may have written before it was watched.
                    before = Cow::Owned(before_it(queue(&self.client, &self.parent).await?));
                }
            }
            if obstacles(&before, mode).as_ref() == Some(&nodes) {
                if let Some(looked) = looked {
                    let path = names::completion(&self.session.config.root, &self.claim.name);
                    let (now, watcher) = self.client.check_and_watch_stat(&path).await?;
                    watchers.push(watcher);
                    if now.map(|stat| stat.mzxid) != looked.written() {
                        // It was recorded before it was watched.
                        hint.change();
                        self.session.notifier.claim_again(self.claim.id);
                    }
                }
                let who = Contention::unknown();
                let connection = self.client.closed.clone();
                let watches = self.notify_by(watchers, &hint);
                let wait = Wait {
                    who,
                    watched,
                    hint,
                    connection,
                    _watches: watches,
                };
                return Ok(Some((wait, holder)));
            }
        }
        Ok(None)
    }

    /// Lets these watchers notify the waiter. A watcher that ends without an event, as when a
    /// runtime ends, reports a change too.
    fn notify_by(&self, watchers: Vec<OneshotWatcher>, hint: &Hint) -> JoinSet<()> {
        let watches = watchers.into_iter().map(|watcher| {
            let notifier = self.session.notifier.clone();
            let watching = self.client.watch(watcher);
            let id = self.claim.id;
            let changed = guard(hint.clone(), |hint| {
                hint.change();
            });
            async move {
                watching.await;
                drop(changed);
                notifier.claim_again(id);
            }
        });
        watches.collect()
    }
}

/// The nodes of which one must change before an entry behind these can hold; `None` if it holds.
fn obstacles(before: &[Child], mode: Mode) -> Option<Vec<String>> {
    let modes = modes(before);
    let Admission::Watch(nearest) = admit(&modes, mode) else {
        return None;
    };
    match before.last() {
        Some(last) if nearest.len() > MANY => {
            let all_hold = holding(&modes) == before.len();
            Some(vec![if all_hold {
                CHILDREN.to_owned()
            } else {
                last.node.clone()
            }])
        }
        _ => Some(
            nearest
                .into_iter()
                .map(|i| before[i].node.clone())
                .collect(),
        ),
    }
}
