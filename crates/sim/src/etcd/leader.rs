//! The work of a leader, and the handling of requests while there is none, or while there are two.

use prost::Message;

use crate::etcd::messages::{Header, LeaseRequest, LeaseResponse};
use crate::etcd::server::Etcd;

/// The time of an election in nanoseconds, which a new leader adds to each lease.
const ELECTION: u64 = 1_000_000_000;

/// The state while there is no leader, or while a former one has not heard of the new one.
#[derive(Default)]
pub(crate) struct Absence {
    /// There is another leader, and the former one still answers clients that ask it to renew
    /// leases.
    pub(crate) stale: bool,
    /// The messages that wait for a leader, with their connections. The last field is true if the
    /// answer will be that the leader has changed.
    pub(crate) waiting: Vec<(u64, Vec<u8>, bool)>,
}

impl Etcd {
    /// Ends the leases that are over.
    pub(crate) fn tick(&mut self, now: u64) {
        if self.absence.as_ref().is_none_or(|absence| absence.stale) {
            for id in self.leases.over(now) {
                self.end_lease(id);
            }
        }
    }

    /// Removes the leader.
    pub(crate) fn leave(&mut self) {
        if self.absence.is_none() {
            self.absence = Some(Absence::default());
        }
    }

    /// Makes another member the leader at once. The former leader does not know.
    pub(crate) fn usurp(&mut self, now: u64) {
        if self.absence.is_none() {
            self.promote(now);
            self.absence = Some(Absence {
                stale: true,
                waiting: Vec::new(),
            });
        }
    }

    /// Compacts everything before the current revision.
    pub(crate) fn compact_all(&mut self) {
        // It is no fault if all of it is compacted already.
        drop(self.kv.compact(self.kv.revision()));
    }

    fn promote(&mut self, now: u64) {
        self.term += 1;
        self.leases.promote(ELECTION, now);
    }

    /// Ends the absence: there is a leader, and all members know it.
    pub(crate) fn lead(&mut self, now: u64) {
        let Some(absence) = self.absence.take() else {
            return;
        };
        if !absence.stale {
            self.promote(now);
        }
        for (connection, message, has_changed) in absence.waiting {
            self.answer(connection, &message, now, has_changed);
        }
    }

    /// Answers a keep-alive as a former leader does, by its own table and with an earlier term.
    pub(crate) fn renew_in_vain(&mut self, connection: u64, message: &[u8]) {
        let Ok(LeaseRequest { id }) = LeaseRequest::decode(message) else {
            return;
        };
        let ttl = self.leases.get(id).map_or(0, |lease| lease.ttl);
        let header = Some(Header {
            term: self.term - 1,
            ..self.header(connection).unwrap_or_default()
        });
        self.say(connection, &LeaseResponse { header, id, ttl });
    }
}
