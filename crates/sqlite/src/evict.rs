//! `evict`.

use leasehold_core::FencingToken;
use rusqlite::{OptionalExtension, params};

use crate::claim::queue::{Message, Queues};
use crate::entry::{Entry, entries};

impl Queues<'_> {
    /// Ends the hold that has this token, and notifies its client.
    pub(crate) fn evict(&mut self, name: &str, token: FencingToken) -> rusqlite::Result<bool> {
        let owner = entries!("WHERE p.name = ?1 AND p.token <= ?2 AND ?2 < p.token + p.turns AND s.until > ?3");
        let owner = self.tx.prepare_cached(owner)?;
        let owner = { owner }.query_row(params![name, token.as_i64(), self.now], Entry::read).optional()?;
        let Some(owner) = owner else { return Ok(false) };
        let text = format!("evicted {}", owner.claim);
        self.messages.push(Message { to: owner.client, name: name.to_owned(), text });
        self.remove("DELETE FROM place WHERE seq = ?1 RETURNING name, token IS NOT NULL", [owner.seq])?;
        Ok(true)
    }
}
