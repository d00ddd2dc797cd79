//! `claim` and `claim_all`, and the clients on which a waiter depends.

mod free;
pub(crate) mod queue;
mod raise;

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::backend::{
    Admission, Claim, Claimed, ClaimedAll, Mode, Moment, WaitPolicy, Waiting, admit, same_permits,
};
use rusqlite::params;

use crate::claim::queue::{Head, Queues};
use crate::claim::raise::floor_of;
use crate::client::completed::Wanted;
use crate::client::fifo::Address;
use crate::client::time::{nanos, now};
use crate::client::worker::Client;
use crate::entry::{Entry, entries};

/// The answer to a claim, and the other clients on which the claim depends while it waits.
pub(crate) struct Answer {
    pub(crate) claimed: Claimed,
    pub(crate) watch: Vec<Address>,
}

/// The clients on which a waiter depends, and the time of its next claim.
pub(crate) struct Outlook {
    /// The other clients on which the waiter depends: their deaths are watched.
    pub(crate) watch: Vec<Address>,
    /// The time until the next claim if the end of these clients is not noticed: until their leases
    /// end.
    retry_after: Duration,
    /// `retry_after` is before the next renewal of the place, which would check as well.
    pub(crate) is_near: bool,
}

impl Client {
    pub(crate) fn claim(&mut self, claim: &Claim, deadline: Moment) -> Result<Claimed> {
        if claim.once.is_some() {
            self.open_completed(deadline)?;
        }
        self.ready(deadline)?;
        self.announce_lease(Some(claim.ttl))?;
        loop {
            let answer = self.write(deadline, |queues| queues.claim(claim))??;
            let dead = self.watches.set(&self.file.real, claim.id, &answer.watch);
            if dead.is_empty() {
                if let Claimed::Busy(_) | Claimed::Done(_) = answer.claimed {
                    self.announce_longest()?;
                }
                return Ok(answer.claimed);
            }
            self.ended.extend(dead);
        }
    }

    pub(crate) fn claim_all(&mut self, claims: &[Claim], deadline: Moment) -> Result<ClaimedAll> {
        self.ready(deadline)?;
        self.announce_lease(claims.iter().map(|claim| claim.ttl).max())?;
        let claimed = self.write(deadline, |queues| queues.claim_all(claims))?;
        if let Ok(ClaimedAll::Busy(..)) = claimed {
            self.announce_longest()?;
        }
        claimed
    }

    /// Announces to others that this client's leases may be this long, before it asks for one.
    pub(crate) fn announce_lease(&mut self, ttl: Option<Duration>) -> Result<()> {
        let presence = &mut self.file.presence;
        presence.set(presence.longest().max(ttl.map_or(0, nanos)))
    }

    /// Announces to others the longest of the leases that this client has.
    pub(crate) fn announce_longest(&mut self) -> Result<()> {
        let longest = self.longest();
        self.file.presence.set(longest)
    }

    /// The longest of this client's leases, in nanoseconds.
    pub(crate) fn longest(&self) -> i64 {
        let now = now();
        let lasting = self.own.places.values().filter(|mine| mine.until > now);
        lasting.map(|mine| mine.ttl).max().unwrap_or(0)
    }
}

