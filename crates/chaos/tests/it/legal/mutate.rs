//! One event of a legal history is changed, so that it is legal no more.

use std::collections::BTreeMap;

use leasehold_chaos::{Event, Mode, Policy, Rule, What};

use super::queue::{MS, limits};

/// What becomes of a history, if it has what is to be changed.
pub(crate) type Mutation = fn(&mut History) -> Option<()>;

/// Each mutation, and the rules of which one must find it.
pub(crate) const MUTATIONS: &[(&str, Mutation, &[Rule])] = &[
    (
        "granted before the release",
        granted_early,
        &[
            Rule::Overlap,
            Rule::Leaders,
            Rule::Downgraded,
            Rule::Permits,
        ],
    ),
    (
        "valid again after the next grant",
        resumed,
        &[Rule::Resumed, Rule::Leaders, Rule::Downgraded],
    ),
    ("a stale write accepted", stale_write, &[Rule::StaleWrite]),
    ("a fresh write refused", fresh_write, &[Rule::FreshWrite]),
    (
        "a token that falls",
        token_falls,
        &[Rule::TokenOrder, Rule::TokenReentry],
    ),
    (
        "a token twice",
        token_twice,
        &[Rule::TokenUnique, Rule::TokenOrder, Rule::TokenReentry],
    ),
    (
        "another token when re-entered",
        token_reentry,
        &[Rule::TokenReentry],
    ),
    (
        "a waiter forgotten",
        forgotten,
        &[Rule::Forgotten, Rule::Stuck],
    ),
    ("two waiters in the wrong order", passed, &[Rule::Passed]),
    ("a late loss", late_loss, &[Rule::LateLoss]),
    ("valid in the past", valid_in_past, &[Rule::ValidInPast]),
    ("valid after the loss", revived, &[Rule::Revived]),
    (
        "released after the loss",
        lost_released,
        &[Rule::LostReleased],
    ),
    ("released twice", released_twice, &[Rule::ReleasedTwice]),
    (
        "released by another",
        foreign_release,
        &[Rule::ForeignRelease],
    ),
    ("something left", left, &[Rule::Left]),
    (
        "refused by nobody",
        refused_by_nobody,
        &[Rule::RefusedByNobody],
    ),
    ("an earlier leader seen", observed, &[Rule::ObservedOrder]),
    ("growth", growth, &[Rule::Growth]),
    ("a late return", late_return, &[Rule::LateReturn]),
    ("no end", no_end, &[Rule::Complete]),
    ("a grant that nobody asked for", unasked, &[Rule::Sense]),
];

/// One acquisition, by the indices of its events.
#[derive(Clone, Debug, Default)]
struct Op {
    lock: String,
    mode: Option<Mode>,
    owner: Option<u64>,
    policy: Option<Policy>,
    invoke: usize,
    ok: Option<usize>,
    queued: Option<usize>,
    release: Option<usize>,
    released: Option<usize>,
    lost: Option<usize>,
    fail: Option<usize>,
    downgraded: bool,
}

pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) random: fastrand::Rng,
    ops: BTreeMap<u64, Op>,
    killed: Vec<u64>,
}

impl History {
    pub(crate) fn new(events: Vec<Event>, seed: u64) -> History {
        let (mut ops, mut killed) = (BTreeMap::<u64, Op>::new(), Vec::new());
        for (at, event) in events.iter().enumerate() {
            match event.what.clone() {
                What::Invoke {
                    op,
                    lock,
                    mode,
                    policy,
                    owner,
                    ..
                } => {
                    let (mode, policy) = (Some(mode), Some(policy));
                    ops.insert(
                        op,
                        Op {
                            lock,
                            mode,
                            owner,
                            policy,
                            invoke: at,
                            ..Op::default()
                        },
                    );
                }
                What::Ok { op, .. } => ops.entry(op).or_default().ok = Some(at),
                What::Queued { op } => drop(ops.entry(op).or_default().queued.get_or_insert(at)),
                What::Release { op, .. } => ops.entry(op).or_default().release = Some(at),
                What::Released { op } => ops.entry(op).or_default().released = Some(at),
                What::Lost { op, .. } => ops.entry(op).or_default().lost = Some(at),
                What::Fail { op, .. } => ops.entry(op).or_default().fail = Some(at),
                What::Downgrade { op } => ops.entry(op).or_default().downgraded = true,
                What::Killed { target } => killed.push(target),
                _ => {}
            }
        }
        History {
            events,
            random: fastrand::Rng::with_seed(seed),
            ops,
            killed,
        }
    }

