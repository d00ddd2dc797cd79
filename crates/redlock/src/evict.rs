//! `evict`.

use std::collections::BTreeSet;

use leasehold_core::{FencingToken, Name, Result};
use leasehold_redis_client::{Fields, record};
use redis::Value;

use crate::Shared;
use crate::client::nodes::InFlight;
use crate::inspect::records;

/// A hold as one node has it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    hash: String,
    token: u64,
    turns: u64,
    attempt: u64,
    ttl: u64,
}

impl Seen {
    /// `held hash token since turns attempt ttl label`. `None`: it is no hold of ours.
    fn of(text: &str) -> Result<Option<Seen>> {
        let mut fields = Fields::of(text);
        if fields.word() != "held" {
            return Ok(None);
        }
        let (hash, token) = (fields.word().to_owned(), fields.value()?);
        fields.millis()?;
        Ok(Some(Seen { hash, token, turns: fields.value()?, attempt: fields.value()?, ttl: fields.value()? }))
    }

    /// By its own token, or by that of a turn.
    fn is_known_by(&self, token: FencingToken) -> bool {
        token.get().checked_sub(self.token).is_some_and(|turn| turn < self.turns)
    }

    /// As another node has it.
    fn is(&self, other: &Seen) -> bool {
        self.hash == other.hash && self.token == other.token
    }
}

impl Shared {
    /// Ends the hold that is known by this token; 0 for one of another tool. A node that granted late has the hold under a token of
    /// its own as yet, or gets the claim only now: it ends there too. What a majority knows by another token is not known by the one
    /// that a single node says. Says whether a majority may have had the hold: what a release, or an eviction before, has left on a
    /// minority is no hold any more.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        if token.get() == 0 {
            let (ended, silent) = self.ended(self.ask("evict", name, "-")).await?;
            return Ok(ended > 0 && ended + silent >= self.nodes.majority());
        }
        let answers = self.nodes.majority_of(self.ask("inspect", name, "-"), true).await?;
        // Nodes that do not answer may still have it, and are no majority.
        let silent = self.nodes.len() - answers.len();
        let mut seen = Vec::new();
        for text in answers.iter().map(records).collect::<Result<Vec<_>>>()?.iter().flatten() {
            seen.extend(Seen::of(text)?);
        }
        let is_agreed =
            |one: &Seen| seen.iter().filter(|other| other.is(one)).count() + silent >= self.nodes.majority();
        let is_meant = |one: &Seen| {
            let mut otherwise = seen.iter().filter(|other| other.hash == one.hash && !other.is_known_by(token));
            one.is_known_by(token) && (is_agreed(one) || !otherwise.any(is_agreed))
        };
        let holds: BTreeSet<_> = seen.iter().filter(|one| is_meant(one)).collect();
        let (mut ended, was_held) = (0, holds.iter().any(|one| is_agreed(one)));
        for Seen { hash, token, turns, attempt, ttl } in holds {
            let call = self.on(name).arg("bar").arg(hash).arg(token).arg(turns).arg(attempt).arg(ttl);
            ended += self.ended(self.nodes.send(call)).await?.0;
        }
        Ok(ended > 0 && was_held)
    }

    /// How many nodes say that they ended it, and how many say nothing.
    async fn ended(&self, requests: InFlight<Result<Value>>) -> Result<(usize, usize)> {
        let answers = self.nodes.majority_of(requests, true).await?;
        let said = answers.iter().map(record).collect::<Result<Vec<_>>>()?;
        Ok((said.iter().filter(|said| *said == "ended").count(), self.nodes.len() - answers.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> Seen {
        Seen::of(text).unwrap().unwrap()
    }

    #[test]
    fn only_a_hold_of_ours_is_seen() {
        let hold = seen("held abc 17 1000 4 5 9000 web 1");
        assert_eq!((&*hold.hash, hold.token, hold.turns, hold.attempt, hold.ttl), ("abc", 17, 4, 5, 9000));
        assert!(Seen::of("waits abc 17").unwrap().is_none() && Seen::of("").unwrap().is_none());
        for junk in ["held", "held abc", "held abc 17 x 4 5 9000", "held abc 17 1000 4 5"] {
            assert_eq!(Seen::of(junk).err().map(|e| e.kind()), Some(leasehold_core::ErrorKind::Internal), "{junk}");
        }
    }

    #[test]
    fn a_hold_is_known_by_each_of_its_turns() {
        let hold = seen("held abc 17 1000 4 5 9000 web 1");
        let known: Vec<u64> = (0..30).filter(|token| hold.is_known_by(FencingToken::new(*token))).collect();
        assert_eq!(known, [17, 18, 19, 20]);
    }

    #[test]
    fn nodes_have_the_same_hold_if_its_id_and_token_are_the_same() {
        let hold = seen("held abc 17 1000 4 5 9000 web 1");
        assert!(hold.is(&seen("held abc 17 2000 4 6 9000 web 2")));
        assert!(
            !hold.is(&seen("held abc 18 1000 4 5 9000 web 1")) && !hold.is(&seen("held abd 17 1000 4 5 9000 web 1"))
        );
    }
}
