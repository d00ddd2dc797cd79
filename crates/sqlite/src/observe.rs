//! `observe`.

use std::sync::{Arc, Weak};

use leasehold_core::Name;
use leasehold_core::seam::Subscription;
use rusqlite::params;

use crate::claim::queue::Queues;
use crate::client::fifo::Address;
use crate::client::thread::Handle;
use crate::client::time::limit;
use crate::client::worker::Client;

/// Ends the observation when it is dropped.
struct Observation {
    client: Weak<Handle>,
    name: Name,
}

impl Drop for Observation {
    fn drop(&mut self) {
        if let Some(client) = self.client.upgrade() {
            let name = self.name.clone();
            client.tell(move |client| client.observe(&name, false));
        }
    }
}

pub(crate) fn observe(client: &Arc<Handle>, name: &Name) -> Subscription {
    let on = name.clone();
    client.tell(move |client| client.observe(&on, true));
    Subscription::new(Observation { client: Arc::downgrade(client), name: name.clone() })
}

impl Client {
    /// From now on, or no longer, this client is notified of a name. A hint: a failure is no error.
    pub(crate) fn observe(&mut self, name: &Name, on: bool) {
        let deadline = limit(None);
        let done = self.ready(deadline).and_then(|()| {
            self.write(deadline, |queues| {
                if on { queues.add_observer(name.as_str()) } else { queues.remove_observer(name.as_str()) }
            })
        });
        if on && done.is_ok() {
            self.notifier.holder_changed(name);
        }
    }
}

impl Queues<'_> {
    fn add_observer(&mut self, name: &str) -> rusqlite::Result<()> {
        let Address { fifo, dev, ino } = self.own.address;
        let insert = "INSERT INTO observer (name, fifo, dev, ino) VALUES (?1, ?2, ?3, ?4)";
        self.tx.prepare_cached(insert)?.execute(params![name, fifo, dev, ino]).map(drop)
    }

    /// Removes one of this client's observers of this name.
    fn remove_observer(&mut self, name: &str) -> rusqlite::Result<()> {
        let delete = "DELETE FROM observer WHERE rowid = (SELECT rowid FROM observer WHERE name = ?1 AND fifo = ?2)";
        self.tx.prepare_cached(delete)?.execute(params![name, self.own.address.fifo]).map(drop)
    }

    /// Our FIFO is another one from now on.
    pub(crate) fn move_to(&mut self, address: Address) -> rusqlite::Result<()> {
        let Address { fifo, dev, ino } = address;
        for table in ["session", "observer"] {
            let set = format!("UPDATE {table} SET fifo = ?2, dev = ?3, ino = ?4 WHERE fifo = ?1");
            self.tx.prepare_cached(&set)?.execute(params![self.own.address.fifo, fifo, dev, ino])?;
        }
        Ok(())
    }
}
