//! The requests of clients to a session, and the watchers that tell of changes: of a node, and of
//! the session itself.

use std::future::pending;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::{oneshot, watch};
use zookeeper_client::{Error, SessionState};

use crate::Result;
use crate::wire::Record;

/// The body of an answer, and a watcher if one was asked for.
pub(crate) type Answer = Result<(Vec<u8>, Option<OneshotWatcher>)>;

/// A request of a client to its session.
#[derive(Debug)]
pub(crate) enum Request {
    /// Asks the server, and perhaps watches this path.
    Ask {
        op: i32,
        record: Record,
        watch: Option<String>,
        answer: oneshot::Sender<Answer>,
    },
    /// The watcher with this number was dropped.
    Unwatch(u64),
}

impl Request {
    pub(crate) fn fail(self, error: &Error) {
        if let Request::Ask { answer, .. } = self {
            drop(answer.send(Err(error.clone())));
        }
    }
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Asked(pub(crate) oneshot::Receiver<Answer>);

impl Future for Asked {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(Error::ConnectionLoss)))
    }
}

/// Tells of one change of a node.
#[derive(Debug)]
pub struct OneshotWatcher {
    pub(crate) id: u64,
    pub(crate) changed: Option<oneshot::Receiver<()>>,
    pub(crate) requests: WeakUnboundedSender<Request>,
}

impl OneshotWatcher {
    /// Resolves when the node has changed.
    pub async fn changed(mut self) {
        if let Some(changed) = &mut self.changed
            && changed.await.is_err()
        {
            pending::<()>().await;
        }
        self.changed = None;
    }
}

impl Drop for OneshotWatcher {
    fn drop(&mut self) {
        if let (Some(_), Some(requests)) = (&self.changed, self.requests.upgrade()) {
            drop(requests.send(Request::Unwatch(self.id)));
        }
    }
}

/// Tells of changes of the session's state.
#[derive(Clone, Debug)]
pub struct StateWatcher(pub(crate) watch::Receiver<SessionState>);

impl StateWatcher {
    /// Resolves when the state has changed, and returns it.
    pub async fn changed(&mut self) -> SessionState {
        match self.0.changed().await {
            Ok(()) => *self.0.borrow_and_update(),
            Err(_) => pending().await,
        }
    }
}
