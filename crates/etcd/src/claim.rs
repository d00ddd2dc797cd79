//! Taking a place, keeping it and giving it up.
//!
//! A place is a key under the session's lease, and its create_revision is its number: in the line, and of its token. It holds
//! when [`admit`] lets it in behind those with a smaller one. The transaction reads them, and then creates the key.
//!
//! A `try` must not stand in a line for a moment, so it creates its key only if nobody came since a revision at which it would
//! have been let in: into the empty line at first, and else behind those whom the refusal has read.
//!
//! Several names are tries of one transaction, for empty lines only: it creates all keys or none. So they all have the same
//! create_revision, each in its own line.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, PutOptions, ResponseHeader, TxnOp, TxnOpResponse};
use leasehold_core::seam::{
    Admission, Claim, ClaimId, Claimed, ClaimedAll, Mode, Moment, WaitPolicy, Waiting, admit, same_permits,
};
use leasehold_core::{Contention, Error, ErrorKind, Name, Result};
use leasehold_etcd_client::{Failure, LeasedKey, oldest};

use crate::line::Own;
use crate::look::Seen;
use crate::store::Store;
use crate::value::Value;

/// How often a claim starts over within one call: after a session that had ended or was closed, another one that came first.
const TRIES: usize = 12;

/// What came of claims that were sent together.
enum Taken {
    /// Each stands in its line.
    All(Vec<Claimed>),
    /// The line of this one did not let it in, and nothing is left of any.
    Busy(usize, Contention),
}

/// What the transaction found of one claim.
struct Found {
    line: Seen,
    /// Its key, if it was there before.
    mine: Option<KeyValue>,
    /// The create_revision of its key, 0 if it is not there now.
    created: i64,
}

