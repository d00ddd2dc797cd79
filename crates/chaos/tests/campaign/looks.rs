//! What a client sees beside its own locks: queues, and who leads.

use std::{rc::Rc, time::Duration};

use leasehold::FencingToken;
use leasehold_chaos::What;

use super::{
    client::Client,
    recorder::now,
    work::{LEADER, LOCKS},
};

/// Looks at queues, and notes who is in them.
pub(crate) async fn look(client: Rc<Client>) {
    while !client.drains() {
        tokio::time::sleep(client.up_to(client.ttl() / 4)).await;
        let lock = client.random(|random| LOCKS[random.usize(0..LOCKS.len())]);
        let Ok(queue) = client.store.lock(lock).inspect().await else {
            continue;
        };
        let t = now();
        let labels = queue
            .waiters
            .iter()
            .filter_map(|waiter| waiter.label.as_deref()?.strip_prefix("op-")?.parse().ok());
        for op in labels {
            client.record.at(t, What::Queued { op });
        }
    }
}

/// Watches the election, and notes who leads.
pub(crate) async fn observe(client: Rc<Client>) {
    let op = client.op();
    let election = client.store.election(LEADER);
    while !client.drains() {
        let Ok(mut observer) = election.observe().await else {
            tokio::time::sleep(client.ttl() / 4).await;
            continue;
        };
        loop {
            if let Some(leader) = observer.current() {
                let (lock, tok) = (LEADER.to_owned(), leader.token.get());
                client.record.now(What::Observed { op, lock, tok });
            }
            let known = observer.current().map(|leader| leader.token);
            let changed = tokio::select! {
                changed = observer.changed() => changed,
                leads = another(&client, known) => {
                    break eprintln!("UNEXPECTED: {leads:?} leads, and {op} was told of {known:?} long ago");
                }
            };
            if changed.is_err() {
                break;
            }
        }
    }
}

/// Who leads, once that was not whom the observer was told of for longer than a dead connection may go unnoticed, while this runtime ran.
async fn another(client: &Client, known: Option<FencingToken>) -> Option<FencingToken> {
    let (mut looks, each) = (0, Duration::from_millis(250));
    let enough = (client.plan.kind.settle() + Duration::from_secs(4)).div_duration_f64(each) as u32;
    while !client.drains() {
        tokio::time::sleep(each).await;
        let queue = client.store.lock(LEADER).inspect().await;
        let leads = queue
            .ok()
            .map(|queue| queue.holders.first().and_then(|holder| holder.token));
        looks = if leads.is_some_and(|leads| leads != known) {
            looks + 1
        } else {
            0
        };
        if looks == enough {
            return leads.flatten();
        }
    }
    std::future::pending().await
}
