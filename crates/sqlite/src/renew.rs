//! `renew`: one update for each session, however many places it has.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use leasehold_core::seam::{ClaimId, LeaseRef, Moment, Renewal};
use leasehold_core::{Loss, Result};
use rusqlite::{OptionalExtension, params};

use crate::claim::Outlook;
use crate::claim::queue::Queues;
use crate::client::fifo::Address;
use crate::client::time::{nanos, now};
use crate::client::worker::Client;
use crate::error;

impl Client {
    pub(crate) fn renew(&mut self, leases: &[LeaseRef], deadline: Moment) -> Result<Vec<Renewal>> {
        self.ready(deadline)?;
        self.write(deadline, |queues| queues.renew(leases))?;
        self.announce_longest()?;
        // Thousands of places are read while others may write.
        let of = |e| error::of(&e, &self.file.path);
        let tx = self.file.connection.unchecked_transaction().map_err(of)?;
        let quiet = self.file.quiet().map_err(of)?.unwrap_or_default();
        let seen = Queues::new(&tx, &mut self.own, now(), quiet).renewals(leases).map_err(of)?;
        drop(tx);
        let renewal = |(lease, (renewal, outlook)): (&LeaseRef, (Renewal, Option<Outlook>))| {
            if let Some(Outlook { watch, is_near, .. }) = outlook {
                let dead = self.watches.set(&self.file.real, lease.claim.id, &watch);
                if is_near || !dead.is_empty() {
                    self.notifier.claim_again(lease.claim.id);
                }
                self.ended.extend(dead);
            }
            renewal
        };
        Ok(leases.iter().zip(seen).map(renewal).collect())
    }
}

impl Queues<'_> {
    /// Renews the sessions of these claims. What has become of each place is read afterwards.
    pub(crate) fn renew(&mut self, leases: &[LeaseRef]) -> rusqlite::Result<()> {
        let mut ttls: Vec<i64> = leases.iter().map(|lease| nanos(lease.claim.ttl)).collect();
        ttls.sort_unstable();
        ttls.dedup();
        for LeaseRef { claim, .. } in leases {
            if let Some((ttl, until)) = self.own.last_used.get_mut(&claim.id).filter(|(_, until)| *until > self.now) {
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

    /// What has become of these places, and what the waiters among them depend on.
    pub(crate) fn renewals(&self, leases: &[LeaseRef]) -> rusqlite::Result<Vec<(Renewal, Option<Outlook>)>> {
        let (mut heads, mut seen) = (HashMap::new(), Vec::with_capacity(leases.len()));
        for LeaseRef { claim, token, .. } in leases {
            let mine = self.find(&claim.id.to_string())?.filter(|mine| mine.until > self.now);
            let Some(mine) = mine else {
                seen.push((Renewal::Lost(Loss::Gone), None));
                continue;
            };
            let renewed = Renewal::Renewed(mine.validity());
            seen.push(match mine.grant() {
                Some(grant) if *token != Some(grant.token) => (Renewal::Granted(grant), None),
                Some(_) => (renewed, None),
                None => {
                    let name = claim.name.as_str();
                    let head = match heads.entry(name) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(new) => new.insert(self.head(name)?),
                    };
                    (renewed, Some(self.outlook(&mine, head, name)?))
                }
            });
        }
        Ok(seen)
    }

    /// This client's session of this TTL, made if there is none, and extended unless it is nearly whole.
    pub(crate) fn session(&mut self, ttl: i64) -> rusqlite::Result<i64> {
        if let Some((id, until)) = self.alive(ttl)? {
            if until - self.now < ttl - ttl / 10 {
                self.extend(id, ttl)?;
            }
            return Ok(id);
        }
        // What an ended one of ours still has is dead, and may not seem alive again.
        let Address { fifo, dev, ino } = self.own.address;
        let ended = "DELETE FROM place WHERE session = (SELECT id FROM session WHERE fifo = ?1 AND ttl = ?2) 
                     RETURNING name, token IS NOT NULL";
        self.remove(ended, params![fifo, ttl])?;
        let insert = "INSERT OR REPLACE INTO session (fifo, dev, ino, pid, ttl, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let until = self.now.saturating_add(ttl);
        self.execute(insert, params![fifo, dev, ino, std::process::id(), ttl, until])?;
        self.written.push((ttl, until));
        Ok(self.tx.last_insert_rowid())
    }

    /// This client's session of this TTL and its end, unless it has ended.
    fn alive(&mut self, ttl: i64) -> rusqlite::Result<Option<(i64, i64)>> {
        let of = "SELECT id, until FROM session WHERE fifo = ?1 AND ttl = ?2";
        let found = params![self.own.address.fifo, ttl];
        let found = self.tx.prepare_cached(of)?.query_row(found, |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        // Others set it to 0 at most. A copy of earlier days has been put into the file.
        let written = self.own.written.get(&ttl).copied().unwrap_or_default();
        self.went_back |= found.is_some_and(|(_, until)| 0 < until && until < written);
        Ok(found.filter(|(_, until)| *until > self.now))
    }

    /// Extends a session and all its places but those that were neither claimed nor renewed for a lease.
    fn extend(&mut self, id: i64, ttl: i64) -> rusqlite::Result<()> {
        let now = self.now;
        let unused = self.own.last_used.extract_if(|_, (of, until)| *of == ttl && *until <= now);
        let unused: Vec<ClaimId> = unused.map(|(claim, _)| claim).collect();
        unused.into_iter().try_for_each(|claim| self.release(claim))?;
        let until = self.now.saturating_add(ttl);
        self.execute("UPDATE session SET until = ?2 WHERE id = ?1", params![id, until])?;
        self.written.push((ttl, until));
        Ok(())
    }
}
