//! A thread beside the runtime of a client whose library runs on a thread of its own: it says until when holds are valid, and
//! hears of losses, also while that runtime is blocked. In the other clients a task of the same runtime hears of them.

use std::{
    rc::Rc,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use leasehold::{Held, Loss};
use leasehold_chaos::What;
use tokio::{sync::mpsc, task::LocalSet};

use super::{
    client::{Client, Plan, note_stalls, runtime},
    kind::nanos,
    recorder::{Record, now},
};

/// The way to that thread.
pub(crate) struct Aside(mpsc::UnboundedSender<(u64, Held, Watched)>);

/// A hold that is watched.
#[derive(Clone, Default)]
pub(crate) struct Watched(Arc<Mutex<bool>>);

impl Watched {
    /// It is about to be released: from here on nobody says that it is valid.
    pub(crate) fn ends(&self) {
        *self.0.lock().unwrap() = true;
    }
}

impl Aside {
    pub(crate) fn start(plan: &Plan) -> Aside {
        let (send, mut holds) = mpsc::unbounded_channel();
        let record = || Record::new(&plan.folder, plan.p);
        let (stalls, record, tick) = (record(), Arc::new(record()), plan.kind.ttl() / 10);
        thread::spawn(move || {
            LocalSet::new().block_on(&runtime(), async move {
                tokio::task::spawn_local(note_stalls(stalls, true));
                while let Some((op, held, watched)) = holds.recv().await {
                    tokio::task::spawn_local(follow(record.clone(), op, held, watched, tick));
                }
            });
        });
        Aside(send)
    }
}

/// Watches a hold: its loss is noted when it is reported.
pub(crate) fn watch(client: &Rc<Client>, op: u64, held: Held) -> Watched {
    let watched = Watched::default();
    match &client.aside {
        // The thread lives as long as the client does.
        Some(Aside(holds)) => drop(holds.send((op, held, watched.clone()))),
        None => {
            let client = client.clone();
            tokio::task::spawn_local(
                async move { note(&client.record, op, held.lost().await, false) },
            );
        }
    }
    watched
}

async fn follow(record: Arc<Record>, op: u64, held: Held, watched: Watched, tick: Duration) {
    let mut lost = held.lost();
    loop {
        tokio::select! {
            biased;
            loss = &mut lost => return note(&record, op, loss, true),
            () = tokio::time::sleep(tick) => {}
        }
        let over = watched.0.lock().unwrap();
        let (t, left) = (now(), nanos(held.remaining()));
        if left > 0 && !*over {
            record.at(
                t,
                What::Use {
                    op,
                    valid: t + left,
                },
            );
        }
    }
}

fn note(record: &Record, op: u64, loss: Loss, aside: bool) {
    if loss != Loss::Released {
        record.now(What::Lost {
            op,
            why: format!("{loss:?}"),
            aside,
        });
    }
}
