//! Random requests, and answers without what differs from server to server.

use fastrand::Rng;
use leasehold_sim_zookeeper_client::Stat;
use leasehold_sim_zookeeper_client::wire::{EPHEMERAL, Reader, Record, SEQUENTIAL, op};

/// What is asked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) op: i32,
    pub(crate) record: Record,
}

/// A node below this one, or it.
fn path(random: &mut Rng, root: &str) -> String {
    const BELOW: [&str; 8] = [
        "/a",
        "/b",
        "/a/x",
        "/a/y",
        "/b/x",
        "/b/x/deep",
        "/n-0000000000",
        "/a/n-0000000001",
    ];
    if random.u8(..24) == 0 {
        root.to_owned()
    } else {
        format!("{root}{}", BELOW[random.usize(..BELOW.len())])
    }
}

fn version(random: &mut Rng) -> i32 {
    [-1, -1, -1, 0, 1, 7][random.usize(..6)]
}

/// One that writes, as a request or a part of one: its number, and how it is written after what is there.
fn write(random: &mut Rng, root: &str, record: Record, is_part: bool) -> (i32, Record) {
    let mut path = path(random, root);
    let data = ["", "x", "some data"][random.usize(..3)].as_bytes();
    let op = match random.u8(..if is_part { 9 } else { 8 }) {
        0..=2 => op::CREATE,
        3 => op::CREATE_CONTAINER,
        4 | 5 => op::DELETE,
        6 | 7 => op::SET_DATA,
        _ => op::CHECK,
    };
    let record = if is_part { record.part(op, -1) } else { record };
    let record = match op {
        op::CREATE | op::CREATE_CONTAINER => {
            let flags = if op == op::CREATE {
                random.i32(0..4)
            } else {
                4
            };
            if op == op::CREATE && flags & SEQUENTIAL != 0 {
                path = format!("{}/n-", if random.bool() { root.to_owned() } else { path });
            }
            assert!(flags & EPHEMERAL == 0 || op == op::CREATE);
            record
                .text(&path)
                .bytes(data)
                .int(1)
                .int(31)
                .text("world")
                .text("anyone")
                .int(flags)
        }
        op::SET_DATA => record.text(&path).bytes(data).int(version(random)),
        _ => record.text(&path).int(version(random)),
    };
    (op, record)
}

/// A request of a program below this node.
pub(crate) fn request(random: &mut Rng, root: &str) -> Request {
    let record = Record::default();
    let (op, record) = match random.u8(..32) {
        0..12 => write(random, root, record, false),
        12..17 => {
            let parts = (0..random.usize(1..5))
                .fold(record, |record, _| write(random, root, record, true).1);
            (op::MULTI, parts.end())
        }
        17..20 => {
            let part = |record: Record, random: &mut Rng| {
                let op = [op::GET_DATA, op::GET_CHILDREN][random.usize(..2)];
                record.part(op, -1).text(&path(random, root)).bool(false)
            };
            (
                op::MULTI_READ,
                (0..random.usize(1..4))
                    .fold(record, |record, _| part(record, random))
                    .end(),
            )
        }
        20 => (op::GET_EPHEMERALS, record.text(&path(random, root))),
        21 => (op::GET_EPHEMERALS, record.text(root)),
        22 => (op::SYNC, record.text(root)),
        23 => (
            op::REMOVE_WATCHES,
            record.text(&path(random, root)).int(random.i32(1..=3)),
        ),
        24 if random.u8(..4) == 0 => (op::CLOSE_SESSION, record),
        _ => {
            let op = [op::EXISTS, op::GET_DATA, op::GET_CHILDREN][random.usize(..3)];
            (op, record.text(&path(random, root)).bool(random.bool()))
        }
    };
    Request { op, record }
}

/// What was answered, with transactions counted from this one, without times and names of sessions, and with lists in order.
pub(crate) fn plain(op: i32, packet: &[u8], base: i64) -> String {
    let mut reader = Reader(packet);
    let (_, zxid, error) = (
        reader.int().unwrap(),
        reader.long().unwrap(),
        reader.int().unwrap(),
    );
    let mut text = format!("{} {error}:", zxid - base);
    let ops = |op| match op {
        op::MULTI | op::MULTI_READ => None,
        op => Some(op),
    };
    match ops(op) {
        _ if error != 0 => {}
        Some(op) => text += &body(op, &mut reader, base),
        None => {
            while let Some(op) = reader.part() {
                text += &format!("\n  {op}: {}", body(op, &mut reader, base));
            }
        }
    }
    format!("{text} and {} bytes", reader.0.len())
}

fn body(op: i32, reader: &mut Reader<'_>, base: i64) -> String {
    match op {
        op::CREATE | op::CREATE_CONTAINER => {
            format!("{:?} {}", reader.text(), stat(reader.stat(), base))
        }
        op::EXISTS | op::SET_DATA => stat(reader.stat(), base),
        op::GET_DATA => format!("{:?} {}", reader.bytes(), stat(reader.stat(), base)),
        op::GET_CHILDREN | op::GET_EPHEMERALS => {
            let mut all = reader.texts().unwrap();
            all.sort();
            format!("{all:?}")
        }
        op::SYNC | op::CREATE_OF_MULTI => format!("{:?}", reader.text()),
        op::ERROR => format!("{:?}", reader.int()),
        _ => String::new(),
    }
}

fn stat(stat: Option<Stat>, base: i64) -> String {
    let it = stat.unwrap();
    let owner = it.ephemeral_owner != 0;
    let zxids = [it.czxid - base, it.mzxid - base, it.pzxid - base];
    let (versions, sizes) = (
        [it.version, it.cversion, it.aversion],
        [it.data_length, it.num_children],
    );
    format!(
        "{zxids:?} {versions:?} {sizes:?} {owner} {}",
        it.mtime >= it.ctime
    )
}