    /// The history in the order of time.
    pub(crate) fn sorted(mut self) -> Vec<Event> {
        self.events.sort_by_key(|event| event.t);
        self.events
    }

    fn any<T: Clone>(&mut self, found: &[T]) -> Option<T> {
        self.random.choice(found).cloned()
    }

    /// One of the events that are so.
    fn one(&mut self, is: impl Fn(&Event) -> bool) -> Option<usize> {
        let found: Vec<_> = (0..self.events.len())
            .filter(|at| is(&self.events[*at]))
            .collect();
        self.any(&found)
    }

    /// One of the pairs of acquisitions of one lock that exclude each other, and are so.
    fn pair(&mut self, is: impl Fn(&Op, &Op) -> bool) -> Option<(u64, Op, u64, Op)> {
        let excludes = |a: &Op, b: &Op| {
            let exclusive = [a, b]
                .iter()
                .any(|it| it.mode.is_some_and(Mode::is_exclusive) && !it.downgraded);
            a.lock == b.lock && exclusive && (a.owner.is_none() || a.owner != b.owner)
        };
        let mut found = Vec::new();
        for (one, a) in &self.ops {
            let others = self
                .ops
                .iter()
                .filter(|(other, b)| *other != one && excludes(a, b) && is(a, b));
            found.extend(others.map(|(other, b)| (*one, a.clone(), *other, b.clone())));
        }
        self.any(&found)
    }

    fn insert(&mut self, t: u64, p: u64, what: What) {
        self.events.push(Event::new(t, p, what));
    }

    fn t(&self, at: usize) -> u64 {
        self.events[at].t
    }

    fn lives(&self, p: u64) -> bool {
        !self.killed.contains(&p)
    }
}

fn granted_early(h: &mut History) -> Option<()> {
    let (_, a, _, b) = h.pair(|a, b| {
        let waits =
            a.ok.zip(a.release)
                .is_some_and(|(ok, release)| b.invoke < release && ok + 1 < release);
        waits && a.release < b.ok && a.lost.is_none()
    })?;
    let (from, to) = (h.t(a.ok?).max(h.t(b.invoke)), h.t(a.release?));
    h.events[b.ok?].t = (from + to) / 2;
    Some(())
}

fn resumed(h: &mut History) -> Option<()> {
    let (op, a, _, b) = h.pair(|a, b| {
        a.lost.is_some() && a.lost < b.ok && a.release.is_none_or(|it| Some(it) > b.ok)
    })?;
    let (lost, t) = (a.lost?, h.t(b.ok?) + 1);
    let p = h.events[lost].p;
    let used = What::Use {
        op,
        valid: t + 100 * MS,
    };
    h.events[lost] = Event::new(t, p, used);
    h.lives(p).then_some(())
}

fn accept(h: &mut History) -> Option<(usize, u64, String, u64)> {
    let at = h.one(|event| matches!(event.what, What::Accept { .. }))?;
    let What::Accept { op, lock, tok } = h.events[at].what.clone() else {
        return None;
    };
    Some((at, op, lock, tok))
}

fn stale_write(h: &mut History) -> Option<()> {
    let (at, op, lock, tok) = accept(h)?;
    let t = h.t(at) + 1;
    h.insert(
        t,
        0,
        What::Accept {
            op,
            lock,
            tok: tok - 1,
        },
    );
    Some(())
}

fn fresh_write(h: &mut History) -> Option<()> {
    let (at, op, lock, tok) = accept(h)?;
    h.events[at].what = What::Reject { op, lock, tok };
    Some(())
}

fn token(h: &mut History, at: usize) -> Option<&mut u64> {
    if let What::Ok { tok, .. } = &mut h.events[at].what {
        Some(tok)
    } else {
        None
    }
}

