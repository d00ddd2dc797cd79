//! Core in a few lines: what a client believes of its claim, and what it asks next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures_util::future::BoxFuture;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Clock, LeaseRef, Mode, Moment, Notification, Place, Renewal,
    Subscription, WaitPolicy,
};
use leasehold_core::{ErrorKind, FencingToken, Result};

use crate::support::{TTL, Wire};

/// What a client has of its claim.
#[derive(Default)]
pub(crate) struct Has {
    place: Option<Place>,
    guard: Option<Guard>,
}

#[derive(Clone)]
pub(crate) struct Guard {
    token: FencingToken,
    until: Moment,
    lost: Arc<AtomicBool>,
}

/// A request that is out, and what it was.
pub(crate) enum Out {
    Claim(BoxFuture<'static, Result<Claimed>>, Moment),
    Renew(
        BoxFuture<'static, Result<Vec<Renewal>>>,
        Moment,
        Option<FencingToken>,
    ),
    Release(BoxFuture<'static, Result<()>>),
    /// A release with effect at this moment, of what was held.
    Keep(BoxFuture<'static, Result<()>>, Moment, Guard),
}

pub(crate) struct Client {
    pub(crate) who: &'static str,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) wires: Vec<Wire>,
    claim: Option<Claim>,
    has: Has,
    pub(crate) out: Option<Out>,
    /// It is being withdrawn until then.
    leaves: Option<Moment>,
    pub(crate) sleeps_until: usize,
    /// How often its request was looked at in vain.
    waited: u32,
    told_lost: Arc<Mutex<Option<Moment>>>,
    listens: Option<Subscription>,
    /// It gives back with a `min_hold`, now and then.
    pub(crate) keeps: bool,
}

/// All guards so far.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) seed: u64,
    pub(crate) most: u64,
    pub(crate) grants: usize,
    /// A hold that was given back within its `min_hold`, and until when nobody else may be granted.
    pub(crate) kept: Option<(FencingToken, Moment)>,
    /// How many of those came to their end, and how many were evicted.
    pub(crate) ended: [usize; 2],
}

impl Gate {
    /// This hold was ended by force: nobody is told who has given it back already.
    pub(crate) fn evicted(&mut self, token: FencingToken) {
        if self.kept.take_if(|(kept, _)| *kept == token).is_some() {
            self.ended[1] += 1;
        }
    }

    fn granted(&mut self, who: &str, now: Moment) {
        if let Some((token, until)) = self.kept {
            assert!(
                until <= now,
                "seed {}: {who} was granted within the min_hold of {token}",
                self.seed
            );
            self.kept = None;
            self.ended[0] += 1;
        }
    }
}

impl Client {
    pub(crate) fn new(who: &'static str, backend: Arc<dyn Backend>, wires: Vec<Wire>) -> Client {
        let (claim, has, out, leaves) = (None, Has::default(), None, None);
        let (sleeps_until, waited, told_lost, listens) = (0, 0, Arc::default(), None);
        Client {
            who,
            backend,
            wires,
            claim,
            has,
            out,
            leaves,
            sleeps_until,
            waited,
            told_lost,
            listens,
            keeps: false,
        }
    }

    pub(crate) fn holds(&self, now: Moment) -> bool {
        self.has
            .guard
            .as_ref()
            .is_some_and(|guard| guard.until > now && !guard.lost.load(Ordering::Relaxed))
    }

    /// Begins something: the next claim, a renewal, a release.
    pub(crate) fn begin(&mut self, random: &mut fastrand::Rng, clock: &Clock) {
        let (now, backend) = (clock.now(), self.backend.clone());
        let Some(claim) = self.claim.clone() else {
            let all = [
                WaitPolicy::Fair,
                WaitPolicy::Fair,
                WaitPolicy::Fast,
                WaitPolicy::Try,
            ];
            let policy = all[random.usize(0..all.len())];
            let claim = Claim::new("a", Mode::Exclusive, policy, TTL, self.who);
            let (clock, told) = (clock.clone(), Arc::default());
            self.told_lost = Arc::clone(&told);
            let heard = move |notification| {
                if let Notification::Lost(_) = notification {
                    *told.lock().unwrap() = Some(clock.now());
                }
            };
            self.listens = backend
                .notifier()
                .map(|notifier| notifier.subscribe(claim.id, heard));
            self.claim = Some(claim);
            return;
        };
        let lost = self.has.guard.is_some() && !self.holds(now);
        if self.leaves.is_some() || lost || random.u32(0..100) < 8 {
            // What was a guard is none from here on.
            self.has.guard = None;
            self.leaves.get_or_insert(now + TTL);
            let place = self.has.place.clone();
            self.out = Some(Out::Release(Box::pin(async move {
                backend.release(&claim, place.as_ref()).await
            })));
            return;
        }
        let token = self.has.guard.as_ref().map(|guard| guard.token);
        if self.keeps
            && random.u32(0..100) < 8
            && let Some(guard) = self.has.guard.take()
        {
            // Without an answer it is simply withdrawn.
            self.leaves = Some(now + TTL);
            let rest = TTL * random.u32(1..20) / 8;
            let place = self.has.place.clone();
            self.out = Some(Out::Keep(
                Box::pin(async move { backend.release_after(&claim, place.as_ref(), rest).await }),
                now + rest,
                guard,
            ));
            return;
        }
        if let (Some(place), true) = (self.has.place.clone(), random.u32(0..3) == 0) {
            let lease = LeaseRef::new(Arc::new(claim), place, token);
            self.out = Some(Out::Renew(
                Box::pin(async move { backend.renew(&[lease]).await }),
                now,
                token,
            ));
            return;
        }
        let policy = if token.is_some() {
            WaitPolicy::Try
        } else {
            claim.policy
        };
        let mut again = claim;
        again.policy = policy;
        self.out = Some(Out::Claim(
            Box::pin(async move { backend.claim(&again).await }),
            now,
        ));
    }

    /// One poll of what is out.
    pub(crate) fn step(&mut self, now: Moment, gate: &mut Gate) {
        self.waited = if self.out.is_some() {
            self.waited + 1
        } else {
            0
        };
        if self.waited > 60 {
            // It is not answered at all.
            (self.out, self.waited) = (None, 0);
        }
        match self.out.take() {
            None => {}
            Some(Out::Claim(mut out, sent)) => match poll(&mut out) {
                None => self.out = Some(Out::Claim(out, sent)),
                Some(answer) => self.claimed(answer, sent, now, gate),
            },
            Some(Out::Renew(mut out, sent, token)) => match poll(&mut out) {
                None => self.out = Some(Out::Renew(out, sent, token)),
                Some(Ok(answers)) => self.renewed(answers, sent, token),
                Some(Err(_)) => {}
            },
            Some(Out::Release(mut out)) => match poll(&mut out) {
                None => self.out = Some(Out::Release(out)),
                Some(Ok(())) => self.forget(),
                Some(Err(_)) if self.leaves.is_some_and(|until| until <= now) => self.forget(),
                Some(Err(_)) => {}
            },
            Some(Out::Keep(mut out, until, guard)) => match poll(&mut out) {
                None => self.out = Some(Out::Keep(out, until, guard)),
                Some(Ok(())) => {
                    // What its lease had ended before, or somebody else, is not kept.
                    if guard.until > now && self.told_lost.lock().unwrap().is_none() {
                        gate.kept = Some((guard.token, until));
                    }
                    self.forget();
                }
                Some(Err(_)) => {}
            },
        }
    }

    pub(crate) fn claimed(
        &mut self,
        answer: Result<Claimed>,
        sent: Moment,
        now: Moment,
        gate: &mut Gate,
    ) {
        match answer {
            Ok(Claimed::Granted(grant)) => {
                self.has.place = Some(grant.place.clone());
                let until = grant.validity.until(sent);
                let gone = self
                    .told_lost
                    .lock()
                    .unwrap()
                    .is_some_and(|gone| sent <= gone);
                match &mut self.has.guard {
                    Some(guard) if guard.token == grant.token => {
                        guard.until = guard.until.max(until);
                    }
                    Some(guard) => guard.lost.store(true, Ordering::Relaxed),
                    None if until <= now || gone => {}
                    None => {
                        let first = grant.token.get();
                        assert!(
                            first > gate.most,
                            "seed {}: {first} of {} after {}",
                            gate.seed,
                            self.who,
                            gate.most
                        );
                        gate.most = first + u64::from(grant.turns) - 1;
                        gate.grants += 1;
                        gate.granted(self.who, now);
                        self.has.guard = Some(Guard {
                            token: grant.token,
                            until,
                            lost: Arc::default(),
                        });
                    }
                }
            }
            Ok(Claimed::Waiting(waiting)) => {
                self.lose();
                self.has.place = Some(waiting.place);
            }
            Ok(Claimed::Busy(_) | Claimed::Done(_)) => {
                self.lose();
                self.leaves = Some(now + TTL);
            }
            // It leaves, as the error says that nothing of it is there: nothing is withdrawn.
            Err(e) if e.kind() == ErrorKind::Unavailable && self.has.place.is_none() => {}
            Err(_) => {}
        }
    }

    pub(crate) fn renewed(
        &mut self,
        answers: Vec<Renewal>,
        sent: Moment,
        token: Option<FencingToken>,
    ) {
        let mine = self
            .has
            .guard
            .as_mut()
            .filter(|guard| Some(guard.token) == token);
        match (answers.into_iter().next().unwrap(), mine) {
            (Renewal::Renewed(validity), Some(guard)) => {
                guard.until = guard.until.max(validity.until(sent));
            }
            (Renewal::Granted(grant), Some(guard)) if grant.token != guard.token => {
                guard.lost.store(true, Ordering::Relaxed);
            }
            (Renewal::Lost(_), Some(guard)) => guard.lost.store(true, Ordering::Relaxed),
            _ => {}
        }
    }

    pub(crate) fn lose(&mut self) {
        if let Some(guard) = &self.has.guard {
            guard.lost.store(true, Ordering::Relaxed);
        }
    }

    /// Hears what it was told.
    pub(crate) fn hear(&mut self) {
        if self.told_lost.lock().unwrap().is_some() {
            self.lose();
        }
    }

    pub(crate) fn forget(&mut self) {
        (self.claim, self.has, self.out, self.leaves, self.listens) =
            (None, Has::default(), None, None, None);
    }
}

pub(crate) fn poll<T>(out: &mut BoxFuture<'static, T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match out.as_mut().poll(&mut context) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
