//! etcd in memory: its answers to calls, and the work of its leader.
//!
//! It is one state, as a cluster is one to its clients. Its callers give it the time. Each call
//! comes over a connection of its own, in the frames of `wire`. Messages that are to be sent are
//! left in the outbox.

use std::collections::BTreeMap;

use prost::Message;
use tonic::{Code, Status};

use crate::etcd::about::{About, about};
use crate::etcd::kv::Kv;
use crate::etcd::leader::Absence;
use crate::etcd::lease::{Leases, Refused};
use crate::etcd::messages::{
    CompactRequest, DeleteRequest, DeleteResponse, Done, Event, GrantRequest, Header, LeaseRequest,
    LeaseResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, Request, StatusResponse,
    TxnRequest, TxnResponse, WatchRequest,
};
use crate::etcd::txn::{apply, carried_out, check_put, check_whole, no_key, path};
use crate::etcd::watch::Watches;
use crate::etcd::wire::{Kind, frame, message, next_frame, next_message};

/// The version that it reports.
const VERSION: &str = "3.5.16";

/// An etcd cluster.
pub(crate) struct Etcd {
    pub(crate) kv: Kv,
    pub(crate) leases: Leases,
    pub(crate) term: u64,
    random: fastrand::Rng,
    calls: BTreeMap<u64, Call>,
    /// The messages to send: the connection, the subject, and the bytes.
    pub(crate) outbox: Vec<(u64, About, Vec<u8>)>,
    pub(crate) absence: Option<Absence>,
    /// The number of answered calls that have one answer.
    pub(crate) handled: u64,
}

/// A call that is under way.
#[derive(Default)]
struct Call {
    member: u64,
    frames: Vec<u8>,
    messages: Vec<u8>,
    path: String,
    about: About,
    watches: Watches,
}

/// The result of a call's message.
type Answer = Result<Vec<u8>, Status>;

impl Etcd {
    pub(crate) fn new(seed: u64) -> Etcd {
        Etcd {
            kv: Kv::default(),
            leases: Leases::default(),
            term: 2,
            random: fastrand::Rng::with_seed(seed),
            calls: BTreeMap::new(),
            outbox: Vec::new(),
            absence: None,
            handled: 0,
        }
    }

    pub(crate) fn opened(&mut self, connection: u64, member: u64) {
        self.calls.insert(
            connection,
            Call {
                member,
                ..Call::default()
            },
        );
    }

    pub(crate) fn closed(&mut self, connection: u64) {
        self.calls.remove(&connection);
    }

    /// Handles bytes that have arrived.
    pub(crate) fn received(&mut self, connection: u64, bytes: &[u8], now: u64) {
        let Some(call) = self.calls.get_mut(&connection) else {
            return;
        };
        call.frames.extend_from_slice(bytes);
        while let Some((kind, payload)) = self
            .calls
            .get_mut(&connection)
            .and_then(|it| next_frame(&mut it.frames))
        {
            let Some(call) = self.calls.get_mut(&connection) else {
                return;
            };
            match kind {
                Kind::Path => call.path = String::from_utf8_lossy(&payload).into_owned(),
                Kind::Ping => self
                    .outbox
                    .push((connection, About::Look, frame(Kind::Ping, &[]))),
                Kind::Messages => {
                    call.messages.extend(payload);
                    while let Some(it) = self
                        .calls
                        .get_mut(&connection)
                        .and_then(|it| next_message(&mut it.messages))
                    {
                        self.asked(connection, it, now);
                    }
                }
                Kind::End => {}
            }
        }
    }

    /// Handles a message of a call.
    fn asked(&mut self, connection: u64, message: Vec<u8>, now: u64) {
        let Some(call) = self.calls.get_mut(&connection) else {
            return;
        };
        call.about = about(&call.path, &message);
        let renews = call.path.ends_with("/LeaseKeepAlive");
        let watches = call.path.ends_with("/Watch");
        let concerns = |absence: &&mut Absence| !watches && (renews || !absence.stale);
        let Some(absence) = self.absence.as_mut().filter(concerns) else {
            return self.answer(connection, &message, now, false);
        };
        if absence.stale {
            return self.renew_in_vain(connection, &message);
        }
        match self.random.u8(..4) {
            0 => self.end_call(
                connection,
                Err(Status::unavailable("etcdserver: no leader")),
            ),
            1 => absence.waiting.push((connection, message, true)),
            _ => absence.waiting.push((connection, message, false)),
        }
    }

