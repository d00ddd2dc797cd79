//! `inspect` and `list`: the answer of a majority counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::link::{Fields, Keys, foreign, junk, record, walk};
use leasehold_core::{LockQueue, Name, Participant, Result};
use redis::Value;

use crate::redlock::Shared;
use crate::redlock::client::nodes::InFlight;

impl Shared {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        // The entries of all nodes, by their kind and the hash of their claim.
        let mut seen: BTreeMap<(String, String), Vec<Participant>> = BTreeMap::new();
        for answer in self
            .nodes
            .majority_of(self.ask("inspect", name, "-"), true)
            .await?
        {
            for text in records(&answer)? {
                let mut fields = Fields::of(&text);
                let one = (fields.word().to_owned(), fields.word().to_owned());
                if one.0 == "foreign" {
                    let entry = foreign(&one.1, fields)?;
                    seen.entry(one).or_default().push(entry);
                    continue;
                }
                let token = fields.token()?;
                let since = SystemTime::UNIX_EPOCH + fields.millis()?;
                let _only_for_evict = [fields.word(), fields.word(), fields.word()];
                seen.entry(one)
                    .or_default()
                    .push(Participant::new(fields.text()).token(token).since(since));
            }
        }
        let mut certain: Vec<_> = seen
            .into_iter()
            .filter(|(_, said)| said.len() >= self.nodes.majority())
            .collect();
        certain.sort_by_key(|(_, said)| said.iter().map(|said| said.since).min());
        let mut queue = LockQueue::default();
        for ((kind, _), said) in certain {
            let mut entry = Participant::default();
            entry.since = said.iter().filter_map(|said| said.since).min();
            // A node that was away may know an older label.
            entry.label = most(&said, |said| said.label.clone());
            match kind.as_str() {
                "waits" => queue.waiters.push(entry),
                "held" => {
                    // Until a client has agreed on a token with a majority, each node reports its
                    // own.
                    entry.token = most(&said, |said| said.token).filter(|token| {
                        said.iter()
                            .filter(|said| said.token == Some(*token))
                            .count()
                            >= self.nodes.majority()
                    });
                    queue.holders.push(entry);
                }
                // The entry of the node where the hold ends last.
                _ => queue
                    .holders
                    .extend(said.into_iter().max_by_key(|said| said.ends_in)),
            }
        }
        Ok(queue)
    }

    /// The names that a majority has.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        let request = Arc::new((self.names.clone(), prefix.to_owned(), after.cloned()));
        let walks = self.nodes.ask(|connection| {
            let request = request.clone();
            async move {
                let (names, prefix, after) = &*request;
                let after = after.as_ref();
                walk(&connection, names, Keys::InUse, prefix, after, usize::MAX).await
            }
        });
        let mut votes: BTreeMap<Name, usize> = BTreeMap::new();
        for name in self
            .nodes
            .majority_of(walks, true)
            .await?
            .into_iter()
            .flatten()
        {
            *votes.entry(name).or_default() += 1;
        }
        let certain = votes
            .into_iter()
            .filter(|(_, votes)| *votes >= self.nodes.majority());
        Ok(certain.map(|(name, _)| name).take(limit).collect())
    }

    pub(crate) fn ask(&self, verb: &str, name: &Name, what: &str) -> InFlight<Result<Value>> {
        self.nodes.send(self.on(name).arg(verb).arg(what))
    }
}

/// The records of a name in one node's answer.
pub(crate) fn records(answer: &Value) -> Result<Vec<String>> {
    let Value::Array(records) = answer else {
        return Err(junk("the answer to an inspection"));
    };
    records.iter().map(record).collect()
}

/// The value that most nodes report.
fn most<T: PartialEq>(said: &[Participant], of: fn(&Participant) -> Option<T>) -> Option<T> {
    said.iter()
        .map(of)
        .max_by_key(|one| said.iter().filter(|other| of(other) == *one).count())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_most_nodes_say_is_shown() {
        let label = |of: &Participant| of.label.clone();
        let said = ["a", "b", "b"].map(Participant::new);
        assert_eq!(most(&said, label).as_deref(), Some("b"));
        assert_eq!(most(&[], label), None);
    }

    #[test]
    fn an_answer_is_a_list_of_records() {
        let text = |text: &str| Value::BulkString(text.into());
        let both = Value::Array(vec![text("held a"), text("waits b")]);
        assert_eq!(records(&both).unwrap(), ["held a", "waits b"]);
        for junk in [Value::Nil, text("held a"), Value::Array(vec![Value::Nil])] {
            assert!(records(&junk).is_err(), "{junk:?}");
        }
    }
}
