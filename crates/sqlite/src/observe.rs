//! `observe`.

use std::sync::Arc;

use leasehold_core::Name;
use leasehold_core::backend::Subscription;
use rusqlite::params;
use scopeguard::guard;

use crate::claim::queue::Queues;
use crate::client::fifo::Address;
use crate::client::thread::Handle;
use crate::client::time::limit;
use crate::client::worker::Client;

pub(crate) fn observe(client: &Arc<Handle>, name: &Name) -> Subscription {
    let on = name.clone();
    let off = name.clone();
    let weak = Arc::downgrade(client);
    // Notifications are a hint: if no thread can be started, there are none.
    let _ = client.send(move |client| client.observe(&on, true));
    Subscription::new(guard(off, move |off| {
        if let Some(client) = weak.upgrade() {
            let _ = client.send(move |client| client.observe(&off, false));
        }
    }))
}

impl Client {
    /// Starts or ends the notifications of this client about a name. They are a hint: a failure is
    /// no error.
    pub(crate) fn observe(&mut self, name: &Name, on: bool) {
        self.is_brief = false;
        let deadline = limit(None);
        let add = "INSERT INTO observer (name, fifo, dev, ino) VALUES (?1, ?2, ?3, ?4)";
        let remove = "DELETE FROM observer WHERE rowid = (SELECT rowid FROM observer WHERE name = ?1 AND fifo = ?2)";
        let done = self.ready(deadline).and_then(|()| {
            self.write(deadline, |queues| {
                let Address { fifo, dev, ino } = queues.own.address;
                match on {
                    true => queues.execute(add, params![name.as_str(), fifo, dev, ino]),
                    false => queues.execute(remove, params![name.as_str(), fifo]),
                }
            })
        });
        if on && done.is_ok() {
            self.notifier.holder_changed(name);
        }
    }
}

impl Queues<'_> {
    /// Moves the rows of this client to another FIFO.
    pub(crate) fn move_to(&mut self, address: Address) -> rusqlite::Result<()> {
        let Address { fifo, dev, ino } = address;
        for table in ["session", "observer"] {
            let set = format!("UPDATE {table} SET fifo = ?2, dev = ?3, ino = ?4 WHERE fifo = ?1");
            self.execute(&set, params![self.own.address.fifo, fifo, dev, ino])?;
        }
        Ok(())
    }
}
