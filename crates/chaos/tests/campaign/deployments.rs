//! Changes of a deployment that running programs can see: an address that leads elsewhere, a member that is a store of its own, a pooler, and
//! another list of nodes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{
    StoreId,
    redlock::{Config, change_nodes},
};
use leasehold_testbed::{PgBouncer, Proxy, Redis, RedisOptions};
use tokio::time::{sleep, timeout};

use super::{
    breaking::AGAIN,
    clients::Slot,
    faults::{Fault, faults},
    kind::Kind,
    nemesis::Nemesis,
    servers::Servers,
};

/// How many nodes there are, and how many are in the list at the beginning.
const NODES: usize = 6;
const BEGIN: usize = 3;
/// After how long a run of an operator dies, at most.
const DIES: Duration = Duration::from_millis(100);

/// Returns the identity of the store if a run leads clients to another one. On Redlock no URL names one: each client knows those of the nodes.
pub(crate) async fn pin(kind: Kind, seed: u64, servers: &Servers) -> Option<StoreId> {
    let is_needed = kind != Kind::Redlock && faults(kind, seed).contains(&Fault::MoveAddress);
    if !is_needed {
        return None;
    }
    servers.connect().await.identity()
}

/// Starts the nodes, and gives the first list of them a number.
pub(super) async fn start(options: &RedisOptions) -> Servers {
    let nodes = Redis::start_many_with(NODES, options).await.unwrap();
    let list = Vec::from_iter(0..BEGIN);
    let config = Config::from_url(&of_list(&nodes, &list)).unwrap();
    change_nodes(&config, &config, drop).await.unwrap();
    Servers::Nodes(nodes, Mutex::new(list))
}

pub(super) fn of_list(nodes: &[Redis], list: &[usize]) -> String {
    let all: Vec<&str> = list.iter().map(|node| nodes[*node].addr()).collect();
    format!("redlock://{}", all.join(","))
}

/// Servers that are no part of the store.
pub(super) struct Beside {
    /// Another store of the same kind, on one server.
    other: Option<Servers>,
    pooler: Option<PgBouncer>,
}

impl Beside {
    /// Starts those that the faults of a run need.
    pub(super) async fn start(kind: Kind, seed: u64, made: &[Fault], servers: &Servers) -> Beside {
        let mut beside = Beside {
            other: None,
            pooler: None,
        };
        let alone = match kind {
            Kind::EtcdCluster => Kind::Etcd,
            Kind::Ensemble => Kind::ZooKeeper,
            kind => kind,
        };
        let leads_away = made.contains(&Fault::MoveAddress) || made.contains(&Fault::OwnCluster);
        if leads_away && kind != Kind::Redlock {
            let other = Servers::start(alone, seed).await;
            // Somebody uses it, so that it has an identity.
            drop(other.connect().await);
            beside.other = Some(other);
        }
        if let (true, Servers::Postgres(server, _)) = (made.contains(&Fault::Pooler), servers) {
            beside.pooler = Some(PgBouncer::start(server).await.unwrap());
        }
        beside
    }
}

