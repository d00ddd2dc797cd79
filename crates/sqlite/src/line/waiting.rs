//! What waiting places depend on, and how their renewals see to it: so nobody else has to look while all goes well.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use leasehold_core::Loss;
use leasehold_core::seam::{Admission, LeaseRef, Renewal, admit};
use rusqlite::{OptionalExtension, params};

use super::{Head, Lines};
use crate::fifo::Address;
use crate::row::{Standing, standings};

/// What a waiting place depends on.
pub(crate) struct Outlook {
    /// The clients whose death would concern it.
    pub(crate) watch: Vec<Address>,
    /// When to look again, should nobody be able to see that one of them has ended: their leases do.
    pub(super) nap: Duration,
    /// That is before the next renewals of the place, each of which looks as well.
    pub(crate) is_near: bool,
}

impl Lines<'_> {
    /// What has become of these places, and what those that wait depend on.
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

    /// The first who waits depends on those who keep it out; everybody else on whoever is before it.
    pub(super) fn outlook(&self, mine: &Standing, head: &Head, name: &str) -> rusqlite::Result<Outlook> {
        if !self.grants() {
            let nap = Duration::from_nanos((self.quiet - self.now) as u64) + Duration::from_millis(1);
            return Ok(Outlook { watch: Vec::new(), nap, is_near: true });
        }
        let ahead: Vec<(Address, i64)> = if head.next.as_ref().is_none_or(|next| next.seq == mine.seq) {
            let watch = match admit(&head.modes(), mine.mode) {
                Admission::Watch(watch) => watch,
                Admission::In => Vec::new(),
            };
            watch.into_iter().map(|at| (head.holders[at].client, head.holders[at].until)).collect()
        } else {
            let before = standings!("WHERE p.name = ?1 AND p.seq < ?2 ORDER BY p.seq DESC LIMIT 1");
            let mut before = self.tx.prepare_cached(before)?;
            let before = before.query_row(params![name, mine.seq], Standing::read).optional()?;
            before.map(|before| (before.client, before.until)).into_iter().collect()
        };
        let end = ahead.iter().map(|(_, until)| *until).min().unwrap_or(self.now);
        let left = end.saturating_sub(self.now).max(0);
        // Whoever renews in time has more than half of its lease left, and so have we: we look again before that.
        let is_near = left < mine.ttl / 2;
        // Six leases stand for never: nothing rests on that nap.
        let nap = if is_near { left } else { left.saturating_add(mine.ttl.saturating_mul(6)) };
        let nap = Duration::from_nanos(nap as u64) + Duration::from_millis(1);
        let watch = ahead.into_iter().map(|(client, _)| client).filter(|client| *client != self.me.address).collect();
        Ok(Outlook { watch, nap, is_near })
    }
}
