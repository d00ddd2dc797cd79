//! A session on its connection: it sends requests in order, and handles their answers, events and
//! pings, until the session is lost or no client of it is left.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::time::Duration;

use leasehold_core::support::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};
use zookeeper_client::{Error, SessionState};

use crate::Result;
use crate::request::{Answer, OneshotWatcher, Request};
use crate::values::error_of;
use crate::wire::{EVENT, PING, Reader, Record, code, next_packet, op};

/// A connection that carries packets.
pub(crate) struct Line {
    stream: Box<dyn Stream>,
    input: Vec<u8>,
}

impl Line {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Line {
        Line {
            stream,
            input: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, packet: &[u8]) -> Result<()> {
        self.stream
            .write_all(packet)
            .await
            .map_err(|_| Error::ConnectionLoss)
    }

    /// The next packet. Dropping this future at any await loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(packet) = next_packet(&mut self.input) {
                return Ok(packet);
            }
            if self
                .stream
                .read_buf(&mut self.input)
                .await
                .map_or(true, |many| many == 0)
            {
                return Err(Error::ConnectionLoss);
            }
        }
    }
}

/// A request that is not answered yet.
struct Pending {
    xid: i32,
    op: i32,
    watch: Option<String>,
    answer: Option<oneshot::Sender<Answer>>,
}

/// A watch: on the node itself, or on its children.
struct Watch {
    path: String,
    of_children: bool,
    changed: oneshot::Sender<()>,
}

/// The numbers for a removal of watches: of children, or of the node.
const CHILDREN: i32 = 1;
const DATA: i32 = 2;

pub(crate) struct Session {
    line: Line,
    state: watch::Sender<SessionState>,
    requests: WeakUnboundedSender<Request>,
    /// The time that the server may be silent, and the time without a request after which it is
    /// pinged.
    silent: Duration,
    pings: Duration,
    xid: i32,
    under_way: VecDeque<Pending>,
    watches: BTreeMap<u64, Watch>,
    made: u64,
    heard: Instant,
    sent: Instant,
    is_pinged: bool,
}

impl Session {
    pub(crate) fn new(
        line: Line,
        state: watch::Sender<SessionState>,
        requests: WeakUnboundedSender<Request>,
        (silent, pings): (Duration, Duration),
    ) -> Session {
        let (under_way, watches, now) = (VecDeque::new(), BTreeMap::new(), Instant::now());
        Session {
            line,
            state,
            requests,
            silent,
            pings,
            xid: 0,
            under_way,
            watches,
            made: 0,
            heard: now,
            sent: now,
            is_pinged: false,
        }
    }

    pub(crate) async fn serve(mut self, mut requests: UnboundedReceiver<Request>) {
        let error = self
            .run(&mut requests)
            .await
            .err()
            .unwrap_or(Error::ClientClosed);
        self.state.send_replace(match error {
            Error::SessionExpired => SessionState::Expired,
            Error::ClientClosed => SessionState::Closed,
            _ => SessionState::Disconnected,
        });
        for request in self.under_way.drain(..) {
            request
                .answer
                .into_iter()
                .for_each(|answer| drop(answer.send(Err(error.clone()))));
        }
        requests.close();
        while let Some(request) = requests.recv().await {
            request.fail(&error);
        }
        // The watchers of a disconnected session are told nothing.
        if error == Error::ConnectionLoss {
            pending::<()>().await;
        }
    }

    /// Runs until the session is closed, because no client of it is left.
    async fn run(&mut self, requests: &mut UnboundedReceiver<Request>) -> Result<()> {
        let mut is_closing = false;
        while !(is_closing && self.under_way.is_empty()) {
            let ping = if self.is_pinged {
                self.heard + self.silent
            } else {
                self.sent + self.pings
            };
            tokio::select! {
                biased;
                packet = self.line.next() => self.received(&packet?)?,
                request = requests.recv(), if !is_closing => match request {
                    Some(Request::Ask { op, record, watch, answer }) => self.send(op, &record, watch, Some(answer)).await?,
                    Some(Request::Unwatch(id)) => self.unwatch(id).await?,
                    None => {
                        is_closing = true;
                        self.send(op::CLOSE_SESSION, &Record::default(), None, None).await?;
                    }
                },
                () = sleep_until(ping.min(self.heard + self.silent)) => {
                    let now = Instant::now();
                    if self.heard + self.silent <= now {
                        return Err(Error::ConnectionLoss);
                    }
                    (self.is_pinged, self.sent) = (true, now);
                    self.line.send(&Record::default().int(PING).int(op::PING).packet()).await?;
                }
            }
        }
        Ok(())
    }

