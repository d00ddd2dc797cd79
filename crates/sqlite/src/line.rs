//! What one transaction does to lines: take a place, keep it, give it back, and serve whoever is next.

mod several;

use std::time::{Duration, SystemTime};

use leasehold_core::seam::{Admission, Claim, ClaimId, Claimed, Mode, Queue, Renewal, Tenure, Waiting, admit};
use leasehold_core::{Contention, Error, FencingToken, Loss, Result};
use rusqlite::{OptionalExtension, Params, Transaction, params};

use crate::row::{Standing, columns};

/// How many tokens a fast claim reserves, for tasks of one process that take turns.
const TURNS: u32 = 64;

/// A write transaction.
pub(crate) struct Lines<'a> {
    pub(crate) tx: &'a Transaction<'a>,
    /// This client's FIFO.
    pub(crate) me: i64,
    /// When it began.
    pub(crate) now: i64,
    /// Whom to tell once it is committed.
    pub(crate) rings: Vec<Ring>,
}

/// A word for a client's FIFO.
pub(crate) struct Ring {
    pub(crate) to: i64,
    pub(crate) word: String,
}

/// The answer to a claim, and whose death would concern it.
pub(crate) type Answer = (Claimed, Vec<i64>);

/// One line from its head on.
struct Head {
    /// The first of those who hold.
    first: Option<Standing>,
    /// What they all hold.
    held: Vec<Mode>,
    /// The first who waits.
    next: Option<Standing>,
}

