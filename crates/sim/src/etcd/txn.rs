//! Transactions. The branches of a transaction and of those inside it are all chosen before
//! anything changes.

use std::collections::BTreeSet;

use tonic::Status;

use crate::etcd::kv::{Write, includes};
use crate::etcd::messages::{
    Against, Compare, DeleteResponse, Header, KeyValue, PutRequest, PutResponse, Relation, Request,
    RequestOp, Response, ResponseOp, TxnRequest, TxnResponse,
};

/// The greatest number of operations in a transaction.
const MOST: usize = 128;

/// Refuses a transaction that is wrong in itself, before any key is looked at.
pub(crate) fn check(txn: &TxnRequest, most: usize) -> Result<(), Status> {
    let many = txn.when.len().max(txn.then.len()).max(txn.or_else.len());
    if many > most {
        return Err(Status::invalid_argument(
            "etcdserver: too many operations in txn request",
        ));
    }
    if txn.when.iter().any(|compare| compare.key.is_empty()) {
        return Err(no_key());
    }
    for branch in [&txn.then, &txn.or_else] {
        branch.iter().try_for_each(|op| check_op(op, most - many))?;
    }
    Ok(())
}

/// Checks a whole transaction of a client, also for keys that are given twice.
pub(crate) fn check_whole(txn: &TxnRequest) -> Result<(), Status> {
    check(txn, MOST)?;
    [&txn.then, &txn.or_else]
        .into_iter()
        .try_for_each(|branch| touched(branch).map(drop))
}

fn check_op(op: &RequestOp, most: usize) -> Result<(), Status> {
    match &op.request {
        Some(Request::Range(range)) if range.key.is_empty() => Err(no_key()),
        Some(Request::Put(put)) => check_put(put),
        Some(Request::Delete(delete)) if delete.key.is_empty() => Err(no_key()),
        Some(Request::Txn(txn)) => check(txn, most),
        Some(_) => Ok(()),
        None => Err(Status::invalid_argument("etcdserver: key not found")),
    }
}

