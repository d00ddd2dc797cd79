//! What the tasks of a client do: acquire in every way, hold, use, and end in every way.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
    time::Duration,
};

use leasehold::{Error, ErrorKind, Fenced, FencingToken, Guard, Leadership, Lock, Loss, Lost, Result};
use leasehold_chaos::{Mode, Policy, What};

use super::{
    both,
    client::Client,
    kind::nanos,
    recorder::now,
    resource::{Connection, Write1},
};

/// The locks: two whose names begin alike, one of each other primitive, and one that tasks of a process pass on.
pub(crate) const ORDERS: &str = "orders";
pub(crate) const ORDERS_1: &str = "orders/1";
const CATALOG: &str = "catalog";
const SLOTS: &str = "slots";
pub(super) const LEADER: &str = "leader";
const COUNTER: &str = "counter";
/// Rarely used, for a moment, and by tries only: so nobody is in the way of most of them.
const SPARE: &str = "spare";
/// The lock of naive clients.
pub(crate) const NAIVE: &str = "naive";
/// All of the others.
pub(crate) const LOCKS: [&str; 7] = [ORDERS, ORDERS_1, CATALOG, SLOTS, LEADER, COUNTER, SPARE];

/// A guard, or a leadership.
enum Held {
    Guard(Guard),
    Leadership(Leadership),
}

impl Held {
    fn token(&self) -> FencingToken {
        match self {
            Held::Guard(guard) => guard.fencing_token(),
            Held::Leadership(leads) => leads.fencing_token(),
        }
    }

    /// By what claim of this process it holds: turns of one, and re-entries, have one place in the store.
    fn claim(&self, p: u64) -> Option<u64> {
        let place = match self {
            Held::Guard(guard) => guard.place(),
            Held::Leadership(leads) => leads.place(),
        };
        let mut number = DefaultHasher::new();
        (p, place?.as_str()).hash(&mut number);
        Some(number.finish())
    }

    fn remaining(&self) -> Duration {
        match self {
            Held::Guard(guard) => guard.remaining(),
            Held::Leadership(leads) => leads.remaining(),
        }
    }

    fn lost(&self) -> Lost {
        match self {
            Held::Guard(guard) => guard.lost(),
            Held::Leadership(leads) => leads.lost(),
        }
    }

    async fn release(self) -> Result<()> {
        match self {
            Held::Guard(guard) => guard.release().await,
            Held::Leadership(leads) => leads.resign().await,
        }
    }
}

/// What is asked for.
struct Ask {
    op: u64,
    lock: &'static str,
    mode: Mode,
    policy: Policy,
    /// How long it waits.
    limit: Option<Duration>,
    owned: bool,
}

/// How long a lock is held.
enum Length {
    Until(u64),
    /// A pause of the process does not bring the end nearer.
    Uses(u8),
}

/// Acquires, holds and ends until the client drains.
pub(crate) async fn work(client: Rc<Client>) {
    let mut resource = Connection::to(&client.plan.resource);
    while !client.drains() {
        if !client.plan.naive && client.random(|random| random.u8(0..12) == 0) {
            both::both(&client, &mut resource).await;
            continue;
        }
        let ask = if client.plan.naive { naive(&client) } else { ask(&client) };
        let Some(held) = acquire(&client, &ask).await else {
            // Servers may be down: no loop without a pause.
            tokio::time::sleep(client.up_to(Duration::from_millis(20))).await;
            continue;
        };
        if !client.plan.naive {
            tokio::task::spawn_local(watch(client.clone(), ask.op, held.lost()));
        }
        hold(&client, &ask, &held, &mut resource).await;
        end(&client, &ask, held, &mut resource).await;
    }
}

fn naive(client: &Client) -> Ask {
    Ask { op: client.op(), lock: NAIVE, mode: Mode::Exclusive, policy: Policy::Fair, limit: None, owned: false }
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
            SLOTS => Mode::Permits { n: random.u32(1..=2), of: 3 },
            LEADER => Mode::Leader,
            _ => Mode::Exclusive,
        };
        let policy = match random.u8(0..4) {
            _ if lock == SPARE => Policy::Try,
            0 => Policy::Try,
            _ if lock == COUNTER || !complete => Policy::Fast,
            _ => Policy::Fair,
        };
        let timed = policy != Policy::Try && random.u8(0..3) == 0;
        let limit = timed.then(|| client.plan.kind.ttl().mul_f64(2.0 * random.f64()));
        let owned = lock == ORDERS && random.u8(0..3) == 0;
        Ask { op, lock, mode, policy, limit, owned }
    })
}

