//! One entry of a lock's queue: the contents of its node's name and data, and the order of entries.

use std::time::{Duration, SystemTime};

use leasehold_core::Participant;
use leasehold_core::backend::{Mode, token_of_place};
use zookeeper_client::{Client, MultiReadResult, MultiReader, Stat};

use crate::client::{children, read};
use crate::error::Answer;
use crate::names;

/// The first word of the data of an entry of this library.
const OURS: &str = "leasehold/1 ";

/// The data of an entry.
pub(crate) fn encode(mode: Mode, label: &str) -> Vec<u8> {
    let permits = if let Mode::Permits { n, of } = mode {
        format!(" {n}/{of}")
    } else {
        String::new()
    };
    format!("{OURS}{}{permits}\n{label}", mode.parts().0).into_bytes()
}

/// The mode's word and the label of an entry of this library; `None` if another tool wrote the
/// data.
fn decode(data: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(data)
        .ok()?
        .strip_prefix(OURS)?
        .split_once('\n')
}

/// Returns whether these are the data of an entry of this library that shares, perhaps since a
/// downgrade.
pub(crate) fn is_shared(data: &[u8]) -> bool {
    decode(data).is_some_and(|(mode, _)| mode == "shared")
}

/// One entry: a sequential child of the lock's node, of this library or of another tool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    /// The node's name, without its parent's path.
    pub(crate) node: String,
    /// The number that the server gave it, from its count of all children that the parent ever had.
    sequence: i32,
    /// The mode in its name, until its data is read: a downgrade is in the data alone.
    pub(crate) mode: Mode,
}

impl Child {
    /// Parses a node's name; `None` for a node that is no entry: it has no sequence number at its
    /// end.
    ///
    /// Curator orders by the text after the last `lock-`; kazoo and Curator's read-write locks have
    /// another word before the number, which the parent counts for all of them alike.
    fn parse(node: &str) -> Option<Child> {
        let tail = match node.rfind("lock-") {
            Some(at) => node.get(at + "lock-".len()..)?,
            None => node.get(node.len().checked_sub(10)?..)?,
        };
        let well_formed = (10..=11).contains(&tail.len()) && !tail.starts_with('+');
        let sequence = tail.parse().ok().filter(|_| well_formed)?;
        Some(Child {
            node: node.to_owned(),
            sequence,
            mode: names::mode(node),
        })
    }

    /// Returns whether its number may also be that of an earlier or later entry. The count stops at
    /// its greatest value: from then on the server gives that value to all nodes, and negative ones
    /// to nodes that are created at once.
    fn is_past_counting(&self) -> bool {
        self.sequence == i32::MAX || self.sequence < 0
    }

    /// Reads the contents of its node; `number` is the raised number of the transaction that
    /// created it. Only a claim that holds alone is downgraded, so only the head of the queue can
    /// have another mode than the one in its name.
    pub(crate) fn read(&mut self, data: &[u8], stat: &Stat, number: i64) -> Participant {
        let ours = decode(data);
        if is_shared(data) {
            self.mode = Mode::Shared;
        }
        let participant =
            ours.map_or_else(Participant::foreign, |(_, label)| Participant::new(label));
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(stat.ctime.max(0) as u64);
        participant.since(since).token(token_of_place(number))
    }
}

/// A lock's queue, and the size of its nodes in a packet.
pub(crate) struct Queue {
    pub(crate) children: Vec<Child>,
    bytes: usize,
}

impl Queue {
    /// Reads the queue of the lock with this node.
    pub(crate) async fn read(client: &Client, parent: &str) -> Answer<Queue> {
        let nodes = children(client, parent).await?;
        let bytes = nodes.iter().map(|node| node.len() + 4).sum();
        Ok(Queue {
            children: in_order(client, parent, &nodes).await?,
            bytes,
        })
    }

    /// The queue in which this node is alone.
    pub(crate) fn of_first(node: &str) -> Queue {
        Queue {
            children: Child::parse(node).into_iter().collect(),
            bytes: 0,
        }
    }

