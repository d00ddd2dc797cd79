//! `renew`: one update for each session, whatever the number of its places.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use leasehold_core::backend::{ClaimId, LeaseRef, Moment, Renewal};
use leasehold_core::support::fault;
use leasehold_core::{Loss, Name, Result};
use rusqlite::{CachedStatement, OptionalExtension, Row, params};

use crate::claim::Outlook;
use crate::claim::queue::{OwnPlace, Queues, Session};
use crate::client::fifo::Address;
use crate::client::time::{nanos, now, wall};
use crate::client::worker::Client;
use crate::entry::{Id, validity};
use crate::error;

/// Selects the lease of a place of this client that still holds by this token. Most renewals need
/// nothing else.
const LEASE: &str = "SELECT s.ttl, s.until FROM place p JOIN session s ON s.id = p.session
    WHERE p.name = ?1 AND p.seq = ?2 AND p.claim = ?3 AND p.token = ?4 AND s.fifo = ?5 AND s.until > ?6";

impl Client {
    pub(crate) fn renew(&mut self, leases: &[LeaseRef], deadline: Moment) -> Result<Vec<Renewal>> {
        self.ready(deadline)?;
        self.write(deadline, |queues| queues.renew(leases))?;
        self.announce_longest()?;
        // There may be thousands of places, so they are read while others may write.
        let of = |e| error::of(&e, &self.file.path);
        let tx = self.file.connection.unchecked_transaction().map_err(of)?;
        let meta = self.file.meta().map_err(of)?.unwrap_or_default();
        let seen = Queues::new(&self.file, &mut self.own, (now(), wall()), meta)
            .renewals(leases)
            .map_err(of)?;
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
    /// Renews the sessions of these claims. The state of each place is read afterwards.
    pub(crate) fn renew(&mut self, leases: &[LeaseRef]) -> rusqlite::Result<()> {
        let mut ttls: Vec<i64> = leases.iter().map(|lease| nanos(lease.claim.ttl)).collect();
        ttls.sort_unstable();
        ttls.dedup();
        for LeaseRef { claim, .. } in leases {
            if let Some(mine) = self
                .own
                .places
                .get_mut(&claim.id)
                .filter(|mine| mine.until > self.now)
            {
                mine.until = self.now.saturating_add(mine.ttl);
            }
        }
        for ttl in ttls {
            if let Some(session) = self
                .written_session(ttl)?
                .filter(|session| session.until > self.now)
            {
                self.extend(session.id, ttl)?;
            }
        }
        Ok(())
    }

    /// The states of these places, and the clients on which the waiters among them depend.
    pub(crate) fn renewals(
        &self,
        leases: &[LeaseRef],
    ) -> rusqlite::Result<Vec<(Renewal, Option<Outlook>)>> {
        let mut heads = HashMap::new();
        let mut seen = Vec::with_capacity(leases.len());
        // Prepared once for all leases: looking up this statement takes as long as running it.
        let mut lease_of = self.tx.prepare_cached(LEASE)?;
        for lease in leases {
            if let Some(renewed) = self.renewed(lease, &mut lease_of)? {
                seen.push((renewed, None));
                continue;
            }
            let LeaseRef { claim, token, .. } = lease;
            let mine = self.find(claim)?.filter(|mine| mine.until > self.now);
            let Some(mine) = mine else {
                seen.push((Renewal::Lost(Loss::Gone), None));
                continue;
            };
            let renewed = Renewal::Renewed(mine.validity());
            seen.push(match mine.grant() {
                Some(grant) if *token != Some(grant.token) => (Renewal::Granted(grant), None),
                Some(_) => (renewed, None),
                None if token.is_some() && !fault("place-is-hold") => {
                    (Renewal::Lost(Loss::Gone), None)
                }
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

    /// The answer for a hold that is unchanged; `None` if it is not.
    fn renewed(
        &self,
        lease: &LeaseRef,
        lease_of: &mut CachedStatement<'_>,
    ) -> rusqlite::Result<Option<Renewal>> {
        let LeaseRef {
            claim,
            token: Some(token),
            ..
        } = lease
        else {
            return Ok(None);
        };
        let Some(mine) = self.own.places.get(&claim.id) else {
            return Ok(None);
        };
        let Ok(token) = i64::try_from(token.get()) else {
            return Ok(None);
        };
        let id = Id::from(claim.id);
        let found = params![
            mine.name.as_str(),
            mine.seq,
            id,
            token,
            self.own.address.fifo,
            self.now
        ];
        let lease = lease_of
            .query_row(found, |row| Ok(validity(row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(lease.map(Renewal::Renewed))
    }

    /// Returns this client's session of this TTL. It is made if there is none, and extended unless
    /// nearly all of its lease is left.
    pub(crate) fn session(&mut self, ttl: i64) -> rusqlite::Result<i64> {
        match self.written_session(ttl)? {
            Some(Session { id, until }) if until > self.now => {
                if self.is_worn(until, ttl) {
                    self.extend(id, ttl)?;
                }
                return Ok(id);
            }
            // The places of an ended session are dead, and must not seem alive again.
            Some(_) => self.release_all(|mine, now| mine.ttl == ttl || mine.until <= now)?,
            None => {}
        }
        let Address { fifo, dev, ino } = self.own.address;
        let insert = "INSERT OR REPLACE INTO session (fifo, dev, ino, pid, ttl, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let until = self.now.saturating_add(ttl);
        self.execute(
            insert,
            params![fifo, dev, ino, std::process::id(), ttl, until],
        )?;
        let id = self.tx.last_insert_rowid();
        self.written.push((ttl, Session { id, until }));
        Ok(id)
    }

    /// Returns whether a session is to be extended: more than a tenth of its lease is over.
    pub(crate) fn is_worn(&self, until: i64, ttl: i64) -> bool {
        until - self.now < ttl - ttl / 10
    }

    /// Reads this client's session of this TTL, which may have ended.
    fn written_session(&mut self, ttl: i64) -> rusqlite::Result<Option<Session>> {
        let of = "SELECT id, until FROM session WHERE fifo = ?1 AND ttl = ?2";
        let session = |row: &Row<'_>| {
            Ok(Session {
                id: row.get(0)?,
                until: row.get(1)?,
            })
        };
        let found = params![self.own.address.fifo, ttl];
        let found = self
            .tx
            .prepare_cached(of)?
            .query_row(found, session)
            .optional()?;
        // Other clients only ever set the end to 0. Any other earlier end is from an old copy that
        // somebody has put in the place of the file.
        let written = self
            .own
            .sessions
            .get(&ttl)
            .map_or(0, |session| session.until);
        self.went_back |= found.is_some_and(|session| 0 < session.until && session.until < written);
        Ok(found)
    }

    /// Releases all places of this client for which `is_such` returns true.
    fn release_all(&mut self, is_such: impl Fn(&OwnPlace, i64) -> bool) -> rusqlite::Result<()> {
        let now = self.now;
        let such = self
            .own
            .places
            .iter()
            .filter(|(_, mine)| is_such(mine, now));
        let such: Vec<(ClaimId, Name)> = such
            .map(|(claim, mine)| (*claim, mine.name.clone()))
            .collect();
        such.into_iter()
            .try_for_each(|(claim, name)| self.release(name.as_str(), claim))
    }

    /// Extends a session with its places. Those that were neither claimed nor renewed for a lease
    /// are released.
    fn extend(&mut self, id: i64, ttl: i64) -> rusqlite::Result<()> {
        self.release_all(|mine, now| mine.until <= now)?;
        let until = self.now.saturating_add(ttl);
        self.execute(
            "UPDATE session SET until = ?2 WHERE id = ?1",
            params![id, until],
        )?;
        self.written.push((ttl, Session { id, until }));
        Ok(())
    }
}
