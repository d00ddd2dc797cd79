//! What breaks things, by a seed: which fault is made when, and to what.

use std::{cell::RefCell, collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use leasehold::Store;
use leasehold_chaos::{Breaks, What};

use super::{
    clients::Slot,
    deployments::Beside,
    faults::{COMMANDS, Choice, Fault, Target, faults},
    kind::{Kind, NAIVE_FROM},
    recorder::Record,
    servers::Servers,
    work::{KEPT, LOCKS, NAIVE},
};

/// A shorter campaign has faults from its beginning on.
pub(super) const LONG: Duration = Duration::from_secs(20);

/// Makes faults until it is told to end.
pub(crate) struct Nemesis<'a> {
    pub(super) kind: Kind,
    pub(super) record: &'a Record,
    pub(super) servers: &'a Servers,
    pub(super) clients: &'a [Slot],
    pub(super) naive: &'a [Slot],
    pub(super) random: RefCell<fastrand::Rng>,
    /// Which faults there are, beside those of the command.
    pub(super) kinds: Vec<Fault>,
    choice: &'a Choice,
    /// A client of the store that no fault reaches but those of the servers.
    pub(super) operator: Option<Store>,
    /// The servers to which addresses lead for a while.
    pub(super) beside: Beside,
    /// What is broken at the moment: clients, then servers, then the content. Each by one fault at a time.
    busy: RefCell<BTreeSet<usize>>,
    ids: RefCell<u64>,
}

impl<'a> Nemesis<'a> {
    pub(crate) async fn new(
        kind: Kind,
        seed: u64,
        choice: &'a Choice,
        record: &'a Record,
        servers: &'a Servers,
        clients: &'a [Slot],
        naive: &'a [Slot],
    ) -> Self {
        let random = RefCell::new(fastrand::Rng::with_seed(seed));
        let operator = match kind {
            // It would go by a list that is not used any more, or stay with a former primary.
            Kind::Memory | Kind::RedlockNodes | Kind::Pair => None,
            _ => Some(servers.connect().await),
        };
        let mut kinds = faults(kind, seed);
        kinds.retain(|fault| choice.has(*fault));
        if kinds.contains(&Fault::FillDisk)
            && matches!(servers, Servers::File(room) if !room.is_small())
        {
            println!("no disk of its own: none is full");
            kinds.retain(|fault| *fault != Fault::FillDisk);
        }
        let beside = Beside::start(kind, seed, &kinds, servers).await;
        let (busy, ids) = (RefCell::default(), RefCell::new(0));
        Nemesis {
            kinds,
            choice,
            kind,
            record,
            servers,
            clients,
            naive,
            beside,
            random,
            operator,
            busy,
            ids,
        }
    }

    /// Ends what it has open itself.
    pub(crate) async fn end(self) {
        if let Some(operator) = &self.operator {
            let _ = operator.close(Duration::from_secs(2)).await;
        }
    }

    /// Storms with pauses between them, in which whoever waits must be served. At the end of each pause a client dies, and nothing else
    /// happens. A long campaign begins with a calm: what goes wrong then has no excuse.
    pub(crate) async fn rage(&self, time: Duration) {
        let begin = tokio::time::Instant::now();
        if time >= LONG {
            tokio::time::sleep((Duration::from_secs(4) + 3 * self.kind.ttl()).min(time * 2 / 3))
                .await;
        }
        let storm = 6 * self.kind.settle();
        while begin.elapsed() < time {
            let end = storm.min(time.saturating_sub(begin.elapsed()));
            let until = tokio::time::Instant::now() + end;
            let one = || async {
                while tokio::time::Instant::now() < until {
                    let soon = || self.up_to(self.kind.ttl().min(Duration::from_secs(1)));
                    tokio::time::sleep(self.choice.apart.unwrap_or_else(soon)).await;
                    self.one().await;
                }
            };
            let at_once = if self.choice.apart.is_some() {
                1
            } else {
                self.kind.at_once()
            };
            tokio::join!(
                join_all((0..at_once).map(|_| one())),
                self.tamper(until),
                self.commands(until)
            );
            if begin.elapsed() < time {
                // What was broken settles, a waiter may take so long, and one who waits for no good reason may do so for a lease.
                let quiet = self.kind.settle() + Duration::from_secs(4) + self.kind.ttl();
                tokio::time::sleep(quiet).await;
                if self.kind != Kind::Memory {
                    let client = self.random.borrow_mut().usize(0..self.clients.len());
                    self.make(Fault::KillClient, client).await;
                    tokio::time::sleep(quiet).await;
                }
            }
        }
    }

