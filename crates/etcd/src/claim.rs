//! Taking a place and keeping it.
//!
//! A place is a key under the session's lease, and its create_revision is its number: in the queue, and of its token. It holds
//! when [`admit`] lets it in behind those with a smaller one. The transaction reads them, and then creates the key.
//!
//! A `try` must not stand in a queue for a moment, so it creates its key only if none came since a revision at which it would
//! have been let in: into the empty queue at first, and else behind those that the refusal has read.
//!
//! Several names are tries of one transaction, for empty queues only: it creates all keys or none. So they all have the same
//! create_revision, each in its own queue.

pub(crate) mod before;
pub(crate) mod own;
pub(crate) mod own_claims;
pub(crate) mod shared;
mod slots;
pub(crate) mod turns;
mod wait;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, ResponseHeader, TxnOp, TxnOpResponse, TxnResponse};
use leasehold_core::seam::{Admission, Claim, Claimed, ClaimedAll, Mode, WaitPolicy, Waiting, admit, same_permits};
use leasehold_core::{Contention, Error, ErrorKind, Result};

use crate::claim::own::{OwnClaim, Watched};
use crate::claim::shared::Shared;
use crate::claim::turns::patience;
use crate::client::cluster::{Answer, any_one, newest, oldest};
use crate::entry::Entry;
use crate::error::Failure;
use crate::fence::raise::RAISES;
use crate::inspect::Read;

/// How often a claim starts over within one call: after a session that had ended or was closed, another one that came first.
const TRIES: usize = 12;

/// What came of claims that were sent together: each has a place in its queue; or the queue of this one did not let it in, and
/// nothing is left of any.
type Outcome = std::result::Result<Vec<Claimed>, (usize, Contention)>;

/// What the transaction found of one claim.
pub(crate) struct Found {
    pub(crate) read: Read,
    /// Its key, if it was there before.
    pub(crate) mine: Option<KeyValue>,
    /// The create_revision of its key, 0 if it is not there now; and by how much its number is greater.
    pub(crate) created: i64,
    pub(crate) base: i64,
    /// The nearest entry before it, if that was read too.
    pub(crate) nearest: Option<KeyValue>,
    /// Who is in the way, as the mirror says: the read has any one entry of a long queue, instead of the oldest.
    pub(crate) who: Option<Contention>,
    /// Its entry takes turns.
    pub(crate) turns: bool,
    /// A request that may create its key was sent by this call, and not answered.
    doubt: bool,
}

/// Up to so long a waiter asks the more seldom, the more waiters its client has.
const LONGEST_POLL: Duration = Duration::from_secs(100_000);

/// When to claim again without a notification. Each of the waiters of a name asks so seldom that this client asks once per lease.
fn poll_interval(ttl: Duration, waiters: usize) -> Duration {
    let together = ttl.saturating_mul(u32::try_from(waiters).unwrap_or(u32::MAX).max(1));
    together.min(LONGEST_POLL).max(ttl).mul_f64(0.5 + fastrand::f64() / 2.0)
}

