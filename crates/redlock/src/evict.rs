//! `evict`.

use leasehold_core::{FencingToken, Name, Result};
use leasehold_redis_client::{Fields, record};

use crate::Shared;

impl Shared {
    /// Ends the hold where it is known by this token. Another node may have it under a token of its own, as long as its client
    /// has not agreed on one with all, or get it only now: all are told that it is gone.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        // Nodes that do not answer may still have it, and are no majority.
        let answers = self.nodes.majority_of(self.ask("evict", name, &token.to_string()), true).await?;
        let (mut evicted, mut hold) = (0, None);
        for answer in &answers {
            let answer = record(answer)?;
            let mut fields = Fields::of(&answer);
            if fields.word() == "evicted" {
                evicted += 1;
                hold = Some((fields.token()?, fields.word().to_owned()));
            }
        }
        let Some((first, ttl)) = hold else { return Ok(false) };
        if evicted < self.nodes.len() && first.get() > 0 {
            let call = self.on(name).arg("bar").arg(first).arg(ttl);
            self.nodes.majority_of(self.nodes.send(call), true).await?;
        }
        Ok(true)
    }
}
