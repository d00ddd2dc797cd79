//! What the tasks of a client do while they hold: say until when they may, write, ask the store, share.

use std::{pin::pin, time::Duration};

use leasehold::{Error, ErrorKind, FencingToken};
use leasehold_chaos::{Mode, What};
use tokio::sync::Notify;

use super::{
    client::Client,
    counter::Job,
    held::Held,
    kind::nanos,
    recorder::now,
    resource::{Connection, Write1},
    work::{Ask, CATALOG, KEPT, unexpected},
};

/// How long a lock is held.
enum Length {
    Until(u64),
    /// A pause of the process does not bring the end nearer.
    Uses(u8),
}

impl Length {
    fn of(client: &Client, ask: &Ask) -> Length {
        if client.plan.naive {
            return Length::Uses(client.random(|random| random.u8(10..60)));
        }
        if ask.is_brief() {
            return Length::Uses(1);
        }
        if ask.lock == KEPT {
            return Length::Until(now() + nanos(3 * client.ttl() + client.up_to(3 * client.ttl())));
        }
        // Mostly for a moment, sometimes for longer than a lease.
        let long = match client.random(|random| random.u8(0..24)) {
            0 => 5 * client.ttl(),
            1..4 => 2 * client.ttl(),
            _ => client.ttl() / 10,
        };
        Length::Until(now() + nanos(client.up_to(long)))
    }

    fn is_over(&mut self) -> bool {
        match self {
            Length::Until(end) => now() >= *end,
            Length::Uses(left) => {
                *left -= 1;
                *left == 0
            }
        }
    }
}

/// Uses what it holds for a while, as long as it is told that it holds.
pub(super) async fn hold(client: &Client, ask: &Ask, held: &Held, resource: &mut Connection) {
    let naive = client.plan.naive;
    let mut length = Length::of(client, ask);
    // Some do not write: nobody tells them that they are stale but the library.
    let mut writes =
        ask.mode.is_exclusive() && (naive || client.random(|random| random.u8(0..4) > 0));
    // Most do not ask the store either: that tells of what the library itself must notice.
    let asks = !naive && client.random(|random| random.u8(0..6) == 0);
    let mut may_downgrade = ask.lock == CATALOG && ask.mode == Mode::Exclusive;
    let longest = ask.most.map(|most| now() + nanos(most));
    while says_valid(client, ask, held) {
        let (t, left) = (now(), nanos(held.remaining()));
        if longest.is_some_and(|end| t + left > end) {
            eprintln!(
                "UNEXPECTED: {} is valid for longer than its max_hold",
                ask.op
            );
        }
        // A writer that is refused goes on without: it may be the holder all the same, by what the library says.
        writes = writes && (write(client, ask, held.token(), resource).await || naive);
        if writes || ask.mode == Mode::Shared {
            let counting = count(client, ask, held.token(), resource);
            let patience = leaves_within(client);
            // The caller leaves while the transaction is under way, perhaps in its commit, or its link is cut there.
            let ended = answer(client, ask, held, tokio::time::timeout(patience, counting)).await;
            if !naive && ended != Ok(true) {
                // It may still commit. This hold ends meanwhile, and nobody may count before that.
                return;
            }
        }
        if asks && client.random(|random| random.u8(0..4) == 0) {
            confirm(client, ask, held).await;
        }
        if may_downgrade && client.random(|random| random.u8(0..4) == 0) {
            (may_downgrade, writes) = (false, false);
            if !downgrade(client, ask, held, resource).await {
                return;
            }
            // Some go on so long that a reader who is not let in beside them is seen.
            if client.random(|random| random.bool()) {
                length = Length::Until(now() + nanos(Duration::from_secs(4)));
            }
        }
        if length.is_over() || !naive && client.drains() {
            return;
        }
        tokio::time::sleep(client.up_to(client.ttl() / 20) + Duration::from_millis(2)).await;
    }
}

/// Notes until when it is valid, if it is. The naive always believe that it is.
fn says_valid(client: &Client, ask: &Ask, held: &Held) -> bool {
    let (t, left) = (now(), nanos(held.remaining()));
    let valid = if client.plan.naive {
        u64::MAX
    } else {
        t + left
    };
    if valid > t {
        client.record.at(t, What::Use { op: ask.op, valid });
    }
    valid > t
}

