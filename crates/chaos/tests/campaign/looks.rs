//! What a client sees beside its own locks: queues, and who leads.

use std::rc::Rc;

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
        let Ok(queue) = client.store.lock(lock).inspect().await else { continue };
        let t = now();
        let labels =
            queue.waiters.iter().filter_map(|waiter| waiter.label.as_deref()?.strip_prefix("op-")?.parse().ok());
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
            if observer.changed().await.is_err() {
                break;
            }
        }
    }
}
