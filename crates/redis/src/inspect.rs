//! `inspect`. For `list`, `link` has a walk of all keys.

use std::time::Duration;

use crate::link::{Connection, Fields, foreign, junk, record};
use leasehold_core::{LockQueue, Name, Result};
use redis::Value;

use crate::scripts::INSPECT;
use crate::{Redis, entry};

/// The time for which changes of a name are published after one of its observers has looked.
/// Observers look each second.
const OBSERVES: Duration = Duration::from_secs(20);

impl Redis {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let call = |_: &Connection| {
            let call = self.on(&INSPECT, name);
            Ok(if self.nodes.observes(name) {
                call.arg(OBSERVES.as_millis())
            } else {
                call
            })
        };
        let Value::Array(records) = self.run(name, call).await? else {
            return Err(junk("the answer to an inspection"));
        };
        let entry = |answer: &Value| {
            let text = record(answer)?;
            let mut fields = Fields::of(&text);
            match text.strip_prefix("foreign ") {
                Some(_) => {
                    fields.word();
                    foreign(fields.word(), fields)
                }
                None => entry::read(fields),
            }
        };
        let entries = records.iter().map(entry).collect::<Result<Vec<_>>>()?;
        let (holders, waiters) = entries
            .into_iter()
            .partition(|entry| entry.foreign || entry.token.is_some());
        Ok(LockQueue::new(holders, waiters))
    }
}
