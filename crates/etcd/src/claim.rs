//! Claims: taking a place in a queue and keeping it.
//!
//! A place is a key under the session's lease. Its create_revision is its number in the queue, and
//! its token is made from it. A place holds if [`admit`] lets it in behind the places with smaller
//! numbers. One transaction reads those places and then creates the key.
//!
//! A `try` must not stand in a queue even for a moment. Its key is created only if no key of the
//! queue was created after a revision at which it would have been let in: the empty queue at first,
//! and later the state that the refusal has read.
//!
//! A claim of several names is a `try` for empty queues only, as one transaction: it creates all
//! keys or none. All of them have one create_revision, each in its own queue.

pub(crate) mod once;
pub(crate) mod own;
pub(crate) mod own_claims;
pub(crate) mod predecessor;
pub(crate) mod shared;
mod slots;
pub(crate) mod turns;
mod wait;

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetResponse, KeyValue, ResponseHeader, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};
use leasehold_core::backend::{
    Admission, Claim, Claimed, ClaimedAll, Mode, WaitPolicy, Waiting, admit, same_permits,
};
use leasehold_core::{Contention, Error, ErrorKind, Result};

use crate::claim::once::{Looked, Once};
use crate::claim::own::{OwnClaim, Watched};
use crate::claim::shared::Shared;
use crate::claim::turns::patience;
use crate::client::cluster::{Answer, any_one, newest, oldest};
use crate::completion::record::Record;
use crate::entry::Entry;
use crate::error::Failure;
use crate::fence::raise::RAISES;
use crate::inspect::Read;

/// The number of times that a claim starts over within one call: its session had ended or was
/// closed, or another claim came first.
const TRIES: usize = 12;

/// The outcome of claims that were sent together: the answer of each, which has a place in its
/// queue; or the index of the claim whose queue did not let it in, with nothing left of any claim.
type Outcome = std::result::Result<Vec<Claimed>, (usize, Contention)>;

/// The result of the transaction of claims that were sent together.
enum Entered {
    /// Nothing was sent, because a release of them came first.
    Unsent,
    /// The work that the claim asks for is done: the completion. The place has ended, if it was
    /// known.
    Done(KeyValue),
    /// The revision, and the result for each claim.
    Found(i64, Vec<ClaimTxnResult>),
}

/// The result of the transaction for one claim.
pub(crate) struct ClaimTxnResult {
    pub(crate) read: Read,
    /// Its key, if it was there before.
    pub(crate) mine: Option<KeyValue>,
    /// The create_revision of its key, 0 if it is not there now.
    pub(crate) created: i64,
    /// The place's number is `created + base`.
    pub(crate) base: i64,
    /// The nearest entry before it, if that was read too.
    pub(crate) nearest: Option<KeyValue>,
    /// The contention that the mirror shows. If there is one, the read has any one entry of a long
    /// queue instead of the oldest.
    pub(crate) who: Option<Contention>,
    /// Its entry takes turns.
    pub(crate) turns: bool,
    /// This call sent a request that may create its key, and got no answer.
    doubt: bool,
    /// A completion of an earlier fire, which does not count for the claim.
    earlier: Option<KeyValue>,
}

/// The upper limit of the interval at which a waiter asks; it grows with the number of its client's
/// waiters.
const LONGEST_POLL: Duration = Duration::from_secs(100_000);

/// The time after which to claim again without a notification. It grows with the waiters of the
/// name, so that this client asks once per lease.
fn poll_interval(ttl: Duration, waiters: usize) -> Duration {
    let together = ttl.saturating_mul(u32::try_from(waiters).unwrap_or(u32::MAX).max(1));
    together
        .min(LONGEST_POLL)
        .max(ttl)
        .mul_f64(0.5 + fastrand::f64() / 2.0)
}

