//! The network of a world: messages arrive later, in another order, or never.
//!
//! A message is a piece of work that is done at its destination: by a server, or in a runtime of a
//! process. Nothing arrives within the tick in which it was sent, so the processes of a tick need
//! not know of each other. `stream` makes streams of bytes out of messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use leasehold_core::support::locked;

use crate::machine::now_nanos;
use crate::plan::{Air, Message, Request, Way};
use crate::stream::Streams;

/// The work that is done where a message arrives.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Server(usize),
    /// The resource that the locks protect.
    Resource,
    Process(usize),
    /// The operating system of a process, which runs even while the process does not.
    Socket(usize),
}

/// A process and a server.
pub(crate) type Pair = (usize, usize);

/// A handle of the network.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<Inner>>);

pub(crate) struct Inner {
    air: Air,
    /// The number of lost messages of ten thousand.
    pub(crate) loss: u32,
    pub(crate) links: BTreeMap<Pair, Link>,
    /// The messages under way, by the time of arrival and the order of sending.
    under_way: BTreeMap<(u64, u64), (End, Pair, Job)>,
    sent: u64,
    /// The messages that were sent since the last question.
    pub(crate) passed: BTreeSet<Message>,
    /// Messages that are lost, which nobody notices.
    lost: Vec<Job>,
    pub(crate) streams: Streams,
    seed: u64,
    /// Woken when a message is sent.
    alarm: Option<Waker>,
}

/// The way between one process and one server.
pub(crate) struct Link {
    pub(crate) random: fastrand::Rng,
    pub(crate) alive: bool,
    /// The direction that does not pass, and whether that is noticed.
    pub(crate) cut: Option<(Way, bool)>,
    /// The factor by which every message takes longer.
    slow: u64,
    /// For each subject and direction: the next message is lost (`None`), or late by this many
    /// nanoseconds. If the last field is true, this goes for every message.
    aimed: Vec<(Request, Way, Option<u64>, bool)>,
    /// Called when the connection of this process's store was closed.
    closed: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Link {
    fn new(seed: u64, (process, server): Pair) -> Link {
        let nth = (server * 1000 + process + 1) as u64;
        Link {
            random: fastrand::Rng::with_seed(seed ^ nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            alive: true,
            cut: None,
            slow: 1,
            aimed: Vec::new(),
            closed: None,
        }
    }

    /// Returns `Some` if the next message of this kind is a fault's target: `Some(None)` if it is
    /// lost, or the delay in nanoseconds.
    pub(crate) fn aimed(&mut self, kind: Request, way: Way) -> Option<Option<u64>> {
        let at = self
            .aimed
            .iter()
            .position(|(of, on, ..)| (*of, *on) == (kind, way))?;
        let (.., late, each) = self.aimed[at];
        if !each {
            self.aimed.remove(at);
        }
        Some(late)
    }
}

impl Inner {
    /// The time of a message between these two.
    pub(crate) fn latency(&mut self, pair: Pair) -> u64 {
        self.links
            .get_mut(&pair)
            .map_or(0, |link| self.air.latency(&mut link.random) * link.slow)
    }

    /// Adds a message that arrives at `due`.
    pub(crate) fn put(&mut self, due: u64, to: End, pair: Pair, job: Job) {
        self.sent += 1;
        self.alarm.take().into_iter().for_each(Waker::wake);
        self.under_way.insert((due, self.sent), (to, pair, job));
    }
}

impl Network {
    pub(crate) fn new(seed: u64, air: Air, processes: usize, servers: usize) -> Network {
        let pairs =
            (0..processes).flat_map(|process| (0..servers).map(move |server| (process, server)));
        let links = pairs.map(|pair| (pair, Link::new(seed, pair))).collect();
        let (under_way, passed, lost, streams, alarm) = Default::default();
        let inner = Inner {
            air,
            loss: 0,
            links,
            under_way,
            sent: 0,
            passed,
            lost,
            streams,
            seed,
            alarm,
        };
        Network(Arc::new(Mutex::new(inner)))
    }

    /// Adds a process, and its links with this number of servers.
    pub(crate) fn join(&self, process: usize, servers: usize) {
        let inner = &mut *self.inner();
        let seed = inner.seed;
        inner.links.extend(
            (0..servers).map(|server| ((process, server), Link::new(seed, (process, server)))),
        );
    }

    /// The time at which the next message arrives, if there is one. `alarm` is woken once another
    /// message is sent.
    pub(crate) fn next(&self, alarm: &Waker) -> Option<u64> {
        let inner = &mut *self.inner();
        inner.alarm = Some(alarm.clone());
        inner.under_way.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.0)
    }

    /// Sends a message between this process and this server, or the resource. Returns an error if
    /// the sender knows that it failed.
    pub(crate) fn send(
        &self,
        pair: Pair,
        way: Way,
        to: End,
        kind: Request,
        job: Job,
    ) -> Result<(), Closed> {
        let gone = {
            let inner = &mut *self.inner();
            let now = now_nanos();
            inner.passed.insert((pair.0, kind, way));
            let latency = inner.latency(pair);
            let loss = inner.loss;
            let Some(link) = inner.links.get_mut(&pair) else {
                return Err(Closed);
            };
            let aimed = link.aimed(kind, way);
            let lost = link.random.u32(0..10_000) < loss || matches!(aimed, Some(None));
            match link.cut {
                _ if !link.alive => Some(job),
                Some((cut, true)) if cut.includes(way) => Some(job),
                cut if lost || cut.is_some_and(|(cut, _)| cut.includes(way)) => {
                    inner.lost.push(job);
                    None
                }
                _ => {
                    inner.put(
                        now + latency + aimed.flatten().unwrap_or_default(),
                        to,
                        pair,
                        job,
                    );
                    None
                }
            }
        };
        // Dropping the message may send something itself, so it is dropped after the lock is
        // released.
        gone.map_or(Ok(()), |_| Err(Closed))
    }

    /// The number of messages that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.inner().sent
    }

