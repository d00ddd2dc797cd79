//! The network of a world: what is sent arrives later, in another order, or never.
//!
//! A message is a piece of work that is done where it arrives: by a server, or in a runtime of a process. Nothing arrives within the tick
//! in which it was sent, so the processes of a tick need not know of each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use leasehold_core::support::locked;

use crate::machine::now_nanos;
use crate::plan::{Air, Request, Way};

/// What is done where a message arrives.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Where a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Server,
    /// What the locks protect.
    Resource,
    Process(usize),
}

/// A handle of the network.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<Inner>>);

struct Inner {
    air: Air,
    /// How many of ten thousand messages are lost.
    loss: u32,
    links: Vec<Link>,
    /// By when they arrive, and in which order they were sent.
    under_way: BTreeMap<(u64, u64), (End, usize, Job)>,
    sent: u64,
    /// Messages that are lost without anybody's noticing.
    lost: Vec<Job>,
}

/// The way between one process and all servers.
struct Link {
    random: fastrand::Rng,
    alive: bool,
    /// What does not pass, and whether that is noticed.
    cut: Option<(Way, bool)>,
    /// How many times as long everything takes.
    slow: u64,
    /// The next message of these kinds is lost, or late by so much.
    aimed: Vec<(Request, Way, Option<u64>)>,
    /// What the store of this process does when its connection was closed.
    closed: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Network {
    pub(crate) fn new(seed: u64, air: Air, processes: usize) -> Network {
        let link = |nth: usize| Link {
            random: fastrand::Rng::with_seed(seed ^ (nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            alive: true,
            cut: None,
            slow: 1,
            aimed: Vec::new(),
            closed: None,
        };
        let links = (0..processes).map(link).collect();
        Network(Arc::new(Mutex::new(Inner {
            air,
            loss: 0,
            links,
            under_way: BTreeMap::new(),
            sent: 0,
            lost: Vec::new(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        locked(&self.0)
    }

    /// Sends a message between this process and the other end; says whether that is known to have failed.
    pub(crate) fn send(&self, process: usize, way: Way, to: End, kind: Request, job: Job) -> Result<(), Closed> {
        let gone = {
            let inner = &mut *self.inner();
            let now = now_nanos();
            let link = &mut inner.links[process];
            let latency = inner.air.latency(&mut link.random) * link.slow;
            let aimed = link.aimed.iter().position(|(of, on, _)| (*of, *on) == (kind, way));
            let aimed = aimed.map(|at| link.aimed.remove(at).2);
            let lost = link.random.u32(0..10_000) < inner.loss || matches!(aimed, Some(None));
            match link.cut {
                _ if !link.alive => Some(job),
                Some((cut, true)) if cut.includes(way) => Some(job),
                cut if lost || cut.is_some_and(|(cut, _)| cut.includes(way)) => {
                    inner.lost.push(job);
                    None
                }
                _ => {
                    inner.sent += 1;
                    let due = now + latency + aimed.flatten().unwrap_or_default();
                    inner.under_way.insert((due, inner.sent), (to, process, job));
                    None
                }
            }
        };
        // Its end may send something itself.
        gone.map_or(Ok(()), |_| Err(Closed))
    }

    /// What has arrived by now, except at ends that do not read.
    pub(crate) fn arrived(&self, now: u64, reads: impl Fn(End) -> bool) -> Vec<(End, Job)> {
        let under_way = &mut self.inner().under_way;
        let due: Vec<_> =
            under_way.range(..=(now, u64::MAX)).filter(|(_, it)| reads(it.0)).map(|(at, _)| *at).collect();
        due.iter().filter_map(|at| under_way.remove(at)).map(|(end, _, job)| (end, job)).collect()
    }

    pub(crate) fn cut(&self, process: usize, cut: Option<(Way, bool)>) {
        self.inner().links[process].cut = cut;
    }

    pub(crate) fn slow(&self, process: usize, times: u64) {
        self.inner().links[process].slow = times;
    }

    pub(crate) fn lose(&self, of_ten_thousand: u32) {
        self.inner().loss = of_ten_thousand;
    }

    pub(crate) fn aim(&self, process: usize, kind: Request, way: Way, late: Option<u64>) {
        self.inner().links[process].aimed.push((kind, way, late));
    }

    pub(crate) fn miss(&self, process: usize) {
        self.inner().links[process].aimed.clear();
    }

    /// Nothing arrives from this process any more, nor at it. What is on its way to a server does.
    pub(crate) fn killed(&self, process: usize) {
        self.inner().links[process].alive = false;
        self.drop_messages(process, |end| end == End::Process(process));
    }

    pub(crate) fn when_closed(&self, process: usize, closed: impl Fn() + Send + Sync + 'static) {
        self.inner().links[process].closed = Some(Arc::new(closed));
    }

    /// Closes the connection of this process: what is under way is gone, and its store hears of it.
    pub(crate) fn close(&self, process: usize) {
        self.drop_messages(process, |_| true);
        let inner = &mut *self.inner();
        let link = &inner.links[process];
        if let Some(closed) = link.closed.clone().filter(|_| link.alive) {
            inner.sent += 1;
            let job: Job = Box::new(move || closed());
            inner.under_way.insert((now_nanos() + 1, inner.sent), (End::Process(process), process, job));
        }
    }

    fn drop_messages(&self, process: usize, which: impl Fn(End) -> bool) {
        let gone: Vec<_> = {
            let under_way = &mut self.inner().under_way;
            let theirs = |(_, it): &(_, &(End, usize, Job))| it.1 == process && which(it.0);
            let gone: Vec<_> = under_way.iter().filter(theirs).map(|(at, _)| *at).collect();
            gone.iter().filter_map(|at| under_way.remove(at)).collect()
        };
        // The end of one may send something itself.
        drop(gone);
    }
}

/// The connection is closed.
#[derive(Debug)]
pub(crate) struct Closed;
