//! A store in its simplest form, as a server: queues with leases by its own clock. Each of its
//! grants says which request extended it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use leasehold_core::backend::{
    self, Claim, ClaimId, Claimed, Complete, Grant, LeaseRef, Mode, Moment, Notifier, Place,
    Renewal, Validity, WaitPolicy, Waiting, holding, same_permits,
};
use leasehold_core::support::fault;
use leasehold_core::{Completion, FencingToken, Keep, LockQueue, Loss, Name, Participant, Result};

/// The number of times in a lease that a polling waiter asks again.
const POLLS: u32 = 20;

/// A client that is notified: the number of its process, and its notifier.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) process: usize,
    pub(crate) notifier: Notifier,
}

/// A message to a client that the client has not asked for.
pub(crate) type Push = (Client, Box<dyn FnOnce(&Notifier) + Send>);

#[derive(Default)]
pub(crate) struct Server {
    queues: BTreeMap<Name, Vec<Entry>>,
    completed: BTreeMap<Name, Completed>,
    tokens: u64,
    polls: bool,
    pub(crate) observers: Vec<(u64, Name, Client)>,
    /// The messages that are not sent yet.
    pub(crate) pushes: Vec<Push>,
}

/// The record that work is done.
struct Completed {
    id: ClaimId,
    completion: Completion,
    until: Option<Moment>,
}

impl Completed {
    fn shown(&self, now: Moment) -> Option<Completion> {
        let left = self.until.map(|until| until.since(now));
        let mut shown = self.completion.clone();
        shown.left = left;
        (left != Some(Duration::ZERO)).then_some(shown)
    }
}

struct Entry {
    claim: Claim,
    client: Client,
    /// The latest send time of a request that has extended the lease, by its client's clock.
    sent: Moment,
    deadline: Moment,
    token: Option<(u64, u32)>,
}

impl Entry {
    fn extend(&mut self, sent: Moment, now: Moment) {
        self.sent = self.sent.max(sent);
        self.deadline = self.deadline.max(now + self.claim.ttl);
    }

    /// The request that was sent last has extended the lease by its TTL, or one that was executed
    /// after it has.
    fn validity(&self) -> Validity {
        Validity::since(self.sent, self.claim.ttl)
    }

    fn grant(&self) -> Option<Grant> {
        let (token, turns) = self.token?;
        Some(
            Grant::new(
                place(self.claim.id),
                FencingToken::new(token),
                self.validity(),
            )
            .turns(turns),
        )
    }

    fn shown(&self) -> Participant {
        let mut shown = Participant::new(&*self.claim.label).mode(self.claim.mode);
        shown.token = self.token.map(|(token, _)| FencingToken::new(token));
        shown
    }
}

fn place(id: ClaimId) -> Place {
    Place::new(id.to_string())
}

impl Server {
    pub(crate) fn new(polls: bool) -> Server {
        Server {
            polls,
            ..Server::default()
        }
    }

    /// Works on a queue, and grants what can be granted before and after.
    fn with<T>(
        &mut self,
        name: &Name,
        asks: Option<ClaimId>,
        now: Moment,
        work: impl FnOnce(&mut Vec<Entry>) -> T,
    ) -> T {
        let before = self.leaders(name);
        self.admit(name, asks, now);
        let outcome = work(self.queues.entry(name.clone()).or_default());
        self.admit(name, asks, now);
        if before != self.leaders(name) {
            for (_, observed, client) in
                self.observers.iter().filter(|observer| observer.1 == *name)
            {
                let name = observed.clone();
                self.pushes.push((
                    client.clone(),
                    Box::new(move |notifier| notifier.holder_changed(&name)),
                ));
            }
        }
        outcome
    }

    fn leaders(&self, name: &Name) -> Vec<Option<(u64, u32)>> {
        self.queues
            .get(name)
            .into_iter()
            .flatten()
            .filter(|entry| entry.token.is_some())
            .map(|it| it.token)
            .collect()
    }