    /// Carries out a request, and answers with its result, or with the error that the leader has
    /// changed.
    pub(crate) fn answer(&mut self, connection: u64, message: &[u8], now: u64, has_changed: bool) {
        let Some(path) = self.calls.get(&connection).map(|call| call.path.clone()) else {
            return;
        };
        let answer = match path.rsplit('/').next().unwrap_or_default() {
            "Range" => self.range(connection, message),
            "Put" => self.put(connection, message),
            "DeleteRange" => self.delete(connection, message),
            "Txn" => self.txn(connection, message),
            "Compact" => self.compact(connection, message),
            "LeaseGrant" => self.grant(connection, message, now),
            "LeaseRevoke" => self.revoke(connection, message),
            "LeaseKeepAlive" => return self.keep_alive(connection, message, now),
            "Watch" => return self.watch(connection, message),
            "Status" => Ok(self.encoded(connection, |header| StatusResponse {
                header,
                version: VERSION.to_owned(),
            })),
            other => Err(Status::unimplemented(other)),
        };
        let changed = || Err(Status::unavailable("etcdserver: leader changed"));
        self.end_call(connection, if has_changed { changed() } else { answer });
    }

    fn range(&mut self, connection: u64, message: &[u8]) -> Answer {
        let request = decoded::<RangeRequest>(message)?;
        if request.key.is_empty() {
            return Err(no_key());
        }
        let found = self.kv.write().range(&request)?;
        Ok(self.encoded(connection, |header| RangeResponse { header, ..found }))
    }

    fn put(&mut self, connection: u64, message: &[u8]) -> Answer {
        let request = decoded::<PutRequest>(message)?;
        check_put(&request)?;
        self.check_there(&Request::Put(request.clone()))?;
        let mut write = self.kv.write();
        let before = write.put(&request).filter(|_| request.wants_before);
        let changes = write.end();
        self.changed(&changes);
        Ok(self.encoded(connection, |header| PutResponse { header, before }))
    }

    fn delete(&mut self, connection: u64, message: &[u8]) -> Answer {
        let request = decoded::<DeleteRequest>(message)?;
        if request.key.is_empty() {
            return Err(no_key());
        }
        let gone = self.delete_keys(&request);
        let deleted = i64::try_from(gone.len()).unwrap_or(i64::MAX);
        let before = if request.wants_before {
            gone
        } else {
            Vec::new()
        };
        Ok(self.encoded(connection, |header| DeleteResponse {
            header,
            deleted,
            before,
        }))
    }

    /// Deletes keys, for a request or for a fault.
    pub(crate) fn delete_keys(
        &mut self,
        request: &DeleteRequest,
    ) -> Vec<crate::etcd::messages::KeyValue> {
        let mut write = self.kv.write();
        let gone = write.delete(request);
        let changes = write.end();
        self.changed(&changes);
        gone
    }

    fn txn(&mut self, connection: u64, message: &[u8]) -> Answer {
        let request = decoded::<TxnRequest>(message)?;
        check_whole(&request)?;
        let mut taken = Vec::new();
        path(&self.kv.write(), &request, &mut taken);
        // The writes are checked before the reads.
        let mut all = carried_out(&request, &mut taken.iter().copied());
        all.sort_by_key(|each| matches!(each, Request::Range(_)));
        all.into_iter()
            .try_for_each(|each| self.check_there(each))?;
        let mut write = self.kv.write();
        let response = apply(&mut write, &request, &mut taken.into_iter())?;
        let changes = write.end();
        self.changed(&changes);
        Ok(self.encoded(connection, |header| TxnResponse { header, ..response }))
    }

    /// Checks that the key, the lease or the revision exists that a write or a read needs.
    fn check_there(&self, request: &Request) -> Result<(), Status> {
        match request {
            Request::Put(put)
                if (put.same_value || put.same_lease) && self.kv.get(&put.key).is_none() =>
            {
                Err(Status::invalid_argument("etcdserver: key not found"))
            }
            Request::Range(range) => self.kv.check(range.revision, self.kv.revision()),
            Request::Put(put) if put.lease != 0 && self.leases.get(put.lease).is_none() => {
                Err(no_lease())
            }
            _ => Ok(()),
        }
    }

    fn compact(&mut self, connection: u64, message: &[u8]) -> Answer {
        self.kv
            .compact(decoded::<CompactRequest>(message)?.revision)?;
        Ok(self.encoded(connection, |header| Done { header }))
    }

