//! `observe`.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Name;
use leasehold_core::seam::Subscription;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::claim::shared::Shared;
use crate::client::pool::Pool;
use crate::client::request::Request;
use crate::entry::millis;

/// For how long the server rings an observer that says nothing more, and how often it says so.
const OBSERVES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// A name that is observed until this is dropped.
struct Observed {
    task: AbortHandle,
    verbs: Arc<Pool>,
    runtime: tokio::runtime::Handle,
    statement: Arc<str>,
    name: Name,
    channel: String,
}

impl Shared {
    pub(crate) fn observe(&self, name: &Name) -> Subscription {
        if !self.is_rung() {
            return Subscription::none();
        }
        let (statement, channel, verbs) = (self.statements.observe.clone(), self.client.clone(), self.verbs().clone());
        let (notifier, observed) = (self.notifier.clone(), name.clone());
        let task = {
            let (verbs, statement, channel) = (verbs.clone(), statement.clone(), channel.clone());
            self.runtime().spawn(async move {
                let mut is_first = true;
                loop {
                    let done = verbs.call(request(&statement, &observed, &channel, OBSERVES.0)).await.is_ok();
                    if done && std::mem::take(&mut is_first) {
                        notifier.holder_changed(&observed);
                    }
                    if verbs.is_closed() {
                        return;
                    }
                    sleep(if done { OBSERVES.1 } else { Duration::from_secs(1) }).await;
                }
            })
        };
        let task = task.abort_handle();
        Subscription::new(Observed {
            task,
            verbs,
            runtime: self.runtime().clone(),
            statement,
            name: name.clone(),
            channel,
        })
    }
}

fn request(statement: &Arc<str>, name: &Name, channel: &str, rest: Duration) -> Request {
    Request::new(statement).text(name.as_str()).text(channel).number(millis(rest))
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.task.abort();
        if !self.verbs.is_closed() {
            let (verbs, end) =
                (self.verbs.clone(), request(&self.statement, &self.name, &self.channel, Duration::ZERO));
            self.runtime.spawn(async move { verbs.call(end).await.map(drop) });
        }
    }
}
