//! Slots: the slot of a key, and the answers in which nodes tell which of them serve the slots.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;
use redis::{Value, from_redis_value_ref};

use crate::link::error::junk;

/// The number of slots in every Cluster.
pub(super) const SLOTS: usize = 16_384;
/// The beginning of the key of each slot's fence. `{}` is no hash tag, so the whole key is hashed.
const FENCE: &str = "{}:f:";

/// For each slot, the least number that completes the key of its fence.
static FENCES: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut numbers = vec![u32::MAX; SLOTS];
    let mut missing = SLOTS;
    let start = crc(0, FENCE.as_bytes());
    for number in 0.. {
        let slot = usize::from(crc(start, number.to_string().as_bytes())) % SLOTS;
        if numbers[slot] == u32::MAX {
            (numbers[slot], missing) = (number, missing - 1);
        }
        if missing == 0 {
            break;
        }
    }
    numbers
});

/// The slot of a key: of the text between the first `{` and the next `}`, unless there is none.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(key);
    crc(0, hashed.as_bytes()) % SLOTS as u16
}

/// The key of a slot's fence, in that slot.
pub(crate) fn fence_of(slot: u16) -> String {
    format!("{FENCE}{}", FENCES[usize::from(slot) % SLOTS])
}

/// CRC16 as Redis Cluster computes it (XMODEM), continued from `crc`.
fn crc(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, byte| {
        let shifted = |crc: u16, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        };
        (0..8).fold(crc ^ u16::from(*byte) << 8, shifted)
    })
}

/// A map of a Cluster, as one of its nodes knows it.
#[derive(Default)]
pub(super) struct SlotMap {
    pub(super) ranges: Vec<Range>,
    /// The ids of the nodes that serve slots. A node chooses its id at random when it is set up.
    pub(super) primaries: BTreeSet<String>,
    /// The ids of these nodes and of their replicas.
    nodes: BTreeSet<String>,
}

impl SlotMap {
    /// The node that serves this slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Host> {
        let range = self
            .ranges
            .iter()
            .find(|range| (range.first..=range.last).contains(&slot))?;
        Some(&range.primary)
    }

    /// Returns whether more than half of these nodes are in the map.
    pub(super) fn names_most_of(&self, nodes: &BTreeSet<String>) -> bool {
        nodes.is_empty() || nodes.intersection(&self.nodes).count() * 2 > nodes.len()
    }

    /// Returns whether each of the two maps has most nodes of the other one.
    pub(super) fn is_like(&self, other: &SlotMap) -> bool {
        self.names_most_of(&other.primaries) && other.names_most_of(&self.primaries)
    }

    /// The addresses of the nodes that serve slots, for people.
    pub(super) fn addresses(&self) -> String {
        let all: BTreeSet<String> = self
            .ranges
            .iter()
            .map(|range| range.primary.to_string())
            .collect();
        Vec::from_iter(all).join(", ")
    }
}

/// Slots from the first to the last, the node that serves them, and its replicas.
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Host,
    pub(super) replicas: Vec<Host>,
}

/// Reads the answer to `CLUSTER SLOTS`. A node without a name is the asked node, at the given port.
pub(super) fn read(answer: &Value, asked: &Host) -> Result<SlotMap> {
    let mut map = SlotMap::default();
    let mut range = |answer: &Value| {
        let Value::Array(parts) = answer else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = &parts[..] else {
            return None;
        };
        let first = u16::try_from(*first).ok()?;
        let last = u16::try_from(*last).ok()?;
        if first > last || usize::from(last) >= SLOTS {
            return None;
        }
        map.primaries.extend(id(primary));
        map.nodes
            .extend(replicas.iter().chain([primary]).filter_map(id));
        let replicas = replicas
            .iter()
            .filter_map(|node| host(node, asked))
            .collect();
        Some(host(primary, asked).map(|primary| Range {
            first,
            last,
            primary,
            replicas,
        }))
    };
    let Value::Array(ranges) = answer else {
        return Err(unreadable());
    };
    // A node without an address cannot be reached yet: its slots count as served by no node.
    let ranges = ranges
        .iter()
        .map(|answer| range(answer).ok_or_else(unreadable))
        .collect::<Result<Vec<_>>>()?;
    map.ranges = ranges.into_iter().flatten().collect();
    Ok(map)
}

fn unreadable() -> Error {
    Error::new(
        ErrorKind::Internal,
        junk("the answer to CLUSTER SLOTS").to_string(),
    )
}

/// The id in `[address, port, id, …]`.
fn id(node: &Value) -> Option<String> {
    let Value::Array(parts) = node else {
        return None;
    };
    let id = from_redis_value_ref::<String>(parts.get(2)?).ok()?;
    (!id.is_empty()).then_some(id)
}

/// The node in `[address, port, id, …]`.
fn host(node: &Value, asked: &Host) -> Option<Host> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [name, Value::Int(port), ..] = &parts[..] else {
        return None;
    };
    let name = from_redis_value_ref::<Option<String>>(name)
        .ok()?
        .unwrap_or_default();
    named(&name, u16::try_from(*port).ok()?, asked)
}

/// The node in `slot address:port`, as `MOVED` and `ASK` have it.
pub(super) fn redirected(details: &str, asked: &Host) -> Option<Host> {
    let (name, port) = details.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    named(name, port.parse().ok()?, asked)
}

