//! `evict`.

use std::collections::BTreeSet;

use crate::link::{Fields, ValueHash as Foreign, record};
use leasehold_core::{FencingToken, Name, Result};
use redis::Value;

use crate::redlock::Shared;
use crate::redlock::client::nodes::InFlight;
use crate::redlock::inspect::records;

/// A hold in the state that one node has.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct HoldOnNode {
    hash: String,
    token: u64,
    turns: u64,
    attempt: u64,
    ttl: u64,
}

impl HoldOnNode {
    /// Reads `held hash token since turns attempt ttl label`. `None`: the record is no hold of
    /// ours.
    fn of(text: &str) -> Result<Option<HoldOnNode>> {
        let mut fields = Fields::of(text);
        if fields.word() != "held" {
            return Ok(None);
        }
        let hash = fields.word().to_owned();
        let token = fields.value()?;
        fields.millis()?;
        Ok(Some(HoldOnNode {
            hash,
            token,
            turns: fields.value()?,
            attempt: fields.value()?,
            ttl: fields.value()?,
        }))
    }

    /// Returns whether this is the token of the hold, or of one of its turns.
    fn is_known_by(&self, token: FencingToken) -> bool {
        token
            .get()
            .checked_sub(self.token)
            .is_some_and(|turn| turn < self.turns)
    }

    /// Returns whether this is the hold that another node has.
    fn is(&self, other: &HoldOnNode) -> bool {
        self.hash == other.hash && self.token == other.token
    }
}

impl Shared {
    /// Ends the hold that has this token, or the hold of another tool by the number that stands for
    /// its value. A node that granted late may have the hold under a token of its own so far, or
    /// gets the claim only now: the hold ends there, too. If a majority has the hold under another
    /// token, the token of a single node does not count. Returns whether a majority may have had
    /// the hold: entries that a release, or an earlier eviction, has left on a minority are no hold
    /// any more.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        if token.get() == 0 {
            return Foreign::refuse_if_foreign(&self.inspect(name).await?);
        }
        if let Some(seen) = Foreign::by(token) {
            let (ended, silent) = self
                .ended(self.ask("evict", name, &seen.to_string()))
                .await?;
            return Ok(ended > 0 && ended + silent >= self.nodes.majority());
        }
        let answers = self
            .nodes
            .majority_of(self.ask("inspect", name, "-"), true)
            .await?;
        // Nodes that do not answer may still have the hold, and are no majority.
        let silent = self.nodes.len() - answers.len();
        let mut seen = Vec::new();
        for text in answers
            .iter()
            .map(records)
            .collect::<Result<Vec<_>>>()?
            .iter()
            .flatten()
        {
            seen.extend(HoldOnNode::of(text)?);
        }
        let is_agreed = |one: &HoldOnNode| {
            seen.iter().filter(|other| other.is(one)).count() + silent >= self.nodes.majority()
        };
        let is_meant = |one: &HoldOnNode| {
            let mut otherwise = seen
                .iter()
                .filter(|other| other.hash == one.hash && !other.is_known_by(token));
            one.is_known_by(token) && (is_agreed(one) || !otherwise.any(is_agreed))
        };
        let holds: BTreeSet<_> = seen.iter().filter(|one| is_meant(one)).collect();
        let mut ended = 0;
        let was_held = holds.iter().any(|one| is_agreed(one));
        for HoldOnNode {
            hash,
            token,
            turns,
            attempt,
            ttl,
        } in holds
        {
            let call = self
                .on(name)
                .arg("bar")
                .arg(hash)
                .arg(token)
                .arg(turns)
                .arg(attempt)
                .arg(ttl);
            ended += self.ended(self.nodes.send(call)).await?.0;
        }
        Ok(ended > 0 && was_held)
    }

    /// The number of nodes that say that they ended it, and the number of nodes without an answer.
    async fn ended(&self, requests: InFlight<Result<Value>>) -> Result<(usize, usize)> {
        let answers = self.nodes.majority_of(requests, true).await?;
        let said = answers.iter().map(record).collect::<Result<Vec<_>>>()?;
        Ok((
            said.iter().filter(|said| *said == "ended").count(),
            self.nodes.len() - answers.len(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> HoldOnNode {
        HoldOnNode::of(text).unwrap().unwrap()
    }

    #[test]
    fn only_a_hold_of_ours_is_seen() {
        let hold = seen("held abc 17 1000 4 5 9000 web 1");
        assert_eq!(
            (&*hold.hash, hold.token, hold.turns, hold.attempt, hold.ttl),
            ("abc", 17, 4, 5, 9000)
        );
        assert!(
            HoldOnNode::of("waits abc 17").unwrap().is_none()
                && HoldOnNode::of("").unwrap().is_none()
        );
        for junk in [
            "held",
            "held abc",
            "held abc 17 x 4 5 9000",
            "held abc 17 1000 4 5",
        ] {
            assert_eq!(
                HoldOnNode::of(junk).err().map(|e| e.kind()),
                Some(leasehold_core::ErrorKind::Corrupt),
                "{junk}"
            );
        }
    }

    #[test]
    fn a_hold_is_known_by_each_of_its_turns() {
        let hold = seen("held abc 17 1000 4 5 9000 web 1");
        let known: Vec<u64> = (0..30)
            .filter(|token| hold.is_known_by(FencingToken::new(*token)))
            .collect();
        assert_eq!(known, [17, 18, 19, 20]);
    }

    #[test]
    fn nodes_have_the_same_hold_if_its_id_and_token_are_the_same() {
        let hold = seen("held abc 17 1000 4 5 9000 web 1");
        assert!(hold.is(&seen("held abc 17 2000 4 6 9000 web 2")));
        assert!(
            !hold.is(&seen("held abc 18 1000 4 5 9000 web 1"))
                && !hold.is(&seen("held abd 17 1000 4 5 9000 web 1"))
        );
    }
}
