//! Ending the hold of another client.

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use leasehold_core::seam::{place_of_token, token_of_place};
use leasehold_core::{FencingToken, Name, Result};

use crate::claim::shared::Shared;
use crate::client::cluster::put;
use crate::entry::participant;
use crate::names::lease_of;

impl Shared {
    /// Ends the hold with this token, and leaves a note of it under its session's lease: without the note, if the server stores
    /// nothing more.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let (read, first) = (self.read(name).await?, token_of_place(place_of_token(token)));
        let mut holds = read.oldest.iter().take(read.lock_queue().holders.len());
        let is_it = |hold: &&KeyValue| participant(&read.prefix, hold).1.token == Some(first);
        let Some(hold) = holds.find(is_it) else { return Ok(false) };
        let created = hold.create_revision();
        let still = Compare::create_revision(hold.key(), CompareOp::Equal, created);
        let key = hold.key_str().unwrap_or_default();
        let delete = vec![TxnOp::delete(key, None), TxnOp::delete(self.keys.turn(key), None)];
        let mut then = delete.clone();
        // A hold that lapses was moved from its session's lease to another: its client has released it and reads no note.
        if lease_of(&read.prefix, hold.key()) == Some(hold.lease()) {
            then.push(put(hold.lease(), &self.keys.eviction(created, key), ""));
        }
        match self.cluster.change(still.clone(), then).await {
            // Its holder learns it from its next renewal.
            Err(failure) if failure.is_full() => Ok(self.cluster.change(still, delete).await?),
            evicted => Ok(evicted?),
        }
    }
}