    async fn send(
        &mut self,
        op: i32,
        record: &Record,
        watch: Option<String>,
        answer: Option<oneshot::Sender<Answer>>,
    ) -> Result<()> {
        self.xid += 1;
        self.sent = Instant::now();
        self.under_way.push_back(Pending {
            xid: self.xid,
            op,
            watch,
            answer,
        });
        let mut packet = Record::default().int(self.xid).int(op);
        packet.0.extend(&record.0);
        self.line.send(&packet.packet()).await
    }

    /// Removes a watch from the server, unless another one is on the same path and kind.
    async fn unwatch(&mut self, id: u64) -> Result<()> {
        let Some(Watch {
            path, of_children, ..
        }) = self.watches.remove(&id)
        else {
            return Ok(());
        };
        let is_same = |watch: &Watch| watch.path == path && watch.of_children == of_children;
        let comes = |it: &Pending| {
            it.watch.as_ref() == Some(&path) && (it.op == op::GET_CHILDREN) == of_children
        };
        if self.watches.values().any(is_same) || self.under_way.iter().any(comes) {
            return Ok(());
        }
        let record = Record::default()
            .text(&path)
            .int(if of_children { CHILDREN } else { DATA });
        self.send(op::REMOVE_WATCHES, &record, None, None).await
    }

    fn received(&mut self, packet: &[u8]) -> Result<()> {
        self.heard = Instant::now();
        let mut reader = Reader(packet);
        let header = (reader.int(), reader.long(), reader.int());
        let (Some(xid), Some(_), Some(error)) = header else {
            return Err(Error::ConnectionLoss);
        };
        if error == code::SESSION_EXPIRED {
            return Err(Error::SessionExpired);
        }
        match xid {
            EVENT => self.changed(reader),
            PING => self.is_pinged = false,
            _ => {
                let request = self
                    .under_way
                    .pop_front()
                    .filter(|request| request.xid == xid);
                let Some(Pending {
                    op, watch, answer, ..
                }) = request
                else {
                    return Err(Error::ConnectionLoss);
                };
                let is_good = error == 0 || op == op::EXISTS && error == code::NO_NODE;
                let said =
                    is_good.then(|| (reader.0.to_vec(), watch.map(|path| self.watch(op, path))));
                if let Some(answer) = answer {
                    drop(answer.send(said.ok_or_else(|| error_of(error))));
                }
            }
        }
        Ok(())
    }

    fn watch(&mut self, op: i32, path: String) -> OneshotWatcher {
        self.made += 1;
        let (changed, receiver) = oneshot::channel();
        self.watches.insert(
            self.made,
            Watch {
                path,
                of_children: op == op::GET_CHILDREN,
                changed,
            },
        );
        OneshotWatcher {
            id: self.made,
            changed: Some(receiver),
            requests: self.requests.clone(),
        }
    }

    /// Passes an event on to the watches of this node.
    fn changed(&mut self, mut reader: Reader<'_>) {
        let (Some(kind), Some(_), Some(path)) = (reader.int(), reader.int(), reader.text()) else {
            return;
        };
        let concerns = |watch: &Watch| {
            let (deleted, children) = (kind == 2, kind == 4);
            watch.path == path && (deleted || watch.of_children == children)
        };
        let ids: Vec<u64> = self
            .watches
            .iter()
            .filter(|(_, watch)| concerns(watch))
            .map(|(id, _)| *id)
            .collect();
        for watch in ids.iter().filter_map(|id| self.watches.remove(id)) {
            let _ = watch.changed.send(());
        }
    }
}