impl Store {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        match self.take(from_ref(claim)).await? {
            Taken::All(mut all) => Ok(all.remove(0)),
            Taken::Busy(_, who) => Ok(Claimed::Busy(who)),
        }
    }

    /// All of these, which have one TTL, or none.
    pub(crate) async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<ClaimedAll> {
        match self.take(claims).await? {
            Taken::All(all) => Ok(all.into_iter().collect()),
            Taken::Busy(at, who) => Ok(ClaimedAll::Busy(at, who)),
        }
    }

    async fn take(self: &Arc<Self>, claims: &[Claim]) -> Result<Taken> {
        let mut seen = 0;
        'again: for _ in 0..TRIES {
            self.cluster.open()?;
            let owns = self.enroll(claims).await?;
            let Some(session) = owns.first().map(Own::session) else { return Ok(Taken::All(Vec::new())) };
            let entered = self.enter(claims, &owns, seen).await;
            let (revision, found) = match self.under(session, entered) {
                Err(failure) if failure.is(ErrorKind::Lost) => continue,
                answer => answer?,
            };
            for (i, (claim, found)) in claims.iter().zip(&found).enumerate() {
                if found.created == 0 && claim.policy == WaitPolicy::Try {
                    let before = found.line.before(i64::MAX);
                    same_permits(&before, claim.mode)?;
                    if admit(&before, claim.mode) != Admission::In {
                        // Their own late attempt could still find the lines empty.
                        self.release_all(claims).await?;
                        return Ok(Taken::Busy(i, found.line.contention(found.line.count)));
                    }
                }
            }
            if found.iter().any(|found| found.created == 0) {
                // Their session lets nobody in any more, or the line has changed. Several are only let in by empty lines.
                if claims.len() > 1 || session.is_closed() {
                    self.release_all(claims).await?;
                } else {
                    seen = revision;
                }
                continue;
            }
            let mut all = Vec::with_capacity(claims.len());
            for ((claim, own), found) in claims.iter().zip(&owns).zip(&found) {
                match self.stand(claim, own, found).await? {
                    Some(claimed) => all.push(claimed),
                    None => continue 'again,
                }
            }
            return Ok(Taken::All(all));
        }
        Err(Error::new(ErrorKind::Unavailable, "the lines or the session changed again and again; claim again"))
    }

    /// What is known of these claims, which are in one session; new ones are taken in.
    async fn enroll(&self, claims: &[Claim]) -> Result<Vec<Own>> {
        let known = |claim: &Claim| self.lines().tend(&claim.name, claim.id);
        let known: Option<Vec<Own>> = claims.iter().map(known).collect();
        let together = |owns: &Vec<Own>| owns.windows(2).all(|two| Arc::ptr_eq(two[0].session(), two[1].session()));
        if let Some(known) = known.filter(together) {
            return Ok(known);
        }
        // What is on its way out, or was left of a part of them: its release would take the new entry along.
        self.release_all(claims).await?;
        let ttl = claims.iter().map(|claim| claim.ttl).max().unwrap_or_default();
        let session = self.cluster.session(ttl).await?;
        let mut lines = self.lines();
        Ok(claims.iter().map(|claim| lines.enroll(claim, &self.keys.line(&claim.name), &session)).collect())
    }

    /// The transaction: it reads the oldest of each line, creates the keys unless they exist, and else reads them. Answers at
    /// which revision, and what it found.
    async fn enter(&self, claims: &[Claim], owns: &[Own], seen: i64) -> Result<(i64, Vec<Found>), Failure> {
        let (mut when, mut then, mut or_else) = (Vec::new(), Vec::new(), Vec::new());
        for (claim, own) in claims.iter().zip(owns) {
            let line = self.keys.line(&claim.name);
            // The oldest entry alone keeps an exclusive claim out.
            let exclusive = (claim.mode, own.mode) == (Mode::Exclusive, Mode::Exclusive);
            let look = TxnOp::get(&*line, Some(oldest(i64::from(exclusive))));
            let put = own.key.put(Value::now(&claim.label, claim.mode).write());
            if claim.policy == WaitPolicy::Try {
                // Its own key is one of them.
                when.push(Compare::create_revision(&*line, CompareOp::Less, seen + 1).with_prefix());
            } else {
                when.push(own.key.was_created(0));
                then.push(look.clone());
            }
            then.push(put);
            or_else.push(look);
            // Of several, each is the oldest if it is there.
            if claims.len() == 1 {
                or_else.push(TxnOp::get(&*own.key.path, None));
            }
        }
        let keys: Vec<&LeasedKey> = owns.iter().map(|own| &*own.key).collect();
        let response = self.cluster.create(owns[0].session(), &keys, when, then, or_else).await?;
        let revision = response.header().map_or(0, ResponseHeader::revision);
        let reads = |op| if let TxnOpResponse::Get(read) = op { Some(read) } else { None };
        let reads: Vec<GetResponse> = response.op_responses().into_iter().filter_map(reads).collect();
        let each = reads.len() / claims.len();
        let found = |(i, (claim, own)): (usize, (&Claim, &Own))| {
            let reads = &reads[i * each..(i + 1) * each];
            let line = Seen::new(self.keys.line(&claim.name), reads.first());
            let key = own.key.path.as_bytes();
            let mine = reads.last().and_then(|read| read.kvs().iter().find(|kv| kv.key() == key)).cloned();
            let new = if response.succeeded() { revision } else { 0 };
            let created = mine.as_ref().map_or(new, KeyValue::create_revision);
            Found { line, mine, created }
        };
        Ok((revision, claims.iter().zip(owns).enumerate().map(found).collect()))
    }

    /// What it means that the key stands in line. `None`: start over, it has just changed.
    async fn stand(self: &Arc<Self>, claim: &Claim, own: &Own, found: &Found) -> Result<Option<Claimed>> {
        let Found { line, mine, created } = found;
        let said = mine.as_ref().map_or_else(|| Value::now(&claim.label, claim.mode), |mine| Value::read(mine.value()));
        // A release knows from now on what to delete.
        if let Some(own) = self.lines().own(&claim.name, claim.id) {
            own.stands_at(*created);
            // The news of its eviction may have overtaken the answer: nobody tells it again.
            if self.was_evicted(own) {
                own.stands_at(0);
                return Ok(None);
            }
        }
        let before = line.before(*created);
        if own.created == 0 {
            same_permits(&before, said.mode)?;
        }
        let holds = admit(&before, said.mode) == Admission::In;
        let downgraded = holds && (claim.mode, said.mode) == (Mode::Shared, Mode::Exclusive);
        if let Some(mine) = mine.as_ref().filter(|_| downgraded || *said.label != *claim.label) {
            // A put on a key that exists changes neither its create_revision nor its place. A late duplicate of an earlier
            // one finds another version of it, and changes nothing.
            let mode = if downgraded { Mode::Shared } else { said.mode };
            let value = Value { label: claim.label.to_string(), mode, ..said }.write();
            let same = Compare::mod_revision(&*own.key.path, CompareOp::Equal, mine.mod_revision());
            let changed = self.cluster.change(same, vec![own.key.put(value)]).await;
            if !self.under(own.session(), changed)? {
                return Ok(None);
            }
        }
        let others = line.count - i64::from(mine.is_some());
        let mut lines = self.lines();
        // It may be gone by now, or on its way.
        let still = |own: &&mut Own| own.created == *created && !own.leaving;
        let Some(own) = lines.own(&claim.name, claim.id).filter(still) else { return Ok(None) };
        own.granted |= holds;
        own.ahead = if mine.is_none() { Some(others) } else { own.ahead };
        own.mirror = (!own.granted).then(|| self.mirrors.follow(&self.keys.line(&claim.name)));
        self.tell(&mut lines, &claim.name);
        Ok(lines.own(&claim.name, claim.id).map(|own| match own.granted {
            true => Claimed::Granted(own.grant()),
            false => Claimed::Waiting(Waiting::new(own.place(), line.contention(others))),
        }))
    }

    /// Leaves nothing of the claim.
    pub(crate) async fn release(&self, name: &Name, id: ClaimId) -> Result<(), Failure> {
        let leaving = self.lines().own(name, id).map(|own| {
            own.leaving = true;
            own.clone()
        });
        if let Some(own) = leaving {
            match self.under(own.session(), self.cluster.remove(&own.key, own.created).await) {
                Err(failure) if !failure.is(ErrorKind::Lost) => return Err(failure),
                _ => self.lines().strike(name, id),
            }
        }
        Ok(())
    }

    /// Leaves the hold to a lease of its own, which nobody renews. Its key stays where it is, so it is the same hold to
    /// everybody else, whatever becomes of its session; and `release` still finds it.
    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let known = self.lines().own(&claim.name, claim.id).filter(|own| own.created != 0).cloned();
        let Some(own) = known else { return Ok(()) };
        // It goes on to exist when we have forgotten it: no later claim of ours may take its key for its own.
        own.session().close();
        let (lease, end) = self.cluster.last_lease(rest).await?;
        let same = PutOptions::new().with_lease(lease).with_ignore_value();
        let moved = vec![TxnOp::put(&*own.key.path, "", Some(same))];
        let there = self.cluster.change(own.key.was_created(own.created), moved).await?;
        let mut lines = self.lines();
        lines.forget_rested(Moment::now());
        if let Some(own) = lines.own(&claim.name, claim.id).filter(|now| now.created == own.created) {
            (own.leaving, own.rests) = (true, Some(end));
        }
        if !there {
            lines.strike(&claim.name, claim.id);
        }
        Ok(())
    }

    async fn release_all(&self, claims: &[Claim]) -> Result<(), Failure> {
        for claim in claims {
            self.release(&claim.name, claim.id).await?;
        }
        Ok(())
    }
}
