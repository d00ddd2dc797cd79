//! Observing: a ring whenever the first holder of a name, or what its node says, may have changed.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::Observing;
use leasehold_core::{ErrorKind, Name, Result};
use tokio::runtime::Handle;
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher};

use crate::error::reading;
use crate::line;
use crate::sessions::Sessions;

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(200);

/// See [`Backend::observe`](leasehold_core::seam::Backend::observe).
pub(crate) fn observe(sessions: &Arc<Sessions>, name: &Name) -> Observing {
    let Ok(runtime) = Handle::try_current() else { return Observing::none() };
    let (sessions, name) = (sessions.clone(), name.clone());
    let task = runtime.spawn(async move {
        loop {
            match watch_head(&sessions, &name).await {
                Ok(watcher) => {
                    // Whatever changed before there was a watch.
                    sessions.bells().stirred(&name);
                    if watcher.changed().await.event_type != EventType::Session {
                        continue;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Closed => return,
                Err(_) => {}
            }
            tokio::time::sleep(BREATHE).await;
        }
    });
    Observing::new(Watching(task.abort_handle()))
}

struct Watching(tokio::task::AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches the head of the line, which holds: who comes behind it changes nothing. An empty line is watched for its first
/// entry, and a name that has no node for that.
async fn watch_head(sessions: &Arc<Sessions>, name: &Name) -> Result<OneshotWatcher> {
    let session = sessions.any().await?;
    let client = session.connected().await?;
    let parent = session.config.root.lock(name);
    loop {
        let children = session.children(&client, &parent, false).await?;
        let watching = async {
            if let Some(head) = line::in_order(&children).first() {
                return client
                    .get_and_watch_data(&format!("{parent}/{}", head.node))
                    .await
                    .map(|(.., watcher)| watcher);
            }
            match client.list_and_watch_children(&parent).await {
                Ok((children, watcher)) if line::in_order(&children).is_empty() => Ok(watcher),
                Err(ZkError::NoNode) => match client.check_and_watch_stat(&parent).await? {
                    (None, watcher) => Ok(watcher),
                    (Some(_), _) => Err(ZkError::NoNode),
                },
                Ok(_) => Err(ZkError::NoNode),
                Err(e) => Err(e),
            }
        };
        match session.limited(watching).await {
            Err(ZkError::NoNode) => {} // it has just changed
            watching => return watching.map_err(reading),
        }
    }
}
