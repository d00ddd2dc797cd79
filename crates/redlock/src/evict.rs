//! `evict`.

use leasehold_core::{FencingToken, Name, Result};
use leasehold_redis_client::record;

use crate::Shared;

impl Shared {
    /// Ends the hold where it is known by this token. Another node may have it under a token of its own, as long as its client
    /// has not agreed on one with all, or get it only now: all are told whose hold it was, and that it is gone.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        // Nodes that do not answer may still have it, and are no majority.
        let answers = self.nodes.majority_of(self.ask("evict", name, &token.to_string()), true).await?;
        let mut evicted = Vec::new();
        for answer in &answers {
            let answer = record(answer)?;
            if let Some(hold) = answer.strip_prefix("evicted ") {
                evicted.push(hold.to_owned());
            }
        }
        let ended = evicted.len();
        evicted.sort_unstable();
        evicted.dedup();
        for hold in evicted.iter().filter(|hold| ended < self.nodes.len() && *hold != "foreign") {
            let call = hold.split(' ').fold(self.on(name).arg("bar"), |call, word| call.arg(word));
            self.nodes.majority_of(self.nodes.send(call), true).await?;
        }
        Ok(ended > 0)
    }
}