async fn acquire(client: &Client, ask: &Ask) -> Option<Held> {
    let &Ask { op, mode, policy, limit, owned, .. } = ask;
    let (lock, begin) = (ask.lock.to_owned(), now());
    let deadline = limit.map(|limit| begin + nanos(limit));
    let owner = owned.then(|| client.owner_number());
    client.record.at(begin, What::Invoke { op, lock, mode, policy, deadline, owner });
    // Callers leave at any moment.
    let leaves = client.random(|random| random.u8(0..8) == 0) && !client.plan.naive && ask.lock != SPARE;
    let patience = if leaves { client.up_to(client.ttl()) } else { Duration::from_secs(60) };
    match tokio::time::timeout(patience, send(client, ask)).await {
        Ok(Ok(held)) => {
            let t = now();
            let left = nanos(held.remaining());
            // A guard whose validity has ended meanwhile claims nothing.
            if left == 0 {
                client.record.at(t, What::Info { op });
                return None;
            }
            let valid = if client.plan.naive { u64::MAX } else { t + left };
            if let Some(claim) = held.claim(client.plan.p) {
                client.record.at(t, What::Under { op, claim });
            }
            client.record.at(t, What::Ok { op, tok: held.token().get(), valid });
            Some(held)
        }
        Ok(Err(error)) => {
            client.record.now(refusal(op, &error));
            None
        }
        Err(_) => {
            client.record.now(What::Info { op });
            None
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
    let lock = if ask.owned { lock.owner(&client.owner) } else { lock };
    let lock = if ask.policy == Policy::Fast { lock.fast() } else { lock };
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
        ErrorKind::TimedOut | ErrorKind::Unavailable => What::Fail { op, busy: false },
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

/// Notes the loss, when it is reported.
pub(crate) async fn watch(client: Rc<Client>, op: u64, lost: Lost) {
    let loss = lost.await;
    if loss != Loss::Released {
        client.record.now(What::Lost { op, why: format!("{loss:?}") });
    }
}

async fn hold(client: &Client, ask: &Ask, held: &Held, resource: &mut Connection) {
    let op = ask.op;
    // Mostly for a moment, sometimes for longer than a lease.
    let long = match client.random(|random| random.u8(0..24)) {
        0 => 5 * client.ttl(),
        1..4 => 2 * client.ttl(),
        _ => client.ttl() / 10,
    };
    let mut length = Length::Until(now() + nanos(client.up_to(long)));
    if client.plan.naive {
        length = Length::Uses(client.random(|random| random.u8(10..60)));
    } else if ask.lock == SPARE {
        length = Length::Uses(1);
    }
    loop {
        let t = now();
        let left = nanos(held.remaining());
        if client.plan.naive {
            client.record.at(t, What::Use { op, valid: u64::MAX });
        } else if left > 0 {
            client.record.at(t, What::Use { op, valid: t + left });
        } else {
            return;
        }
        if ask.mode.is_exclusive() && !write(client, ask, held.token(), resource).await && !client.plan.naive {
            return;
        }
        if let Held::Guard(guard) = held
            && ask.lock == CATALOG
            && ask.mode == Mode::Exclusive
            && client.random(|random| random.u8(0..4) == 0)
        {
            return downgrade(client, op, guard).await;
        }
        match &mut length {
            Length::Until(end) if now() >= *end => return,
            Length::Uses(1) => return,
            Length::Uses(left) => *left -= 1,
            Length::Until(_) => {}
        }
        tokio::time::sleep(client.up_to(client.ttl() / 20) + Duration::from_millis(2)).await;
    }
}

/// Makes a hold a shared one, and says meanwhile until when it is valid: it may be renewed.
async fn downgrade(client: &Client, op: u64, guard: &Guard) {
    client.record.now(What::Downgrade { op });
    let mut downgrade = std::pin::pin!(guard.downgrade());
    loop {
        tokio::select! {
            // Whether or not it succeeds, it excludes no reader from here on.
            _ = &mut downgrade => return,
            () = tokio::time::sleep(client.ttl() / 20) => {}
        }
        let (t, left) = (now(), nanos(guard.remaining()));
        if left > 0 {
            client.record.at(t, What::Use { op, valid: t + left });
        }
    }
}

/// Writes with this token. Returns whether it was accepted, or is not known.
async fn write(client: &Client, ask: &Ask, token: FencingToken, resource: &mut Connection) -> bool {
    let write = Write1 { op: ask.op, lock: ask.lock.to_owned(), tok: token.get(), fenced: !client.plan.naive };
    match resource.write(&write).await {
        Ok(accepted) => accepted,
        Err(_) => {
            *resource = Connection::to(&client.plan.resource);
            true
        }
    }
}

async fn end(client: &Client, ask: &Ask, held: Held, resource: &mut Connection) {
    let (op, token) = (ask.op, held.token());
    if held.remaining().is_zero() && ask.mode.is_exclusive() && !client.plan.naive {
        // A write that was on its way when the lock was lost: the resource refuses it if somebody has written since.
        tokio::time::sleep(client.up_to(client.ttl())).await;
        write(client, ask, token, resource).await;
    }
    let dropped = client.random(|random| random.u8(0..4) == 0) && ask.lock != SPARE;
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
