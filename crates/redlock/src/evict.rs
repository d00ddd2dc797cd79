//! `evict`.

use leasehold_core::{FencingToken, Name, Result};
use leasehold_redis_client::record;

use crate::Shared;

impl Shared {
    /// Ends the hold where it is known by this token. Another node may have it under a token of its own, as long as its client
    /// has not agreed on one with all, or get it only now: all get the hash of its claim, and end it too. Says whether a majority
    /// may have had it: what a release, or an eviction before, has left on a minority is no hold any more.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        // Nodes that do not answer may still have it, and are no majority.
        let answers = self.nodes.majority_of(self.ask("evict", name, &token.to_string()), true).await?;
        let silent = self.nodes.len() - answers.len();
        let answers = answers.iter().map(record).collect::<Result<Vec<_>>>()?;
        let mut evicted: Vec<&str> = answers.iter().filter_map(|answer| answer.strip_prefix("evicted ")).collect();
        let (here, mut ended) = (evicted.len(), evicted.len());
        evicted.sort_unstable();
        evicted.dedup();
        for hold in evicted.into_iter().filter(|hold| here < self.nodes.len() && *hold != "foreign") {
            let call = hold.split(' ').fold(self.on(name).arg("bar"), |call, word| call.arg(word));
            let answers = self.nodes.majority_of(self.nodes.send(call), true).await?;
            for answer in &answers {
                ended += usize::from(record(answer)? == "ended");
            }
        }
        Ok(ended > 0 && ended + silent >= self.nodes.majority())
    }
}
