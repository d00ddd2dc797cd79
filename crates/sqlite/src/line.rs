//! What one transaction does to lines: take a place, keep it, give it back, and serve whoever is next.

mod several;
mod waiting;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use leasehold_core::seam::{
    Admission, Claim, ClaimId, Claimed, LeaseRef, Mode, WaitPolicy, Waiting, admit, escape, same_permits,
};
use leasehold_core::{Contention, FencingToken, Result};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use crate::fifo::Address;
use crate::row::{Standing, columns, standings, token};

pub(crate) use self::waiting::Outlook;

/// How many tokens a fast claim reserves, for tasks of one process that take turns.
const TURNS: u32 = 64;

/// A write transaction.
pub(crate) struct Lines<'a> {
    tx: &'a Transaction<'a>,
    me: &'a mut Me,
    /// When it began, on CLOCK_BOOTTIME.
    now: i64,
    /// Until when nothing is granted.
    quiet: i64,
    /// The end of a session is not the one that we have written.
    pub(crate) went_back: bool,
    written: Written,
    rings: Vec<Ring>,
    /// Names whose holder, or the holder's label, is another.
    stirred: BTreeSet<String>,
}

/// What this client has in the file.
#[derive(Default)]
pub(crate) struct Me {
    pub(crate) address: Address,
    /// The TTL of each place, and until when it lasts if nobody claims or renews it: its session lives on with others.
    pub(crate) tended: HashMap<ClaimId, (i64, i64)>,
    /// The end that we have written last into the session of each TTL.
    pub(crate) written: HashMap<i64, i64>,
}

/// The ends that one transaction has written into sessions, by TTL.
type Written = Vec<(i64, i64)>;

/// A word for a client's FIFO, and the line that it is about.
pub(crate) struct Ring {
    pub(crate) to: Address,
    pub(crate) name: String,
    pub(crate) word: String,
}

/// The answer to a claim, and whose death would concern it.
pub(crate) struct Answer {
    pub(crate) claimed: Claimed,
    pub(crate) watch: Vec<Address>,
}

/// One line from its head on.
struct Head {
    /// Those who hold, in order.
    holders: Vec<Standing>,
    /// The first who waits.
    next: Option<Standing>,
}

impl Head {
    fn modes(&self) -> Vec<Mode> {
        self.holders.iter().map(|holder| holder.mode).collect()
    }
}

