//! `inspect` and `list`: what a majority says counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_core::{FencingToken, LockQueue, Name, Participant, Result};
use leasehold_redis_client::{Fields, junk, record, walk};
use redis::Value;

use crate::Shared;
use crate::client::nodes::InFlight;

/// What one node says of a holder or a waiter.
struct Said {
    token: FencingToken,
    since: Duration,
    label: String,
}

impl Shared {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let mut seen: BTreeMap<(String, String), Vec<Said>> = BTreeMap::new();
        for answer in self.nodes.majority_of(self.ask("inspect", name, "-"), true).await? {
            let Value::Array(records) = answer else { return Err(junk("the answer to an inspection")) };
            for text in &records {
                let text = record(text)?;
                let mut fields = Fields::of(&text);
                let (kind, who) = (fields.word().to_owned(), fields.word().to_owned());
                let (token, since) = (fields.token()?, fields.millis()?);
                let said = Said { token, since, label: fields.text().to_owned() };
                seen.entry((kind, who)).or_default().push(said);
            }
        }
        let mut certain: Vec<_> = seen.into_iter().filter(|(_, said)| said.len() >= self.nodes.majority()).collect();
        certain.sort_by_key(|(_, said)| said.iter().map(|said| said.since).min());
        let mut queue = LockQueue::default();
        for ((kind, _), said) in certain {
            let since = said.iter().map(|said| said.since).min().unwrap_or_default();
            // A node that was away may know an older label.
            let agree = |label: &str| said.iter().filter(|said| said.label == label).count();
            let label = said.iter().map(|said| &said.label).max_by_key(|label| agree(label));
            let entry = Participant::new(label.map_or("", String::as_str)).since(SystemTime::UNIX_EPOCH + since);
            let times = |token| said.iter().filter(|said| said.token == token).count();
            match (kind.as_str(), said.iter().map(|said| said.token).max_by_key(|token| times(*token))) {
                ("waits", _) => queue.waiters.push(entry),
                ("held", Some(token)) => queue.holders.push(entry.token(token)),
                _ => queue.holders.push(Participant::foreign()),
            }
        }
        Ok(queue)
    }

    /// Names that a majority has.
    pub(crate) async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let request = Arc::new((self.names.clone(), prefix.to_owned(), after.cloned()));
        let walks = self.nodes.ask(|connection| {
            let request = request.clone();
            async move {
                let (names, prefix, after) = &*request;
                walk(&connection, names, prefix, after.as_ref(), usize::MAX).await
            }
        });
        let mut votes: BTreeMap<Name, usize> = BTreeMap::new();
        for name in self.nodes.majority_of(walks, true).await?.into_iter().flatten() {
            *votes.entry(name).or_default() += 1;
        }
        let certain = votes.into_iter().filter(|(_, votes)| *votes >= self.nodes.majority());
        Ok(certain.map(|(name, _)| name).take(limit).collect())
    }

    pub(crate) fn ask(&self, verb: &str, name: &Name, what: &str) -> InFlight<Result<Value>> {
        self.nodes.send(self.on(name).arg(verb).arg(what))
    }
}