impl Queues<'_> {
    /// Takes or keeps a place. The inner error is a fault of the claim itself.
    pub(crate) fn claim(&mut self, claim: &Claim) -> rusqlite::Result<Result<Answer>> {
        match self.done_for(claim, Wanted::IfThere) {
            Ok(None) => {}
            Ok(Some(completion)) => {
                self.withdraw(claim)?;
                return Ok(Ok(Answer {
                    claimed: Claimed::Done(completion),
                    watch: Vec::new(),
                }));
            }
            Err(e) => return self.fault(e),
        }
        if let Some(grant) = self.take_free(claim)? {
            return Ok(Ok(Answer {
                claimed: Claimed::Granted(grant),
                watch: Vec::new(),
            }));
        }
        let name = claim.name.as_str();
        let ttl = nanos(claim.ttl);
        if let Some(mine) = self.own.places.get_mut(&claim.id) {
            mine.until = self.now.saturating_add(ttl);
        }
        let session = self.session(ttl)?;
        // A claim that is sent for the first time has no place.
        let is_new = !self.own.places.contains_key(&claim.id);
        let mut known = if is_new { None } else { self.find(claim)? };
        let holds = known
            .as_ref()
            .is_some_and(|known| known.token.is_some() && known.until > self.now);
        let joins = is_new && claim.mode == Mode::Shared && self.admits_a_reader(name)?;
        let mut head = Head::default();
        if !holds && !joins {
            head = self.admit_waiters(name)?;
            known = if is_new { None } else { self.find(claim)? };
        }
        if let Some(mut known) = known {
            self.raise(&mut known, claim)?;
            let label = "UPDATE place SET label = ?3 WHERE name = ?1 AND seq = ?2 AND label <> ?3";
            if self.execute(label, params![name, known.seq, &*claim.label])? > 0
                && known.token.is_some()
            {
                self.changed.insert(name.to_owned());
            }
            if (known.mode, claim.mode, known.token.is_some())
                == (Mode::Exclusive, Mode::Shared, true)
            {
                let weaken = "UPDATE place SET mode = ?3 WHERE name = ?1 AND seq = ?2";
                self.execute(weaken, params![name, known.seq, claim.mode.parts().0])?;
                head = self.admit_waiters(name)?;
            }
            return self.answer(&known, &head, name).map(Ok);
        }
        if let Err(e) = self.same_permits(name, claim.mode)? {
            return Ok(Err(e));
        }
        let is_in = self.may_grant()
            && head.next.is_none()
            && admit(&head.modes(), claim.mode) == Admission::In;
        if !is_in && claim.policy == WaitPolicy::Try {
            let who = self.contention(&head, name, false)?;
            return Ok(Ok(Answer {
                claimed: Claimed::Busy(who),
                watch: Vec::new(),
            }));
        }
        let tokens = self.reserve_tokens(
            if is_in { claim.turns() } else { 1 },
            if is_in { floor_of(claim) } else { 0 },
        )?;
        if is_in {
            self.changed.insert(name.to_owned());
        }
        self.insert(claim, session, tokens, is_in)?;
        let mut mine = self
            .find(claim)?
            .ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        self.raise(&mut mine, claim)?;
        self.answer(&mine, &head, name).map(Ok)
    }

    /// Takes a place in each of these queues, if all of them are empty before it. The inner error
    /// is a fault of a claim itself.
    pub(crate) fn claim_all(&mut self, claims: &[Claim]) -> rusqlite::Result<Result<ClaimedAll>> {
        for (i, claim) in claims.iter().enumerate() {
            let name = claim.name.as_str();
            let head = self.admit_waiters(name)?;
            let first = head.holders.first().or(head.next.as_ref());
            if !self.may_grant() || first.is_some_and(|first| first.claim != claim.id) {
                return Ok(Ok(ClaimedAll::Busy(
                    i,
                    self.contention(&head, name, false)?,
                )));
            }
        }
        let answers: rusqlite::Result<Vec<_>> =
            claims.iter().map(|claim| self.claim(claim)).collect();
        Ok(answers?
            .into_iter()
            .map(|answer| answer.map(|answer| answer.claimed))
            .collect())
    }

    fn same_permits(&self, name: &str, mine: Mode) -> rusqlite::Result<Result<()>> {
        if !matches!(mine, Mode::Permits { .. }) {
            return Ok(Ok(()));
        }
        let first = entries!("WHERE p.name = ?1 AND p.mode = 'permits' ORDER BY p.seq LIMIT 1");
        Ok(same_permits(
            self.entry(first, [name])?.iter().map(|first| &first.mode),
            mine,
        ))
    }

    fn answer(&mut self, mine: &Entry, head: &Head, name: &str) -> rusqlite::Result<Answer> {
        if let Some(grant) = mine.grant() {
            return Ok(Answer {
                claimed: Claimed::Granted(grant),
                watch: Vec::new(),
            });
        }
        let Outlook {
            watch, retry_after, ..
        } = self.outlook(mine, head, name)?;
        let who = self.contention(head, name, true)?;
        Ok(Answer {
            claimed: Claimed::Waiting(Waiting::new(mine.place(), who).retry_after(retry_after)),
            watch,
        })
    }

    /// Returns the clients on which a waiter depends: the first waiter depends on the holders that
    /// keep it out, and every other one on its predecessor.
    pub(crate) fn outlook(
        &self,
        mine: &Entry,
        head: &Head,
        name: &str,
    ) -> rusqlite::Result<Outlook> {
        if !self.may_grant() {
            let retry_after = Duration::from_nanos((self.meta.quiet - self.now) as u64)
                + Duration::from_millis(1);
            return Ok(Outlook {
                watch: Vec::new(),
                retry_after,
                is_near: true,
            });
        }
        let ahead: Vec<(Address, i64)> =
            if head.next.as_ref().is_none_or(|next| next.seq == mine.seq) {
                let watch = match admit(&head.modes(), mine.mode) {
                    Admission::Watch(watch) => watch,
                    Admission::In => Vec::new(),
                };
                watch
                    .into_iter()
                    .map(|at| (head.holders[at].client, head.holders[at].until))
                    .collect()
            } else {
                let before =
                    entries!("WHERE p.name = ?1 AND p.seq < ?2 ORDER BY p.seq DESC LIMIT 1");
                let before = self.entry(before, params![name, mine.seq])?;
                before
                    .map(|before| (before.client, before.until))
                    .into_iter()
                    .collect()
            };
        let end = ahead
            .iter()
            .map(|(_, until)| *until)
            .min()
            .unwrap_or(self.now);
        let left = end.saturating_sub(self.now).max(0);
        // A client that renews in time has more than half of its lease left, and so has the waiter:
        // its next renewal checks again before that.
        let is_near = left < mine.ttl / 2;
        // Six leases stand for never: nothing depends on this time.
        let retry_after = if is_near {
            left
        } else {
            left.saturating_add(mine.ttl.saturating_mul(6))
        };
        let retry_after = Duration::from_nanos(retry_after as u64) + Duration::from_millis(1);
        let watch = ahead
            .into_iter()
            .map(|(client, _)| client)
            .filter(|client| *client != self.own.address)
            .collect();
        Ok(Outlook {
            watch,
            retry_after,
            is_near,
        })
    }
}
