//! Two locks at once, as `multi_lock` takes them. In the history each of them is an acquisition of its own.

use std::{rc::Rc, time::Duration};

use leasehold::{ErrorKind, Guard, MultiGuard};
use leasehold_chaos::{Mode, Policy, What};

use super::{
    aside::watch,
    client::Client,
    kind::nanos,
    recorder::now,
    resource::{Connection, Write1},
    work::{ORDERS, ORDERS_1, unexpected},
};

const NAMES: [&str; 2] = [ORDERS, ORDERS_1];

/// Takes both, uses both, and gives both back.
pub(crate) async fn both(client: &Rc<Client>, resource: &mut Connection) {
    let ops = [client.op(), client.op()];
    // Who waits for the second name has the first one, and nobody can see that.
    let (begin, limit) = (
        now(),
        client.up_to(client.ttl().min(Duration::from_secs(2))),
    );
    let tries = client.random(|random| random.bool());
    for (op, lock) in ops.into_iter().zip(NAMES) {
        // Whoever waits for the second lock while it has the first one does not stand in the first queue: nobody may expect it there.
        let (lock, deadline) = (lock.to_owned(), (!tries).then(|| begin + nanos(limit)));
        let ask = What::Invoke {
            op,
            lock,
            mode: Mode::Exclusive,
            policy: Policy::Try,
            deadline,
            owner: None,
        };
        client.record.at(begin, ask);
    }
    let locks = client.store.multi_lock(NAMES).label("both");
    let acquired = if tries {
        locks.try_acquire().await
    } else {
        locks.acquire_timeout(limit).await
    };
    let t = now();
    let held = match acquired {
        Ok(held) => held,
        Err(error) => {
            let refused = matches!(
                error.kind(),
                ErrorKind::Contended
                    | ErrorKind::TimedOut
                    | ErrorKind::Unavailable
                    | ErrorKind::OtherStore
            );
            if !refused && !matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::Lost) {
                unexpected("acquiring both", &error);
            }
            // Which of the two was in the way is not said of each.
            let ended = |op| {
                if refused {
                    What::Fail { op, busy: false }
                } else {
                    What::Info { op }
                }
            };
            return ops
                .into_iter()
                .for_each(|op| client.record.at(t, ended(op)));
        }
    };
    // Guards whose validity has ended meanwhile claim nothing.
    if held.remaining().is_zero() {
        return ops
            .into_iter()
            .for_each(|op| client.record.at(t, What::Info { op }));
    }
    let mut watched = Vec::new();
    for (op, guard) in ops.into_iter().zip(guards(&held)) {
        let (tok, valid) = (
            guard.fencing_token().get(),
            t + nanos(guard.remaining()).max(1),
        );
        client.record.at(t, What::Ok { op, tok, valid });
        watched.push(watch(client, op, guard.view()));
    }
    use_both(client, ops, &held, resource).await;
    for (op, watched) in ops.into_iter().zip(watched) {
        watched.ends();
        client.record.now(What::Release { op, dropped: false });
    }
    let released = held.release().await.is_ok();
    for op in ops {
        client.record.now(if released {
            What::Released { op }
        } else {
            What::Unreleased { op }
        });
    }
}

/// Their guards, in the order of the names.
fn guards(held: &MultiGuard) -> impl Iterator<Item = &Guard> {
    NAMES.into_iter().filter_map(|name| held.get(name))
}

async fn use_both(client: &Client, ops: [u64; 2], held: &MultiGuard, resource: &mut Connection) {
    let until = now() + nanos(client.up_to(client.ttl() / 4));
    while now() < until {
        for ((op, lock), guard) in ops.into_iter().zip(NAMES).zip(guards(held)) {
            let (t, left) = (now(), nanos(guard.remaining()));
            if left == 0 {
                return;
            }
            client.record.at(
                t,
                What::Use {
                    op,
                    valid: t + left,
                },
            );
            let write = Write1 {
                op,
                lock: lock.to_owned(),
                tok: guard.fencing_token().get(),
                fenced: true,
            };
            if !matches!(resource.write(&write).await, Ok(true)) {
                *resource = Connection::of(&client.plan);
                return;
            }
        }
        tokio::time::sleep(client.up_to(client.ttl() / 20)).await;
    }
}
