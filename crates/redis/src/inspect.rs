//! `inspect`. For `list`, `leasehold-redis-client` has a walk of all keys.

use std::time::Duration;

use leasehold_core::{LockQueue, Name, Participant, Result};
use leasehold_redis_client::{Connection, Fields, junk, record};
use redis::Value;

use crate::scripts::INSPECT;
use crate::{Redis, entry};

/// For how long changes of a name are published after one of its observers has looked. They look each second.
const OBSERVES: Duration = Duration::from_secs(20);

impl Redis {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let call = |_: &Connection| {
            let call = self.on(&INSPECT, name);
            Ok(if self.nodes.observes(name) { call.arg(OBSERVES.as_millis()) } else { call })
        };
        let Value::Array(records) = self.run(name, call).await? else {
            return Err(junk("the answer to an inspection"));
        };
        let entry = |text: &Value| match record(text)?.as_str() {
            "foreign" => Ok(Participant::foreign()),
            text => entry::read(Fields::of(text)),
        };
        let entries = records.iter().map(entry).collect::<Result<Vec<_>>>()?;
        let (holders, waiters) = entries.into_iter().partition(|entry| entry.foreign || entry.token.is_some());
        Ok(LockQueue::new(holders, waiters))
    }
}
