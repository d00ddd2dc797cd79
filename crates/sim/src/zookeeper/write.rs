//! Requests that write: their changes, or the reason for a refusal.

use leasehold_sim_zookeeper_client::wire::{
    CONTAINER, EPHEMERAL, Reader, Record, SEQUENTIAL, code, op,
};

use super::tree::{At, Change, Kind, Tree, split};

/// The changes of a request, and its answer.
pub(crate) type Written = (Vec<Change>, Record);

/// Carries out a request of this session. An error is a number of ZooKeeper's, and changes nothing.
pub(crate) fn write(
    tree: &mut Tree,
    session: i64,
    op: i32,
    request: &[u8],
    at: At,
) -> Result<Written, i32> {
    let mut reader = Reader(request);
    if op == op::MULTI {
        return multi(tree, session, reader, at);
    }
    let change = one(tree, session, op, &mut reader)?;
    change
        .iter()
        .for_each(|change| drop(tree.apply(change, at)));
    let answer = answer(tree, change.as_ref(), Record::default());
    Ok((change.into_iter().collect(), answer))
}

/// The answer to a change.
fn answer(tree: &Tree, change: Option<&Change>, record: Record) -> Record {
    let stat = |path: &str| tree.get(path).map(super::tree::Node::stat);
    match change {
        Some(Change::Create { path, .. }) => {
            let record = record.text(path);
            stat(path)
                .into_iter()
                .fold(record, |record, stat| record.stat(&stat))
        }
        Some(Change::Set { path, .. }) => stat(path)
            .into_iter()
            .fold(record, |record, stat| record.stat(&stat)),
        _ => record,
    }
}

/// The change of one request; `None` for a condition, which changes nothing. All of the request is
/// read, even if it is refused.
fn one(tree: &Tree, session: i64, op: i32, reader: &mut Reader<'_>) -> Result<Option<Change>, i32> {
    let broken = code::BAD_ARGUMENTS;
    let path = reader
        .text()
        .filter(|path| path.starts_with('/'))
        .ok_or(broken)?;
    match op {
        op::CREATE | op::CREATE_CONTAINER => {
            let data = reader.bytes().ok_or(broken)?.to_vec();
            for _ in 0..reader.int().ok_or(broken)? {
                reader
                    .int()
                    .zip(reader.text())
                    .zip(reader.text())
                    .ok_or(broken)?;
            }
            let flags = reader.int().ok_or(broken)?;
            create(tree, session, path, data, flags).map(Some)
        }
        op::DELETE => {
            let version = reader.int().ok_or(broken)?;
            let node = tree.get(&path)?;
            node.is_version(version)?;
            if path == "/" {
                return Err(broken);
            }
            if node.children.is_empty() {
                Ok(Some(Change::Delete { path }))
            } else {
                Err(code::NOT_EMPTY)
            }
        }
        op::SET_DATA => {
            let data = reader.bytes().ok_or(broken)?.to_vec();
            let version = reader.int().ok_or(broken)?;
            tree.get(&path)?.is_version(version)?;
            Ok(Some(Change::Set { path, data }))
        }
        op::CHECK => {
            let version = reader.int().ok_or(broken)?;
            tree.get(&path)?.is_version(version)?;
            Ok(None)
        }
        _ => Err(code::UNIMPLEMENTED),
    }
}

fn create(
    tree: &Tree,
    session: i64,
    path: String,
    data: Vec<u8>,
    flags: i32,
) -> Result<Change, i32> {
    let parent = tree.get(split(&path).0)?;
    let kind = match flags {
        CONTAINER => Kind::Container,
        flags if flags & EPHEMERAL != 0 => Kind::Ephemeral(session),
        _ => Kind::Persistent,
    };
    let is_sequential = flags != CONTAINER && flags & SEQUENTIAL != 0;
    let path = if is_sequential {
        format!("{path}{:010}", parent.creates)
    } else {
        path
    };
    if tree.get(&path).is_ok() {
        return Err(code::NODE_EXISTS);
    }
    if matches!(parent.kind, Kind::Ephemeral(_)) {
        return Err(code::NO_CHILDREN_FOR_EPHEMERALS);
    }
    Ok(Change::Create { path, data, kind })
}

/// Carries out several requests: all of them, or none.
fn multi(tree: &mut Tree, session: i64, mut reader: Reader<'_>, at: At) -> Result<Written, i32> {
    let mut after = tree.clone();
    let mut changes = Vec::new();
    let mut record = Record::default();
    let mut done = 0;
    while let Some(op) = reader.part() {
        let change = match one(&after, session, op, &mut reader) {
            Ok(change) => change,
            Err(error) => return Ok((Vec::new(), failed(done, error, reader))),
        };
        change
            .iter()
            .for_each(|change| drop(after.apply(change, at)));
        record = match &change {
            // Only the answer to the creation of a container has its transaction.
            Some(Change::Create { path, .. }) if op == op::CREATE => {
                record.part(op::CREATE_OF_MULTI, 0).text(path)
            }
            Some(Change::Create { .. }) => {
                answer(&after, change.as_ref(), record.part(op::CREATE, 0))
            }
            change => answer(&after, change.as_ref(), record.part(op, 0)),
        };
        changes.extend(change);
        done += 1;
    }
    *tree = after;
    Ok((changes, record.end()))
}

/// The answer if one part has failed: it says which one, and that those after it were not looked
/// at.
fn failed(done: usize, error: i32, mut reader: Reader<'_>) -> Record {
    let part = |record: Record, error| record.part(op::ERROR, error).int(error);
    let record = (0..done).fold(Record::default(), |record, _| part(record, 0));
    let mut record = part(record, error);
    while let Some(op) = reader.part() {
        skip(op, &mut reader);
        record = part(record, code::RUNTIME_INCONSISTENCY);
    }
    record.end()
}

fn skip(op: i32, reader: &mut Reader<'_>) {
    drop(reader.text());
    if matches!(op, op::CREATE | op::CREATE_CONTAINER | op::SET_DATA) {
        let _ = reader.bytes();
    }
    if matches!(op, op::CREATE | op::CREATE_CONTAINER) {
        for _ in 0..reader.int().unwrap_or_default() {
            drop((reader.int(), reader.text(), reader.text()));
        }
    }
    let _ = reader.int();
}