impl<'a> Lines<'a> {
    pub(crate) fn new(tx: &'a Transaction<'a>, me: &'a mut Me, now: i64, quiet: i64) -> Lines<'a> {
        let (rings, written, stirred) = Default::default();
        Lines { tx, me, now, quiet, went_back: false, written, rings, stirred }
    }

    /// Whom to tell once it is committed, and which ends of sessions it has written.
    pub(crate) fn done(mut self) -> rusqlite::Result<(Vec<Ring>, Written)> {
        for name in self.stirred {
            let all = "SELECT fifo, dev, ino FROM observer WHERE name = ?1";
            for to in self.tx.prepare_cached(all)?.query_map([&name], Address::read)? {
                let word = format!("stirred {}", one_line(&name));
                self.rings.push(Ring { to: to?, name: name.clone(), word });
            }
        }
        Ok((self.rings, self.written))
    }

    /// Takes or keeps a place. The inner error is the claim's own fault.
    pub(crate) fn claim(&mut self, claim: &Claim) -> rusqlite::Result<Result<Answer>> {
        let (name, id) = (claim.name.as_str(), claim.id.to_string());
        let ttl = nanos(claim.ttl);
        self.me.tended.insert(claim.id, (ttl, self.now.saturating_add(ttl)));
        let session = self.session(ttl)?;
        let mut head = self.settle(name)?;
        if let Some(known) = self.find(&id)? {
            let label = "UPDATE place SET label = ?2 WHERE seq = ?1 AND label <> ?2";
            if self.tx.prepare_cached(label)?.execute(params![known.seq, &*claim.label])? > 0 && known.token.is_some() {
                self.stirred.insert(name.to_owned());
            }
            if (known.mode, claim.mode, known.token.is_some()) == (Mode::Exclusive, Mode::Shared, true) {
                let downgrade = "UPDATE place SET mode = ?2 WHERE seq = ?1";
                self.tx.prepare_cached(downgrade)?.execute(params![known.seq, columns(Mode::Shared).0])?;
                head = self.settle(name)?;
            }
            return self.answer(&known, &head, name).map(Ok);
        }
        if let Err(e) = self.same_permits(name, claim.mode)? {
            return Ok(Err(e));
        }
        let is_in = self.grants() && head.next.is_none() && admit(&head.modes(), claim.mode) == Admission::In;
        if !is_in && claim.policy == WaitPolicy::Try {
            self.me.tended.remove(&claim.id);
            let who = self.contention(&head, name, 0)?;
            return Ok(Ok(Answer { claimed: Claimed::Busy(who), watch: Vec::new() }));
        }
        let turns = if claim.policy == WaitPolicy::Fast { TURNS } else { 1 };
        let token = if is_in { Some(self.mint(turns)?) } else { None };
        if is_in {
            self.stirred.insert(name.to_owned());
        }
        let (mode, n, permits) = columns(claim.mode);
        let insert = "INSERT INTO place (name, claim, session, mode, n, permits, turns, token, label, since)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let row = params![name, id, session, mode, n, permits, turns, token, &*claim.label, wall().as_millis() as i64];
        self.tx.prepare_cached(insert)?.execute(row)?;
        let mine = self.find(&id)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        self.answer(&mine, &head, name).map(Ok)
    }

    fn same_permits(&self, name: &str, mine: Mode) -> rusqlite::Result<Result<()>> {
        if !matches!(mine, Mode::Permits { .. }) {
            return Ok(Ok(()));
        }
        let first = standings!("WHERE p.name = ?1 AND p.mode = 'permits' ORDER BY p.seq LIMIT 1");
        let first = self.tx.prepare_cached(first)?.query_row([name], Standing::read).optional()?;
        Ok(same_permits(first.iter().map(|first| &first.mode), mine))
    }

    fn answer(&mut self, mine: &Standing, head: &Head, name: &str) -> rusqlite::Result<Answer> {
        if let Some(grant) = mine.grant() {
            return Ok(Answer { claimed: Claimed::Granted(grant), watch: Vec::new() });
        }
        let Outlook { watch, nap, .. } = self.outlook(mine, head, name)?;
        let who = self.contention(head, name, 1)?;
        Ok(Answer { claimed: Claimed::Waiting(Waiting::new(mine.place(), who).retry_after(nap)), watch })
    }

    /// Who is admitted are the first of the line: whoever is not admitted keeps out all behind, since each of them has
    /// before it what the other has, and the other.
    fn head(&self, name: &str) -> rusqlite::Result<Head> {
        let mut head = Head { holders: Vec::new(), next: None };
        let mut modes = Vec::new();
        let mut line = self.tx.prepare_cached(standings!("WHERE p.name = ?1 ORDER BY p.seq"))?;
        for standing in line.query_map([name], Standing::read)? {
            let standing = standing?;
            if admit(&modes, standing.mode) != Admission::In {
                head.next = Some(standing);
                break;
            }
            modes.push(standing.mode);
            head.holders.push(standing);
        }
        Ok(head)
    }

    /// Drops the dead of one line and grants to whoever is admitted now.
    fn settle(&mut self, name: &str) -> rusqlite::Result<Head> {
        let dead = "DELETE FROM place INDEXED BY mine
                    WHERE session IN (SELECT id FROM session WHERE until <= ?1) AND name = ?2";
        if self.tx.prepare_cached(dead)?.execute(params![self.now, name])? > 0 {
            self.stirred.insert(name.to_owned());
        }
        let mut head = self.head(name)?;
        let grants = self.grants();
        for holder in head.holders.iter_mut().filter(|holder| grants && holder.token.is_none()) {
            let token = self.mint(holder.turns)?;
            let grant = "UPDATE place SET token = ?2, since = ?3 WHERE seq = ?1";
            let since = wall().as_millis() as i64;
            self.tx.prepare_cached(grant)?.execute(params![holder.seq, token, since])?;
            (holder.token, holder.since) = (Some(token), since);
            let word = format!("granted {}", holder.seq);
            self.rings.push(Ring { to: holder.client, name: name.to_owned(), word });
            self.stirred.insert(name.to_owned());
        }
        Ok(head)
    }

    /// Not while leases may live in files that these have replaced.
    fn grants(&self) -> bool {
        self.now >= self.quiet
    }

    pub(crate) fn serve(&mut self, name: &str) -> rusqlite::Result<()> {
        self.settle(name).map(drop)
    }

    /// Reserves tokens: never below the wall clock, so that they rise also after the file is gone.
    fn mint(&self, turns: u32) -> rusqlite::Result<i64> {
        let mint = "UPDATE meta SET token = max(token + 1, ?1) + ?2 - 1 RETURNING token - ?2 + 1";
        let micros = wall().as_micros() as i64;
        self.tx.prepare_cached(mint)?.query_row(params![micros, turns], |row| row.get(0))
    }

    fn find(&self, claim: &str) -> rusqlite::Result<Option<Standing>> {
        let find = standings!("WHERE p.claim = ?1");
        self.tx.prepare_cached(find)?.query_row([claim], Standing::read).optional()
    }

    /// This client's session of this TTL, made if there is none, and extended unless it is nearly whole.
    fn session(&mut self, ttl: i64) -> rusqlite::Result<i64> {
        if let Some((id, until)) = self.alive(ttl)? {
            if until - self.now < ttl - ttl / 10 {
                self.extend(id, ttl)?;
            }
            return Ok(id);
        }
        // What an ended one of ours still has is dead, and nobody may think it alive again.
        let Address { fifo, dev, ino } = self.me.address;
        let ended = "DELETE FROM place WHERE session = (SELECT id FROM session WHERE fifo = ?1 AND ttl = ?2) RETURNING name, token IS NOT NULL";
        self.remove(ended, params![fifo, ttl])?;
        let insert = "INSERT OR REPLACE INTO session (fifo, dev, ino, pid, ttl, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let until = self.now.saturating_add(ttl);
        self.tx.prepare_cached(insert)?.execute(params![fifo, dev, ino, std::process::id(), ttl, until])?;
        self.written.push((ttl, until));
        Ok(self.tx.last_insert_rowid())
    }

    /// This client's session of this TTL and its end, unless it has ended.
    fn alive(&mut self, ttl: i64) -> rusqlite::Result<Option<(i64, i64)>> {
        let of = "SELECT id, until FROM session WHERE fifo = ?1 AND ttl = ?2";
        let found = params![self.me.address.fifo, ttl];
        let found = self.tx.prepare_cached(of)?.query_row(found, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        // Others set it to 0 at most. A copy of earlier days has been put into the file.
        let written = self.me.written.get(&ttl).copied().unwrap_or_default();
        self.went_back |= found.is_some_and(|(_, until)| 0 < until && until < written);
        Ok(found.filter(|(_, until)| *until > self.now))
    }

    /// Extends a session and all its places but those that nobody tends.
    fn extend(&mut self, id: i64, ttl: i64) -> rusqlite::Result<()> {
        let now = self.now;
        let untended = self.me.tended.extract_if(|_, (of, until)| *of == ttl && *until <= now);
        let untended: Vec<ClaimId> = untended.map(|(claim, _)| claim).collect();
        untended.into_iter().try_for_each(|claim| self.withdraw(claim))?;
        let extend = "UPDATE session SET until = ?2 WHERE id = ?1";
        let until = self.now.saturating_add(ttl);
        self.tx.prepare_cached(extend)?.execute(params![id, until])?;
        self.written.push((ttl, until));
        Ok(())
    }

    /// Renews the sessions of these claims. What has become of each place is read afterwards.
    pub(crate) fn renew(&mut self, leases: &[LeaseRef]) -> rusqlite::Result<()> {
        let mut ttls: Vec<i64> = leases.iter().map(|lease| nanos(lease.claim.ttl)).collect();
        ttls.sort_unstable();
        ttls.dedup();
        for LeaseRef { claim, .. } in leases {
            if let Some((ttl, until)) = self.me.tended.get_mut(&claim.id).filter(|(_, until)| *until > self.now) {
                *until = self.now.saturating_add(*ttl);
            }
        }
        for ttl in ttls {
            if let Some((id, _)) = self.alive(ttl)? {
                self.extend(id, ttl)?;
            }
        }
        Ok(())
    }

    /// Leaves no trace of this claim, and serves who is next.
    pub(crate) fn withdraw(&mut self, claim: ClaimId) -> rusqlite::Result<()> {
        self.me.tended.remove(&claim);
        self.remove("DELETE FROM place WHERE claim = ?1 RETURNING name, token IS NOT NULL", [claim.to_string()])
    }

    /// Gives a hold a session of its own, which ends that long from now and is nobody's: neither renewed, nor ended with us.
    pub(crate) fn lapse(&mut self, claim: ClaimId, rest: i64) -> rusqlite::Result<()> {
        let hold = self.find(&claim.to_string())?.filter(|hold| hold.token.is_some() && hold.until > self.now);
        self.me.tended.remove(&claim);
        let lapse = "UPDATE place SET session = -seq WHERE claim = ?1 AND session > 0 RETURNING seq, name";
        let mut lapse = self.tx.prepare_cached(lapse)?;
        let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
        let moved = hold.map(|_| lapse.query_row([claim.to_string()], read).optional()).transpose()?.flatten();
        let Some((seq, name)) = moved else { return Ok(()) };
        let insert = "INSERT INTO session (id, fifo, dev, ino, pid, ttl, until) VALUES (-?1, -?1, 0, 0, 0, ?2, ?3)";
        self.tx.prepare_cached(insert)?.execute(params![seq, rest, self.now.saturating_add(rest)])?;
        // Whoever is next waits for another end than it knew.
        if let Some(next) = self.head(&name)?.next {
            self.rings.push(Ring { to: next.client, name, word: format!("again {}", next.claim) });
        }
        Ok(())
    }

    /// Drops holds that have lapsed.
    pub(crate) fn sweep(&mut self) -> rusqlite::Result<()> {
        let lapsed = "DELETE FROM place WHERE session IN (SELECT id FROM session WHERE id < 0 AND until <= ?1)
                      RETURNING name, token IS NOT NULL";
        self.remove(lapsed, [self.now])
    }

    /// Ends the hold that has this token, and tells its client.
    pub(crate) fn evict(&mut self, name: &str, token: FencingToken) -> rusqlite::Result<bool> {
        let owner = standings!("WHERE p.name = ?1 AND p.token <= ?2 AND ?2 < p.token + p.turns AND s.until > ?3");
        let owner = self.tx.prepare_cached(owner)?;
        let owner = { owner }.query_row(params![name, token.as_i64(), self.now], Standing::read).optional()?;
        let Some(owner) = owner else { return Ok(false) };
        let word = format!("evicted {}", owner.claim);
        self.rings.push(Ring { to: owner.client, name: name.to_owned(), word });
        self.remove("DELETE FROM place WHERE seq = ?1 RETURNING name, token IS NOT NULL", [owner.seq])?;
        Ok(true)
    }

    /// The process behind this FIFO has ended: so have its sessions, and it hears nothing.
    pub(crate) fn end(&self, fifo: i64) -> rusqlite::Result<()> {
        let end = "UPDATE session SET until = 0 WHERE fifo = ?1 AND until > 0";
        self.tx.prepare_cached(end)?.execute([fifo])?;
        self.tx.prepare_cached("DELETE FROM observer WHERE fifo = ?1")?.execute([fifo]).map(drop)
    }

    /// Removes what is left of ended clients, or of ourselves, a bounded part of it at a time; answers whether it was all.
    pub(crate) fn bury(&mut self, fifo: i64) -> rusqlite::Result<bool> {
        const PART: i64 = 500;
        self.end(fifo)?;
        let part = "DELETE FROM place WHERE seq IN (SELECT p.seq FROM place p JOIN session s ON s.id = p.session
                    WHERE s.fifo = ?1 LIMIT ?2) RETURNING name, token IS NOT NULL";
        self.remove(part, params![fifo, PART])?;
        let rest = "SELECT EXISTS (SELECT 1 FROM place p JOIN session s ON s.id = p.session WHERE s.fifo = ?1)";
        if self.tx.prepare_cached(rest)?.query_row([fifo], |row| row.get(0))? {
            return Ok(false);
        }
        self.tx.prepare_cached("DELETE FROM session WHERE fifo = ?1")?.execute([fifo])?;
        Ok(true)
    }

    /// Our FIFO is another one from now on.
    pub(crate) fn move_to(&mut self, address: Address) -> rusqlite::Result<()> {
        let Address { fifo, dev, ino } = address;
        for table in ["session", "observer"] {
            let set = format!("UPDATE {table} SET fifo = ?2, dev = ?3, ino = ?4 WHERE fifo = ?1");
            self.tx.prepare_cached(&set)?.execute(params![self.me.address.fifo, fifo, dev, ino])?;
        }
        Ok(())
    }

    /// From now on we hear of this name.
    pub(crate) fn observe(&mut self, name: &str) -> rusqlite::Result<()> {
        let Address { fifo, dev, ino } = self.me.address;
        let insert = "INSERT INTO observer (name, fifo, dev, ino) VALUES (?1, ?2, ?3, ?4)";
        self.tx.prepare_cached(insert)?.execute(params![name, fifo, dev, ino]).map(drop)
    }

    /// One of those who wanted to hear of this name does so no more.
    pub(crate) fn unobserve(&mut self, name: &str) -> rusqlite::Result<()> {
        let delete = "DELETE FROM observer WHERE rowid = (SELECT rowid FROM observer WHERE name = ?1 AND fifo = ?2)";
        self.tx.prepare_cached(delete)?.execute(params![name, self.me.address.fifo]).map(drop)
    }

    /// Runs a deletion that answers names, and serves these lines.
    fn remove(&mut self, deletion: &str, which: impl rusqlite::Params) -> rusqlite::Result<()> {
        let mut deletion = self.tx.prepare_cached(deletion)?;
        let gone = deletion.query_map(which, |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (name, held) in gone.collect::<rusqlite::Result<Vec<(String, bool)>>>()? {
            self.serve(&name)?;
            if held {
                self.stirred.insert(name);
            }
        }
        Ok(())
    }

    /// Who stands in the way.
    fn contention(&self, head: &Head, name: &str, of_mine: i64) -> rusqlite::Result<Contention> {
        let waiters = "SELECT count(*) FROM place WHERE name = ?1 AND token IS NULL";
        let waiters: i64 = self.tx.prepare_cached(waiters)?.query_row([name], |row| row.get(0))?;
        let waiters = (waiters - of_mine).max(0) as usize;
        let Some(first) = head.holders.first() else { return Ok(Contention::unknown().waiters(waiters)) };
        let since = Duration::from_millis(first.since.max(0) as u64);
        let who = Contention::by(&*first.label).held_for(wall().saturating_sub(since)).waiters(waiters);
        Ok(first.token.map_or(who.clone(), |number| who.token(token(number))))
    }
}

/// The wall clock since its epoch: for people, and for tokens.
fn wall() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A name as one line of a FIFO has it.
pub(crate) fn one_line(name: &str) -> String {
    escape(name, is_end_of_line)
}

pub(crate) fn is_end_of_line(c: char) -> bool {
    c == '\n'
}

pub(crate) fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}
