//! Slots: the slot of a key, and the answers in which nodes tell which of them serve the slots.

use std::collections::{BTreeMap, BTreeSet};
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
    pub(super) shards: Shards,
}

/// The ids of the nodes of each shard, by the id of its primary, which serves its slots. A node
/// chooses its id at random when it is set up.
#[derive(Clone, Default)]
pub(super) struct Shards(BTreeMap<String, BTreeSet<String>>);

impl Shards {
    /// Returns whether no node has named an id.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether each of the two has more than half of the primaries of the other one. A
    /// replica shows nothing: it may have served another Cluster before.
    pub(super) fn is_like(&self, other: &Shards) -> bool {
        let shared = |id: &&String| other.0.contains_key(*id);
        let shared = self.0.keys().filter(shared).count();
        [self, other]
            .iter()
            .all(|all| all.is_empty() || shared * 2 > all.0.len())
    }

    /// Returns whether more than half of the shards before are served by nodes that they had.
    pub(super) fn continues(&self, before: &Shards) -> bool {
        let is_served = |nodes: &&BTreeSet<String>| nodes.iter().any(|id| self.0.contains_key(id));
        before.0.values().filter(is_served).count() * 2 > before.0.len()
    }
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
        if let Some(serving) = id(primary) {
            let nodes = map.shards.0.entry(serving).or_default();
            nodes.extend(replicas.iter().chain([primary]).filter_map(id));
        }
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
        let of = |shard: (&str, &[&str])| {
            let nodes = shard.1.iter().map(|id| (*id).to_owned());
            (shard.0.to_owned(), nodes.collect::<BTreeSet<_>>())
        };
        let shards = [
            ("id-7000", &["id-7000", "id-7001"][..]),
            ("id-7002", &["id-7002"]),
            ("id-7003", &["id-7003"]),
        ];
        assert_eq!(map.shards.0, BTreeMap::from(shards.map(of)));
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

    /// Shards of nodes with ids of one letter, the primary first.
    fn shards(shards: &[&str]) -> Shards {
        let of = |nodes: &&str| {
            let nodes: Vec<String> = nodes.chars().map(String::from).collect();
            (nodes[0].clone(), nodes.into_iter().collect())
        };
        Shards(shards.iter().map(of).collect())
    }

    #[test]
    fn maps_are_compared_by_their_primaries_and_by_the_nodes_of_their_shards() {
        let three = ["ax", "by", "cz"];
        for (before, now, is_like, continues) in [
            (&three[..], &three[..], true, true),
            // One has failed, one was added, one was replaced.
            (&three, &["x", "by", "cz"], true, true),
            (&three, &["ax", "by", "cz", "d"], true, true),
            (&three, &["ax", "by", "d"], true, true),
            // All were told to change places.
            (&three, &["xa", "yb", "zc"], false, true),
            // A replica takes over, where more than half are one or two.
            (&["ax"], &["x"], false, true),
            (&["ax", "by"], &["x", "by"], false, true),
            // Many were added, or removed, while nobody asked.
            (&["ax"], &["ax", "by"], false, true),
            (&three, &["ax", "by", "cz", "d", "e", "f"], false, true),
            (&three, &["ax"], false, false),
            // A node that was set up alone keeps its id or not; most were replaced.
            (&three, &["b"], false, false),
            (&three, &["n"], false, false),
            (&three, &["ax", "d", "e"], false, false),
            // Nodes of the one became replicas of another Cluster.
            (&["ax"], &["fa"], false, false),
            (&three, &["fa", "gb", "hc"], false, false),
        ] {
            let [before, now] = [before, now].map(shards);
            assert_eq!(before.is_like(&now), is_like, "{:?}", now.0);
            assert_eq!(now.is_like(&before), is_like, "{:?}", now.0);
            assert_eq!(now.continues(&before), continues, "{:?}", now.0);
        }
        // Each of a server that names no ids is as good as any.
        assert!(shards(&[]).is_like(&shards(&[])));
        assert!(!shards(&[]).is_like(&shards(&three)));
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
            let mut shards = map.shards.0.iter();
            assert!(shards.all(|(primary, nodes)| nodes.contains(primary)));
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