fn token_falls(h: &mut History) -> Option<()> {
    let (.., a, _, b) = h.pair(|a, b| a.ok.is_some_and(|ok| ok < b.invoke) && b.ok.is_some())?;
    let earlier = *token(h, a.ok?)?;
    *token(h, b.ok?)? = earlier - 1;
    Some(())
}

fn token_twice(h: &mut History) -> Option<()> {
    let exclusive = |it: &Op| it.mode.is_some_and(Mode::is_exclusive);
    let (.., a, _, b) =
        h.pair(|a, b| a.ok.is_some() && a.ok < b.ok && exclusive(a) && exclusive(b))?;
    let earlier = *token(h, a.ok?)?;
    *token(h, b.ok?)? = earlier;
    Some(())
}

fn token_reentry(h: &mut History) -> Option<()> {
    let is = |ops: &BTreeMap<u64, Op>, b: &Op| {
        let held = |a: &Op| {
            let until = a.release.or(a.lost);
            a.ok.is_some_and(|ok| ok < b.invoke)
                && until.is_some_and(|until| b.ok.is_some_and(|ok| ok < until))
        };
        b.owner.is_some()
            && ops
                .values()
                .any(|a| a.lock == b.lock && a.owner == b.owner && held(a))
    };
    let found: Vec<_> = h
        .ops
        .values()
        .filter(|op| is(&h.ops, op))
        .filter_map(|op| op.ok)
        .collect();
    let at = h.any(&found)?;
    *token(h, at)? += 1_000;
    Some(())
}

fn forgotten(h: &mut History) -> Option<()> {
    let waits = |op: &Op| {
        op.policy == Some(Policy::Fair) && h.lives(h.events[op.invoke].p) && op.ok.is_some()
    };
    let found: Vec<_> = h
        .ops
        .iter()
        .filter(|(_, op)| waits(op))
        .map(|(number, op)| (*number, op.invoke))
        .collect();
    let (number, invoke) = h.any(&found)?;
    let is_about = |event: &Event| match &event.what {
        What::Ok { op, .. }
        | What::Use { op, .. }
        | What::Downgrade { op }
        | What::Release { op, .. } => *op == number,
        What::Released { op } | What::Unreleased { op } | What::Lost { op, .. } => *op == number,
        _ => false,
    };
    if let What::Invoke { deadline, .. } = &mut h.events[invoke].what {
        *deadline = None;
    }
    h.events.retain(|event| !is_about(event));
    Some(())
}

fn passed(h: &mut History) -> Option<()> {
    let (.., a, _, b) = h.pair(|a, b| {
        let in_order = a.queued.is_some_and(|queued| queued < b.invoke)
            && a.ok.is_some()
            && Some(b.invoke) < a.ok;
        in_order && a.policy == Some(Policy::Fair) && b.policy == Some(Policy::Fair) && a.ok < b.ok
    })?;
    let quiet = |event: &Event| {
        !matches!(
            event.what,
            What::Fault { .. } | What::Healed { .. } | What::Killed { .. }
        )
    };
    if !h.events[..b.ok?].iter().all(quiet) {
        return None;
    }
    // The second one is granted just before the first one.
    let t = h.t(a.ok?) - 1;
    h.events[b.ok?].t = t;
    Some(())
}

fn late_loss(h: &mut History) -> Option<()> {
    let at = h.one(|event| matches!(event.what, What::Lost { .. }))?;
    let What::Lost { op, .. } = h.events[at].what else {
        return None;
    };
    let release = h.ops.get(&op)?.release.map(|at| h.t(at));
    let late = delay(h, at)?;
    // Nobody hears of the loss of what was released meanwhile.
    release.is_none_or(|release| release > late).then_some(())
}

/// Moves an event back by more than it may be late; not where its process has an excuse.
fn delay(h: &mut History, at: usize) -> Option<u64> {
    let Event { t, p, .. } = h.events[at];
    let late = t + limits().late + MS;
    let excuse = |event: &Event| {
        event.p == p
            && matches!(event.what, What::Stall { ns, .. } if event.t.saturating_sub(ns) <= late)
    };
    let excused = h.events.iter().any(excuse) || !h.lives(p);
    h.events[at].t = late;
    (!excused).then_some(late)
}

