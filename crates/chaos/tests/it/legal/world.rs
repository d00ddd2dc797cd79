//! An ideal lock service in a time of its own, its clients, and the history that they write: legal by construction.

use leasehold_chaos::{Breaks, Event, Mode, Policy, What};

use super::queue::{Claim, MARGIN, MS, Paused, Queue, TTL, conflict, limits, permits};

pub(crate) struct World {
    random: fastrand::Rng,
    t: u64,
    pub(crate) events: Vec<Event>,
    queues: Vec<Queue>,
    ops: u64,
    tok: u64,
    /// The processes that live.
    processes: Vec<(u64, Option<Paused>)>,
    started: u64,
    faults: u64,
}

impl World {
    /// A history of so many steps.
    pub(crate) fn run(seed: u64, steps: usize, with_data_loss: bool) -> Vec<Event> {
        let names = ["plain", "rw", "permits", "leader"];
        let queues = names
            .map(|name| Queue {
                name: name.into(),
                ..Queue::default()
            })
            .into();
        let processes = (1..=3).map(|p| (p, None)).collect();
        let random = fastrand::Rng::with_seed(seed);
        let mut world = World {
            random,
            t: MS,
            events: Vec::new(),
            queues,
            ops: 0,
            tok: 100,
            processes,
            started: 3,
            faults: 0,
        };
        world.say(
            0,
            What::Begin {
                store: "ideal".into(),
                seed,
                limits: limits(),
            },
        );
        world.say(
            1,
            What::Gauge {
                name: "files".into(),
                value: 200,
                baseline: true,
            },
        );
        for _ in 0..steps {
            world.t += world.random.u64(50_000..2 * MS);
            world.keep_house();
            world.act(with_data_loss);
        }
        world.drain();
        world.events
    }

    fn say(&mut self, p: u64, what: What) {
        self.t += 1_000;
        self.events.push(Event::new(self.t, p, what));
    }

    fn runs(&self, p: u64) -> bool {
        p == 0
            || self
                .processes
                .iter()
                .any(|(it, paused)| *it == p && paused.is_none())
    }

    /// What happens by itself: resumption, renewal, loss, expiry, grants, and ends of waits.
    fn keep_house(&mut self) {
        self.resume(self.t);
        for q in 0..self.queues.len() {
            for forgotten in [false, true] {
                self.renew_and_lose(q, forgotten);
            }
            self.expire(q);
            self.admit(q);
            self.time_out(q);
        }
    }

    fn resume(&mut self, t: u64) {
        for at in 0..self.processes.len() {
            if let (
                p,
                Some(Paused {
                    until,
                    since,
                    fault,
                }),
            ) = self.processes[at]
                && until <= t
            {
                self.processes[at].1 = None;
                self.say(0, What::Healed { id: fault });
                let ns = self.t - since;
                self.say(p, What::Stall { ns, aside: false });
            }
        }
    }

    fn renew_and_lose(&mut self, q: usize, forgotten: bool) {
        let queue = &mut self.queues[q];
        let mut claims = std::mem::take(if forgotten {
            &mut queue.forgotten
        } else {
            &mut queue.claims
        });
        for claim in &mut claims {
            if !self.runs(claim.p) {
                continue;
            }
            if claim.told && !claim.lost && self.t >= claim.sent + TTL - MARGIN {
                claim.lost = true;
                for op in claim.guards.clone() {
                    self.say(
                        claim.p,
                        What::Lost {
                            op,
                            why: "expired".into(),
                            aside: false,
                        },
                    );
                }
            } else if claim.renewing && !claim.lost && !forgotten && self.t >= claim.sent + TTL / 3
            {
                claim.sent = self.t;
                for op in claim.guards.clone().into_iter().filter(|_| claim.told) {
                    let valid = claim.sent + TTL - MARGIN;
                    self.say(claim.p, What::Use { op, valid });
                }
            }
        }
        claims.retain(|claim| {
            !forgotten || !claim.lost && self.processes.iter().any(|(p, _)| *p == claim.p)
        });
        let queue = &mut self.queues[q];
        *(if forgotten {
            &mut queue.forgotten
        } else {
            &mut queue.claims
        }) = claims;
    }

