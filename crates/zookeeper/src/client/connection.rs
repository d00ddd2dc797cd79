//! One connection of a session. The client crate connects anew by itself, is told another timeout by another server, and keeps
//! that to itself. So a client of it serves for one connection alone: for the next one there is another client of the same
//! session, which says what was agreed to.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;

use futures_util::FutureExt;
use leasehold_core::seam::locked;
use spawns_core::{Spawn, Task};
use tokio::sync::watch;
use zookeeper_client::{Client as OfCrate, Connector, Error as ZkError, OneshotWatcher};

use crate::error::Answer;

/// A client of the crate, for as long as its first connection lasts.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    client: OfCrate,
    wire: Weak<Wire>,
    over: Over,
}

/// Says when a connection is over. It does not keep the connection.
pub(crate) type Over = watch::Receiver<bool>;

/// The crate's own task. Whoever waits for one of its watchers keeps it: a watcher that is left alone panics.
struct Wire(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Client {
    /// Connects, and keeps the connection until it is lost, or nobody has this client any more, which closes the session.
    pub(crate) async fn connect(connector: Connector, servers: &str) -> Answer<Client> {
        let (spawned, mut connecting) = (Spawned::default(), pin!(connector.connect(servers)));
        let client = poll_fn(|cx| {
            let _scope = spawns_core::enter(&spawned);
            connecting.as_mut().poll(cx)
        });
        let client = client.await?;
        let task = locked(&spawned.0).take().map(|task| Box::into_pin(task.future)).ok_or(ZkError::ClientClosed)?;
        let (wire, (ends, over)) = (Arc::new(Wire(Mutex::new(Some(task)))), watch::channel(false));
        let client = Client { client, wire: Arc::downgrade(&wire), over };
        tokio::spawn(wire.serve(client.client.state_watcher(), Ends(ends)));
        Ok(client)
    }

    /// Resolves when the watcher was told something, or will never be.
    pub(crate) fn watch(&self, watcher: OneshotWatcher) -> impl Future<Output = ()> + Send + use<> {
        let (wire, mut over) = (self.wire.upgrade(), self.over.clone());
        async move {
            let Some(_wire) = wire else { return };
            tokio::select! {
                biased;
                _ = over.wait_for(|over| *over) => {}
                _ = watcher.changed() => {}
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    pub(crate) fn over(&self) -> Over {
        self.over.clone()
    }
}

impl Deref for Client {
    type Target = OfCrate;

    fn deref(&self) -> &OfCrate {
        &self.client
    }
}

impl Wire {
    /// Runs the crate's task until its connection is lost: then it is not run any more, so that it makes no other one.
    async fn serve(self: Arc<Wire>, mut states: zookeeper_client::StateWatcher, ends: Ends) {
        poll_fn(|cx| {
            let mut task = locked(&self.0);
            let done = task.as_mut().is_none_or(|task| task.as_mut().poll(cx).is_ready());
            if done {
                *task = None;
            }
            // Any change: it may be the second since then.
            if done || states.changed().now_or_never().is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(ends);
    }
}

/// Says that the connection is over, also when the runtime ends that served it.
struct Ends(watch::Sender<bool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// Takes what is spawned instead of running it.
#[derive(Default)]
struct Spawned(Mutex<Option<Task>>);

impl Spawn for Spawned {
    fn spawn(&self, task: Task) {
        *locked(&self.0) = Some(task);
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}
