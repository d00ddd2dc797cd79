//! Raised transaction numbers: one node has the list of raises, for good, so that tokens continue
//! behind those of another store.
//!
//! Each raise is a number and the transaction that wrote it. The number of a transaction is raised
//! by the latest raise before it. That raise is the same for all clients, at all times, and never
//! less for a later transaction, so nodes need not carry it and no request has to check it. Numbers
//! fall only if the node is lost, once and for all clients; a hold keeps the number that it was
//! granted with.
//!
//! A client has to know all raises before the transaction whose number it computes. ZooKeeper
//! reports the change of a watched node before it answers anything about a later transaction over
//! the same connection, however far behind its leader that server is. Each connection of a session
//! therefore watches the node; and after an answer, the node is read again if the watch has
//! reported a change by then.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::support::locked;
use tokio::task::unconstrained;
use zookeeper_client::{Error as ZkError, Stat};

use crate::client::connection::{Client, Closed, Watch};
use crate::client::request::found;
use crate::client::single_flight::SingleFlight;
use crate::error::Answer;

/// The raises: the number that is added, by the transaction that wrote it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Raises(BTreeMap<i64, i64>);

impl Raises {
    /// Reads the list from the data of a node with this stat. `None`: it was written by others.
    ///
    /// The first line is the latest raise, which was made by the transaction that wrote it. Each
    /// other line names its transaction.
    pub(crate) fn read(data: &[u8], stat: &Stat) -> Option<Raises> {
        let by = |text: &str| text.parse().ok().filter(|by| *by >= 0);
        let mut lines = std::str::from_utf8(data).ok()?.lines();
        let mut raises = BTreeMap::from([(stat.mzxid, by(lines.next()?)?)]);
        for line in lines {
            let (zxid, text) = line.split_once(' ')?;
            raises.insert(zxid.parse().ok()?, by(text)?);
        }
        Some(Raises(raises))
    }

    /// The data that adds this raise.
    pub(crate) fn and(&self, by: i64) -> String {
        self.0
            .iter()
            .rev()
            .fold(by.to_string(), |data, (zxid, by)| {
                format!("{data}\n{zxid} {by}")
            })
    }

    /// The number that is added for transactions of this time.
    pub(crate) fn latest(&self) -> i64 {
        self.of(i64::MAX)
    }

    /// The number that is added for this transaction.
    fn of(&self, zxid: i64) -> i64 {
        self.0.range(..zxid).next_back().map_or(0, |(_, by)| *by)
    }
}

/// The raises as a session knows them.
#[derive(Default)]
pub(crate) struct Base {
    known: Mutex<Known>,
    /// The node is read once for all that need it.
    reading: SingleFlight,
}

#[derive(Default)]
struct Known {
    raises: Raises,
    /// A connection over which the node was read and is watched since.
    watch: Option<(Closed, Watch)>,
}

impl Known {
    /// Returns whether all raises are known before the transactions of which this connection has
    /// answered anything by now.
    fn is_true(&mut self, client: &Client) -> bool {
        let still = |(closed, watch): &mut (Closed, Watch)| {
            closed.same_channel(&client.closed) && watch.now_or_never().is_none()
        };
        let is_true = self.watch.as_mut().is_some_and(still);
        if !is_true {
            self.watch = None;
        }
        is_true
    }
}

impl Base {
    /// The raised number of this transaction. The base must have been [learnt](Base::learn) after
    /// an answer about that transaction.
    pub(crate) fn number(&self, zxid: i64) -> i64 {
        zxid.saturating_add(locked(&self.known).raises.of(zxid))
    }

    /// Learns all raises before the transactions of which this connection has answered anything
    /// until now. It sends a request if the connection is new or there was a raise. A task that has
    /// been reading the node for `age` is not waited for.
    pub(crate) async fn learn(&self, client: &Client, path: &str, age: Duration) -> Answer<()> {
        loop {
            let is_true = || locked(&self.known).is_true(client).then_some(());
            let Err(turn) = self.reading.unless(age, is_true).await else {
                return Ok(());
            };
            let (stat, watcher) = client.check_and_watch_stat(path).await?;
            // A task that has used up its share of time would find the watch pending in any case.
            let watch: Watch = Box::pin(unconstrained(client.watch(watcher)));
            let raises = match stat {
                Some(_) => found(read_raises(client, path).await)?
                    .map_or_else(Raises::default, |(raises, _)| raises),
                None => Raises::default(),
            };
            let mut known = locked(&self.known);
            if turn.is_over() {
                // Another task has read it meanwhile, and others use that result. This one may be
                // older.
                continue;
            }
            // The watch of a closed connection is not kept: it would hold the rest of the
            // connection, and another task may have read more by now.
            known.watch = client
                .closed
                .has_changed()
                .is_ok()
                .then(|| (client.closed.clone(), watch));
            match known.watch {
                // If the node is gone, or an older one is there again, the lost raises are dropped,
                // because no other client counts with them.
                Some(_) => known.raises = raises,
                None => known.raises.0.extend(raises.0),
            }
            return Ok(());
        }
    }

    /// Forgets the watch of a connection that is closed.
    pub(crate) fn disconnected(&self) {
        locked(&self.known).watch = None;
    }
}

/// The raises that the node contains, and its version. `NoNode` if there are none.
pub(crate) async fn read_raises(client: &Client, path: &str) -> Answer<(Raises, i32)> {
    let (data, stat) = client.get_data(path).await?;
    let junk = || ZkError::UnmarshalError {
        entity: "how far tokens are raised",
        reason: &"it was written by others",
    };
    Ok((Raises::read(&data, &stat).ok_or_else(junk)?, stat.version))
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    fn stat(mzxid: i64) -> Stat {
        Stat {
            czxid: 0,
            mzxid,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    #[test]
    fn each_transaction_has_the_latest_raise_before_it() {
        let none = Raises::default();
        let first = Raises::default().and(500);
        assert_eq!((none.of(1), none.of(i64::MAX)), (0, 0));
        let first = Raises::read(first.as_bytes(), &stat(70)).unwrap();
        let second = Raises::read(first.and(900).as_bytes(), &stat(80)).unwrap();
        for (zxid, by) in [
            (1, 0),
            (70, 0),
            (71, 500),
            (80, 500),
            (81, 900),
            (i64::MAX, 900),
        ] {
            assert_eq!(second.of(zxid), by, "{zxid}");
        }
        assert_eq!(second.and(950), "950\n80 900\n70 500");
    }

    #[test]
    fn whatever_the_node_contains_it_is_a_list_or_none() {
        for junk in [
            "",
            "x",
            "-1",
            "1\n2",
            "1\nx 2",
            "1\n2 -2",
            "9223372036854775808",
        ] {
            assert_eq!(Raises::read(junk.as_bytes(), &stat(7)), None, "{junk:?}");
        }
        fuzz("1\\n80 900\\n70 500\n0\n1\\n2 3\n", |data| {
            if let Some(raises) = Raises::read(data, &stat(1 << 40)) {
                let again = Raises::read(raises.and(7).as_bytes(), &stat(1 << 41)).unwrap();
                assert!(raises.0.iter().all(|(zxid, by)| again.0[zxid] == *by));
                assert!(again.0.contains_key(&(1 << 41)) && again.0.len() <= raises.0.len() + 1);
            }
        });
    }
}