    /// Returns whether it has so many nodes that other tools may not be able to read it any more:
    /// their limit for a packet, `jute.maxbuffer`, is one mebibyte by default.
    pub(crate) fn is_too_long(&self) -> bool {
        self.bytes > 1_000_000
    }
}

/// The queue of the lock with this node.
pub(crate) async fn queue(client: &Client, parent: &str) -> Answer<Vec<Child>> {
    in_order(client, parent, &children(client, parent).await?).await
}

/// The entries among these children, in the order of their numbers. When the parent's count has
/// come to its end the numbers give no order any more, so the transactions that created the nodes
/// are read.
pub(crate) async fn in_order(
    client: &Client,
    parent: &str,
    children: &[String],
) -> Answer<Vec<Child>> {
    let queue = by_number(children);
    if !queue.iter().any(Child::is_past_counting) {
        return Ok(queue);
    }
    let mut queue = loaded(client, parent, queue).await?;
    queue.sort_by_key(|(.., stat)| stat.czxid);
    Ok(queue.into_iter().map(|(child, ..)| child).collect())
}

/// These entries with the contents of their nodes, without entries that were removed meanwhile.
pub(crate) async fn loaded(
    client: &Client,
    parent: &str,
    queue: Vec<Child>,
) -> Answer<Vec<(Child, Vec<u8>, Stat)>> {
    let paths: Vec<String> = queue
        .iter()
        .map(|child| format!("{parent}/{}", child.node))
        .collect();
    let answers = read(client, &paths, MultiReader::add_get_data).await?;
    let existing = queue
        .into_iter()
        .zip(answers)
        .filter_map(|(child, answer)| match answer {
            MultiReadResult::Data { data, stat } => Some((child, data, stat)),
            _ => None,
        });
    Ok(existing.collect())
}

/// The entries among these children, by their numbers.
pub(crate) fn by_number(children: &[String]) -> Vec<Child> {
    let mut queue: Vec<Child> = children
        .iter()
        .filter_map(|node| Child::parse(node))
        .collect();
    queue.sort_by(|a, b| (a.sequence, &a.node).cmp(&(b.sequence, &b.node)));
    queue
}

