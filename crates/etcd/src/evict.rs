//! Ending the hold of another client.

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use leasehold_core::backend::{place_of_token, token_of_place};
use leasehold_core::{FencingToken, Name, Result};

use crate::claim::shared::Shared;
use crate::client::cluster::put;
use crate::entry::participant;
use crate::names::lease_of;

impl Shared {
    /// Ends the hold with this token and leaves a note of it under its session's lease; a server
    /// that is full gets no note.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let read = self.read(name).await?;
        let first = token_of_place(place_of_token(token));
        let mut holds = read.oldest.iter().take(read.lock_queue().holders.len());
        let is_it = |hold: &&KeyValue| participant(&read.prefix, hold).1.token == Some(first);
        let Some(hold) = holds.find(is_it) else {
            return Ok(false);
        };
        let created = hold.create_revision();
        let still = Compare::create_revision(hold.key(), CompareOp::Equal, created);
        let key = hold.key_str().unwrap_or_default();
        let delete = vec![
            TxnOp::delete(key, None),
            TxnOp::delete(self.keys.turn(key), None),
        ];
        let mut then = delete.clone();
        // A hold that lapses was moved from its session's lease to another one: its client has
        // released it and reads no note.
        if lease_of(&read.prefix, hold.key()) == Some(hold.lease()) {
            then.push(put(hold.lease(), &self.keys.eviction(created, key), ""));
        }
        match self.cluster.change(still.clone(), then).await {
            // The holder learns of the eviction from its next renewal.
            Err(failure) if failure.is_full() => Ok(self.cluster.change(still, delete).await?),
            evicted => Ok(evicted?),
        }
    }
}