    fn grant(&mut self, connection: u64, message: &[u8], now: u64) -> Answer {
        let GrantRequest { ttl, id } = decoded(message)?;
        let id = if id == 0 { self.random.i64(1..) } else { id };
        let granted = self
            .leases
            .grant(id, ttl, now)
            .map_err(|refused| match refused {
                Refused::TooLong => Status::out_of_range("etcdserver: too large lease TTL"),
                Refused::Exists => Status::failed_precondition("etcdserver: lease already exists"),
            })?;
        Ok(self.encoded(connection, |header| LeaseResponse {
            header,
            id,
            ttl: granted,
        }))
    }

    fn revoke(&mut self, connection: u64, message: &[u8]) -> Answer {
        if !self.end_lease(decoded::<LeaseRequest>(message)?.id) {
            return Err(no_lease());
        }
        Ok(self.encoded(connection, |header| Done { header }))
    }

    /// Ends a lease, and deletes all its keys at one revision.
    pub(crate) fn end_lease(&mut self, id: i64) -> bool {
        let Some(keys) = self.leases.revoke(id) else {
            return false;
        };
        let mut write = self.kv.write();
        for key in keys {
            write.delete(&DeleteRequest {
                key,
                ..DeleteRequest::default()
            });
        }
        let changes = write.end();
        self.changed(&changes);
        true
    }

    fn keep_alive(&mut self, connection: u64, message: &[u8], now: u64) {
        let Ok(LeaseRequest { id }) = LeaseRequest::decode(message) else {
            return;
        };
        let ttl = self.leases.keep_alive(id, now).unwrap_or_else(|| {
            // A lease that is over is not renewed. The answer waits until the lease is gone.
            self.end_lease(id);
            0
        });
        let header = self.header(connection);
        self.say(connection, &LeaseResponse { header, id, ttl });
    }

    fn watch(&mut self, connection: u64, message: &[u8]) {
        let Ok(WatchRequest {
            request: Some(request),
        }) = WatchRequest::decode(message)
        else {
            return;
        };
        let Some(call) = self.calls.get_mut(&connection) else {
            return;
        };
        for response in call.watches.ask(request, &self.kv) {
            self.say(connection, &response);
        }
    }

    /// Sends the changes to the watches, in the order of their calls.
    fn changed(&mut self, changes: &[Event]) {
        if changes.is_empty() {
            return;
        }
        self.leases.take_in(changes);
        let revision = self.kv.revision();
        let each = |(connection, call): (&u64, &Call)| {
            let told = call.watches.tell(changes, revision);
            told.into_iter()
                .map(|response| (*connection, response))
                .collect::<Vec<_>>()
        };
        let told: Vec<_> = self.calls.iter().flat_map(each).collect();
        told.iter()
            .for_each(|(connection, response)| self.say(*connection, response));
    }

    pub(crate) fn header(&self, connection: u64) -> Option<Header> {
        let member = self.calls.get(&connection).map_or(0, |call| call.member);
        Some(Header {
            cluster: 1,
            member: member + 1,
            revision: self.kv.revision(),
            term: self.term,
        })
    }

    fn encoded<T: Message>(
        &self,
        connection: u64,
        make: impl FnOnce(Option<Header>) -> T,
    ) -> Vec<u8> {
        message(&make(self.header(connection)))
    }

    /// Sends a message of a call.
    pub(crate) fn say(&mut self, connection: u64, response: &impl Message) {
        let about = self
            .calls
            .get(&connection)
            .map_or(About::Look, |call| call.about);
        self.outbox
            .push((connection, about, frame(Kind::Messages, &message(response))));
    }

    /// Ends a call that has one answer.
    fn end_call(&mut self, connection: u64, answer: Answer) {
        self.handled += 1;
        let (messages, code, why) = match answer {
            Ok(message) => (frame(Kind::Messages, &message), Code::Ok, String::new()),
            Err(status) => (Vec::new(), status.code(), status.message().to_owned()),
        };
        let end = frame(Kind::End, &[&[code as u8], why.as_bytes()].concat());
        let about = self
            .calls
            .remove(&connection)
            .map_or(About::Look, |call| call.about);
        self.outbox
            .push((connection, about, [messages, end].concat()));
    }

    /// The number of leases and keys. Keys that record how far tokens were raised are kept for
    /// good, and not counted.
    pub(crate) fn entries(&self) -> usize {
        let keys = self.kv.at(&[0], &[0], i64::MAX);
        self.leases.count() + keys.iter().filter(|it| !it.key.ends_with(b"%base")).count()
    }
}

fn no_lease() -> Status {
    Status::not_found("etcdserver: requested lease not found")
}

fn decoded<T: Message + Default>(message: &[u8]) -> Result<T, Status> {
    T::decode(message).map_err(|e| Status::internal(e.to_string()))
}
