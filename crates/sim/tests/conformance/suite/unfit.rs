//! Which cases are not judged here, and why. All else is.

use leasehold_conformance::{CASES, Capabilities, Case, Need, Variant};
use leasehold_sim::Kind;
use libtest_mimic::Failed;

use crate::suite::judged;

/// What a store or its servers in memory cannot do. But for the heap it is what the suite on real servers says of that store.
pub(crate) type Lack = (Need, &'static [Kind], &'static str);

const LACKS: &[Lack] = &[
    (
        Need::Heap,
        &Kind::ALL,
        "servers, network and clients have one heap",
    ),
    (
        Need::Detour,
        &Kind::ALL,
        "a simulated network leads to the servers of one store",
    ),
    (
        Need::Once,
        &[Kind::Redlock],
        "a record on a majority of the nodes is not read by one step",
    ),
    (Need::Fair, &[Kind::Redlock], "the nodes share no order"),
    (
        Need::Permits,
        &[Kind::Redlock],
        "no majority counts permits",
    ),
    (
        Need::Raise,
        &[Kind::Redlock],
        "each node counts by itself, and no majority raises the others",
    ),
    (
        Need::Wipe,
        &[Kind::Redlock],
        "tokens rise only as long as the nodes keep their data",
    ),
    (
        Need::Fence,
        &[Kind::Redlock],
        "a resource cannot be in a majority of the nodes",
    ),
    (
        Need::AtomicMulti,
        &[Kind::Redlock],
        "a majority of the nodes agrees on one name at a time",
    ),
    (Need::Floor, &[Kind::Redlock], "each node counts by itself"),
    (
        Need::Floor,
        &[Kind::Etcd, Kind::ZooKeeper],
        "a place is numbered when it is taken",
    ),
    (
        Need::Junk,
        &[Kind::Etcd],
        "its keys have no types, so no key is junk",
    ),
    (
        Need::Wipe,
        &[Kind::Etcd, Kind::ZooKeeper],
        "revisions and numbers of transactions restart with the data",
    ),
    (
        Need::AtomicMulti,
        &[Kind::ZooKeeper],
        "no transaction makes nodes on the condition that others have no children",
    ),
    (
        Need::MinHold,
        &[Kind::ZooKeeper],
        "nothing of a session outlives its client",
    ),
];

/// Cases that leave the simulation, on all stores: nobody may run them here, so nobody can tell whether they would pass.
const THREADS: [(&str, &str); 5] = [
    (
        "waiting/is_not_starved_by_refused_tries",
        "its tasks run without a pause in threads of their own, and so in real time",
    ),
    (
        "cancel/outside_of_any_runtime",
        "it acquires in a thread of its own, which is on the real machine",
    ),
    (
        "runtimes/another_goes_on_after_an_end",
        "it connects in a thread of its own, which is on the real machine",
    ),
    (
        "runtimes/another_goes_on_beside_one_not_driven",
        "it connects in a thread of its own, which is on the real machine",
    ),
    (
        "runtimes/another_goes_on_beside_a_blocked_one",
        "it connects in a thread of its own, which is on the real machine",
    ),
];

/// What a harness may have power for.
const POWERS: [Need; 14] = [
    Need::Private,
    Need::Link,
    Need::Detour,
    Need::Fence,
    Need::DeleteHolder,
    Need::AnotherTool,
    Need::Junk,
    Need::Restart,
    Need::Wipe,
    Need::Footprint,
    Need::Contents,
    Need::Heap,
    Need::Requests,
    Need::PushedWake,
];

/// What this store lacks.
pub(crate) fn lacks(kind: Kind) -> impl Iterator<Item = &'static Lack> {
    LACKS
        .iter()
        .filter(move |(_, kinds, _)| kinds.contains(&kind))
}

fn is_said(kind: Kind, need: Need) -> bool {
    lacks(kind).any(|lack| lack.0 == need)
}

pub(crate) fn capabilities(kind: Kind) -> Capabilities {
    let able: Vec<Need> = POWERS
        .into_iter()
        .filter(|power| !is_said(kind, *power))
        .collect();
    let capabilities = Capabilities::new(&able, "nobody has said why");
    lacks(kind).fold(capabilities, |capabilities, (need, _, why)| {
        capabilities.lacks(&[*need], why)
    })
}

/// Why a case is not judged.
pub(crate) fn why(kind: Kind, case: &Case) -> Option<String> {
    let thread = THREADS
        .iter()
        .find(|(name, _)| *name == case.name)
        .map(|(_, why)| (*why).to_owned());
    thread.or_else(|| capabilities(kind).lack(case.needs))
}

/// What is not judged is in these lists, and they have nothing else.
pub(crate) fn is_listed(kinds: &[Kind]) -> Result<(), Failed> {
    if let Some((name, _)) = THREADS
        .iter()
        .find(|(name, _)| CASES.iter().all(|case| case.name != *name))
    {
        return Err(format!("there is no case {name}").into());
    }
    let is_in_threads = |case: &Case| THREADS.iter().any(|(name, _)| *name == case.name);
    for kind in kinds {
        for case in CASES
            .iter()
            .filter(|case| why(*kind, case).is_some() && !is_in_threads(case))
        {
            if !case.needs.iter().any(|need| is_said(*kind, *need)) {
                return Err(format!(
                    "{}: {} is neither judged nor listed",
                    kind.name(),
                    case.name
                )
                .into());
            }
        }
    }
    Ok(())
}

/// Of the cases that only this lack keeps away, at least one fails if it is judged all the same: else it is none.
pub(crate) fn is_lacking(kind: Kind, need: Need) -> Result<(), Failed> {
    let only = |case: &&Case| {
        case.needs.contains(&need)
            && case
                .needs
                .iter()
                .all(|it| *it == need || !is_said(kind, *it))
    };
    let mut cases = CASES.iter().filter(only).peekable();
    if cases.peek().is_none() {
        return Err("no case is kept away by it alone".into());
    }
    match cases.find(|case| judged(kind, case, Variant::Bare).0.is_err()) {
        Some(_) => Ok(()),
        None => Err("all cases that need it pass".into()),
    }
}
