//! A client: the requests of a session. Each is sent when it is called.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use zookeeper_client::{Acl, Error, SessionState, Stat};

use crate::Result;
use crate::request::{Asked, OneshotWatcher, Request, StateWatcher};
use crate::values::{CreateOptions, CreateSequence, SessionInfo, unexpected};
use crate::wire::{Reader, Record, op};

/// A client of one session. The session is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) session: SessionInfo,
    pub(crate) timeout: Duration,
    pub(crate) requests: Arc<UnboundedSender<Request>>,
    pub(crate) states: watch::Receiver<SessionState>,
}

impl Client {
    /// The id and the password by which the server knows the session.
    #[must_use]
    pub fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// The time that the session lives without being heard of.
    #[must_use]
    pub fn session_timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns a watcher that tells of changes of the session's state from now on.
    #[must_use]
    pub fn state_watcher(&self) -> StateWatcher {
        let mut states = self.states.clone();
        states.mark_unchanged();
        StateWatcher(states)
    }

    pub(crate) fn ask(&self, op: i32, record: Record) -> Asked {
        self.ask_and_watch(op, record, None)
    }

    fn ask_and_watch(&self, op: i32, record: Record, watch: Option<String>) -> Asked {
        let (answer, answered) = oneshot::channel();
        if let Err(refused) = self.requests.send(Request::Ask {
            op,
            record,
            watch,
            answer,
        }) {
            let error = match *self.states.borrow() {
                SessionState::Expired => Error::SessionExpired,
                SessionState::Closed => Error::ClientClosed,
                _ => Error::ConnectionLoss,
            };
            refused.0.fail(&error);
        }
        Asked(answered)
    }

    fn watched(&self, op: i32, path: &str) -> Asked {
        self.ask_and_watch(
            op,
            Record::default().text(path).bool(true),
            Some(path.to_owned()),
        )
    }

    fn read(&self, op: i32, path: &str) -> Asked {
        self.ask(op, Record::default().text(path).bool(false))
    }

    /// Creates a node.
    pub fn create(
        &self,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> impl Future<Output = Result<(Stat, CreateSequence)>> + Send + use<> {
        let (asked, before) = (
            self.ask(
                options.mode.op(),
                options.written(Record::default(), path, data),
            ),
            path.len(),
        );
        async move {
            let (body, _) = asked.await?;
            let mut reader = Reader(&body);
            let (path, stat) = reader.text().zip(reader.stat()).ok_or_else(unexpected)?;
            Ok((stat, CreateSequence(path[before..].parse().unwrap_or(-1))))
        }
    }

    /// Creates a node and its missing parents.
    pub async fn mkdir(&self, path: &str, options: &CreateOptions<'_>) -> Result<()> {
        let mut end = path.len();
        loop {
            match self.create(&path[..end], b"", options).await {
                Ok(_) | Err(Error::NodeExists) if end == path.len() => return Ok(()),
                Ok(_) | Err(Error::NodeExists) => {
                    end = path[end + 1..]
                        .find('/')
                        .map_or(path.len(), |at| end + 1 + at);
                }
                Err(Error::NoNode) => match path[..end].rfind('/') {
                    None | Some(0) => return Err(Error::NoNode),
                    Some(at) => end = at,
                },
                Err(e) => return Err(e),
            }
        }
    }

    /// Deletes a node.
    pub fn delete(
        &self,
        path: &str,
        version: Option<i32>,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let asked = self.ask(
            op::DELETE,
            Record::default().text(path).int(version.unwrap_or(-1)),
        );
        async move { asked.await.map(drop) }
    }

    /// Changes a node.
    pub fn set_data(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> impl Future<Output = Result<Stat>> + Send + use<> {
        let asked = self.ask(
            op::SET_DATA,
            Record::default()
                .text(path)
                .bytes(data)
                .int(version.unwrap_or(-1)),
        );
        async move { Reader(&asked.await?.0).stat().ok_or_else(unexpected) }
    }

    /// Reads a node.
    pub fn get_data(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat)>> + Send + use<> {
        let asked = self.read(op::GET_DATA, path);
        async move { data(&asked.await?.0) }
    }

    /// Reads a node, and watches it.
    pub fn get_and_watch_data(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, OneshotWatcher)>> + Send + use<> {
        let asked = self.watched(op::GET_DATA, path);
        async move {
            let (body, watcher) = asked.await?;
            let (data, stat) = data(&body)?;
            Ok((data, stat, watcher.ok_or_else(unexpected)?))
        }
    }

    /// The server's facts about a node, if it exists.
    pub fn check_stat(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Option<Stat>>> + Send + use<> {
        let asked = self.read(op::EXISTS, path);
        async move { Ok(Reader(&asked.await?.0).stat()) }
    }

    /// The server's facts about a node, if it exists. Watches the node.
    pub fn check_and_watch_stat(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, OneshotWatcher)>> + Send + use<> {
        let asked = self.watched(op::EXISTS, path);
        async move {
            let (body, watcher) = asked.await?;
            Ok((Reader(&body).stat(), watcher.ok_or_else(unexpected)?))
        }
    }

    /// The children of a node.
    pub fn list_children(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Vec<String>>> + Send + use<> {
        let asked = self.read(op::GET_CHILDREN, path);
        async move { Reader(&asked.await?.0).texts().ok_or_else(unexpected) }
    }

    /// The children of a node. Watches them.
    pub fn list_and_watch_children(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<String>, OneshotWatcher)>> + Send + use<> {
        let asked = self.watched(op::GET_CHILDREN, path);
        async move {
            let (body, watcher) = asked.await?;
            Reader(&body).texts().zip(watcher).ok_or_else(unexpected)
        }
    }

    /// The session's nodes below a path.
    pub fn list_ephemerals(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<Vec<String>>> + Send + use<> {
        let asked = self.ask(op::GET_EPHEMERALS, Record::default().text(path));
        async move { Reader(&asked.await?.0).texts().ok_or_else(unexpected) }
    }

    /// Lets the server catch up with its leader.
    pub fn sync(&self, path: &str) -> impl Future<Output = Result<()>> + Send + use<> {
        let asked = self.ask(op::SYNC, Record::default().text(path));
        async move { asked.await.map(drop) }
    }

    /// Access rights, which are not simulated. The store asks for them above a root that is deep.
    pub async fn get_acl(&self, _path: &str) -> Result<(Vec<Acl>, Stat)> {
        Err(Error::Unimplemented)
    }
}

fn data(body: &[u8]) -> Result<(Vec<u8>, Stat)> {
    let mut reader = Reader(body);
    let read = reader.bytes().map(<[u8]>::to_vec).zip(reader.stat());
    read.ok_or_else(unexpected)
}
