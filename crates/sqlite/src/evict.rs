//! `evict`.

use leasehold_core::backend::Moment;
use leasehold_core::{FencingToken, Name, Result};
use rusqlite::params;

use crate::claim::queue::{Message, Queues, gone};
use crate::client::words::Word;
use crate::client::worker::Client;
use crate::entry::entries;

impl Client {
    /// Ends the hold that has this token. A client that only looks begins no file anew for it: in a
    /// file that nobody may use any more there is no hold.
    pub(crate) fn evict(
        &mut self,
        name: &Name,
        token: FencingToken,
        deadline: Moment,
    ) -> Result<bool> {
        self.catch_up()?;
        match self.file.is_in_use() {
            true => self.write(deadline, |queues| queues.evict(name.as_str(), token)),
            false => Ok(false),
        }
    }
}

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
