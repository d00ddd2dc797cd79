//! The list of nodes that a client goes by, and its number.
//!
//! Two clients exclude each other if their majorities share a node, so all of them have to go by one
//! list, or by two lists that differ in one node. An operator numbers the lists
//! ([`change_nodes`](crate::redlock::change_nodes)), and each node keeps the number that is open
//! there. A claim and a renewal carry the number of the client's list, and a node refuses them if it
//! does not serve that number, or has lost its record. Such an answer is no vote, and it names the
//! lists that the node serves: the client goes on with the newest number of its own list.
//!
//! List 0 is the one of a store that was never numbered. Its nodes have no record, so a node that
//! comes back without data is served as if nothing had happened.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::{Error, ErrorKind, Result};

use crate::link::{Fields, Server};

/// The nodes of a list, as every record names them: sorted, with commas.
pub(crate) fn canonical<'a>(servers: impl IntoIterator<Item = &'a Server>) -> String {
    let mut all: Vec<String> = servers.into_iter().map(address).collect();
    all.sort();
    all.join(",")
}

/// The name of a node in a list. It may not contain a separator of records: the path of a Unix socket
/// may.
pub(crate) fn address(server: &Server) -> String {
    let address = server.info.addr().to_string().to_lowercase();
    address.replace([' ', ',', '='], "_")
}

/// The newest list that is open at a node, and the one before it, which the node may serve too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    /// The number of the newest; `None` if the node has no record.
    pub(crate) number: Option<u64>,
    pub(crate) nodes: String,
    pub(crate) before: String,
    /// It does not serve the one before any more.
    pub(crate) is_closed: bool,
}

impl Served {
    /// Reads `number nodes before closed`. The number is -1 without a record.
    pub(crate) fn of(mut fields: Fields<'_>) -> Result<Served> {
        let number: i64 = fields.value()?;
        let nodes = fields.word().to_owned();
        Ok(Served {
            number: u64::try_from(number).ok(),
            nodes,
            before: fields.word().to_owned(),
            is_closed: fields.word() == "1",
        })
    }

    /// The numbers under which the node serves these nodes.
    fn numbers_of(&self, nodes: &str) -> impl Iterator<Item = u64> {
        let own = self.number.filter(|_| self.nodes == nodes);
        let before = self
            .number
            .filter(|_| self.before == nodes && !self.is_closed);
        let before = before.and_then(|number| number.checked_sub(1));
        before.into_iter().chain(own)
    }
}

/// The list that a client goes by.
#[derive(Debug)]
pub(crate) struct List {
    nodes: String,
    number: AtomicU64,
}

impl List {
    pub(crate) fn new(servers: &[Server]) -> List {
        List {
            nodes: canonical(servers),
            number: AtomicU64::new(0),
        }
    }

    /// The number that requests carry.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Learns the number from the records that the nodes have at the start.
    pub(crate) fn begin(&self, records: &[Served]) -> Result<()> {
        let known = records.iter().filter(|served| served.number.is_some());
        let Some(newest) = known.max_by_key(|served| served.number) else {
            return Ok(());
        };
        // A change that is not complete is open at few nodes.
        let all: Vec<u64> = records
            .iter()
            .flat_map(|served| served.numbers_of(&self.nodes))
            // The nodes serve the newest list and the one before it.
            .filter(|number| newest.number <= Some(number + 1))
            .collect();
        let needed = self.nodes.split(',').count() / 2 + 1;
        let votes = |number: &u64| all.iter().filter(|other| *other == number).count();
        let best = all
            .iter()
            .max_by_key(|number| (votes(number) >= needed, **number));
        let number = best.ok_or_else(|| self.outdated(newest))?;
        self.number.fetch_max(*number, Ordering::Relaxed);
        Ok(())
    }