impl Shared {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        let outcome = self.claim_together(from_ref(claim)).await?;
        Ok(outcome.map_or_else(|(_, who)| Claimed::Busy(who), |mut all| all.remove(0)))
    }

    /// All of these, which have one TTL, or none.
    pub(crate) async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<ClaimedAll> {
        let outcome = self.claim_together(claims).await?;
        Ok(outcome.map_or_else(|(at, who)| ClaimedAll::Busy(at, who), |all| all.into_iter().collect()))
    }

    async fn claim_together(self: &Arc<Self>, claims: &[Claim]) -> Result<Outcome> {
        claims.iter().try_for_each(|claim| RAISES.check(claim.floor))?;
        let mut may_be_left = false;
        let outcome = self.try_together(claims, &mut may_be_left).await;
        outcome.map_err(|error| {
            self.claims().remove_unsent(claims);
            let ambiguous = may_be_left && error.kind() == ErrorKind::Unavailable;
            if ambiguous { Error::new(ErrorKind::Ambiguous, error.to_string()) } else { error }
        })
    }

    /// `may_be_left`: an earlier transaction of this call may have left something, whatever comes of the later ones.
    async fn try_together(self: &Arc<Self>, claims: &[Claim], may_be_left: &mut bool) -> Result<Outcome> {
        let (mut seen, mut new) = (0, false);
        'again: for _ in 0..TRIES {
            self.cluster.open()?;
            let owns = self.register(claims).await?;
            let Some(session) = owns.first().map(OwnClaim::session) else { return Ok(Ok(Vec::new())) };
            new |= owns.iter().any(|own| own.created == 0);
            let entered = self.enter(claims, &owns, seen).await;
            let (revision, found) = match self.under(session, entered) {
                Err(failure) if failure.kind == ErrorKind::Lost => continue,
                entered => match entered? {
                    Some(entered) => entered,
                    None => continue,
                },
            };
            *may_be_left |= found.iter().any(|found| found.doubt || (found.mine.is_none() && found.created != 0));
            for (i, (claim, found)) in claims.iter().zip(&found).enumerate() {
                if found.created == 0 && claim.policy == WaitPolicy::Try {
                    let before = found.read.before(i64::MAX);
                    same_permits(&before, claim.mode)?;
                    if admit(&before, claim.mode) != Admission::In {
                        // Their own late attempt could still find the queues empty.
                        self.release_all(claims).await?;
                        return Ok(Err((i, found.read.contention(found.read.count))));
                    }
                }
            }
            if found.iter().any(|found| found.created == 0) {
                // Their session lets none in any more, or the queue has changed. Several are only let in by empty queues.
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
            if new && all.iter().any(|claimed| matches!(claimed, Claimed::Waiting(_))) {
                self.renew_early(session);
            }
            return Ok(Ok(all));
        }
        Err(Error::new(ErrorKind::Unavailable, "the queues or the session changed again and again; claim again"))
    }

    /// What is known of these claims, which are in one session; new ones are registered.
    async fn register(self: &Arc<Self>, claims: &[Claim]) -> Result<Vec<OwnClaim>> {
        let known = |claim: &Claim| self.claims().touch(&claim.name, claim.id);
        let known: Option<Vec<OwnClaim>> = claims.iter().map(known).collect();
        let together =
            |owns: &Vec<OwnClaim>| owns.windows(2).all(|two| Arc::ptr_eq(two[0].session(), two[1].session()));
        if let Some(known) = known.filter(together) {
            return Ok(known);
        }
        // What is being released, or was left of a part of them: its release would take the new entry along.
        self.release_all(claims).await?;
        let ttl = claims.iter().map(|claim| claim.ttl).max().unwrap_or_default();
        let (session, mut own) = loop {
            let session = self.sessions.get(ttl).await?;
            let own = self.claims();
            // A number that is free now may be that of a key of which a deletion is late: then its session was closed before.
            if !session.is_closed() {
                break (session, own);
            }
        };
        Ok(claims.iter().map(|claim| own.insert(claim, &self.keys.prefix(&claim.name), &session)).collect())
    }

    /// The transaction: it reads the oldest of each queue, creates the keys unless they exist or tokens were raised, and else reads
    /// them. Answers at which revision, and what it found. `None`: nothing was sent, a release of them came first.
    async fn enter(
        &self,
        claims: &[Claim],
        owns: &[OwnClaim],
        seen: i64,
    ) -> Result<Option<(i64, Vec<Found>)>, Failure> {
        let (base, base_key) = (self.base.get(), self.keys.base());
        let (mut when, mut then, mut or_else, mut mirrored, mut turns) =
            (vec![base.is_true(&base_key)], Vec::new(), Vec::new(), None, false);
        for (claim, own) in claims.iter().zip(owns) {
            let prefix = self.keys.prefix(&claim.name);
            // The oldest entry alone keeps an exclusive claim out.
            let exclusive = (claim.mode, own.mode) == (Mode::Exclusive, Mode::Exclusive);
            let waits = exclusive && claim.policy != WaitPolicy::Try;
            // One of this client stood far back the last time: so it will again.
            turns = waits && self.may_take_turns(own);
            let nearest = |before| turns.then(|| TxnOp::get(&*prefix, Some(newest(before))));
            let read = TxnOp::get(&*prefix, Some(oldest(i64::from(exclusive))));
            let put = own.key.put(Entry { turns, base: base.by, ..Entry::now(&claim.label, claim.mode) }.write());
            if claim.policy == WaitPolicy::Try {
                // Its own key is one of them.
                when.push(Compare::create_revision(&*prefix, CompareOp::Less, seen + 1).with_prefix());
            } else {
                when.push(own.key.was_created(0));
                mirrored = if waits && !turns { self.mirrored_queue(claim, &prefix) } else { None };
                then.push(if mirrored.is_some() { TxnOp::get(&*prefix, Some(any_one())) } else { read.clone() });
                then.extend(nearest(i64::MAX));
            }
            then.push(put);
            or_else.push(read);
            // Of several, each is the oldest if it is there.
            if claims.len() == 1 {
                or_else.push(TxnOp::get(&*own.key.path, None));
                or_else.extend(nearest(own.created).filter(|_| own.created != 0));
            }
        }
        or_else.push(TxnOp::get(base_key, None));
        // From here until the answer, the keys may come to be without our knowing: also if this future is dropped.
        let Some(doubts) = self.claims().begin(claims, owns) else { return Ok(None) };
        let Answer { outcome, doubt } = self.cluster.create(owns[0].session(), when, then, or_else).await;
        let new = (mirrored.as_ref(), turns, base.by);
        let entered = outcome.and_then(|response| self.found(claims, owns, new, &response, doubt));
        let mut all = self.claims();
        for (i, ((claim, own), before)) in claims.iter().zip(owns).zip(doubts).enumerate() {
            let found = entered.as_ref().ok().map(|(_, found)| &found[i]);
            let turns = found.filter(|found| found.turns).map(|_| self.mirrors.follow(self.turns(own)));
            let created = found.map_or((0, 0), |found| (found.created, found.base));
            all.answered(&claim.name, own, doubt || before, created, turns);
        }
        drop(all);
        entered.map(Some)
    }

    /// What the answer of the transaction says.
    fn found(
        &self,
        claims: &[Claim],
        owns: &[OwnClaim],
        (mirrored, turns, base): (Option<&Contention>, bool, i64),
        response: &TxnResponse,
        doubt: bool,
    ) -> Result<(i64, Vec<Found>), Failure> {
        let revision = response.header().map_or(0, ResponseHeader::revision);
        let reads = |op| if let TxnOpResponse::Get(read) = op { Some(read) } else { None };
        let mut reads: Vec<GetResponse> = response.op_responses().into_iter().filter_map(reads).collect();
        let base_key = if response.succeeded() { None } else { reads.pop() };
        let each = reads.len() / claims.len();
        let found = |(i, (claim, own)): (usize, (&Claim, &OwnClaim))| {
            let reads = &reads[i * each..(i + 1) * each];
            let read = Read::new(self.keys.prefix(&claim.name), reads.first());
            let key = own.key.path.as_bytes();
            let mine = reads.iter().flat_map(GetResponse::kvs).find(|kv| kv.key() == key).cloned();
            let new = if response.succeeded() { revision } else { 0 };
            let created = mine.as_ref().map_or(new, KeyValue::create_revision);
            // It was read behind the oldest; and behind its own, for the create_revision that was known.
            let nearest = reads.get(if response.succeeded() { 1 } else { 2 }).and_then(|read| read.kvs().first());
            let nearest = nearest.filter(|_| response.succeeded() || created == own.created).cloned();
            let (turns, base) = mine.as_ref().map_or((turns, base), |mine| {
                let mine = Entry::read(mine.value());
                (mine.turns, mine.base)
            });
            let who = mirrored.cloned().filter(|_| response.succeeded());
            Found { read, mine, created, base, nearest, who, turns, doubt }
        };
        let all: Vec<Found> = claims.iter().zip(owns).enumerate().map(found).collect();
        if let Some(read) = base_key.filter(|_| all.iter().any(|found| found.created == 0)) {
            self.base.learn(&read)?;
        }
        Ok((revision, all))
    }

    /// The claim's answer now that its key is in the queue. `None`: start over, it has just changed.
    async fn stand(self: &Arc<Self>, claim: &Claim, own: &OwnClaim, found: &Found) -> Result<Option<Claimed>> {
        let Found { read, mine, created, .. } = found;
        let stored =
            mine.as_ref().map_or_else(|| Entry::now(&claim.label, claim.mode), |mine| Entry::read(mine.value()));
        // The note of its eviction may have overtaken the answer: it is not reported again.
        if let Some(own) = self.claims().get(&claim.name, claim.id).filter(|own| self.was_evicted(own)) {
            own.set_created(0);
            return Ok(None);
        }
        let before = read.before(*created);
        if own.created == 0 {
            same_permits(&before, stored.mode)?;
        }
        let holds = admit(&before, stored.mode) == Admission::In;
        let downgraded = holds && (claim.mode, stored.mode) == (Mode::Shared, Mode::Exclusive);
        if let Some(mine) = mine.as_ref().filter(|_| downgraded || *stored.label != *claim.label) {
            // A put on a key that exists changes neither its create_revision nor its place. A late duplicate of an earlier
            // one finds another version of it, and changes nothing.
            let mode = if downgraded { Mode::Shared } else { stored.mode };
            let value = Entry { label: claim.label.to_string(), mode, ..stored }.write();
            let same = Compare::mod_revision(&*own.key.path, CompareOp::Equal, mine.mod_revision());
            let changed = self.cluster.change(same, vec![own.key.put(value)]).await;
            if !self.under(own.session(), changed)? {
                return Ok(None);
            }
        }
        let others = read.count - i64::from(mine.is_some());
        if mine.is_some() {
            self.look_after_mirror(claim, read);
        }
        let watched = if holds { None } else { self.watch_for(claim, own, found).await };
        let mut claims = self.claims();
        let mut poll_interval = poll_interval(claim.ttl, claims.count(&claim.name));
        if let Some(Watched::Turn) = watched {
            poll_interval = poll_interval.min(patience(others));
        }
        // It may be gone by now, or being released.
        let still = |own: &&mut OwnClaim| own.created == *created && !own.releasing;
        let Some(own) = claims.get(&claim.name, claim.id).filter(still) else { return Ok(None) };
        own.granted |= holds;
        own.ahead = if mine.is_none() { u32::try_from(others).ok() } else { own.ahead };
        if watched.is_none() && !own.granted {
            return Ok(None);
        }
        own.watched = watched.filter(|_| !own.granted).map(Box::new);
        self.report_turns(&mut claims, &claim.name);
        self.report_before(&mut claims, &claim.name, |own| own.id == claim.id);
        self.report_queue(&mut claims, &claim.name, Some(claim.id));
        // What was seen since may say that it has gone.
        Ok(claims.get(&claim.name, claim.id).filter(still).map(|own| match own.granted {
            true => Claimed::Granted(own.grant()),
            false => {
                let who = found.who.clone().unwrap_or_else(|| read.contention(others));
                Claimed::Waiting(Waiting::new(own.place(), who).retry_after(poll_interval))
            }
        }))
    }
}
