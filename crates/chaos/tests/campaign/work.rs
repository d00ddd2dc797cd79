//! What the tasks of a client do: acquire in every way, hold, use, and end in every way.

use std::{rc::Rc, time::Duration};

use futures_util::FutureExt;
use leasehold::{Error, ErrorKind, Lock, Result};
use leasehold_chaos::{Mode, Policy, What};

use super::{
    aside::{Watched, watch},
    both,
    client::Client,
    held::Held,
    kind::{Kind, nanos},
    recorder::now,
    resource::Connection,
    using::{count, hold, write},
};

/// The locks: two whose names begin alike, one of each other primitive, and one that tasks of a process pass on.
pub(crate) const ORDERS: &str = "orders";
pub(crate) const ORDERS_1: &str = "orders/1";
pub(super) const CATALOG: &str = "catalog";
const SLOTS: &str = "slots";
pub(super) const LEADER: &str = "leader";
const COUNTER: &str = "counter";
/// Rarely used, for a moment, and by tries only: so nobody is in the way of most of them.
const SPARE: &str = "spare";
/// Held for several leases, and asked for by tries only: so nobody waits, and nobody but the store tells its holder what becomes of it.
pub(crate) const KEPT: &str = "kept";
/// Of clients of one process alone, one for each member of a store that has several.
const RELAY: &str = "relay";
/// Theirs, too: one whose holder does not look at it.
const ASLEEP: &str = "asleep";
/// The lock of naive clients.
pub(crate) const NAIVE: &str = "naive";
/// All of the others.
pub(crate) const LOCKS: [&str; 8] = [
    ORDERS, ORDERS_1, CATALOG, SLOTS, LEADER, COUNTER, SPARE, KEPT,
];

/// What is asked for.
pub(super) struct Ask {
    pub(super) op: u64,
    pub(super) lock: &'static str,
    pub(super) mode: Mode,
    policy: Policy,
    /// How long it waits.
    limit: Option<Duration>,
    owned: bool,
    /// The shortest and the longest time to hold.
    least: Option<Duration>,
    pub(super) most: Option<Duration>,
}

/// Acquires, holds and ends until the client drains.
pub(crate) async fn work(client: Rc<Client>) {
    let mut resource = Connection::of(&client.plan);
    while !client.drains() {
        if !client.plan.naive && client.random(|random| random.u8(0..12) == 0) {
            both::both(&client, &mut resource).await;
            continue;
        }
        let ask = if client.plan.naive {
            Ask::simple(&client, NAIVE, Policy::Fair)
        } else {
            ask(&client)
        };
        once(&client, &ask, &mut resource).await;
    }
}

/// Asks for a lock. Uses it for a while, if it is granted, and gives it back.
async fn once(client: &Rc<Client>, ask: &Ask, resource: &mut Connection) {
    let begin = now();
    let Some(held) = acquire(client, ask).await else {
        // Servers may be down: no loop without a pause.
        return tokio::time::sleep(client.up_to(Duration::from_millis(20))).await;
    };
    let watched = if client.plan.naive {
        Watched::default()
    } else {
        watch(client, ask.op, held.view())
    };
    hold(client, ask, &held, resource).await;
    match ask.least.map(|least| begin + nanos(least)) {
        Some(until) if now() < until && !held.remaining().is_zero() => {
            end_early(client, ask, held, &watched, until).await;
        }
        _ => end(client, ask, held, &watched, resource).await,
    }
}

/// Clients of one process in turn: each tries for what another one has released. Nobody else uses this lock.
pub(crate) async fn relay(clients: Vec<Rc<Client>>) {
    let mut resource = Connection::of(&clients[0].plan);
    let others = clients.iter().cycle().skip(1);
    for (client, other) in clients
        .iter()
        .cycle()
        .zip(others)
        .take_while(|(client, _)| !client.drains())
    {
        if client.random(|random| random.u8(0..8) == 0) {
            sleep_on(client, other).await;
        }
        once(
            client,
            &Ask::simple(client, RELAY, Policy::Try),
            &mut resource,
        )
        .await;
        // Often at once, as who was told would.
        if client.random(|random| random.u8(0..4) == 0) {
            tokio::time::sleep(client.up_to(client.ttl() / 2)).await;
        }
    }
}