    fn expire(&mut self, q: usize) {
        let t = self.t;
        let (gone, stay) = self.queues[q]
            .claims
            .drain(..)
            .partition(|claim| t >= claim.sent + TTL);
        self.queues[q].claims = stay;
        for mut claim in gone {
            // Who was paused while it waited takes a new place when it runs again.
            if !claim.told
                && !claim.guards.is_empty()
                && self.processes.iter().any(|(p, _)| *p == claim.p)
            {
                (claim.tok, claim.sent) = (None, t);
                self.queues[q].claims.push(claim);
            } else if claim.told && !claim.lost {
                // A paused holder has yet to notice.
                self.queues[q].forgotten.push(claim);
            }
        }
    }

    /// Grants what may be granted, and tells those that can hear it.
    fn admit(&mut self, q: usize) {
        for at in 0..self.queues[q].claims.len() {
            let before = &self.queues[q].claims[..at];
            let claim = &self.queues[q].claims[at];
            if claim.tok.is_none() {
                let taken: u32 = before.iter().map(|it| permits(it.mode)).sum();
                let free = before
                    .iter()
                    .all(|it| it.tok.is_some() && !conflict(it.mode, claim.mode));
                if !free || matches!(claim.mode, Mode::Permits { n, of } if taken + n > of) {
                    return;
                }
                self.tok += 1;
                self.queues[q].claims[at].tok = Some(self.tok);
            }
            let claim = &self.queues[q].claims[at];
            let (p, tok, op, valid) = (
                claim.p,
                claim.tok,
                claim.guards.first().copied(),
                claim.sent + TTL - MARGIN,
            );
            if let (false, true, Some(op), Some(tok)) =
                (claim.told, self.runs(p) && valid > self.t + MS, op, tok)
            {
                self.queues[q].claims[at].told = true;
                self.say(p, What::Ok { op, tok, valid });
            }
        }
    }

    fn time_out(&mut self, q: usize) {
        let t = self.t;
        while let Some(at) = (0..self.queues[q].claims.len()).find(|at| {
            let claim = &self.queues[q].claims[*at];
            !claim.told
                && claim.deadline.is_some_and(|deadline| deadline <= t)
                && self.runs(claim.p)
        }) {
            let claim = self.queues[q].claims.remove(at);
            self.say(
                claim.p,
                What::Fail {
                    op: claim.guards[0],
                    busy: false,
                },
            );
        }
    }

    fn act(&mut self, with_data_loss: bool) {
        match self.random.u8(0..100) {
            0..30 => self.start(),
            30..40 => self.look(),
            40..55 => self.write(),
            55..75 => self.end_one(),
            75..84 => self.stop_renewing(),
            84..87 => self.downgrade(),
            87..90 => self.cancel(),
            90 if self.random.u8(0..3) == 0 => self.pause(),
            92 if self.random.bool() => self.kill(),
            93 if with_data_loss => self.forget(),
            _ => self.observe(),
        }
    }