impl Nemesis<'_> {
    /// Leads some of a client's ways to another store, or on Redlock to other nodes of the list, and back.
    pub(super) async fn move_address(&self, client: &Slot, length: Duration) {
        let all = self.servers.reached();
        let elsewhere = |home: usize| match &self.beside.other {
            Some(other) => other.all()[0].addr().to_owned(),
            None => {
                let further = self.random.borrow_mut().usize(1..all.len());
                all[(home + further) % all.len()].addr().to_owned()
            }
        };
        self.detour(client, elsewhere, length).await;
    }

    /// Leads a client to a pooler before the server, and back.
    pub(super) async fn put_pooler(&self, client: &Slot, length: Duration) {
        if let Some(pooler) = &self.beside.pooler {
            self.detour(client, |_| pooler.addr().to_owned(), length)
                .await;
        }
    }

    /// Leads some of a client's ways elsewhere for a while. Either its links are cut, or only its new ones lead there.
    async fn detour(&self, client: &Slot, elsewhere: impl Fn(usize) -> String, length: Duration) {
        if !client.knows_its_store() {
            return;
        }
        let homes = self.servers.reached();
        let all: Vec<_> = client.proxies.iter().zip(homes).enumerate().collect();
        let (ways, cuts) = (self.some(&all), self.coin());
        for (nth, (proxy, _)) in &ways {
            lead(proxy, &elsewhere(*nth), cuts).await;
        }
        sleep(length).await;
        for (_, (proxy, home)) in &ways {
            lead(proxy, home.addr(), true).await;
        }
    }

    /// A member is replaced by a server without its data, which some clients reach in its place, and comes back.
    pub(super) async fn empty_member(&self, member: usize, length: Duration) {
        let (Some(other), all) = (&self.beside.other, self.servers.all()) else {
            return;
        };
        let mut misled = Vec::new();
        while misled.is_empty() || self.coin() {
            let Some(client) = self.take_client() else {
                break;
            };
            misled.push(client);
        }
        let knowing = misled.iter().map(|client| &self.clients[*client]);
        let knowing = Vec::from_iter(knowing.filter(|client| client.knows_its_store()));
        for client in &knowing {
            client.proxies[member].lead_to(other.all()[0].addr());
        }
        // With it go all links to it.
        all[member].kill().await.unwrap();
        sleep(length).await;
        for client in &knowing {
            client.proxies[member].lead_to(all[member].addr());
            client.proxies[member].disconnect().await;
        }
        while all[member].start_again().await.is_err() {}
        misled.into_iter().for_each(|client| self.mended(client));
    }

    /// Adds or removes a node, as an operator does it whose runs may die. Clients are started anew with the new list: some at once, and the others
    /// once theirs is two changes old.
    pub(super) async fn change_nodes(&self, length: Duration) {
        let Servers::Nodes(nodes, list) = self.servers else {
            return;
        };
        let mut new = self.next_list();
        loop {
            let old = of_list(nodes, &self.servers.list());
            let without_vote = self.change(&old, &of_list(nodes, &new)).await;
            new.clone_into(&mut list.lock().unwrap_or_else(PoisonError::into_inner));
            self.follow(&old, length).await;
            // Some node was away, and the same list brings it up.
            if !without_vote {
                return;
            }
            new = self.servers.list();
        }
    }

    /// A list with one node more or less.
    fn next_list(&self) -> Vec<usize> {
        let (mut list, mut random) = (self.servers.list(), self.random.borrow_mut());
        let grows = match list.len() {
            2 => true,
            3 => random.u8(0..5) > 0,
            4 => random.bool(),
            _ => false,
        };
        if grows {
            let others = (0..NODES).filter(|node| !list.contains(node));
            list.extend(random.choice(others.collect::<Vec<_>>()));
        } else {
            list.remove(random.usize(0..list.len()));
        }
        list
    }

    /// Repeats it until it is done. Returns whether some nodes of the new list have no vote.
    async fn change(&self, old: &str, new: &str) -> bool {
        let [old, new] = [old, new].map(|url| Config::from_url(url).unwrap());
        loop {
            let dies = self.coin().then(|| self.up_to(DIES));
            let run = change_nodes(&old, &new, drop);
            let run = timeout(dies.unwrap_or(Duration::MAX), run).await;
            match run {
                Ok(Ok(changed)) => {
                    println!("list {} has {} nodes", changed.number, changed.nodes.len());
                    return !changed.without_vote.is_empty();
                }
                // Servers may be away, also while they answer.
                Ok(Err(error)) if error.is_retryable() => sleep(AGAIN).await,
                Ok(Err(error)) => panic!("changing the list of nodes: {error}"),
                Err(_) => {}
            }
        }
    }

    /// Starts clients anew that go by another list than the one in use: half of those with the `old` one, and all that are further behind.
    async fn follow(&self, old: &str, length: Duration) {
        let url = self.servers.url([]);
        for client in self.clients.iter().chain(self.naive) {
            let goes_by = client.url();
            if goes_by == old && url != old && self.coin() {
                client.replace_at(&url, self.record).await;
            }
        }
        sleep(length).await;
        for client in self.clients.iter().chain(self.naive) {
            if ![old, &url].contains(&&*client.url()) {
                client.replace_at(&url, self.record).await;
            }
        }
    }
}

async fn lead(proxy: &Proxy, to: &str, cuts: bool) {
    if cuts {
        proxy.cut().await;
    }
    proxy.lead_to(to);
    proxy.heal().await;
}
