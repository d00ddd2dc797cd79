//! Subscriptions: a notification whenever the first holder of a name, or the data of its node, may
//! have changed.

use std::sync::Arc;

use leasehold_core::backend::Subscription;
use leasehold_core::{ErrorKind, Name, Result};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zookeeper_client::{Client, Error as ZkError, OneshotWatcher};

use crate::claim::table::{Claims, Session};
use crate::client::{RETRY_INTERVAL, Sessions, found};
use crate::entry::{by_number, queue};
use crate::error::Answer;
use crate::names;

/// See [`Backend::observe`](leasehold_core::backend::Backend::observe).
pub(crate) fn observe(sessions: &Arc<Sessions<Claims>>, name: &Name) -> Subscription {
    if Handle::try_current().is_err() {
        return Subscription::none();
    }
    let sessions = sessions.clone();
    let name = name.clone();
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            match watch(&sessions, &name).await {
                Ok(watching) => {
                    // This reports changes from before the watch.
                    sessions.notifier.holder_changed(&name);
                    watching.await;
                }
                Err(e) if e.kind() == ErrorKind::Closed => return,
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
    });
    Subscription::new(task)
}

async fn watch(
    sessions: &Sessions<Claims>,
    name: &Name,
) -> Result<impl Future<Output = ()> + use<>> {
    let session = sessions.any().await?;
    let watching = async {
        let client = session.connected().await?;
        Ok(client.watch(watch_head(&session, &client, name).await?))
    };
    session
        .limited(watching)
        .await
        .map_err(|e| session.config.reading(e))
}

/// Watches the head of the queue, which holds: later entries change nothing. An empty queue is
/// watched for its first entry; if the name has no node, the creation of that node is watched.
async fn watch_head(session: &Session, client: &Client, name: &Name) -> Answer<OneshotWatcher> {
    let parent = names::node(&session.config.root, name);
    if let Some(head) = queue(client, &parent).await?.first() {
        return Ok(client
            .get_and_watch_data(&format!("{parent}/{}", head.node))
            .await?
            .2);
    }
    let (changed, watcher) = match found(client.list_and_watch_children(&parent).await)? {
        Some((children, watcher)) => (!by_number(&children).is_empty(), watcher),
        None => {
            let (stat, watcher) = client.check_and_watch_stat(&parent).await?;
            (stat.is_some(), watcher)
        }
    };
    if changed {
        Err(ZkError::NoNode)
    } else {
        Ok(watcher)
    }
}
