//! What the leader does by itself, and what becomes of requests while there is none, or two.

use prost::Message;

use crate::etcd::messages::{Header, LeaseRequest, LeaseResponse};
use crate::etcd::server::Etcd;

/// How long an election takes, which a new leader adds to each lease.
const ELECTION: u64 = 1_000_000_000;

/// There is no leader, or a former one has not heard of the new one.
#[derive(Default)]
pub(crate) struct Absence {
    /// There is another leader, and the former one renews leases by itself for those who ask it.
    pub(crate) stale: bool,
    /// What waits for a leader.
    pub(crate) waiting: Vec<(u64, Vec<u8>, bool)>,
}

impl Etcd {
    /// What happens by itself.
    pub(crate) fn tick(&mut self, now: u64) {
        if self.absence.as_ref().is_none_or(|absence| absence.stale) {
            for id in self.leases.over(now) {
                self.end_lease(id);
            }
        }
    }

    /// The leader is gone.
    pub(crate) fn leave(&mut self) {
        if self.absence.is_none() {
            self.absence = Some(Absence::default());
        }
    }

    /// Another one leads at once, and the former one does not know.
    pub(crate) fn usurp(&mut self, now: u64) {
        if self.absence.is_none() {
            self.promote(now);
            self.absence = Some(Absence { stale: true, waiting: Vec::new() });
        }
    }

    /// Nothing of before is kept.
    pub(crate) fn compact_all(&mut self) {
        // What is compacted already is no fault.
        drop(self.kv.compact(self.kv.revision()));
    }

    fn promote(&mut self, now: u64) {
        self.term += 1;
        self.leases.promote(ELECTION, now);
    }

    /// There is a leader again, and all know it.
    pub(crate) fn lead(&mut self, now: u64) {
        let Some(absence) = self.absence.take() else { return };
        if !absence.stale {
            self.promote(now);
        }
        for (connection, message, has_changed) in absence.waiting {
            self.answer(connection, &message, now, has_changed);
        }
    }

    /// A former leader renews in its own table, and knows of no later term.
    pub(crate) fn renew_in_vain(&mut self, connection: u64, message: &[u8]) {
        let Ok(LeaseRequest { id }) = LeaseRequest::decode(message) else { return };
        let ttl = self.leases.get(id).map_or(0, |lease| lease.ttl);
        let header = Some(Header { term: self.term - 1, ..self.header(connection).unwrap_or_default() });
        self.say(connection, &LeaseResponse { header, id, ttl });
    }
}
