//! Who rings other clients: a task with one request at a time. A commit that notifies waits for all others of the database that do, so
//! several at once would keep the connections from the verbs, and gain nothing.

use std::sync::{Arc, Mutex};

use leasehold_core::support::locked;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::client::pool::Pool;
use crate::client::request::Request;

/// How many are rung by one request.
const AT_ONCE: usize = 1_000;
/// It is a transaction of its own, so that it holds up no verb. It gives up before its connection is given up.
const RING: &str =
    "SELECT set_config('lock_timeout', $3::text, true), pg_notify(c, p) FROM unnest($1::text[], $2::text[]) r(c, p)";

/// A channel, and what is said there.
pub(crate) type Ring = (String, String);

/// Rings for one client of the store.
pub(crate) struct Ringer {
    due: Mutex<Option<UnboundedSender<Ring>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Ringer {
    /// By connections of this pool; a ring waits no longer than so many milliseconds for others.
    pub(crate) fn new(pool: &Arc<Pool>, patience: i32, runtime: &Handle) -> Ringer {
        let (sender, due) = unbounded_channel();
        let task = runtime.spawn(ringing(pool.clone(), patience, due));
        Ringer { due: Mutex::new(Some(sender)), task: Mutex::new(Some(task)) }
    }

    /// Rings all of these, soon. What fails is not repeated: who was granted something finds it by its next renewal.
    pub(crate) fn ring(&self, rings: Vec<Ring>) {
        if let Some(due) = &*locked(&self.due) {
            // It ends with the runtime.
            rings.into_iter().for_each(|ring| drop(due.send(ring)));
        }
    }

    /// Rings what is due, and then no more.
    pub(crate) async fn end(&self) {
        drop(locked(&self.due).take());
        let task = locked(&self.task).take();
        if let Some(task) = task {
            // It ends with the runtime.
            let _ = task.await;
        }
    }
}

async fn ringing(pool: Arc<Pool>, patience: i32, mut due: UnboundedReceiver<Ring>) {
    let (sql, mut some) = (Arc::from(RING), Vec::new());
    while due.recv_many(&mut some, AT_ONCE).await > 0 {
        let (channels, said) = some.drain(..).unzip();
        let ring = Request::new(&sql).texts(channels).texts(said).text(&patience.to_string());
        let _ = pool.call(ring).await;
    }
}
