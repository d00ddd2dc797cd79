//! The network of a world: what is sent arrives later, in another order, or never.
//!
//! A message is a piece of work that is done where it arrives: by a server, or in a runtime of a process. Nothing arrives within the tick
//! in which it was sent, so the processes of a tick need not know of each other. Streams of bytes are made of messages in `stream`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use leasehold_core::support::locked;

use crate::machine::now_nanos;
use crate::plan::{Air, Message, Request, Way};
use crate::stream::Streams;

/// What is done where a message arrives.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Where a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Server(usize),
    /// What the locks protect.
    Resource,
    Process(usize),
    /// The operating system of a process, which runs also while the process does not.
    Socket(usize),
}

/// A process and a server.
pub(crate) type Pair = (usize, usize);

/// A handle of the network.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<Inner>>);

pub(crate) struct Inner {
    air: Air,
    /// How many of ten thousand messages are lost.
    pub(crate) loss: u32,
    pub(crate) links: BTreeMap<Pair, Link>,
    /// By when they arrive, and in which order they were sent.
    under_way: BTreeMap<(u64, u64), (End, Pair, Job)>,
    sent: u64,
    /// What was sent since somebody asked.
    pub(crate) passed: BTreeSet<Message>,
    /// Messages that are lost without anybody's noticing.
    lost: Vec<Job>,
    pub(crate) streams: Streams,
    seed: u64,
    /// Woken when something is sent.
    alarm: Option<Waker>,
}

/// The way between one process and one server.
pub(crate) struct Link {
    pub(crate) random: fastrand::Rng,
    pub(crate) alive: bool,
    /// What does not pass, and whether that is noticed.
    pub(crate) cut: Option<(Way, bool)>,
    /// How many times as long everything takes.
    slow: u64,
    /// The next message of these kinds is lost, or late by so much; or each of them.
    aimed: Vec<(Request, Way, Option<u64>, bool)>,
    /// What the store of this process does when its connection was closed.
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

    /// Whether the next message of this kind is lost (`None`), or late by so much.
    pub(crate) fn aimed(&mut self, kind: Request, way: Way) -> Option<Option<u64>> {
        let at = self.aimed.iter().position(|(of, on, ..)| (*of, *on) == (kind, way))?;
        let (.., late, each) = self.aimed[at];
        if !each {
            self.aimed.remove(at);
        }
        Some(late)
    }
}

impl Inner {
    /// How long a message takes between these two.
    pub(crate) fn latency(&mut self, pair: Pair) -> u64 {
        self.links.get_mut(&pair).map_or(0, |link| self.air.latency(&mut link.random) * link.slow)
    }

    /// A message that arrives by then.
    pub(crate) fn put(&mut self, due: u64, to: End, pair: Pair, job: Job) {
        self.sent += 1;
        self.alarm.take().into_iter().for_each(Waker::wake);
        self.under_way.insert((due, self.sent), (to, pair, job));
    }
}

impl Network {
    pub(crate) fn new(seed: u64, air: Air, processes: usize, servers: usize) -> Network {
        let pairs = (0..processes).flat_map(|process| (0..servers).map(move |server| (process, server)));
        let links = pairs.map(|pair| (pair, Link::new(seed, pair))).collect();
        let (under_way, passed, lost, streams, alarm) = Default::default();
        let inner = Inner { air, loss: 0, links, under_way, sent: 0, passed, lost, streams, seed, alarm };
        Network(Arc::new(Mutex::new(inner)))
    }

    /// One more process, and its links with so many servers.
    pub(crate) fn join(&self, process: usize, servers: usize) {
        let inner = &mut *self.inner();
        let seed = inner.seed;
        inner.links.extend((0..servers).map(|server| ((process, server), Link::new(seed, (process, server)))));
    }

