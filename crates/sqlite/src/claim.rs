//! `claim` and `claim_all`, and what a waiter depends on.

pub(crate) mod queue;

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::seam::{
    Admission, Claim, Claimed, ClaimedAll, Mode, Moment, WaitPolicy, Waiting, admit, same_permits,
};
use rusqlite::params;

use crate::claim::queue::{Head, Queues};
use crate::client::fifo::Address;
use crate::client::time::{nanos, now, wall};
use crate::client::worker::Client;
use crate::entry::{Entry, entries};

/// How many tokens a fast claim reserves, for tasks of one process that take turns.
const TURNS: u32 = 64;

/// The answer to a claim, and the clients whose death would concern it.
pub(crate) struct Answer {
    pub(crate) claimed: Claimed,
    pub(crate) watch: Vec<Address>,
}

/// What a waiter depends on.
pub(crate) struct Outlook {
    /// The clients whose death would concern it.
    pub(crate) watch: Vec<Address>,
    /// When to claim again, should the end of one of them not be visible: their leases end.
    retry_after: Duration,
    /// That is before the next renewals of the place, each of which checks as well.
    pub(crate) is_near: bool,
}

impl Client {
    pub(crate) fn claim(&mut self, claim: &Claim, deadline: Moment) -> Result<Claimed> {
        self.ready(deadline)?;
        self.announce_lease(Some(claim.ttl))?;
        loop {
            let answer = self.write(deadline, |queues| queues.claim(claim))??;
            let dead = self.watches.set(&self.file.real, claim.id, &answer.watch);
            if dead.is_empty() {
                if let Claimed::Busy(_) = answer.claimed {
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

    /// Lets others see how long our leases may be, before we ask for one.
    fn announce_lease(&mut self, ttl: Option<Duration>) -> Result<()> {
        let presence = &mut self.file.presence;
        presence.set(presence.longest().max(ttl.map_or(0, nanos)))
    }

    /// Lets others see no longer leases than we have.
    pub(crate) fn announce_longest(&mut self) -> Result<()> {
        let now = now();
        self.own.last_used.retain(|_, (_, until)| *until > now);
        self.file.presence.set(self.own.last_used.values().map(|(ttl, _)| *ttl).max().unwrap_or(0))
    }
}

impl Queues<'_> {
    /// Takes or keeps a place. The inner error is the claim's own fault.
    pub(crate) fn claim(&mut self, claim: &Claim) -> rusqlite::Result<Result<Answer>> {
        let (name, id) = (claim.name.as_str(), claim.id.to_string());
        let ttl = nanos(claim.ttl);
        self.own.last_used.insert(claim.id, (ttl, self.now.saturating_add(ttl)));
        let session = self.session(ttl)?;
        let mut head = self.admit_waiters(name)?;
        if let Some(known) = self.find(&id)? {
            let label = "UPDATE place SET label = ?2 WHERE seq = ?1 AND label <> ?2";
            if self.execute(label, params![known.seq, &*claim.label])? > 0 && known.token.is_some() {
                self.changed.insert(name.to_owned());
            }
            if (known.mode, claim.mode, known.token.is_some()) == (Mode::Exclusive, Mode::Shared, true) {
                self.execute("UPDATE place SET mode = ?2 WHERE seq = ?1", params![known.seq, claim.mode.parts().0])?;
                head = self.admit_waiters(name)?;
            }
            return self.answer(&known, &head, name).map(Ok);
        }
        if let Err(e) = self.same_permits(name, claim.mode)? {
            return Ok(Err(e));
        }
        let is_in = self.may_grant() && head.next.is_none() && admit(&head.modes(), claim.mode) == Admission::In;
        if !is_in && claim.policy == WaitPolicy::Try {
            self.own.last_used.remove(&claim.id);
            let who = self.contention(&head, name, 0)?;
            return Ok(Ok(Answer { claimed: Claimed::Busy(who), watch: Vec::new() }));
        }
        let turns = if claim.policy == WaitPolicy::Fast { TURNS } else { 1 };
        let token = if is_in { Some(self.reserve_tokens(turns)?) } else { None };
        if is_in {
            self.changed.insert(name.to_owned());
        }
        let (mode, n, permits) = claim.mode.parts();
        let insert = "INSERT INTO place (name, claim, session, mode, n, permits, turns, token, label, since)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let row = params![name, id, session, mode, n, permits, turns, token, &*claim.label, wall().as_millis() as i64];
        self.execute(insert, row)?;
        let mine = self.find(&id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        self.answer(&mine, &head, name).map(Ok)
    }

    /// Takes a place in each of these queues, if all of them are empty before it. The inner error is a claim's own fault.
    pub(crate) fn claim_all(&mut self, claims: &[Claim]) -> rusqlite::Result<Result<ClaimedAll>> {
        for (i, claim) in claims.iter().enumerate() {
            let name = claim.name.as_str();
            let head = self.admit_waiters(name)?;
            let first = head.holders.first().or(head.next.as_ref());
            if !self.may_grant() || first.is_some_and(|first| first.claim != claim.id) {
                return Ok(Ok(ClaimedAll::Busy(i, self.contention(&head, name, 0)?)));
            }
        }
        let answers: rusqlite::Result<Vec<_>> = claims.iter().map(|claim| self.claim(claim)).collect();
        Ok(answers?.into_iter().map(|answer| answer.map(|answer| answer.claimed)).collect())
    }

    fn same_permits(&self, name: &str, mine: Mode) -> rusqlite::Result<Result<()>> {
        if !matches!(mine, Mode::Permits { .. }) {
            return Ok(Ok(()));
        }
        let first = entries!("WHERE p.name = ?1 AND p.mode = 'permits' ORDER BY p.seq LIMIT 1");
        Ok(same_permits(self.entry(first, [name])?.iter().map(|first| &first.mode), mine))
    }

    fn answer(&mut self, mine: &Entry, head: &Head, name: &str) -> rusqlite::Result<Answer> {
        if let Some(grant) = mine.grant() {
            return Ok(Answer { claimed: Claimed::Granted(grant), watch: Vec::new() });
        }
        let Outlook { watch, retry_after, .. } = self.outlook(mine, head, name)?;
        let who = self.contention(head, name, 1)?;
        Ok(Answer { claimed: Claimed::Waiting(Waiting::new(mine.place(), who).retry_after(retry_after)), watch })
    }

    /// The first waiter depends on the holders that keep it out, every other on its predecessor.
    pub(crate) fn outlook(&self, mine: &Entry, head: &Head, name: &str) -> rusqlite::Result<Outlook> {
        if !self.may_grant() {
            let retry_after = Duration::from_nanos((self.quiet - self.now) as u64) + Duration::from_millis(1);
            return Ok(Outlook { watch: Vec::new(), retry_after, is_near: true });
        }
        let ahead: Vec<(Address, i64)> = if head.next.as_ref().is_none_or(|next| next.seq == mine.seq) {
            let watch = match admit(&head.modes(), mine.mode) {
                Admission::Watch(watch) => watch,
                Admission::In => Vec::new(),
            };
            watch.into_iter().map(|at| (head.holders[at].client, head.holders[at].until)).collect()
        } else {
            let before = entries!("WHERE p.name = ?1 AND p.seq < ?2 ORDER BY p.seq DESC LIMIT 1");
            let before = self.entry(before, params![name, mine.seq])?;
            before.map(|before| (before.client, before.until)).into_iter().collect()
        };
        let end = ahead.iter().map(|(_, until)| *until).min().unwrap_or(self.now);
        let left = end.saturating_sub(self.now).max(0);
        // A client that renews in time has more than half of its lease left, and so have we: we check again before that.
        let is_near = left < mine.ttl / 2;
        // Six leases stand for never: nothing depends on it.
        let retry_after = if is_near { left } else { left.saturating_add(mine.ttl.saturating_mul(6)) };
        let retry_after = Duration::from_nanos(retry_after as u64) + Duration::from_millis(1);
        let watch = ahead.into_iter().map(|(client, _)| client).filter(|client| *client != self.own.address).collect();
        Ok(Outlook { watch, retry_after, is_near })
    }
}