impl Lines<'_> {
    /// Takes or keeps a place. The inner error is the claim's own fault.
    pub(crate) fn claim(&mut self, claim: &Claim) -> rusqlite::Result<Result<Answer>> {
        let (name, id) = (claim.name.as_str(), claim.id.to_string());
        let ((mode, n, permits), ttl) = (columns(claim.mode), millis(claim.ttl));
        let head = self.settle(name)?;
        let again = "UPDATE place SET label = ?2, until = ?3 + ttl,
                            mode = iif(mode = 'exclusive' AND ?4 = 'shared' AND token IS NOT NULL, 'shared', mode)
                     WHERE claim = ?1 RETURNING *";
        if let Some(mine) = self.standing(again, params![id, &*claim.label, self.now, mode])? {
            if mine.token.is_some() {
                // It may have another label, or let others in, since it is shared from now on.
                self.stir(name)?;
                self.settle(name)?;
            }
            return self.answer(&mine, &head, name).map(Ok);
        }
        if let Mode::Permits { of, .. } = claim.mode {
            let first = "SELECT permits FROM place WHERE name = ?1 AND mode = 'permits' ORDER BY seq LIMIT 1";
            let first = self.tx.prepare_cached(first)?.query_row([name], |row| row.get(0)).optional()?;
            if let Some(theirs) = first.filter(|theirs| *theirs != of) {
                return Ok(Err(Error::permits_differ(theirs, of)));
            }
        }
        let is_in = head.next.is_none() && admit(&head.held, claim.mode) == Admission::In;
        if !is_in && claim.queue == Queue::Try {
            return Ok(Ok((Claimed::Busy(self.contention(&head, name, 0)?), Vec::new())));
        }
        let turns = if claim.queue == Queue::Fast { TURNS } else { 1 };
        let token = if is_in { Some(self.mint(name, turns)?) } else { None };
        let insert = "INSERT INTO place (name, claim, fifo, mode, n, permits, label, ttl, until, turns, token, since)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) RETURNING *";
        let until = self.now + ttl;
        let mine = params![name, id, self.me, mode, n, permits, &*claim.label, ttl, until, turns, token, since()];
        let mine = self.tx.prepare_cached(insert)?.query_row(mine, Standing::read)?;
        self.answer(&mine, &head, name).map(Ok)
    }

    fn answer(&self, mine: &Standing, head: &Head, name: &str) -> rusqlite::Result<Answer> {
        if let Some(grant) = mine.grant() {
            return Ok((Claimed::Granted(grant), Vec::new()));
        }
        // The first who waits watches those who keep it out; everybody else whoever is before it.
        let is_next = head.next.as_ref().is_none_or(|next| next.seq == mine.seq);
        let most = match mine.mode {
            Mode::Permits { of, .. } if is_next => of,
            _ => 1,
        };
        let before = "SELECT fifo, until FROM place WHERE name = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
        let mut before = self.tx.prepare_cached(before)?;
        let before = before.query_map(params![name, mine.seq, most], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let before = before.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
        // Should nobody be able to see that it ended, its lease does.
        let end = before.iter().map(|(_, until)| *until).min().unwrap_or(self.now);
        let nap = Duration::from_millis((end - self.now).max(0) as u64 + 1);
        let waiting = Waiting::new(mine.place(), self.contention(head, name, 1)?).look_again(nap);
        let watch = before.into_iter().map(|(fifo, _)| fifo).filter(|fifo| *fifo != self.me).collect();
        Ok((Claimed::Waiting(waiting), watch))
    }

    /// Drops the dead of one line and grants to whoever is admitted now.
    ///
    /// Who is admitted are the first of the line: whoever is not admitted keeps out all behind, since each of them has
    /// before it what the other has, and the other. So all who hold do so in one mode.
    fn settle(&mut self, name: &str) -> rusqlite::Result<Head> {
        let dead = "DELETE FROM place INDEXED BY ends WHERE until <= ?1 AND name = ?2";
        if self.tx.prepare_cached(dead)?.execute(params![self.now, name])? > 0 {
            self.stir(name)?;
        }
        let first = "SELECT * FROM place WHERE name = ?1 ORDER BY seq LIMIT 1";
        let mut first = self.standing(first, [name])?.filter(|first| first.token.is_some());
        let mut held: Vec<Mode> = first.iter().map(|first| first.mode).collect();
        if let [Mode::Permits { n, of }] = &mut held[..] {
            let all = "SELECT sum(n), min(permits) FROM place WHERE name = ?1 AND token IS NOT NULL";
            (*n, *of) = self.tx.prepare_cached(all)?.query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        }
        loop {
            let next = "SELECT * FROM place WHERE name = ?1 AND token IS NULL ORDER BY seq LIMIT 1";
            let next = match self.standing(next, [name])? {
                Some(next) if admit(&held, next.mode) == Admission::In => next,
                next => return Ok(Head { first, held, next }),
            };
            let token = self.mint(name, next.turns)?;
            let grant = "UPDATE place SET token = ?2, since = ?3 WHERE seq = ?1 RETURNING *";
            let grant = self.standing(grant, params![next.seq, token, since()])?;
            self.rings.push(Ring { to: next.fifo, word: format!("granted {}", next.seq) });
            held.push(next.mode);
            first = first.or(grant);
        }
    }

    /// The holder of this name, or its label, is another: tells who observes it.
    fn stir(&mut self, name: &str) -> rusqlite::Result<()> {
        let mut all = self.tx.prepare_cached("SELECT fifo FROM observer WHERE name = ?1")?;
        for to in all.query_map([name], |row| row.get(0))? {
            self.rings.push(Ring { to: to?, word: format!("stirred {name}") });
        }
        Ok(())
    }

    /// Reserves tokens for a new holder: never below the wall clock, so that they rise also after the file is gone.
    fn mint(&mut self, name: &str, turns: u32) -> rusqlite::Result<i64> {
        self.stir(name)?;
        let mint = "UPDATE meta SET token = max(token + 1, ?1) + ?2 - 1 RETURNING token - ?2 + 1";
        let micros = wall().as_micros() as i64;
        self.tx.prepare_cached(mint)?.query_row(params![micros, turns], |row| row.get(0))
    }

    fn standing(&self, find: &str, which: impl Params) -> rusqlite::Result<Option<Standing>> {
        self.tx.prepare_cached(find)?.query_row(which, Standing::read).optional()
    }

    /// Extends what is still there.
    pub(crate) fn renew(&self, tenures: &[Tenure]) -> rusqlite::Result<Vec<Renewal>> {
        let renew = "UPDATE place SET until = ?2 + ttl WHERE claim = ?1 AND until > ?2 RETURNING *";
        let renewal = |tenure: &Tenure| {
            let standing = self.standing(renew, params![tenure.claim.id.to_string(), self.now])?;
            Ok(match standing.map(|standing| (standing.grant(), standing.validity())) {
                None => Renewal::Lost(Loss::Gone),
                Some((Some(grant), _)) if tenure.token != Some(grant.token) => Renewal::Granted(grant),
                Some((_, validity)) => Renewal::Renewed(validity),
            })
        };
        tenures.iter().map(renewal).collect()
    }

    /// Leaves no trace of this claim, and serves who is next.
    pub(crate) fn withdraw(&mut self, claim: ClaimId) -> rusqlite::Result<()> {
        let withdraw = "DELETE FROM place WHERE claim = ?1 RETURNING name, token IS NOT NULL";
        self.remove(withdraw, [claim.to_string()]).map(drop)
    }

    /// Ends the hold that has this token, and tells its client.
    pub(crate) fn evict(&mut self, name: &str, token: FencingToken) -> rusqlite::Result<bool> {
        let evict =
            "DELETE FROM place WHERE name = ?1 AND token <= ?2 AND ?2 < token + turns AND until > ?3 RETURNING *";
        let evicted = self.standing(evict, params![name, token.as_i64(), self.now])?;
        if let Some(evicted) = &evicted {
            self.rings.push(Ring { to: evicted.fifo, word: format!("evicted {}", evicted.claim) });
            self.stir(name)?;
            self.settle(name)?;
        }
        Ok(evicted.is_some())
    }

    /// Removes what a client has that has ended, a bounded part of it at a time; answers whether it was all.
    pub(crate) fn bury(&mut self, fifo: i64) -> rusqlite::Result<bool> {
        const PART: usize = 500;
        self.tx.prepare_cached("DELETE FROM observer WHERE fifo = ?1")?.execute([fifo])?;
        let part = "DELETE FROM place WHERE seq IN (SELECT seq FROM place WHERE fifo = ?1 LIMIT ?2)
                    RETURNING name, token IS NOT NULL";
        Ok(self.remove(part, params![fifo, PART as i64])? < PART)
    }

    /// Our FIFO is another one from now on.
    pub(crate) fn move_to(&self, fifo: i64) -> rusqlite::Result<()> {
        for table in ["place", "observer"] {
            let set = format!("UPDATE {table} SET fifo = ?2 WHERE fifo = ?1");
            self.tx.prepare_cached(&set)?.execute([self.me, fifo])?;
        }
        Ok(())
    }

    /// From now on we hear of this name.
    pub(crate) fn observe(&self, name: &str) -> rusqlite::Result<()> {
        let insert = "INSERT INTO observer (name, fifo) VALUES (?1, ?2)";
        self.tx.prepare_cached(insert)?.execute(params![name, self.me]).map(drop)
    }

    /// One of those who wanted to hear of this name does so no more.
    pub(crate) fn unobserve(&self, name: &str) -> rusqlite::Result<()> {
        let delete = "DELETE FROM observer WHERE rowid = (SELECT rowid FROM observer WHERE name = ?1 AND fifo = ?2)";
        self.tx.prepare_cached(delete)?.execute(params![name, self.me]).map(drop)
    }

    /// Runs a deletion that answers names, and whether they were held, and serves these lines; answers how many went.
    fn remove(&mut self, deletion: &str, which: impl Params) -> rusqlite::Result<usize> {
        let mut deletion = self.tx.prepare_cached(deletion)?;
        let gone = deletion.query_map(which, |row| Ok((row.get(0)?, row.get(1)?)))?;
        let gone = gone.collect::<rusqlite::Result<Vec<(String, bool)>>>()?;
        for (name, held) in &gone {
            self.settle(name)?;
            if *held {
                self.stir(name)?;
            }
        }
        Ok(gone.len())
    }

    /// Who stands in the way.
    fn contention(&self, head: &Head, name: &str, of_mine: i64) -> rusqlite::Result<Contention> {
        let waiters = "SELECT count(*) FROM place WHERE name = ?1 AND token IS NULL";
        let waiters: i64 = self.tx.prepare_cached(waiters)?.query_row([name], |row| row.get(0))?;
        let who = head.first.as_ref().map_or_else(Contention::unknown, |first| Contention::from(&first.entry()));
        Ok(who.waiters((waiters - of_mine).max(0) as usize))
    }
}

/// The wall clock since its epoch: for people, and for tokens.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Now, as rows have it.
fn since() -> i64 {
    wall().as_millis() as i64
}

/// A TTL as rows have it, rounded up.
fn millis(d: Duration) -> i64 {
    d.as_nanos().div_ceil(1_000_000).min(1 << 60) as i64
}