/// Holds without a look at it until it is told of a loss, and another client tries for the same. Who looks hears of a loss by that, whoever
/// else should have told it.
async fn sleep_on(client: &Client, other: &Client) {
    let of = |client: &Client| client.store.lock(ASLEEP).try_acquire();
    let Ok(guard) = of(client).await else { return };
    let (end, mut lost) = (now() + nanos(4 * client.ttl()), guard.lost());
    while now() < end && !client.drains() {
        tokio::select! {
            biased;
            _ = &mut lost => return,
            () = tokio::time::sleep(client.ttl() / 8) => {}
        }
        let Ok(_theirs) = of(other).await else {
            continue;
        };
        // It is told when its validity ends, or soon after. Many short times: in each of them this runtime ran.
        let short = Duration::from_millis(20);
        for _ in 0..(client.ttl() + Duration::from_secs(1)).div_duration_f64(short) as u32 {
            tokio::time::sleep(short).await;
            if (&mut lost).now_or_never().is_some() || client.drains() {
                return;
            }
        }
        eprintln!("UNEXPECTED: {ASLEEP} is another client's, and its holder was not told");
        return;
    }
}

impl Ask {
    fn simple(client: &Client, lock: &'static str, policy: Policy) -> Ask {
        Ask {
            op: client.op(),
            lock,
            mode: Mode::Exclusive,
            policy,
            limit: None,
            owned: false,
            least: None,
            most: None,
        }
    }

    /// Whether nobody else may be in it at a time: re-entries of one hold may.
    pub(super) fn is_alone(&self) -> bool {
        self.mode.is_exclusive() && !self.owned
    }

    /// Whether it is for a moment.
    pub(super) fn is_brief(&self) -> bool {
        matches!(self.lock, SPARE | RELAY)
    }
}

fn ask(client: &Client) -> Ask {
    let complete = client.plan.kind.is_complete();
    let op = client.op();
    client.random(|random| {
        let lock = LOCKS[random.usize(0..LOCKS.len())];
        let lock = match lock {
            SLOTS if !complete => ORDERS,
            SPARE if random.u8(0..3) > 0 => ORDERS_1,
            lock => lock,
        };
        let mode = match lock {
            CATALOG if random.u8(0..3) > 0 => Mode::Shared,
            SLOTS => Mode::Permits {
                n: random.u32(1..=2),
                of: 3,
            },
            LEADER => Mode::Leader,
            _ => Mode::Exclusive,
        };
        let policy = match random.u8(0..4) {
            _ if matches!(lock, SPARE | KEPT) => Policy::Try,
            0 => Policy::Try,
            _ if lock == COUNTER || !complete => Policy::Fast,
            _ => Policy::Fair,
        };
        let timed = policy != Policy::Try && random.u8(0..3) == 0;
        let limit = timed.then(|| client.plan.kind.ttl().mul_f64(2.0 * random.f64()));
        let owned = lock == ORDERS && random.u8(0..3) == 0;
        // Of those that hold a claim of their own. When a try is granted is not before it was asked for.
        let bounded = !owned && mode != Mode::Leader && policy != Policy::Fast;
        // Not so long that a fault excuses less.
        let least = (bounded
            && policy == Policy::Try
            && !matches!(lock, SPARE | KEPT)
            && random.u8(0..4) == 0)
            .then(|| client.plan.kind.ttl() + Duration::from_millis(900).mul_f64(random.f64()));
        let most = (bounded && least.is_none() && random.u8(0..8) == 0)
            .then(|| client.plan.kind.ttl().mul_f64(0.1 + 2.0 * random.f64()));
        Ask {
            op,
            lock,
            mode,
            policy,
            limit,
            owned,
            least,
            most,
        }
    })
}

async fn acquire(client: &Client, ask: &Ask) -> Option<Held> {
    let &Ask {
        op,
        mode,
        policy,
        limit,
        owned,
        ..
    } = ask;
    let (lock, begin) = (ask.lock.to_owned(), now());
    let deadline = limit.map(|limit| begin + nanos(limit));
    let owner = owned.then(|| client.owner_number());
    client.record.at(
        begin,
        What::Invoke {
            op,
            lock,
            mode,
            policy,
            deadline,
            owner,
        },
    );
    let sent = tokio::select! {
        biased;
        answer = send(client, ask) => Some(answer),
        () = leave(client, ask) => None,
    };
    match sent {
        Some(Ok(held)) => {
            let t = now();
            let left = nanos(held.remaining());
            // A guard whose validity has ended meanwhile claims nothing.
            if left == 0 {
                client.record.at(t, What::Info { op });
                return None;
            }
            let valid = if client.plan.naive {
                u64::MAX
            } else {
                t + left
            };
            if let Some(claim) = held.claim(client.plan.p, ask.lock) {
                client.record.at(t, What::Under { op, claim });
            }
            client.record.at(
                t,
                What::Ok {
                    op,
                    tok: held.token().get(),
                    valid,
                },
            );
            if let Some(least) = ask.least {
                client.record.at(
                    t,
                    What::Least {
                        op,
                        until: t + nanos(least),
                    },
                );
            }
            Some(held)
        }
        Some(Err(error)) => {
            client.record.now(refusal(op, &error));
            None
        }
        None => {
            client.record.now(What::Info { op });
            None
        }
    }
}