    fn admit(&mut self, name: &Name, asks: Option<ClaimId>, now: Moment) {
        let Some(queue) = self.queues.get_mut(name) else {
            return;
        };
        queue.retain(|entry| entry.deadline > now);
        let modes: Vec<Mode> = queue.iter().map(|entry| entry.claim.mode).collect();
        for entry in queue
            .iter_mut()
            .take(holding(&modes))
            .filter(|entry| entry.token.is_none())
        {
            entry.token = Some((self.tokens + 1, entry.claim.turns()));
            self.tokens += u64::from(entry.claim.turns());
            let id = entry.claim.id;
            let grant = entry.grant();
            if let Some(grant) = grant.filter(|_| asks != Some(id)) {
                self.pushes.push((
                    entry.client.clone(),
                    Box::new(move |notifier| notifier.granted(id, grant)),
                ));
            }
        }
        if queue.is_empty() {
            self.queues.remove(name);
        }
    }

    pub(crate) fn claim(
        &mut self,
        claim: &Claim,
        client: &Client,
        sent: Moment,
        now: Moment,
    ) -> Result<Claimed> {
        if let Some(fire) = claim.once
            && let Some(done) = self.completion(&claim.name, now)
            && done.counts_for(fire)
            && !fault("done-is-granted")
        {
            self.release(&claim.name, claim.id, now);
            return Ok(Claimed::Done(done));
        }
        let known = |queue: &[Entry]| queue.iter().position(|entry| entry.claim.id == claim.id);
        self.with(&claim.name, Some(claim.id), now, |queue| -> Result<()> {
            if known(queue).is_none() {
                same_permits(queue.iter().map(|entry| &entry.claim.mode), claim.mode)?;
                let claim = claim.clone();
                let client = client.clone();
                queue.push(Entry {
                    deadline: now + claim.ttl,
                    claim,
                    client,
                    sent,
                    token: None,
                });
            }
            Ok(())
        })?;
        let tries = claim.policy == WaitPolicy::Try;
        let polls = self.polls;
        self.with(&claim.name, Some(claim.id), now, |queue| {
            let contention = |queue: &[Entry]| {
                LockQueue::new(queue.iter().map(Entry::shown).collect(), Vec::new()).contention()
            };
            let Some(at) = known(queue) else {
                return Ok(Claimed::Busy(contention(queue)));
            };
            let entry = &mut queue[at];
            entry.extend(sent, now);
            entry.claim.label = claim.label.clone();
            if let Some(grant) = entry.grant() {
                if claim.mode == Mode::Shared && entry.claim.mode == Mode::Exclusive {
                    entry.claim.mode = Mode::Shared;
                }
                return Ok(Claimed::Granted(grant));
            }
            if tries {
                queue.remove(at);
                return Ok(Claimed::Busy(contention(queue)));
            }
            let free = queue
                .iter()
                .filter(|entry| entry.token.is_some())
                .map(|entry| entry.deadline)
                .min();
            let retry_after = free.map_or(claim.ttl, |at| at.since(now)) + Duration::from_millis(1);
            let retry_after = if polls {
                retry_after.min(claim.ttl / POLLS)
            } else {
                retry_after
            };
            Ok(Claimed::Waiting(
                Waiting::new(place(claim.id), contention(queue)).retry_after(retry_after),
            ))
        })
    }

    pub(crate) fn renew(&mut self, lease: &LeaseRef, sent: Moment, now: Moment) -> Renewal {
        let id = lease.claim.id;
        self.with(&lease.claim.name, None, now, |queue| {
            let Some(entry) = queue.iter_mut().find(|entry| entry.claim.id == id) else {
                return Renewal::Lost(Loss::Gone);
            };
            if lease.token.is_some() && entry.token.is_none() && !fault("place-is-hold") {
                return Renewal::Lost(Loss::Gone);
            }
            entry.extend(sent, now);
            match entry.grant() {
                Some(grant) if lease.token != Some(grant.token) => Renewal::Granted(grant),
                _ => Renewal::Renewed(entry.validity()),
            }
        })
    }