    /// Ends by hand what is kept for long, again and again, and so rarely that most of the time there is no excuse for two holders.
    async fn tamper(&self, until: tokio::time::Instant) {
        let by_hand = [Fault::DeleteKeys, Fault::Evict]
            .into_iter()
            .find(|fault| self.kinds.contains(fault));
        let Some(fault) = by_hand else { return };
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(4 * self.kind.ttl() + self.up_to(4 * self.kind.ttl())).await;
            self.make_to(
                fault,
                &[self.clients.len() + self.servers.all().len()],
                Some(KEPT),
            )
            .await;
        }
    }

    /// Breaks the command again and again, beside the others: it is one client of several, has three processes for each program, and mostly
    /// the wrong one is hit.
    async fn commands(&self, until: tokio::time::Instant) {
        let Some(command) = self.clients.iter().position(Slot::is_command) else {
            return;
        };
        let made = Vec::from_iter(COMMANDS.iter().filter(|fault| self.choice.has(**fault)));
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(self.up_to(self.kind.ttl().min(Duration::from_secs(1)))).await;
            let Some(fault) = self.random.borrow_mut().choice(&made).map(|fault| **fault) else {
                return;
            };
            self.make_to(fault, &[command], None).await;
        }
    }

    /// Pauses naive clients while they hold, each until the other one has got the lock. The others do not notice.
    pub(crate) async fn pause_naive(&self, time: Duration) {
        let (naive, begin) = (self.naive, tokio::time::Instant::now());
        let (glance, patience) = (Duration::from_millis(20), 2 * self.kind.settle());
        while !naive.is_empty() && begin.elapsed() < time {
            let Some(holder) = naive.iter().position(Slot::holds) else {
                tokio::time::sleep(glance).await;
                continue;
            };
            let id = self.begin("PauseNaive", Breaks::Nothing, Some(NAIVE));
            naive[holder].pause().await;
            // The others do not know of this fault: it does not excuse that they wait.
            let patience = match naive[holder].is_in_the_way().await {
                true => Duration::ZERO,
                false => patience,
            };
            let until = tokio::time::Instant::now() + patience;
            let others = || {
                naive
                    .iter()
                    .enumerate()
                    .any(|(n, slot)| n != holder && slot.holds())
            };
            while !others() && tokio::time::Instant::now() < until {
                tokio::time::sleep(glance).await;
            }
            naive[holder].resume().await;
            self.record.now(What::Healed { id });
            tokio::time::sleep(self.up_to(self.kind.ttl())).await;
        }
    }

    /// One fault by chance, to one of those that are whole.
    async fn one(&self) {
        let Some(fault) = self.random.borrow_mut().choice(&self.kinds).copied() else {
            return;
        };
        // What everything is lost by is an excuse for everything: it is rare.
        let loses = fault.breaks(self.kind) == Breaks::Order || fault.loses_counts(self.kind);
        let (clients, servers) = (self.clients.len(), self.servers.all().len());
        // All of several are whole rarely enough.
        if fault.is_of_all(self.kind) {
            return self
                .make_to(fault, &Vec::from_iter(clients..clients + servers), None)
                .await;
        }
        if loses && self.random.borrow_mut().u8(0..6) > 0 {
            return;
        }
        let all: Vec<usize> = match fault.target() {
            Target::Client => (0..clients).collect(),
            Target::Server => (clients..clients + servers).collect(),
            Target::Database => vec![clients],
            Target::Leader => vec![clients + self.servers.leader().await],
            Target::Content => vec![clients + servers],
        };
        let whole: Vec<usize> = all
            .into_iter()
            .filter(|target| !self.busy.borrow().contains(target))
            .collect();
        // Of several members mostly one is broken at a time: else there would be no leader for most of the time.
        let members =
            self.kind.is_several() && matches!(fault.target(), Target::Server | Target::Leader);
        let broken =
            (clients..clients + servers).any(|member| self.busy.borrow().contains(&member));
        let spared = members && broken && self.random.borrow_mut().u8(0..4) > 0;
        if !whole.is_empty() && !spared {
            let target = whole[self.random.borrow_mut().usize(0..whole.len())];
            self.make(fault, target).await;
        }
    }

    async fn make(&self, fault: Fault, target: usize) {
        let of_command = self.clients.get(target).is_some_and(Slot::is_command);
        let fault = if of_command {
            fault.of_command()
        } else {
            fault
        };
        let lock = if fault.is_of_one_lock() {
            Some(self.held_lock().await)
        } else {
            None
        };
        self.make_to(fault, &[target], lock).await;
    }

    /// Makes it to these, if they are whole, and to this lock, if it is of one.
    async fn make_to(&self, fault: Fault, targets: &[usize], lock: Option<&'static str>) {
        {
            let mut busy = self.busy.borrow_mut();
            if targets.iter().any(|target| busy.contains(target)) {
                return;
            }
            busy.extend(targets);
        }
        let target = targets[0];
        let length = self.length();
        let id = self.begin(&format!("{fault:?}"), fault.breaks(self.kind), lock);
        match fault.target() {
            Target::Client => self.client(fault, &self.clients[target], length).await,
            Target::Server | Target::Database | Target::Leader => {
                self.server(fault, target - self.clients.len(), length)
                    .await;
            }
            Target::Content => self.content(fault, lock, length).await,
        }
        self.record.now(What::Healed { id });
        targets.iter().for_each(|target| self.mended(*target));
    }

    /// A client that is whole. It counts as broken until it is [mended](Nemesis::mended).
    pub(super) fn take_client(&self) -> Option<usize> {
        let mut busy = self.busy.borrow_mut();
        let whole: Vec<usize> = (0..self.clients.len())
            .filter(|client| !busy.contains(client))
            .collect();
        let client = self.random.borrow_mut().choice(whole)?;
        busy.insert(client);
        Some(client)
    }

    pub(super) fn mended(&self, target: usize) {
        self.busy.borrow_mut().remove(&target);
    }

    /// A lock that somebody holds just now, if the store says so soon.
    async fn held_lock(&self) -> &'static str {
        let mut locks = LOCKS
            .into_iter()
            .filter(|lock| *lock != KEPT)
            .collect::<Vec<_>>();
        self.random.borrow_mut().shuffle(&mut locks);
        let first = locks[0];
        let Some(operator) = &self.operator else {
            return first;
        };
        let held = async {
            for lock in locks {
                if operator
                    .lock(lock)
                    .inspect()
                    .await
                    .is_ok_and(|queue| !queue.holders.is_empty())
                {
                    return lock;
                }
            }
            first
        };
        tokio::time::timeout(self.kind.ttl(), held)
            .await
            .unwrap_or(first)
    }

    fn begin(&self, kind: &str, breaks: Breaks, lock: Option<&str>) -> u64 {
        let id = {
            let mut ids = self.ids.borrow_mut();
            *ids += 1;
            // What concerns naive clients only is told by its number.
            if lock == Some(NAIVE) {
                NAIVE_FROM + *ids
            } else {
                *ids
            }
        };
        self.record.now(What::Fault {
            id,
            kind: kind.to_owned(),
            breaks,
            lock: lock.map(str::to_owned),
        });
        id
    }

    pub(super) fn coin(&self) -> bool {
        self.random.borrow_mut().bool()
    }

    pub(super) fn up_to(&self, d: Duration) -> Duration {
        d.mul_f64(self.random.borrow_mut().f64())
    }

    /// Between a tenth of a lease and two and a half.
    fn length(&self) -> Duration {
        self.kind.ttl() / 10 + self.up_to(self.kind.ttl().mul_f64(2.4))
    }
}