    /// Takes the messages that have arrived by now, except at ends that do not read.
    pub(crate) fn arrived(&self, now: u64, reads: impl Fn(End) -> bool) -> Vec<(End, Job)> {
        let under_way = &mut self.inner().under_way;
        let due: Vec<_> = under_way
            .range(..=(now, u64::MAX))
            .filter(|(_, it)| reads(it.0))
            .map(|(at, _)| *at)
            .collect();
        due.iter()
            .filter_map(|at| under_way.remove(at))
            .map(|(end, _, job)| (end, job))
            .collect()
    }

    /// Returns the messages that were sent since the last question.
    pub(crate) fn passed(&self) -> BTreeSet<Message> {
        std::mem::take(&mut self.inner().passed)
    }

    /// The time at which the last message under way arrives, or 0.
    pub(crate) fn latest(&self) -> u64 {
        self.inner()
            .under_way
            .last_key_value()
            .map_or(0, |((due, _), _)| *due)
    }

    /// Changes a link of this process, or all of them with `None`.
    fn links(&self, process: usize, server: Option<usize>, change: impl Fn(&mut Link)) {
        let of = |pair: &Pair| pair.0 == process && server.is_none_or(|server| server == pair.1);
        let links = &mut self.inner().links;
        links
            .iter_mut()
            .filter(|(pair, _)| of(pair))
            .for_each(|(_, link)| change(link));
    }

    pub(crate) fn cut(&self, process: usize, server: Option<usize>, cut: Option<(Way, bool)>) {
        self.links(process, server, |link| link.cut = cut);
        match cut {
            // A noticed cut breaks streams at once. On others, the pieces that were held back
            // arrive after the cut.
            Some((_, true)) => {
                self.reset_streams(|pair| {
                    pair.0 == process && server.is_none_or(|it| it == pair.1)
                });
            }
            Some(_) => {}
            None => self.resume_streams(process),
        }
    }

    pub(crate) fn slow(&self, process: usize, server: Option<usize>, times: u64) {
        self.links(process, server, |link| link.slow = times);
    }

    pub(crate) fn lose(&self, of_ten_thousand: u32) {
        self.inner().loss = of_ten_thousand;
    }

    /// Makes the next message of this kind, or each, be lost (`None`) or late by `late`.
    pub(crate) fn aim(
        &self,
        process: usize,
        server: Option<usize>,
        at: (Request, Way),
        late: Option<u64>,
        each: bool,
    ) {
        self.links(process, server, |link| {
            link.aimed.push((at.0, at.1, late, each));
        });
    }

    pub(crate) fn miss(&self, process: usize) {
        self.links(process, None, |link| link.aimed.clear());
    }

    /// Marks a process as killed. Nothing arrives at it any more, and it sends nothing. Its
    /// messages that are on their way to a server still arrive.
    pub(crate) fn killed(&self, process: usize) {
        self.links(process, None, |link| link.alive = false);
        self.drop_messages(|end, _| end == End::Process(process));
    }

    pub(crate) fn when_closed(&self, pair: Pair, closed: impl Fn() + Send + Sync + 'static) {
        let closed: Arc<dyn Fn() + Send + Sync> = Arc::new(closed);
        self.links(pair.0, Some(pair.1), |link| {
            link.closed = Some(closed.clone());
        });
    }

    /// Closes the connections of these pairs. Their messages under way are dropped, and their
    /// stores are told.
    pub(crate) fn close(&self, which: impl Fn(Pair) -> bool) {
        self.drop_messages(|_, pair| which(pair));
        {
            let inner = &mut *self.inner();
            let theirs = inner
                .links
                .iter()
                .filter(|(pair, link)| which(**pair) && link.alive);
            let closed: Vec<_> = theirs
                .filter_map(|(pair, link)| Some((*pair, link.closed.clone()?)))
                .collect();
            for (pair, closed) in closed {
                inner.put(
                    now_nanos() + 1,
                    End::Process(pair.0),
                    pair,
                    Box::new(move || closed()),
                );
            }
        }
        self.reset_streams(which);
    }

    /// Ends the world: nothing of it is kept.
    pub(crate) fn end(&self) {
        self.drop_messages(|_, _| true);
        let (streams, links) = {
            let inner = &mut *self.inner();
            (
                std::mem::take(&mut inner.streams),
                std::mem::take(&mut inner.links),
            )
        };
        drop((streams, links));
    }

    fn drop_messages(&self, which: impl Fn(End, Pair) -> bool) {
        let gone: Vec<_> = {
            let under_way = &mut self.inner().under_way;
            let gone: Vec<_> = under_way
                .iter()
                .filter(|(_, it)| which(it.0, it.1))
                .map(|(at, _)| *at)
                .collect();
            gone.iter().filter_map(|at| under_way.remove(at)).collect()
        };
        // Dropping a message may send something itself, so the lock is released before.
        drop(gone);
    }
}

/// The connection is closed.
#[derive(Debug)]
pub(crate) struct Closed;
