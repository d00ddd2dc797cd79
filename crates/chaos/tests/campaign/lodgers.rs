//! Runtimes that use a store beside the one in which most tasks of its client are: they end, and others begin.

use std::{
    rc::Rc,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use leasehold::Store;
use tokio::{runtime::Runtime, sync::watch, task::LocalSet};

use super::{
    client::{Client, Plan, connect, note_stalls, runtime},
    recorder::Record,
    work,
};

/// The thread of these runtimes, and the store that they use. The last of them is left as it is: nobody drives
/// it, and it has not ended.
pub(crate) struct Lodgers {
    pub(crate) store: Store,
    pub(crate) thread: JoinHandle<Runtime>,
}

impl Lodgers {
    /// The first of them connects the store, and all use it until the client drains. Nothing, if it drains before it has connected.
    pub(crate) fn start(plan: Plan, draining: watch::Receiver<bool>) -> Option<Lodgers> {
        let mut store = None;
        let (send, connected) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut nth = 1;
            loop {
                let runtime = runtime();
                if !LocalSet::new()
                    .block_on(&runtime, live(&plan, &draining, nth, &mut store, &send))
                {
                    return runtime;
                }
                nth += 1;
            }
        });
        Some(Lodgers {
            store: connected.recv().ok()?,
            thread,
        })
    }
}

/// Works for some leases, and ends what it has begun. Says whether there is more to do.
async fn live(
    plan: &Plan,
    draining: &watch::Receiver<bool>,
    nth: u64,
    store: &mut Option<Store>,
    connected: &mpsc::Sender<Store>,
) -> bool {
    if store.is_none() {
        *store = connect(plan, draining).await;
    }
    let Some(store) = store.clone() else {
        return false;
    };
    let record = Record::new(&plan.folder, plan.p);
    let (leave, leaving) = watch::channel(false);
    let client = Rc::new(Client::new(plan.clone(), store.clone(), record, leaving).lodger(nth));
    tokio::task::spawn_local(note_stalls(Record::new(&plan.folder, plan.p), false));
    let tasks: Vec<_> = (0..2)
        .map(|_| tokio::task::spawn_local(work::work(client.clone())))
        .collect();
    if nth == 1 {
        // The store is kept here before others use it.
        tokio::time::sleep(client.ttl() / 10).await;
        let _ = connected.send(store);
    }
    let mut drains = draining.clone();
    let until = client.ttl() + client.up_to(4 * client.ttl());
    let drained = tokio::time::timeout(until, drains.wait_for(|drains| *drains))
        .await
        .is_ok();
    leave.send_replace(true);
    for task in tasks {
        task.await.unwrap();
    }
    !drained
}