fn named(name: &str, port: u16, asked: &Host) -> Option<Host> {
    let name = if name.is_empty() { &asked.name } else { name };
    (name != "?" && port != 0).then(|| Host {
        name: name.to_owned(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::{fuzz, fuzz_text};

    use super::*;

    fn asked() -> Host {
        Host {
            name: "h".to_owned(),
            port: 1,
        }
    }

    #[test]
    fn keys_have_the_slots_that_the_servers_say() {
        // CLUSTER KEYSLOT
        for (key, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("a", 15_495),
            ("", 0),
            ("{}:f", 8_205),
            ("{foo}:store", 12_182),
            ("{foo", 13_308),
        ] {
            assert_eq!(slot_of(key), slot, "{key:?}");
        }
    }

    #[test]
    fn each_slot_has_a_fence() {
        for slot in 0..SLOTS as u16 {
            assert_eq!(slot_of(&fence_of(slot)), slot);
        }
    }

    #[test]
    fn answers_are_read_or_refused() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |name: Value, port: i64| {
            let id = text(&format!("id-{port}"));
            Value::Array(vec![name, Value::Int(port), id, Value::Array(vec![])])
        };
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(
                0,
                99,
                vec![node(text("10.0.0.1"), 7000), node(text("10.0.0.2"), 7001)],
            ),
            range(100, 16_383, vec![node(Value::Nil, 7002)]),
            range(100, 100, vec![node(text("?"), 7003)]),
        ]);
        let read_of = |answer: &Value| read(answer, &asked());
        let map = read_of(&answer).unwrap();
        // A node that cannot be reached is known all the same.
        let known: Vec<&str> = map.primaries.iter().map(String::as_str).collect();
        assert_eq!(known, ["id-7000", "id-7002", "id-7003"]);
        assert_eq!(map.nodes.len(), 4);
        assert_eq!(
            map.owner(99).map(ToString::to_string).as_deref(),
            Some("10.0.0.1:7000")
        );
        let ranges = map.ranges;
        assert_eq!(
            (ranges.len(), ranges[0].last, ranges[1].first),
            (2, 99, 100)
        );
        assert_eq!(
            (ranges[0].primary.to_string(), ranges[1].primary.to_string()),
            ("10.0.0.1:7000".into(), "h:7002".into())
        );
        assert_eq!(ranges[0].replicas[0].port, 7001);
        let bad = [
            range(5, 4, vec![]),
            range(0, 16_384, vec![node(text("h"), 1)]),
            Value::Nil,
            Value::Int(1),
        ];
        for bad in bad {
            assert!(read_of(&Value::Array(vec![bad])).is_err());
        }
        assert!(read_of(&Value::Okay).is_err());
    }

    #[test]
    fn maps_of_one_cluster_have_most_nodes_in_common() {
        let ids = |ids: &str| ids.chars().map(String::from).collect::<BTreeSet<_>>();
        let map = |primaries: &str, replicas: &str| SlotMap {
            ranges: Vec::new(),
            primaries: ids(primaries),
            nodes: ids(&[primaries, replicas].concat()),
        };
        let known = map("abc", "xyz");
        for (primaries, replicas, is_same) in [
            ("abc", "xyz", true),
            // One has failed, or all were told to change places.
            ("xbc", "yz", true),
            ("xyz", "abc", true),
            // One was added, one was replaced.
            ("abcd", "", true),
            ("abd", "", true),
            // One that was set up alone keeps its id or not; most were replaced.
            ("b", "", false),
            ("n", "", false),
            ("ade", "", false),
        ] {
            let map = map(primaries, replicas);
            assert_eq!(map.names_most_of(&known.primaries), is_same, "{primaries}");
        }
        assert!(known.is_like(&map("abc", "")) && !map("b", "").is_like(&known));
        // Each of a server that names no ids is as good as any.
        assert!(map("", "").is_like(&map("", "")));
    }

    #[test]
    fn redirections_name_a_node() {
        let host = |details| redirected(details, &asked()).map(|host| host.to_string());
        assert_eq!(
            host("3999 127.0.0.1:6381").as_deref(),
            Some("127.0.0.1:6381")
        );
        assert_eq!(host("3999 ::1:6381").as_deref(), Some("[::1]:6381"));
        assert_eq!(host("3999 :6381").as_deref(), Some("h:6381"));
        for junk in ["", "3999", "3999 h", "3999 h:x", "3999 ?:1"] {
            assert_eq!(host(junk), None, "{junk}");
        }
    }

    #[test]
    fn whatever_a_node_says_it_is_read_or_refused() {
        let asked = asked();
        fuzz(include_str!("../../../corpus/answers"), |bytes| {
            let map = redis::parse_redis_value(bytes)
                .ok()
                .and_then(|answer| read(&answer, &asked).ok())
                .unwrap_or_default();
            assert!(map.primaries.is_subset(&map.nodes));
            for Range {
                first,
                last,
                primary,
                replicas,
            } in map.ranges
            {
                assert!(first <= last && usize::from(last) < SLOTS);
                assert!(
                    replicas
                        .iter()
                        .chain([&primary])
                        .all(|host| host.port > 0 && !host.name.is_empty())
                );
            }
        });
        fuzz_text(include_str!("../../../corpus/records"), |details| {
            if let Some(host) = redirected(details, &asked) {
                let written = format!("0 {}:{}", host.name, host.port);
                assert_eq!(redirected(&written, &asked), Some(host));
            }
            assert!(usize::from(slot_of(details)) < SLOTS);
        });
    }
}
