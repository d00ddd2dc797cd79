//! A session's bell: a node of its own that others touch so that it looks after its nodes. One standing watch, however many
//! nodes it has.

use std::convert::Infallible;
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ZkError, OneshotWatcher};

use crate::read::found;
use crate::session::{Session, Tenant};

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(200);

/// Listens at the session's bell, and makes it if it is not there.
pub(crate) async fn listen<T: Tenant>(session: &Session<T>) -> Result<OneshotWatcher, ZkError> {
    let client = session.connected().await?;
    let bell = session.config.bell(session.id);
    loop {
        if let Some((.., watcher)) = found(client.get_and_watch_data(&bell).await)? {
            return Ok(watcher);
        }
        client.mkdir(&session.config.sessions(), &session.make(CreateMode::Container)).await?;
        client.create(&bell, b"", &session.make(CreateMode::Ephemeral)).await?;
    }
}

/// Hears whoever rings, for as long as the session lives.
pub(crate) async fn hear<T: Tenant>(session: &Session<T>, mut bell: OneshotWatcher) -> Infallible {
    loop {
        bell.changed().await;
        bell = loop {
            // Listen again first: what happens after that rings again.
            let heard = async {
                let bell = listen(session).await?;
                T::rung(session).await.map(|()| bell)
            };
            match session.limited(heard).await {
                Ok(bell) => break bell,
                Err(_) => tokio::time::sleep(BREATHE).await,
            }
        };
    }
}