fn valid_in_past(h: &mut History) -> Option<()> {
    let at = h.one(|event| matches!(event.what, What::Use { .. }))?;
    let now = h.t(at);
    if let What::Use { valid, .. } = &mut h.events[at].what {
        *valid = now;
    }
    Some(())
}

/// A loss, which is not of a process that was killed.
fn loss(h: &mut History) -> Option<(u64, u64, u64)> {
    let at = h.one(|event| matches!(event.what, What::Lost { .. }))?;
    let What::Lost { op, .. } = h.events[at].what else {
        return None;
    };
    Some((op, h.events[at].p, h.t(at)))
}

fn revived(h: &mut History) -> Option<()> {
    let (op, p, t) = loss(h)?;
    h.insert(
        t + 1,
        p,
        What::Use {
            op,
            valid: t + 100 * MS,
        },
    );
    Some(())
}

fn lost_released(h: &mut History) -> Option<()> {
    let (op, p, t) = loss(h)?;
    h.insert(t + 1, p, What::Release { op, dropped: false });
    h.insert(t + 2, p, What::Released { op });
    Some(())
}

fn released_twice(h: &mut History) -> Option<()> {
    let at = h.one(|event| matches!(event.what, What::Released { .. }))?;
    let Event { t, p, what, .. } = h.events[at].clone();
    h.insert(t + 1, p, what);
    Some(())
}

fn foreign_release(h: &mut History) -> Option<()> {
    let lost = |op: &u64| h.ops.get(op).is_some_and(|op| op.lost.is_some());
    let found = (0..h.events.len())
        .filter(|at| matches!(&h.events[*at].what, What::Release { op, .. } if !lost(op)));
    let found: Vec<_> = found.collect();
    let at = h.any(&found)?;
    h.events[at].p += 1_000;
    Some(())
}

fn left(h: &mut History) -> Option<()> {
    let at = h.one(|event| matches!(event.what, What::Kv { .. }))?;
    h.events[at].what = What::Kv {
        name: "keys".into(),
        left: 1,
        allowed: 0,
    };
    Some(())
}

fn refused_by_nobody(h: &mut History) -> Option<()> {
    let (op, lock) = (1_000_000, "plain/1".to_owned());
    let (mode, policy) = (Mode::Exclusive, Policy::Try);
    let t = h.t(0);
    h.insert(
        t + 1,
        1,
        What::Invoke {
            op,
            lock,
            mode,
            policy,
            deadline: None,
            owner: None,
        },
    );
    h.insert(t + 2, 1, What::Fail { op, busy: true });
    Some(())
}

fn observed(h: &mut History) -> Option<()> {
    let at = h.one(|event| matches!(event.what, What::Observed { .. }))?;
    let What::Observed { op, lock, tok } = h.events[at].what.clone() else {
        return None;
    };
    let t = h.t(at) + 1;
    h.insert(
        t,
        0,
        What::Observed {
            op,
            lock,
            tok: tok - 1,
        },
    );
    Some(())
}

fn growth(h: &mut History) -> Option<()> {
    let t = h.t(h.events.len() - 1) - 1;
    // The process may be dead by then: its number is taken over by one that lives.
    h.killed.is_empty().then(|| {
        h.insert(
            t,
            1,
            What::Gauge {
                name: "files".into(),
                value: 300,
                baseline: false,
            },
        );
    })
}

fn late_return(h: &mut History) -> Option<()> {
    let timed = |at: usize| matches!(h.events[at].what, What::Fail { busy: false, .. });
    let found: Vec<_> = h
        .ops
        .values()
        .filter_map(|op| op.fail)
        .filter(|at| timed(*at))
        .collect();
    let at = h.any(&found)?;
    delay(h, at).map(drop)
}

fn no_end(h: &mut History) -> Option<()> {
    h.events.pop().map(drop)
}

fn unasked(h: &mut History) -> Option<()> {
    let found: Vec<_> = h
        .ops
        .values()
        .filter(|op| op.ok.is_some())
        .map(|op| op.invoke)
        .collect();
    let at = h.any(&found)?;
    h.events.remove(at);
    Some(())
}
