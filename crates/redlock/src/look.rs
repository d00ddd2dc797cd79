//! Looking on: inspect, list, evict. What a majority says counts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_core::seam::Observing;
use leasehold_core::{Entry, Error, FencingToken, Line, Name, Result};
use leasehold_redis::client::Value;
use leasehold_redis::parts::{Call, Fields, junk, of_name, record, scan};

use crate::nodes::Flight;
use crate::store::Store;

/// What several nodes say of one who holds or waits.
struct Seen {
    kind: String,
    times: usize,
    /// Each token that was said, and how often.
    tokens: BTreeMap<u64, usize>,
    since: u64,
    label: String,
}

impl Store {
    pub(crate) async fn look(&self, name: &Name) -> Result<Line> {
        let answers = self.ask_all(self.look_call("inspect", name, "-")).await?;
        let mut seen: HashMap<(String, String), Seen> = HashMap::new();
        for answer in answers {
            let Value::Array(records) = answer else { return Err(junk("the answer to an inspection")) };
            for text in &records {
                let text = record(text)?;
                let mut fields = Fields::of(&text);
                let (kind, who) = (fields.word().to_owned(), fields.word().to_owned());
                let (token, since) = (fields.value()?, fields.value()?);
                let entry = seen.entry((kind.clone(), who)).or_insert_with(|| Seen {
                    kind,
                    times: 0,
                    tokens: BTreeMap::new(),
                    since,
                    label: fields.text().to_owned(),
                });
                entry.times += 1;
                entry.since = entry.since.min(since);
                *entry.tokens.entry(token).or_default() += 1;
            }
        }
        let mut certain: Vec<Seen> = seen.into_values().filter(|seen| seen.times >= self.nodes.majority()).collect();
        certain.sort_by_key(|seen| seen.since);
        let mut line = Line::default();
        for seen in certain {
            match seen.kind.as_str() {
                "waits" => line.waiters.push(seen.entry()),
                "foreign" => line.holders.push(Entry::foreign()),
                _ => {
                    let token = seen.tokens.iter().max_by_key(|(_, times)| **times).map(|(token, _)| *token);
                    line.holders.push(seen.entry().token(FencingToken::new(token.unwrap_or_default())));
                }
            }
        }
        Ok(line)
    }

    pub(crate) async fn end(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let mut flight = self.nodes.send_one(self.look_call("evict", name, &token.to_string()));
        let (mut evicted, mut failed) = (0, Vec::new());
        while let Some((nth, answer)) = flight.next().await {
            match answer.and_then(|answer| record(&answer)) {
                Ok(word) => evicted += usize::from(word == "evicted"),
                Err(e) => failed.push((nth, e)),
            }
        }
        // Those that failed may still have it, and do not hold it alone unless they are a majority.
        if failed.len() >= self.nodes.majority() {
            return Err(self.nodes.failure(failed));
        }
        Ok(evicted > 0)
    }

    /// Names that a majority has. A page is complete only as far as the shortest full page of a node reaches.
    pub(crate) async fn names_after(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        while found.len() < limit {
            let pages = self.pages(prefix, after.as_ref(), limit).await?;
            let horizon = pages.iter().filter(|page| page.len() >= limit).filter_map(|page| page.last()).min().cloned();
            let mut votes: BTreeMap<&Name, usize> = BTreeMap::new();
            for name in pages.iter().flatten().filter(|name| horizon.as_ref().is_none_or(|end| *name <= end)) {
                *votes.entry(name).or_default() += 1;
            }
            let names =
                votes.into_iter().filter(|(_, votes)| *votes >= self.nodes.majority()).map(|(name, _)| name.clone());
            found.extend(names);
            if horizon.is_none() {
                break;
            }
            after = horizon;
        }
        found.truncate(limit);
        Ok(found)
    }

    /// A page of names from each node that answers.
    async fn pages(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Vec<Name>>> {
        let request: Arc<(String, Option<Name>)> = Arc::new((prefix.to_owned(), after.cloned()));
        let names = self.names.clone();
        let asked = (0..self.nodes.len()).map(|nth| {
            let (connection, names, request) = (self.nodes.connection(nth), names.clone(), request.clone());
            async move { scan(&connection, &names, &request.0, request.1.as_ref(), limit).await }
        });
        self.majority_of(Flight::of(asked)).await
    }

    /// Listens to every node: each tells what it sees.
    pub(crate) fn observe(&self, name: &Name) -> Observing {
        let channel = of_name(&self.names.lock(name));
        let each = (0..self.nodes.len()).map(|nth| self.nodes.connection(nth).observe(name, channel.clone()));
        Observing::new(each.collect::<Vec<_>>())
    }

    async fn ask_all(&self, call: Call) -> Result<Vec<Value>> {
        self.majority_of(self.nodes.send_one(call)).await
    }

    /// All answers, if they are a majority's.
    async fn majority_of<T: Send + 'static>(&self, mut flight: Flight<Result<T>>) -> Result<Vec<T>> {
        let (mut answers, mut failed): (Vec<T>, Vec<(usize, Error)>) = (Vec::new(), Vec::new());
        while let Some((nth, answer)) = flight.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(e) => failed.push((nth, e)),
            }
        }
        if answers.len() >= self.nodes.majority() { Ok(answers) } else { Err(self.nodes.failure(failed)) }
    }

    fn look_call(&self, verb: &str, name: &Name, what: &str) -> Call {
        Call { keys: self.names.keys(name), args: vec![verb.to_owned(), what.to_owned()] }
    }
}

impl Seen {
    fn entry(&self) -> Entry {
        Entry::new(self.label.clone()).since(SystemTime::UNIX_EPOCH + Duration::from_millis(self.since))
    }
}