/// Waits for an answer about what it holds, and says meanwhile until when that is valid: it may be renewed.
async fn answer<T>(client: &Client, ask: &Ask, held: &Held, asked: impl Future<Output = T>) -> T {
    let mut asked = std::pin::pin!(asked);
    loop {
        tokio::select! {
            answer = &mut asked => return answer,
            () = tokio::time::sleep(client.ttl() / 20) => {}
        }
        says_valid(client, ask, held);
    }
}

/// Asks the store, beside the renewals.
async fn confirm(client: &Client, ask: &Ask, held: &Held) {
    let confirmed = answer(client, ask, held, held.confirm()).await;
    let expected = |error: &Error| {
        matches!(
            error.kind(),
            ErrorKind::Lost
                | ErrorKind::TimedOut
                | ErrorKind::Unavailable
                | ErrorKind::OtherStore
                | ErrorKind::Ambiguous
        )
    };
    if let Some(error) = confirmed.err().filter(|error| !expected(error)) {
        unexpected("confirming", &error);
    }
}

/// Makes a hold a shared one, mostly while a transaction under it is still open. Whether or not that succeeds, which this answers, it
/// excludes no reader from here on.
async fn downgrade(client: &Client, ask: &Ask, held: &Held, resource: &mut Connection) -> bool {
    let Held::Guard(guard) = held else {
        return false;
    };
    let begun = Notify::new();
    let token = held.token();
    let mut counting = pin!(count_from(client, ask, token, resource, &begun));
    let is_open = tokio::select! {
        _ = &mut counting => false,
        () = begun.notified() => true,
    };
    client.record.now(What::Downgrade { op: ask.op });
    let downgrading = async {
        let ends = async {
            if is_open {
                counting.await;
            }
        };
        tokio::join!(guard.downgrade(), ends).0
    };
    answer(client, ask, held, downgrading).await.is_ok()
}

/// How long a caller has patience with a transaction: mostly as long as it takes.
fn leaves_within(client: &Client) -> Duration {
    if client.plan.naive || client.random(|random| random.u8(0..8) > 0) {
        Duration::from_secs(3600)
    } else {
        client.up_to(client.ttl() / 5)
    }
}

/// Writes with this token. Returns whether it was accepted, or is not known.
pub(super) async fn write(
    client: &Client,
    ask: &Ask,
    token: FencingToken,
    resource: &mut Connection,
) -> bool {
    let write = Write1 {
        op: ask.op,
        lock: ask.lock.to_owned(),
        tok: token.get(),
        fenced: !client.plan.naive,
    };
    match resource.write(&write).await {
        Ok(accepted) => accepted,
        Err(_) => {
            *resource = Connection::of(&client.plan);
            true
        }
    }
}

/// Counts in a transaction, or looks as a reader, where the locks are in a database: whether or not the lock is still held, the server decides.
/// Returns whether the transaction has ended.
pub(super) async fn count(
    client: &Client,
    ask: &Ask,
    token: FencingToken,
    resource: &mut Connection,
) -> bool {
    count_from(client, ask, token, resource, &Notify::new()).await
}

/// Counts, and notifies as soon as its transaction has the condition.
async fn count_from(
    client: &Client,
    ask: &Ask,
    token: FencingToken,
    resource: &mut Connection,
    begun: &Notify,
) -> bool {
    let looks = ask.lock == CATALOG && ask.mode == Mode::Shared;
    let Some(counter) = resource
        .counter
        .as_mut()
        .filter(|_| ask.is_alone() || looks)
    else {
        return true;
    };
    let is_held = !client.plan.naive;
    // Now and then its program stops in there: the server does not wait for that.
    let stops = is_held && client.random(|random| random.u8(0..60) == 0);
    let pause = if stops {
        2 * client.ttl()
    } else {
        client.up_to(client.ttl() / 20)
    };
    let job = Job {
        op: ask.op,
        lock: ask.lock,
        token,
        is_held,
        looks,
        pause,
        begun,
    };
    counter.run(&job, 4 * client.ttl()).await
}