    /// Returns why a node refused a request of this list. If it serves this list under a newer
    /// number, later requests carry that one.
    pub(crate) fn refused(&self, served: &Served) -> Error {
        let Some(number) = served.number else {
            let what = "it has no record of the list of nodes, so it is new or has lost its data, and has no vote: see `leasehold redlock-change`";
            return Error::new(ErrorKind::OtherStore, what);
        };
        let own = self.number();
        // Others may have opened no more than the first of them.
        let served_now = served.numbers_of(&self.nodes).find(|number| *number >= own);
        match served_now {
            Some(newer) if newer >= self.number.fetch_max(newer, Ordering::Relaxed) => {
                let what = format!("the list of nodes has the number {newer} now");
                Error::new(ErrorKind::Unavailable, what)
            }
            _ if number < self.number() => {
                let what = format!(
                    "it was left behind at list {number}: repeat `leasehold redlock-change` for list {}",
                    self.number()
                );
                Error::new(ErrorKind::OtherStore, what)
            }
            _ => self.outdated(served),
        }
    }

    fn outdated(&self, newest: &Served) -> Error {
        let Served { number, nodes, .. } = newest;
        let number = number.unwrap_or_default();
        let what = format!(
            "the nodes of this store are {nodes} (list {number}), and this program was started with {}: start it with the new ones",
            self.nodes
        );
        Error::new(ErrorKind::OtherStore, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(nodes: &str) -> List {
        List {
            nodes: nodes.into(),
            number: AtomicU64::new(0),
        }
    }

    fn served(number: u64, nodes: &str, before: &str) -> Served {
        Served {
            number: Some(number),
            nodes: nodes.into(),
            before: before.into(),
            is_closed: false,
        }
    }

    #[test]
    fn a_client_begins_with_the_newest_number_of_its_own_list() {
        let own = list("a,b,c");
        own.begin(&[Served::default(), Served::default()]).unwrap();
        assert_eq!(own.number(), 0);
        own.begin(&[served(3, "a,b,c,d", "a,b,c"), served(1, "a,b,c", "a,b,c")])
            .unwrap();
        assert_eq!(own.number(), 2);
        own.begin(&[served(4, "a,b,c", "a,b,c,d")]).unwrap();
        assert_eq!(own.number(), 4);
        // A change that is not complete is open at one node.
        let own = list("a,b,c");
        let [two, three] = [2, 3].map(|number| served(number, "a,b,c", "a,b,c"));
        own.begin(&[three, two.clone(), two]).unwrap();
        assert_eq!(own.number(), 2);
        let newest = served(4, "a,b,c", "a,b,c,d");
        for records in [
            [Served::default(), newest.clone()],
            // A node that was left behind still knows the list.
            [served(2, "a,b,e", "a,b,e"), newest],
        ] {
            let outdated = list("a,b,e").begin(&records).unwrap_err();
            assert_eq!(outdated.kind(), ErrorKind::OtherStore);
        }
    }

    #[test]
    fn a_refusal_says_which_number_or_which_nodes_to_use() {
        let own = list("a,b,c");
        let kind = |served: &Served| own.refused(served).kind();
        assert_eq!(kind(&Served::default()), ErrorKind::OtherStore);
        // The list got another number.
        let closed = |number| Served {
            is_closed: true,
            ..served(number, "a,b,c", "a,b,c")
        };
        assert_eq!(kind(&served(2, "a,b,c", "a,b,c")), ErrorKind::Unavailable);
        assert_eq!(own.number(), 1);
        assert_eq!(kind(&closed(2)), ErrorKind::Unavailable);
        assert_eq!(own.number(), 2);
        // A request that was sent before is refused after the number is known.
        assert_eq!(kind(&served(2, "a,b,c", "a,b,c")), ErrorKind::Unavailable);
        assert_eq!(kind(&served(1, "a,b,c", "a,b,c")), ErrorKind::OtherStore);
        assert_eq!(kind(&served(3, "a,b,c", "a,b,c")), ErrorKind::Unavailable);
        assert_eq!(own.number(), 2);
        assert_eq!(kind(&closed(3)), ErrorKind::Unavailable);
        assert_eq!(own.number(), 3);
        assert_eq!(kind(&served(5, "a,b,d", "a,b")), ErrorKind::OtherStore);
        assert_eq!(own.number(), 3);
    }
}
