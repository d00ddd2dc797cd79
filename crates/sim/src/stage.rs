//! Servers in memory and their clients in one runtime, in simulated time, for tests without a
//! world, such as the conformance suite.
//!
//! Nothing goes wrong here unless a test asks for it. A turn lasts until something is sent or
//! arrives, so time in which nothing happens costs nothing. A client is reached over links of its
//! own, which its [`Link`] cuts.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use leasehold_core::support::{Stream, locked};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, sleep_until};

use crate::kind::Kind;
use crate::machine::{Simulated, dial_by, has_spun, inside, now_nanos, outside};
use crate::network::{End, Job, Network};
use crate::plan::{Air, MS, Way, Wrong};
pub use crate::servers::Counts;
use crate::servers::{Servers, Setting};

/// The time at which a stage begins.
const BEGIN: u64 = 3_600_000 * MS;
/// The longest turn, which is also the greatest delay of the servers' own work.
const TURN: u64 = 10 * MS;
/// The time for which a restarting server is away.
const AWAY: Duration = Duration::from_millis(50);
/// The operator's process in a stage: none. Clients that evict are as patient as others.
const NOBODY: usize = usize::MAX;

/// Time, random numbers and a runtime that follow from a seed, for the thread that made it.
pub struct Stage {
    runtime: Runtime,
    clock: (Instant, u64),
    now: u64,
    seed: u64,
    sites: Sites,
    // Dropped last: values that the runtime drops may still ask for the time.
    _simulated: Simulated,
}

type Sites = Arc<Mutex<Vec<Arc<Site>>>>;

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("seed", &self.seed)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Stage {
    /// A stage without any servers.
    #[must_use]
    pub fn new(seed: u64) -> Stage {
        let simulated = Simulated::with_seed(seed, BEGIN);
        #[expect(clippy::expect_used, reason = "there is no simulation without it")]
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let clock = {
            let _inside = runtime.enter();
            (Instant::now(), BEGIN)
        };
        let sites = Sites::default();
        let dialed = sites.clone();
        dial_by(Box::new(move |_, host| dial(&dialed, host)));
        Stage {
            runtime,
            clock,
            now: BEGIN,
            seed,
            sites,
            _simulated: simulated,
        }
    }

    /// Starts servers of a store whose usual lease is this.
    #[must_use]
    pub fn servers(&self, kind: Kind, ttl: Duration) -> Arc<Site> {
        Site::new(&self.sites, self.seed, kind, ttl)
    }

    /// Does the work to its end, while the tasks that it has spawned run as well; `None` if that
    /// takes longer than `limit` of simulated time.
    ///
    /// # Panics
    ///
    /// If the work panics.
    pub fn run<T: Send + 'static>(
        &mut self,
        limit: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut work = self.runtime.spawn(work);
        let end = self.now + limit.as_nanos() as u64;
        while !work.is_finished() {
            if self.now >= end || has_spun() {
                return None;
            }
            self.turn();
        }
        match self.runtime.block_on(&mut work) {
            Ok(done) => Some(done),
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }

    /// The time that has passed.
    #[must_use]
    pub fn passed(&self) -> Duration {
        Duration::from_nanos(self.now - BEGIN)
    }

    /// The number of messages that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        locked(&self.sites)
            .iter()
            .map(|site| site.network.sent())
            .sum()
    }

    /// Runs one turn of everything.
    fn turn(&mut self) {
        outside(self.now);
        let sites = locked(&self.sites).clone();
        let mut inbox = Vec::new();
        for site in &sites {
            site.servers.tick(self.now);
            for (end, job) in site.network.arrived(self.now, |_| true) {
                match end {
                    End::Process(_) => inbox.push(job),
                    End::Server(_) | End::Resource | End::Socket(_) => job(),
                }
            }
        }
        inside(0, self.clock, self.now);
        self.now = self.drive(&sites, inbox);
        outside(self.now);
    }

    /// Runs what is ready, until something arrives. Returns the time of that.
    fn drive(&self, sites: &[Arc<Site>], inbox: Vec<Job>) -> u64 {
        let clock = self.clock;
        let latest = self.now + TURN;
        let next = |cx: &std::task::Context<'_>| {
            let next = sites
                .iter()
                .filter_map(|site| site.network.next(cx.waker()))
                .min();
            next.map_or(latest, |next| next.min(latest))
        };
        self.runtime.block_on(async {
            inbox.into_iter().for_each(|job| job());
            loop {
                let due = poll_fn(|cx| Poll::Ready(next(cx))).await;
                let instant = clock.0 + Duration::from_nanos(due - clock.1);
                if instant <= Instant::now() {
                    return now_nanos();
                }
                let mut sleep = std::pin::pin!(sleep_until(instant));
                poll_fn(|cx| {
                    if sleep.as_mut().poll(cx).is_ready() || next(cx) < due {
                        return Poll::Ready(());
                    }
                    Poll::Pending
                })
                .await;
            }
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        outside(self.now);
        for site in std::mem::take(&mut *locked(&self.sites)) {
            site.network.end();
        }
    }
}