impl Shared {
    pub(crate) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        let outcome = self.claim_together(from_ref(claim)).await?;
        Ok(outcome.map_or_else(|(_, who)| Claimed::Busy(who), |mut all| all.remove(0)))
    }

    /// Claims all of these names or none. They have one TTL.
    pub(crate) async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<ClaimedAll> {
        let outcome = self.claim_together(claims).await?;
        Ok(outcome.map_or_else(
            |(at, who)| ClaimedAll::Busy(at, who),
            |all| all.into_iter().collect(),
        ))
    }

    async fn claim_together(self: &Arc<Self>, claims: &[Claim]) -> Result<Outcome> {
        claims
            .iter()
            .try_for_each(|claim| RAISES.check(claim.floor))?;
        let mut may_be_left = false;
        let outcome = self.try_together(claims, &mut may_be_left).await;
        outcome.map_err(|error| {
            self.claims().remove_unsent(claims);
            let ambiguous = may_be_left && error.kind() == ErrorKind::Unavailable;
            if ambiguous {
                Error::new(ErrorKind::Ambiguous, error.to_string())
            } else {
                error
            }
        })
    }

    /// `may_be_left`: an earlier transaction of this call may have left a key, whatever the outcome
    /// of the later ones.
    async fn try_together(
        self: &Arc<Self>,
        claims: &[Claim],
        may_be_left: &mut bool,
    ) -> Result<Outcome> {
        let mut seen = 0;
        let mut new = false;
        if let [claim] = claims
            && let Some(done) = self.look_first(claim).await?
        {
            return Ok(Ok(vec![done]));
        }
        'again: for _ in 0..TRIES {
            self.cluster.open()?;
            let owns = self.register(claims).await?;
            let Some(session) = owns.first().map(OwnClaim::session) else {
                return Ok(Ok(Vec::new()));
            };
            new |= owns.iter().any(|own| own.created == 0);
            let entered = self.enter(claims, &owns, seen).await;
            let (revision, found) = match self.under(session, entered) {
                Err(failure) if failure.kind == ErrorKind::Lost => continue,
                entered => match entered? {
                    Entered::Found(revision, found) => (revision, found),
                    Entered::Done(done) => {
                        *may_be_left = true;
                        let answer = self.answer_done(&claims[0], &owns[0], &done).await?;
                        return Ok(Ok(vec![answer]));
                    }
                    Entered::Unsent => continue,
                },
            };
            *may_be_left |= found
                .iter()
                .any(|found| found.doubt || (found.mine.is_none() && found.created != 0));
            for (i, (claim, found)) in claims.iter().zip(&found).enumerate() {
                if let Some(earlier) = &found.earlier
                    && let Err(e) = Record::read(earlier.value())
                {
                    self.release_all(claims).await?;
                    return Err(e.with_name(&claim.name));
                }
                if found.created == 0 && claim.policy == WaitPolicy::Try {
                    let before = found.read.before(i64::MAX);
                    same_permits(&before, claim.mode)?;
                    if admit(&before, claim.mode) != Admission::In {
                        // A late attempt of their own could still find the queues empty.
                        self.release_all(claims).await?;
                        return Ok(Err((i, found.read.contention(found.read.count))));
                    }
                }
            }
            if found.iter().any(|found| found.created == 0) {
                // Their session accepts no more keys, or the queue has changed. Several claims are
                // only let in by empty queues.
                if claims.len() > 1 || session.is_closed() {
                    self.release_all(claims).await?;
                } else {
                    seen = revision;
                }
                continue;
            }
            let mut all = Vec::with_capacity(claims.len());
            for ((claim, own), found) in claims.iter().zip(&owns).zip(&found) {
                match self.answer_for_place(claim, own, found).await? {
                    Some(claimed) => all.push(claimed),
                    None => continue 'again,
                }
            }
            if new
                && all
                    .iter()
                    .any(|claimed| matches!(claimed, Claimed::Waiting(_)))
            {
                self.renew_early(session);
            }
            return Ok(Ok(all));
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the queues or the session changed again and again; claim again",
        ))
    }

    /// The records of these claims, all of one session; new claims are registered.
    async fn register(self: &Arc<Self>, claims: &[Claim]) -> Result<Vec<OwnClaim>> {
        let known = |claim: &Claim| self.claims().touch(&claim.name, claim.id);
        let known: Option<Vec<OwnClaim>> = claims.iter().map(known).collect();
        let together = |owns: &Vec<OwnClaim>| {
            owns.windows(2)
                .all(|two| Arc::ptr_eq(two[0].session(), two[1].session()))
        };
        if let Some(known) = known.filter(together) {
            return Ok(known);
        }
        // Some are being released, or only some are left. The late release of an old entry would
        // delete the new one, too.
        self.release_all(claims).await?;
        let ttl = claims
            .iter()
            .map(|claim| claim.ttl)
            .max()
            .unwrap_or_default();
        let (session, mut own) = loop {
            let session = self.sessions.get(ttl).await?;
            let own = self.claims();
            // A number that is free now may be that of a key whose deletion is still on its way. In
            // that case its session was closed before.
            if !session.is_closed() {
                break (session, own);
            }
        };
        Ok(claims
            .iter()
            .map(|claim| own.insert(claim, &self.keys.prefix(&claim.name), &session))
            .collect())
    }

    /// Sends the transaction: it reads the oldest of each queue and creates the keys, unless they
    /// exist or tokens were raised; otherwise it reads the keys. A claim for work that is done once
    /// looks at the completion first.
    async fn enter(
        &self,
        claims: &[Claim],
        owns: &[OwnClaim],
        seen: i64,
    ) -> Result<Entered, Failure> {
        let base = self.base.get();
        let base_key = self.keys.base();
        let mut when = vec![base.is_true(&base_key)];
        let mut then = Vec::new();
        let mut or_else = Vec::new();
        let mut mirrored = None;
        let mut turns = false;
        for (claim, own) in claims.iter().zip(owns) {
            let prefix = self.keys.prefix(&claim.name);
            // The oldest entry alone keeps an exclusive claim out.
            let exclusive = (claim.mode, own.mode) == (Mode::Exclusive, Mode::Exclusive);
            let waits = exclusive && claim.policy != WaitPolicy::Try;
            // A claim of this client stood far back the last time, so it probably will again.
            turns = waits && claim.once.is_none() && self.may_take_turns(own);
            let nearest = |before| turns.then(|| TxnOp::get(&*prefix, Some(newest(before))));
            let read = TxnOp::get(&*prefix, Some(oldest(i64::from(exclusive))));
            let put = own.key.put(
                Entry {
                    turns,
                    base: base.by,
                    ..Entry::now(&claim.label, claim.mode)
                }
                .write(),
            );
            if claim.policy == WaitPolicy::Try {
                // The queue's keys include its own key.
                when.push(
                    Compare::create_revision(&*prefix, CompareOp::Less, seen + 1).with_prefix(),
                );
            } else {
                when.push(own.key.was_created(0));
                mirrored = if waits && !turns {
                    self.mirrored_queue(claim, &prefix)
                } else {
                    None
                };
                then.push(if mirrored.is_some() {
                    TxnOp::get(&*prefix, Some(any_one()))
                } else {
                    read.clone()
                });
                then.extend(nearest(i64::MAX));
            }
            then.push(put);
            or_else.push(read);
            // If several are claimed, each key is the oldest of its queue if it exists.
            if claims.len() == 1 {
                or_else.push(TxnOp::get(&*own.key.path, None));
                or_else.extend(nearest(own.created).filter(|_| own.created != 0));
            }
        }
        or_else.push(TxnOp::get(base_key, None));
        // From here until the answer the keys may be created without the client's knowledge, even
        // if this future is dropped.
        let Some(doubts) = self.claims().begin(claims, owns) else {
            return Ok(Entered::Unsent);
        };
        let once = self.once(&claims[0]).filter(|_| claims.len() == 1);
        when.push(owns[0].session().is_open());
        let txn = match &once {
            Some(once) => once.around(&owns[0], when, then, or_else),
            None => Txn::new().when(when).and_then(then).or_else(or_else),
        };
        let Answer { outcome, doubt } = self.cluster.txn(txn).await;
        let new = (mirrored.as_ref(), turns, base.by);
        let entered = outcome.and_then(|response| {
            let revision = response.header().map_or(0, ResponseHeader::revision);
            let (inner, earlier) = match once {
                Some(_) => match Once::looked(response)? {
                    Looked::Done(done) => return Ok(Entered::Done(done)),
                    Looked::NotDone(inner, earlier) => (inner, earlier),
                },
                None => (response, None),
            };
            let mut found = self.found(claims, owns, new, (revision, &inner), doubt)?;
            if let [found] = &mut found[..] {
                found.earlier = earlier;
            }
            Ok(Entered::Found(revision, found))
        });
        let mut all = self.claims();
        for (i, ((claim, own), before)) in claims.iter().zip(owns).zip(doubts).enumerate() {
            let found = match &entered {
                Ok(Entered::Found(_, found)) => Some(&found[i]),
                _ => None,
            };
            let turns = found
                .filter(|found| found.turns)
                .map(|_| self.mirrors.follow(self.turns(own)));
            let created = found.map_or((0, 0), |found| (found.created, found.base));
            all.answered(&claim.name, own, doubt || before, created, turns);
        }
        drop(all);
        entered
    }

    /// Reads the answer of the transaction.
    fn found(
        &self,
        claims: &[Claim],
        owns: &[OwnClaim],
        (mirrored, turns, base): (Option<&Contention>, bool, i64),
        (revision, response): (i64, &TxnResponse),
        doubt: bool,
    ) -> Result<Vec<ClaimTxnResult>, Failure> {
        let reads = |op| {
            if let TxnOpResponse::Get(read) = op {
                Some(read)
            } else {
                None
            }
        };
        let mut reads: Vec<GetResponse> = response
            .op_responses()
            .into_iter()
            .filter_map(reads)
            .collect();
        let base_key = if response.succeeded() {
            None
        } else {
            reads.pop()
        };
        let each = reads.len() / claims.len();
        let found = |(i, (claim, own)): (usize, (&Claim, &OwnClaim))| {
            let reads = &reads[i * each..(i + 1) * each];
            let read = Read::new(self.keys.prefix(&claim.name), reads.first());
            let key = own.key.path.as_bytes();
            let mine = reads
                .iter()
                .flat_map(GetResponse::kvs)
                .find(|kv| kv.key() == key)
                .cloned();
            let new = if response.succeeded() { revision } else { 0 };
            let created = mine.as_ref().map_or(new, KeyValue::create_revision);
            // The nearest entry was read after the oldest. If the key existed, it was read after
            // that key, for the create_revision that was known.
            let nearest = reads
                .get(if response.succeeded() { 1 } else { 2 })
                .and_then(|read| read.kvs().first());
            let nearest = nearest
                .filter(|_| response.succeeded() || created == own.created)
                .cloned();
            let (turns, base) = mine.as_ref().map_or((turns, base), |mine| {
                let mine = Entry::read(mine.value());
                (mine.turns, mine.base)
            });
            let who = mirrored.cloned().filter(|_| response.succeeded());
            ClaimTxnResult {
                read,
                mine,
                created,
                base,
                nearest,
                who,
                turns,
                doubt,
                earlier: None,
            }
        };
        let all: Vec<ClaimTxnResult> = claims.iter().zip(owns).enumerate().map(found).collect();
        if let Some(read) = base_key.filter(|_| all.iter().any(|found| found.created == 0)) {
            self.base.learn(&read)?;
        }
        Ok(all)
    }

    /// The claim's answer now that its key is in the queue. `None`: start over, because the claim
    /// has just changed.
    async fn answer_for_place(
        self: &Arc<Self>,
        claim: &Claim,
        own: &OwnClaim,
        found: &ClaimTxnResult,
    ) -> Result<Option<Claimed>> {
        let ClaimTxnResult {
            read,
            mine,
            created,
            ..
        } = found;
        let stored = mine.as_ref().map_or_else(
            || Entry::now(&claim.label, claim.mode),
            |mine| Entry::read(mine.value()),
        );
        // The note of its eviction may have come before the answer: it is not reported again.
        if let Some(own) = self
            .claims()
            .get(&claim.name, claim.id)
            .filter(|own| self.was_evicted(own))
        {
            own.set_created(0);
            return Ok(None);
        }
        let before = read.before(*created);
        if own.created == 0 {
            same_permits(&before, stored.mode)?;
        }
        let holds = admit(&before, stored.mode) == Admission::In;
        let downgraded = holds && (claim.mode, stored.mode) == (Mode::Shared, Mode::Exclusive);
        if let Some(mine) = mine
            .as_ref()
            .filter(|_| downgraded || *stored.label != *claim.label)
        {
            // A put on an existing key changes neither its create_revision nor its place. A late
            // duplicate of an earlier put finds another version of the key and changes nothing.
            let mode = if downgraded {
                Mode::Shared
            } else {
                stored.mode
            };
            let value = Entry {
                label: claim.label.to_string(),
                mode,
                ..stored
            }
            .write();
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
        let watched = if holds {
            None
        } else {
            self.watch_completion(claim);
            self.watch_for(claim, own, found).await
        };
        let mut claims = self.claims();
        let mut poll_interval = poll_interval(claim.ttl, claims.count(&claim.name));
        if let Some(Watched::Turn) = watched {
            poll_interval = poll_interval.min(patience(others));
        }
        // The claim may be gone by now, or being released.
        let still = |own: &&mut OwnClaim| own.created == *created && !own.releasing;
        let Some(own) = claims.get(&claim.name, claim.id).filter(still) else {
            return Ok(None);
        };
        own.granted |= holds;
        own.ahead = if mine.is_none() {
            u32::try_from(others).ok()
        } else {
            own.ahead
        };
        if watched.is_none() && !own.granted {
            return Ok(None);
        }
        own.watched = watched.filter(|_| !own.granted).map(Box::new);
        if let Some(once) = own.once.as_mut().filter(|_| holds) {
            once.completion = None;
        }
        self.report_turns(&mut claims, &claim.name);
        self.report_before(&mut claims, &claim.name, |own| own.id == claim.id);
        self.report_queue(&mut claims, &claim.name, Some(claim.id));
        // The mirrors may have shown meanwhile that it has gone.
        Ok(claims
            .get(&claim.name, claim.id)
            .filter(still)
            .map(|own| match own.granted {
                true => Claimed::Granted(own.grant()),
                false => {
                    let who = found.who.clone().unwrap_or_else(|| read.contention(others));
                    Claimed::Waiting(Waiting::new(own.place(), who).retry_after(poll_interval))
                }
            }))
    }
}