    pub(crate) fn release(&mut self, name: &Name, id: ClaimId, now: Moment) {
        self.with(name, None, now, |queue| {
            queue.retain(|entry| entry.claim.id != id);
        });
    }

    pub(crate) fn completion(&self, name: &Name, now: Moment) -> Option<Completion> {
        self.completed.get(name)?.shown(now)
    }

    /// Records that the work of this claim is done, and ends its hold. Its successor is granted
    /// without a look at the record, as a store of two parts may do it.
    pub(crate) fn complete(
        &mut self,
        claim: &Claim,
        request: &Complete,
        now: Moment,
    ) -> backend::Completed {
        let fire = claim.once.unwrap_or_default();
        let before = self.completed.get(&claim.name);
        if let Some((id, done)) = before.and_then(|it| Some((it.id, it.shown(now)?))) {
            if id == claim.id {
                return backend::Completed::Done(done);
            }
            if done.counts_for(fire) {
                return backend::Completed::NotHeld;
            }
        }
        let token = request.token.get();
        let ended = self.with(&claim.name, None, now, |queue| {
            let holds = |entry: &Entry| {
                entry.claim.id == claim.id && entry.token.is_some_and(|(first, _)| first == token)
            };
            let at = queue.iter().position(holds)?;
            queue.remove(at);
            let waiting = queue.iter().filter(|entry| entry.token.is_none());
            Some(
                waiting
                    .map(|entry| (entry.client.clone(), entry.claim.id))
                    .collect::<Vec<_>>(),
            )
        });
        let Some(waiting) = ended else {
            return backend::Completed::NotHeld;
        };
        for (client, id) in waiting {
            self.pushes
                .push((client, Box::new(move |notifier| notifier.claim_again(id))));
        }
        let mut completion =
            Completion::new(request.token, claim.label.clone(), SystemTime::UNIX_EPOCH);
        completion.fire = fire;
        completion.result = request.result.clone();
        let completed = Completed {
            id: claim.id,
            completion,
            until: match request.keep {
                Keep::For(keep) => Some(now + keep),
                Keep::Forever => None,
            },
        };
        let shown = completed.shown(now);
        self.completed.insert(claim.name.clone(), completed);
        shown.map_or(backend::Completed::NotHeld, backend::Completed::Done)
    }

    pub(crate) fn forget(&mut self, name: &Name, token: FencingToken, now: Moment) -> bool {
        let is_it = self
            .completion(name, now)
            .is_some_and(|done| done.token == token);
        is_it && self.completed.remove(name).is_some()
    }

    pub(crate) fn inspect(&mut self, name: &Name, now: Moment) -> LockQueue {
        self.with(name, None, now, |queue| {
            let (holders, waiters) = queue
                .iter()
                .map(Entry::shown)
                .partition(|shown| shown.token.is_some());
            LockQueue::new(holders, waiters)
        })
    }

    /// Ends the holds of a lock. Their clients are told if `says_so`.
    pub(crate) fn evict(&mut self, name: &Name, says_so: bool, now: Moment) {
        let evicted = self.with(name, None, now, |queue| {
            let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(queue)
                .into_iter()
                .partition(|it| it.token.is_some());
            *queue = left;
            gone
        });
        for Entry { claim, client, .. } in evicted.into_iter().filter(|_| says_so) {
            self.pushes.push((
                client,
                Box::new(move |notifier| notifier.lost(claim.id, Loss::Evicted)),
            ));
        }
    }

    /// Forgets everything but the tokens.
    pub(crate) fn wipe(&mut self) {
        self.queues.clear();
        self.completed.clear();
    }

    /// The number of holders and waiters.
    pub(crate) fn entries(&mut self, now: Moment) -> usize {
        let names: Vec<Name> = self.queues.keys().cloned().collect();
        names.iter().for_each(|name| self.admit(name, None, now));
        self.queues.values().map(Vec::len).sum()
    }
}
