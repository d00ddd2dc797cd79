//! One connection of a session. The client crate reconnects by itself, may agree to another timeout with another server, and
//! does not report it. So a client of that crate serves for one connection here. The next connection is another client of the
//! same session, which reports the timeout that was negotiated.

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
use zookeeper_client::{Client as OfCrate, Connector, Error as ZkError, OneshotWatcher, StateWatcher};

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

/// Its sender is dropped when the connection is closed, also when the runtime that ran its task ends: `changed` resolves then, or when it is
/// [abandoned](Client::abandon), and not before. It does not keep the connection open.
pub(crate) type Closed = watch::Receiver<()>;

/// Resolves when a watched node has changed, or its connection is closed.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The crate's own task, which it spawns here. A watcher of the crate panics if that task is dropped, so each wait for one keeps it.
#[derive(Default)]
struct Driver(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Client {
    /// Connects, and keeps the connection until it is lost, or until no clone of this client is left, which closes the session.
    pub(crate) async fn connect(connector: Connector, servers: &str) -> Answer<Client> {
        let (driver, mut connecting) = (Arc::new(Driver::default()), pin!(connector.connect(servers)));
        let client = poll_fn(|cx| {
            let _scope = spawns_core::enter(&*driver);
            connecting.as_mut().poll(cx)
        });
        let (client, (close, closed)) = (client.await?, watch::channel(()));
        if locked(&driver.0).is_none() {
            return Err(ZkError::ClientClosed);
        }
        let (weak, close) = (Arc::downgrade(&driver), Arc::new(close));
        let closes = Arc::downgrade(&close);
        let running = tokio::spawn(driver.run(client.state_watcher(), close)).abort_handle();
        Ok(Client { client, driver: weak, running, close: closes, closed })
    }

    /// Ends the connection without closing the session: others may depend on that. Nothing may be watched over it.
    pub(crate) fn leave(self) {
        // The crate's task, which would close the session when it finds that nobody has this client any more.
        drop(self.driver.upgrade().and_then(|driver| locked(&driver.0).take()));
        self.running.abort();
    }

    /// The same in a runtime that is not driven: also when it is again, the crate's task does nothing more. It is there as long as there are
    /// watchers, which are told at once.
    pub(crate) fn abandon(&self) {
        self.running.abort();
        if let Some(close) = self.close.upgrade() {
            close.send_replace(());
        }
    }

    /// Whether the other is a clone of this one.
    pub(crate) fn is_same(&self, other: &Client) -> bool {
        self.closed.same_channel(&other.closed)
    }

    /// Resolves when the watcher is triggered, or can no longer be.
    pub(crate) fn watch(&self, watcher: OneshotWatcher) -> impl Future<Output = ()> + Send + use<> {
        let (driver, mut closed) = (self.driver.upgrade(), self.closed.clone());
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
    /// Runs the crate's task until its connection is lost, and no longer: it would make another connection.
    async fn run(self: Arc<Driver>, mut states: StateWatcher, _close: Arc<watch::Sender<()>>) {
        poll_fn(|cx| {
            let mut task = locked(&self.0);
            let done = task.as_mut().is_none_or(|task| task.as_mut().poll(cx).is_ready());
            if done {
                *task = None;
            }
            // Any change of state: it may be the second one since then.
            if done || states.changed().now_or_never().is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