/// Callers leave at any moment. Some do just when their request is sent, on its way, or answered; most have patience.
async fn leave(client: &Client, ask: &Ask) {
    let leaves =
        client.random(|random| random.u8(0..8) == 0) && !client.plan.naive && !ask.is_brief();
    if !leaves {
        tokio::time::sleep(Duration::from_secs(60)).await;
    } else if client.random(|random| random.u8(0..4) > 0) {
        let soon = client.ttl() / client.random(|random| random.u32(1..16));
        tokio::time::sleep(client.up_to(soon)).await;
    } else {
        let most = client.random(|random| random.u32(1..8));
        for _ in 0..client.random(|random| random.u32(0..1 << most)) {
            tokio::task::yield_now().await;
        }
    }
}

/// The call of the library. Its label is the number of the acquisition, so that it is known in the queue.
async fn send(client: &Client, ask: &Ask) -> Result<Held> {
    let label = format!("op-{}", ask.op);
    if ask.mode == Mode::Leader {
        let election = client.store.election(ask.lock);
        let leads = match (ask.policy, ask.limit) {
            (Policy::Try, _) => election.try_campaign(label),
            (_, Some(limit)) => election.campaign_timeout(label, limit),
            (_, None) => election.campaign(label),
        };
        return leads.await.map(Held::Leadership);
    }
    let lock: Lock = match ask.mode {
        Mode::Shared => client.store.rw_lock(ask.lock).read(),
        Mode::Permits { n, of } => client.store.semaphore(ask.lock, of).permits(n),
        _ => client.store.lock(ask.lock),
    };
    let lock = lock.label(label);
    let lock = if ask.owned {
        lock.owner(&client.owner)
    } else {
        lock
    };
    let lock = if ask.policy == Policy::Fast {
        lock.fast()
    } else {
        lock
    };
    let lock = if let Some(least) = ask.least {
        lock.min_hold(least)
    } else {
        lock
    };
    let lock = if let Some(most) = ask.most {
        lock.max_hold(most)
    } else {
        lock
    };
    let guard = match (ask.policy, ask.limit) {
        (Policy::Try, _) => lock.try_acquire(),
        (_, Some(limit)) => lock.acquire_timeout(limit),
        (_, None) => lock.acquire(),
    };
    guard.await.map(Held::Guard)
}

fn refusal(op: u64, error: &Error) -> What {
    match error.kind() {
        ErrorKind::Contended => What::Fail { op, busy: true },
        ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::OtherStore => {
            What::Fail { op, busy: false }
        }
        ErrorKind::Ambiguous => What::Info { op },
        _ => {
            unexpected("acquiring", error);
            What::Info { op }
        }
    }
}

/// An error that no fault of a campaign explains. It is in the log of the process, and fails the run.
pub(crate) fn unexpected(doing: &str, error: &Error) {
    eprintln!("UNEXPECTED {doing}: {error:?}");
}

/// Releases before the shortest time is over: up to then nobody else may hold. The store ends it by itself, a little later than that.
async fn end_early(client: &Client, ask: &Ask, held: Held, watched: &Watched, until: u64) {
    let op = ask.op;
    watched.ends();
    // Where it was said to be valid for longer than that, it shows nothing; nor where it may end with what the client has.
    // In SQLite it ends with the files, which somebody may delete.
    let lasts =
        client.store.guarantees().min_hold_outlives_process() && client.plan.kind != Kind::Sqlite;
    let shows = lasts && until > now() + nanos(held.remaining());
    if !shows {
        client.record.now(What::Release { op, dropped: true });
    }
    let released = held.release().await.is_ok();
    let t = now();
    if shows && released && t < until {
        client.record.at(t, What::Use { op, valid: until });
        tokio::time::sleep(Duration::from_nanos(until - t)).await;
    }
    if shows {
        client.record.now(What::Release { op, dropped: true });
    }
}

async fn end(client: &Client, ask: &Ask, held: Held, watched: &Watched, resource: &mut Connection) {
    let (op, token) = (ask.op, held.token());
    if held.remaining().is_zero() && ask.mode.is_exclusive() && !client.plan.naive {
        // A write that was on its way when the lock was lost: the resource refuses it if somebody has written since.
        tokio::time::sleep(client.up_to(client.ttl())).await;
        write(client, ask, token, resource).await;
        count(client, ask, token, resource).await;
    }
    let dropped = client.random(|random| random.u8(0..4) == 0) && !ask.is_brief();
    watched.ends();
    client.record.now(What::Release { op, dropped });
    if dropped {
        return drop(held);
    }
    match held.release().await {
        Ok(()) => client.record.now(What::Released { op }),
        Err(error) => {
            if !error.is_retryable() && error.loss().is_none() {
                unexpected("releasing", &error);
            }
            client.record.now(What::Unreleased { op });
        }
    }
}
