//! One connection of a session. The client crate reconnects by itself, may agree to another timeout
//! with another server, and does not report it. A client of that crate is therefore used for one
//! connection only. The next connection is another client of the same session, which reports the
//! negotiated timeout.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use futures_util::FutureExt;
use leasehold_core::support::locked;
use spawns_core::{Spawn, Task};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zookeeper_client::{
    Client as OfCrate, Connector, Error as ZkError, OneshotWatcher, StateWatcher,
};

use crate::error::Answer;

/// A client of the crate, for as long as its first connection lasts.
#[derive(Clone)]
pub(crate) struct Client {
    client: OfCrate,
    driver: Weak<Driver>,
    running: AbortHandle,
    close: Weak<watch::Sender<()>>,
    pub(crate) closed: Closed,
}

/// A receiver whose sender is dropped when the connection is closed, even by the end of the runtime
/// that ran its task: `changed` resolves then, or when the connection is
/// [abandoned](Client::abandon), and not before. It does not keep the connection open.
pub(crate) type Closed = watch::Receiver<()>;

/// Resolves when a watched node has changed, or its connection is closed.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The crate's own task, which the crate spawns into this. A watcher of the crate panics if that
/// task is dropped, so each wait for a watcher keeps the task.
#[derive(Default)]
struct Driver(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Client {
    /// Connects, and keeps the connection until it is lost, or until no clone of this client is left, which closes the session.
    pub(crate) async fn connect(connector: Connector, servers: &str) -> Answer<Client> {
        let driver = Arc::new(Driver::default());
        let mut connecting = pin!(connector.connect(servers));
        let client = poll_fn(|cx| {
            let _scope = spawns_core::enter(&*driver);
            connecting.as_mut().poll(cx)
        });
        let (client, (close, closed)) = (client.await?, watch::channel(()));
        if locked(&driver.0).is_none() {
            return Err(ZkError::ClientClosed);
        }
        let weak = Arc::downgrade(&driver);
        let close = Arc::new(close);
        let closes = Arc::downgrade(&close);
        let running = tokio::spawn(driver.run(client.state_watcher(), close)).abort_handle();
        Ok(Client {
            client,
            driver: weak,
            running,
            close: closes,
            closed,
        })
    }

    /// Ends the connection without closing the session, on which others may depend. Nothing may be
    /// watched over it.
    pub(crate) fn leave(self) {
        // The crate's task is dropped here: it would close the session when it finds that no client
        // is left.
        drop(
            self.driver
                .upgrade()
                .and_then(|driver| locked(&driver.0).take()),
        );
        self.running.abort();
    }

    /// Ends the connection in a runtime that is not driven, without closing the session. The
    /// crate's task does nothing more, even if its runtime is driven again. It exists as long as
    /// there are watchers, which are notified at once.
    pub(crate) fn abandon(&self) {
        self.running.abort();
        if let Some(close) = self.close.upgrade() {
            close.send_replace(());
        }
    }

    /// Returns whether the other client is a clone of this one.
    pub(crate) fn is_same(&self, other: &Client) -> bool {
        self.closed.same_channel(&other.closed)
    }

    /// Resolves when the watcher is triggered, or cannot be triggered any more.
    pub(crate) fn watch(&self, watcher: OneshotWatcher) -> impl Future<Output = ()> + Send + use<> {
        let driver = self.driver.upgrade();
        let mut closed = self.closed.clone();
        async move {
            let Some(_driver) = driver else { return };
            tokio::select! {
                biased;
                _ = closed.changed() => {}
                _ = watcher.changed() => {}
            }
        }
    }
}

impl Deref for Client {
    type Target = OfCrate;

    fn deref(&self) -> &OfCrate {
        &self.client
    }
}

impl Spawn for Driver {
    fn spawn(&self, task: Task) {
        *locked(&self.0) = Some(Box::into_pin(task.future));
    }
}

impl Driver {
    /// Runs the crate's task until its connection is lost, and not longer, because it would make
    /// another connection.
    async fn run(self: Arc<Driver>, mut states: StateWatcher, _close: Arc<watch::Sender<()>>) {
        poll_fn(|cx| {
            let mut task = locked(&self.0);
            let done = task
                .as_mut()
                .is_none_or(|task| task.as_mut().poll(cx).is_ready());
            if done {
                *task = None;
            }
            // Any change of state: it may be the second one since then.
            if done || states.changed().now_or_never().is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