    fn start(&mut self) {
        let Some(&(p, _)) = self.random.choice(&self.processes) else {
            return;
        };
        let q = self.random.usize(0..self.queues.len());
        if !self.runs(p) || self.queues[q].claims.len() > 5 {
            return;
        }
        let mode = match q {
            0 => Mode::Exclusive,
            1 => *self
                .random
                .choice(&[Mode::Exclusive, Mode::Shared, Mode::Shared])
                .unwrap(),
            2 => Mode::Permits {
                n: self.random.u32(1..=2),
                of: 3,
            },
            _ => Mode::Leader,
        };
        let policy = *self
            .random
            .choice(&[Policy::Fair, Policy::Fair, Policy::Try])
            .unwrap();
        let deadline = (policy == Policy::Fair && self.random.u8(0..3) == 0)
            .then(|| self.t + self.random.u64(1..30) * MS);
        let owner = (q == 0 && self.random.bool()).then_some(p);
        self.ops += 1;
        let (op, lock) = (self.ops, self.queues[q].name.clone());
        self.say(
            p,
            What::Invoke {
                op,
                lock,
                mode,
                policy,
                deadline,
                owner,
            },
        );
        let holding = |it: &&mut Claim| {
            it.owner.is_some() && it.owner == owner && it.told && !it.lost && it.renewing
        };
        let t = self.t;
        if let Some(own) = self.queues[q].claims.iter_mut().find(holding) {
            let (tok, valid) = (own.tok.unwrap(), own.sent + TTL - MARGIN);
            if valid > t + MS {
                own.guards.push(op);
                return self.say(p, What::Ok { op, tok, valid });
            }
        }
        let sent = self.t;
        let claim = Claim {
            p,
            owner,
            mode,
            policy,
            deadline,
            guards: vec![op],
            renewing: true,
            sent,
            ..Claim::empty()
        };
        self.queues[q].claims.push(claim);
        self.admit(q);
        if policy == Policy::Try && self.queues[q].claims.pop_if(|claim| !claim.told).is_some() {
            self.say(p, What::Fail { op, busy: true });
        }
    }

    /// Somebody looks at a queue.
    fn look(&mut self) {
        let q = self.random.usize(0..self.queues.len());
        let waiting = self.queues[q]
            .claims
            .iter()
            .filter(|it| it.tok.is_none() && it.policy == Policy::Fair);
        let ops: Vec<u64> = waiting.map(|it| it.guards[0]).collect();
        for op in ops {
            self.say(0, What::Queued { op });
        }
    }

    /// Somebody who has, or had, an exclusive guard writes.
    fn write(&mut self) {
        let q = self.random.usize(0..self.queues.len());
        let queue = &self.queues[q];
        let all = queue
            .claims
            .iter()
            .chain(&queue.forgotten)
            .filter(|it| it.told && it.mode.is_exclusive());
        let writers: Vec<(u64, u64)> = all
            .filter_map(|it| Some((*it.guards.first()?, it.tok?)))
            .collect();
        let Some(&(op, tok)) = self.random.choice(&writers) else {
            return;
        };
        let lock = queue.name.clone();
        // Somebody who has slept since an earlier hold.
        let tok = if queue.seen > 0 && self.random.u8(0..8) == 0 {
            queue.seen.saturating_sub(self.random.u64(0..3))
        } else {
            tok
        };
        if tok < queue.seen {
            self.say(0, What::Reject { op, lock, tok });
        } else {
            self.queues[q].seen = tok;
            self.say(0, What::Accept { op, lock, tok });
        }
    }

    fn held(&mut self) -> Option<(usize, usize)> {
        let mut held = Vec::new();
        for (q, queue) in self.queues.iter().enumerate() {
            let told = |at: &usize| queue.claims[*at].told && self.runs(queue.claims[*at].p);
            held.extend((0..queue.claims.len()).filter(told).map(|at| (q, at)));
        }
        self.random
            .choice(held)
            .filter(|(q, at)| !self.queues[*q].claims[*at].guards.is_empty())
    }

    fn end_one(&mut self) {
        let Some((q, at)) = self.held() else { return };
        let claim = &mut self.queues[q].claims[at];
        let (p, lost, dropped) = (claim.p, claim.lost, self.random.u8(0..4) == 0);
        let op = claim
            .guards
            .remove(self.random.usize(0..claim.guards.len()));
        let last = claim.guards.is_empty();
        if last {
            self.queues[q].claims.remove(at);
        }
        self.say(p, What::Release { op, dropped });
        if !dropped {
            self.say(
                p,
                if lost {
                    What::Unreleased { op }
                } else {
                    What::Released { op }
                },
            );
        }
        self.admit(q);
    }