/// Connects a client with a server, by the host's name: `s0.c1.p2` is server 0, as client 1 of the
/// servers 2 reaches it.
fn dial(sites: &Sites, host: &str) -> io::Result<Box<dyn Stream>> {
    let mut parts = host.split('.').map(|part| part[1..].parse::<usize>());
    let (Some(Ok(server)), Some(Ok(client)), Some(Ok(site))) =
        (parts.next(), parts.next(), parts.next())
    else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let site = locked(sites)
        .get(site)
        .cloned()
        .ok_or(io::ErrorKind::NotFound)?;
    site.servers.dial((client, server))
}

/// Servers of a store, independent of all others.
pub struct Site {
    nth: usize,
    kind: Kind,
    seed: u64,
    ttl: Duration,
    network: Network,
    servers: Arc<dyn Servers>,
    clients: AtomicUsize,
    sites: Sites,
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("kind", &self.kind)
            .field("nth", &self.nth)
            .finish_non_exhaustive()
    }
}

impl Site {
    fn new(sites: &Sites, seed: u64, kind: Kind, ttl: Duration) -> Arc<Site> {
        let mut all = locked(sites);
        let nth = all.len();
        // Servers of the same store draw different numbers.
        let own = seed ^ (nth as u64).rotate_left(32);
        let network = Network::new(own, Air::calm(), 0, kind.servers());
        let setting = Setting {
            seed: own,
            ttl,
            polls: false,
            operator: NOBODY,
        };
        let servers = kind.start(&network, &setting);
        let clients = AtomicUsize::new(0);
        let sites = sites.clone();
        let site = Arc::new(Site {
            nth,
            kind,
            seed,
            ttl,
            network,
            servers,
            clients,
            sites,
        });
        all.push(site.clone());
        site
    }

    /// Starts other servers of the same kind, on the same stage.
    #[must_use]
    pub fn others(&self) -> Arc<Site> {
        Site::new(&self.sites, self.seed, self.kind, self.ttl)
    }

    /// The store of these servers.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The number of servers.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.kind.servers()
    }

    /// The way of a new client to these servers.
    #[must_use]
    pub fn link(&self) -> Link {
        let client = self.clients.fetch_add(1, Ordering::Relaxed);
        self.network.join(client, self.kind.servers());
        let hosts = (0..self.kind.servers())
            .map(|server| format!("s{server}.c{client}.p{}", self.nth))
            .collect();
        Link {
            network: self.network.clone(),
            client,
            hosts,
        }
    }

    /// The counts of the servers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.servers.counts(now_nanos())
    }

    /// Restarts all servers: they are away for a moment, and keep their data.
    pub async fn restart(&self) {
        let all = || (0..self.kind.servers()).map(Wrong::RestartServer);
        self.network.close(|_| true);
        all().for_each(|wrong| self.servers.make(&wrong, now_nanos()));
        sleep(AWAY).await;
        all().for_each(|wrong| self.servers.heal(&wrong, now_nanos()));
    }
}

/// The way of one client to its servers.
#[derive(Clone)]
pub struct Link {
    network: Network,
    client: usize,
    hosts: Vec<String>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// The names of the servers for a client that comes this way.
    #[must_use]
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Holds everything back that is sent, until [`heal`](Link::heal). Nobody notices.
    pub fn hold(&self) {
        self.network
            .cut(self.client, None, Some((Way::Both, false)));
    }

    /// Holds everything back that servers send, until [`heal`](Link::heal). Nobody notices.
    pub fn hold_replies(&self) {
        self.network
            .cut(self.client, None, Some((Way::Back, false)));
    }

    /// Closes connections, and refuses new ones.
    pub fn cut(&self) {
        self.network.cut(self.client, None, Some((Way::Both, true)));
    }

    /// Makes everything work again.
    pub fn heal(&self) {
        self.network.cut(self.client, None, None);
    }
}
