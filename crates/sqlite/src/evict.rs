//! `evict`.

use leasehold_core::FencingToken;
use rusqlite::params;

use crate::claim::queue::{Message, Queues, gone};
use crate::client::words::Word;
use crate::entry::entries;

impl Queues<'_> {
    /// Ends the hold that has this token, and notifies its client.
    pub(crate) fn evict(&mut self, name: &str, token: FencingToken) -> rusqlite::Result<bool> {
        let of_token = entries!(
            "WHERE p.name = ?1 AND p.token <= ?2 AND ?2 < p.token + p.turns AND s.until > ?3"
        );
        let Some(hold) = self.entry(of_token, params![name, token.as_i64(), self.now])? else {
            return Ok(false);
        };
        let word = Word::Evicted(hold.claim);
        self.messages.push(Message {
            to: hold.client,
            name: name.to_owned(),
            word,
        });
        let remove = gone!("DELETE FROM place WHERE name = ?1 AND seq = ?2");
        self.remove(remove, params![name, hold.seq])?;
        Ok(true)
    }
}