    fn stop_renewing(&mut self) {
        if let Some((q, at)) = self.held() {
            self.queues[q].claims[at].renewing = false;
        }
    }

    fn downgrade(&mut self) {
        let Some((q, at)) = self.held() else { return };
        let claim = &mut self.queues[q].claims[at];
        if claim.mode == Mode::Exclusive && claim.guards.len() == 1 && !claim.lost {
            claim.mode = Mode::Shared;
            let (p, op) = (claim.p, claim.guards[0]);
            self.say(p, What::Downgrade { op });
        }
    }

    fn cancel(&mut self) {
        let q = self.random.usize(0..self.queues.len());
        let waits = |at: &usize| {
            !self.queues[q].claims[*at].told && self.runs(self.queues[q].claims[*at].p)
        };
        let waiting: Vec<usize> = (0..self.queues[q].claims.len()).filter(waits).collect();
        let Some(&at) = self.random.choice(&waiting) else {
            return;
        };
        let claim = self.queues[q].claims.remove(at);
        self.say(
            claim.p,
            What::Info {
                op: claim.guards[0],
            },
        );
    }

    fn pause(&mut self) {
        let at = self.random.usize(0..self.processes.len());
        if self.processes[at].1.is_none() {
            self.faults += 1;
            let (id, kind) = (self.faults, "pause".into());
            self.say(
                0,
                What::Fault {
                    id,
                    kind,
                    breaks: Breaks::Nothing,
                    lock: None,
                },
            );
            let until = self.t + self.random.u64(1..2 * TTL);
            self.processes[at].1 = Some(Paused {
                until,
                since: self.t,
                fault: id,
            });
        }
    }

    fn kill(&mut self) {
        let at = self.random.usize(0..self.processes.len());
        let (target, None) = self.processes[at] else {
            return;
        };
        self.started += 1;
        self.processes[at] = (self.started, None);
        self.say(0, What::Killed { target });
        for claim in self
            .queues
            .iter_mut()
            .flat_map(|queue| &mut queue.claims)
            .filter(|it| it.p == target)
        {
            claim.renewing = false;
        }
    }

    /// The store forgets a queue. Its waiters come again, its holders do not know.
    fn forget(&mut self) {
        let q = self.random.usize(0..self.queues.len());
        self.faults += 1;
        let (id, lock) = (self.faults, Some(self.queues[q].name.clone()));
        self.say(
            0,
            What::Fault {
                id,
                kind: "forget".into(),
                breaks: Breaks::Exclusion,
                lock,
            },
        );
        let (held, waiting) = self.queues[q]
            .claims
            .drain(..)
            .partition(|claim| claim.told && !claim.lost);
        self.queues[q].claims = waiting;
        self.queues[q].claims.retain(|claim| !claim.lost);
        for claim in &mut self.queues[q].claims {
            claim.tok = None;
        }
        self.queues[q].forgotten.extend::<Vec<_>>(held);
        self.say(0, What::Healed { id });
    }

    fn observe(&mut self) {
        let leader = self.queues[3].claims.iter().find(|claim| claim.told);
        if let Some(tok) = leader.and_then(|claim| claim.tok) {
            self.say(
                0,
                What::Observed {
                    op: 1,
                    lock: "leader".into(),
                    tok,
                },
            );
        }
    }

    /// No more is asked for, everything is healed and released, and the store settles.
    fn drain(&mut self) {
        self.resume(u64::MAX);
        let end = self.t + limits().settle + limits().wake + 2 * TTL;
        while self.t < end {
            self.t += MS;
            self.keep_house();
            self.end_one();
        }
        self.say(
            0,
            What::Kv {
                name: "keys".into(),
                left: 0,
                allowed: 0,
            },
        );
        self.say(0, What::End);
    }
}