pub(crate) fn check_put(put: &PutRequest) -> Result<(), Status> {
    match put {
        put if put.key.is_empty() => Err(no_key()),
        put if put.same_value && !put.value.is_empty() => {
            Err(Status::invalid_argument("etcdserver: value is provided"))
        }
        put if put.same_lease && put.lease != 0 => {
            Err(Status::invalid_argument("etcdserver: lease is provided"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn no_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

/// The keys that a branch writes and the ranges that it deletes. No key may be written twice, or
/// written and deleted.
type Touched = (BTreeSet<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

fn touched(branch: &[RequestOp]) -> Result<Touched, Status> {
    let twice = || Status::invalid_argument("etcdserver: duplicate key given in txn request");
    let mut puts = BTreeSet::new();
    let mut deletes = Vec::new();
    let requests = || branch.iter().filter_map(|op| op.request.as_ref());
    for request in requests() {
        if let Request::Delete(delete) = request {
            deletes.push((delete.key.clone(), delete.end.clone()));
        }
    }
    let deleted = |deletes: &[(Vec<u8>, Vec<u8>)], key: &[u8]| {
        deletes.iter().any(|(from, end)| includes(from, end, key))
    };
    for request in requests() {
        let Request::Txn(txn) = request else { continue };
        let then = touched(&txn.then)?;
        let or_else = touched(&txn.or_else)?;
        // Only one of the two branches is taken, so both may write one key.
        if then
            .0
            .iter()
            .chain(&or_else.0)
            .any(|key| puts.contains(key) || deleted(&deletes, key))
        {
            return Err(twice());
        }
        puts.extend(then.0.into_iter().chain(or_else.0));
        deletes.extend(then.1.into_iter().chain(or_else.1));
    }
    for request in requests() {
        if let Request::Put(put) = request
            && (deleted(&deletes, &put.key) || !puts.insert(put.key.clone()))
        {
            return Err(twice());
        }
    }
    Ok((puts, deletes))
}

/// Lists which branches of a transaction are taken, in the order of its inner transactions.
pub(crate) fn path(write: &Write<'_>, txn: &TxnRequest, taken: &mut Vec<bool>) {
    let holds = txn.when.iter().all(|compare| holds(write, compare));
    taken.push(holds);
    for op in if holds { &txn.then } else { &txn.or_else } {
        if let Some(Request::Txn(inner)) = &op.request {
            path(write, inner, taken);
        }
    }
}

fn holds(write: &Write<'_>, compare: &Compare) -> bool {
    let kvs = write.kv.at(&compare.key, &compare.end, i64::MAX);
    if kvs.is_empty() {
        // A missing key has no value, and 0 for everything else.
        return compare.target != 3 && is_so(compare, &KeyValue::default());
    }
    kvs.iter().all(|kv| is_so(compare, kv))
}

fn is_so(compare: &Compare, kv: &KeyValue) -> bool {
    let against = compare.against.as_ref();
    let number = |kv: i64, against: Option<i64>| kv.cmp(&against.unwrap_or_default());
    let ordering = match compare.target {
        0 => number(
            kv.version,
            against.and_then(|it| {
                if let Against::Version(it) = it {
                    Some(*it)
                } else {
                    None
                }
            }),
        ),
        1 => number(
            kv.created,
            against.and_then(|it| {
                if let Against::Created(it) = it {
                    Some(*it)
                } else {
                    None
                }
            }),
        ),
        2 => number(
            kv.modified,
            against.and_then(|it| {
                if let Against::Modified(it) = it {
                    Some(*it)
                } else {
                    None
                }
            }),
        ),
        3 => match against {
            Some(Against::Value(value)) => kv.value.cmp(value),
            _ => kv.value.cmp(&Vec::new()),
        },
        _ => number(
            kv.lease,
            against.and_then(|it| {
                if let Against::Lease(it) = it {
                    Some(*it)
                } else {
                    None
                }
            }),
        ),
    };
    match compare.relation() {
        Relation::Equal => ordering.is_eq(),
        Relation::Greater => ordering.is_gt(),
        Relation::Less => ordering.is_lt(),
        Relation::NotEqual => ordering.is_ne(),
    }
}

/// All operations that are carried out, including those of inner transactions.
pub(crate) fn carried_out<'a>(
    txn: &'a TxnRequest,
    taken: &mut impl Iterator<Item = bool>,
) -> Vec<&'a Request> {
    let branch = if taken.next().unwrap_or_default() {
        &txn.then
    } else {
        &txn.or_else
    };
    let mut all = Vec::new();
    for request in branch.iter().filter_map(|op| op.request.as_ref()) {
        match request {
            Request::Txn(inner) => all.extend(carried_out(inner, taken)),
            other => all.push(other),
        }
    }
    all
}

/// Carries out the branches that are taken.
pub(crate) fn apply(
    write: &mut Write<'_>,
    txn: &TxnRequest,
    taken: &mut impl Iterator<Item = bool>,
) -> Result<TxnResponse, Status> {
    let succeeded = taken.next().unwrap_or_default();
    let mut responses = Vec::new();
    for op in if succeeded { &txn.then } else { &txn.or_else } {
        let response = match &op.request {
            Some(Request::Range(range)) => {
                let header = header_at(write.revision());
                Response::Range(crate::etcd::messages::RangeResponse {
                    header,
                    ..write.range(range)?
                })
            }
            Some(Request::Put(put)) => {
                let before = write.put(put).filter(|_| put.wants_before);
                Response::Put(PutResponse {
                    header: header_at(write.revision()),
                    before,
                })
            }
            Some(Request::Delete(delete)) => {
                let gone = write.delete(delete);
                let deleted = i64::try_from(gone.len()).unwrap_or(i64::MAX);
                let before = if delete.wants_before {
                    gone
                } else {
                    Vec::new()
                };
                Response::Delete(DeleteResponse {
                    header: header_at(write.revision()),
                    deleted,
                    before,
                })
            }
            Some(Request::Txn(inner)) => Response::Txn(apply(write, inner, taken)?),
            None => continue,
        };
        responses.push(ResponseOp {
            response: Some(response),
        });
    }
    Ok(TxnResponse {
        header: Some(Header::default()),
        succeeded,
        responses,
    })
}

fn header_at(revision: i64) -> Option<Header> {
    Some(Header {
        revision,
        ..Header::default()
    })
}