/// The modes of these entries.
pub(crate) fn modes(queue: &[Child]) -> Vec<Mode> {
    queue.iter().map(|child| child.mode).collect()
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::{fuzz, fuzz_text};

    use super::*;

    const CURATOR: &str = "_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-0000000007";

    #[test]
    fn every_tool_s_entries_are_understood_and_junk_is_not() {
        let kazoo = "0123456789abcdef0123456789abcdef__lock__0000000008";
        let read = "_c_00010203-0405-0607-0809-0a0b0c0d0e0f-__READ__0000000009";
        let parsed: Vec<i32> = [
            CURATOR,
            kazoo,
            read,
            "lock--000000005",
            "x-lock--2147483648",
        ]
        .iter()
        .map(|node| Child::parse(node).unwrap().sequence)
        .collect();
        assert_eq!(parsed, [7, 8, 9, -5, i32::MIN]);
        for junk in [
            "",
            "junk",
            "lock-",
            "lock-7",
            "lock-00000000x7",
            "lock-+000000007",
            "é0000000",
            "lock-4294967296",
        ] {
            assert_eq!(Child::parse(junk), None, "{junk}");
        }
        assert_eq!(Child::parse(read).unwrap().mode, Mode::Shared);
    }

    #[test]
    fn numbers_are_an_order_until_the_count_ends() {
        let nodes = |numbers: &[i32]| {
            numbers
                .iter()
                .map(|n| format!("_c_x-lock-{n:010}"))
                .collect::<Vec<_>>()
        };
        let queue = by_number(&nodes(&[8, i32::MAX - 1, 7]));
        assert_eq!(
            queue.iter().map(|child| child.sequence).collect::<Vec<_>>(),
            [7, 8, i32::MAX - 1]
        );
        assert!(!queue.iter().any(Child::is_past_counting));
        for end in [i32::MAX, i32::MIN, -1] {
            assert!(by_number(&nodes(&[end]))[0].is_past_counting(), "{end}");
        }
        assert!(
            !by_number(&nodes(&[0]))[0].is_past_counting(),
            "the first of all"
        );
    }

    #[test]
    fn a_label_comes_back_and_other_tools_data_is_foreign() {
        assert_eq!(
            decode(&encode(Mode::Exclusive, "web-1\nx")),
            Some(("exclusive", "web-1\nx"))
        );
        assert_eq!(decode(&encode(Mode::Shared, "")), Some(("shared", "")));
        let long = "é".repeat(2048);
        assert_eq!(
            decode(&encode(Mode::Permits { n: 1, of: 3 }, &long)),
            Some(("permits 1/3", &*long))
        );
        for foreign in [
            &b"127.0.0.1"[..],
            b"",
            b"\xff\xfe",
            b"leasehold/1 exclusive",
            b"shared\n",
        ] {
            assert_eq!(decode(foreign), None);
        }
    }

    #[test]
    fn whatever_a_node_is_called_and_contains_it_is_an_entry_or_none() {
        let nodes = include_str!("../corpus/nodes");
        fuzz_text(nodes, |node| {
            if let Some(Child {
                node: name, mode, ..
            }) = Child::parse(node)
            {
                assert_eq!(name, node);
                let (kind, n, of) = mode.parts();
                assert_eq!(
                    Mode::from_parts(kind, n, of),
                    Some(mode),
                    "no such mode is ever claimed"
                );
            }
            let queue = by_number(&[node.to_owned(), CURATOR.to_owned(), node.to_owned()]);
            assert!(queue.len() % 2 == 1 && queue.is_sorted_by_key(|child| child.sequence));
            if let Some(name) = names::decode(node) {
                assert_eq!(names::node("", &name), format!("/{node}"));
            }
            let name = leasehold_core::Name::new(node);
            let path = names::node("/locks", &name);
            assert_eq!(
                names::decode(path.strip_prefix("/locks/").unwrap()),
                Some(name.clone())
            );
            assert!(names::is_of(&format!("{path}/{CURATOR}"), &name));
        });
        fuzz(include_str!("../corpus/data"), |data| {
            let _ = is_shared(data);
            let label = String::from_utf8_lossy(data);
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, of: 3 }] {
                let written = encode(mode, &label);
                assert_eq!(decode(&written).unwrap().1, label);
                assert_eq!(is_shared(&written), mode == Mode::Shared);
            }
        });
    }

    #[test]
    fn a_node_says_who_it_is_and_a_downgrade_is_in_its_data() {
        let stat = Stat {
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 5,
            mtime: 0,
            version: 0,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        };
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(5);
        for (mode, data, label) in [
            (
                Mode::Exclusive,
                encode(Mode::Exclusive, "web-1"),
                Some("web-1"),
            ),
            (Mode::Shared, encode(Mode::Shared, "web-1"), Some("web-1")),
            (Mode::Exclusive, b"127.0.0.1".to_vec(), None),
        ] {
            let mut child = Child::parse(CURATOR).unwrap();
            let shown = child.read(&data, &stat, 7);
            assert_eq!(
                (child.mode, shown.label.as_deref(), shown.foreign),
                (mode, label, label.is_none())
            );
            assert_eq!(
                (shown.since, shown.token),
                (Some(since), Some(token_of_place(7)))
            );
        }
    }

    #[test]
    fn the_modes_are_in_the_order_of_the_queue() {
        let nodes = [
            "x-shared-lock-0000000007",
            "x-2of3-lock-0000000008",
            "x-lock-0000000006",
        ]
        .map(String::from);
        assert_eq!(
            modes(&by_number(&nodes)),
            [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, of: 3 }]
        );
    }

    #[test]
    fn a_queue_is_too_long_before_a_packet_is() {
        let of = |bytes| {
            Queue {
                children: Vec::new(),
                bytes,
            }
            .is_too_long()
        };
        assert_eq!([0, 1_000_000, 1_000_001].map(of), [false, false, true]);
        assert!(!Queue::of_first(CURATOR).is_too_long());
    }
}