    /// When the next message arrives, if there is one. If not, or once another one is sent, this is woken.
    pub(crate) fn next(&self, alarm: &Waker) -> Option<u64> {
        let inner = &mut *self.inner();
        inner.alarm = Some(alarm.clone());
        inner.under_way.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.0)
    }

    /// Sends a message between this process and this server, or the resource; says whether that is known to have failed.
    pub(crate) fn send(&self, pair: Pair, way: Way, to: End, kind: Request, job: Job) -> Result<(), Closed> {
        let gone = {
            let inner = &mut *self.inner();
            let now = now_nanos();
            inner.passed.insert((pair.0, kind, way));
            let (latency, loss) = (inner.latency(pair), inner.loss);
            let Some(link) = inner.links.get_mut(&pair) else { return Err(Closed) };
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
                    inner.put(now + latency + aimed.flatten().unwrap_or_default(), to, pair, job);
                    None
                }
            }
        };
        // Its end may send something itself.
        gone.map_or(Ok(()), |_| Err(Closed))
    }

    /// How many messages were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.inner().sent
    }

    /// What has arrived by now, except at ends that do not read.
    pub(crate) fn arrived(&self, now: u64, reads: impl Fn(End) -> bool) -> Vec<(End, Job)> {
        let under_way = &mut self.inner().under_way;
        let due: Vec<_> =
            under_way.range(..=(now, u64::MAX)).filter(|(_, it)| reads(it.0)).map(|(at, _)| *at).collect();
        due.iter().filter_map(|at| under_way.remove(at)).map(|(end, _, job)| (end, job)).collect()
    }

    /// What was sent since this was asked last.
    pub(crate) fn passed(&self) -> BTreeSet<Message> {
        std::mem::take(&mut self.inner().passed)
    }

    /// When the last message that is under way arrives, or 0.
    pub(crate) fn latest(&self) -> u64 {
        self.inner().under_way.last_key_value().map_or(0, |((due, _), _)| *due)
    }

    /// Changes a link; with `None`, all of this process.
    fn links(&self, process: usize, server: Option<usize>, change: impl Fn(&mut Link)) {
        let of = |pair: &Pair| pair.0 == process && server.is_none_or(|server| server == pair.1);
        let links = &mut self.inner().links;
        links.iter_mut().filter(|(pair, _)| of(pair)).for_each(|(_, link)| change(link));
    }

    pub(crate) fn cut(&self, process: usize, server: Option<usize>, cut: Option<(Way, bool)>) {
        self.links(process, server, |link| link.cut = cut);
        match cut {
            // Streams that are known to be broken are broken at once. Of others what was held back arrives now.
            Some((_, true)) => self.reset_streams(|pair| pair.0 == process && server.is_none_or(|it| it == pair.1)),
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

    /// The next message of this kind, or each, is lost or late by so much.
    pub(crate) fn aim(&self, process: usize, server: Option<usize>, at: (Request, Way), late: Option<u64>, each: bool) {
        self.links(process, server, |link| link.aimed.push((at.0, at.1, late, each)));
    }

    pub(crate) fn miss(&self, process: usize) {
        self.links(process, None, |link| link.aimed.clear());
    }

    /// Nothing arrives from this process any more, nor at it. What is on its way to a server does.
    pub(crate) fn killed(&self, process: usize) {
        self.links(process, None, |link| link.alive = false);
        self.drop_messages(|end, _| end == End::Process(process));
    }

    pub(crate) fn when_closed(&self, pair: Pair, closed: impl Fn() + Send + Sync + 'static) {
        let closed: Arc<dyn Fn() + Send + Sync> = Arc::new(closed);
        self.links(pair.0, Some(pair.1), |link| link.closed = Some(closed.clone()));
    }

    /// Closes the connections of these: what is under way is gone, and their stores hear of it.
    pub(crate) fn close(&self, which: impl Fn(Pair) -> bool) {
        self.drop_messages(|_, pair| which(pair));
        {
            let inner = &mut *self.inner();
            let theirs = inner.links.iter().filter(|(pair, link)| which(**pair) && link.alive);
            let closed: Vec<_> = theirs.filter_map(|(pair, link)| Some((*pair, link.closed.clone()?))).collect();
            for (pair, closed) in closed {
                inner.put(now_nanos() + 1, End::Process(pair.0), pair, Box::new(move || closed()));
            }
        }
        self.reset_streams(which);
    }

    /// The end of the world: nothing is kept of it.
    pub(crate) fn end(&self) {
        self.drop_messages(|_, _| true);
        let (streams, links) = {
            let inner = &mut *self.inner();
            (std::mem::take(&mut inner.streams), std::mem::take(&mut inner.links))
        };
        drop((streams, links));
    }

    fn drop_messages(&self, which: impl Fn(End, Pair) -> bool) {
        let gone: Vec<_> = {
            let under_way = &mut self.inner().under_way;
            let gone: Vec<_> = under_way.iter().filter(|(_, it)| which(it.0, it.1)).map(|(at, _)| *at).collect();
            gone.iter().filter_map(|at| under_way.remove(at)).collect()
        };
        // The end of one may send something itself.
        drop(gone);
    }
}

/// The connection is closed.
#[derive(Debug)]
pub(crate) struct Closed;
