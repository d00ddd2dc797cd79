//! How each fault is made, and ended.

use std::{fs, path::Path, process::Command, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::future::join_all;
use leasehold_testbed::{Etcd, Proxy, Redis, Server};
use rustix::process::Signal;
use tokio::time::timeout;
use zookeeper_client::{Client, Error};

use super::{
    changes,
    clients::Slot,
    command, databases,
    faults::{Fault, Moment},
    kind::Kind,
    nemesis::Nemesis,
    servers::Servers,
    work::LOCKS,
};

/// The last tokens of locks on one node, as grants leave them while its clock is ten seconds ahead. None gets smaller.
const AHEAD: &str = "local t = redis.call('TIME')
    local ahead = t[1] * 1000000 + t[2] + 10000000
    local mark = redis.call('HGET', '{}:rt', '')
    local bound, rest = string.match(mark or '', '^(%d+) (.*)$')
    if tonumber(bound or 0) < ahead then
        bound = string.format('%.0f', ahead)
        redis.call('SET', '{}:rb', bound, 'EX', 7210)
        redis.call('HSET', '{}:rt', '', bound .. ' ' .. (rest or '0 0'))
        redis.call('PEXPIRE', '{}:rt', 13000)
    end
    for _, lock in ipairs(KEYS) do
        if (tonumber(redis.call('HGET', '{}:rt', lock)) or 0) < ahead then
            redis.call('HSET', '{}:rt', lock, string.format('%.0f', ahead))
        end
    end";
/// How long a failover may take until all servers have their new parts.
const FAILED_OVER: Duration = Duration::from_secs(30);
/// How long to wait until something that failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

impl Nemesis<'_> {
    pub(super) async fn client(&self, fault: Fault, client: &Slot, length: Duration) {
        match fault {
            Fault::PauseClient => {
                client.pause().await;
                tokio::time::sleep(length).await;
                client.resume().await;
            }
            Fault::KillClient => client.replace(self.record).await,
            Fault::MoveAddress => self.move_address(client, length).await,
            Fault::Pooler => self.put_pooler(client, length).await,
            Fault::PauseCommand | Fault::KillCommand => {
                self.one_of_command(fault, client, length).await;
            }
            Fault::BlockRuntime | Fault::BlockAndCut => {
                client.say(&format!("block {}", length.as_millis())).await;
                let proxies = if fault == Fault::BlockAndCut {
                    &*client.proxies
                } else {
                    &[]
                };
                join_all(proxies.iter().map(Proxy::cut)).await;
                tokio::time::sleep(length).await;
                join_all(proxies.iter().map(Proxy::heal)).await;
            }
            Fault::LostAnswer(moment) | Fault::LateAnswer(moment) | Fault::LateRequest(moment) => {
                self.moment(fault, moment, &client.proxies, length).await;
            }
            _ => self.link(fault, &client.proxies, length).await,
        }
    }

    /// The command, its guardian or its program, as soon as there is one: none comes any more if the client has failed, which its end says.
    async fn one_of_command(&self, fault: Fault, client: &Slot, length: Duration) {
        let (Some(starts), runs) = (client.pid().await, self.coin() || self.coin()) else {
            return;
        };
        let found = async {
            loop {
                if let Some(pid) = self
                    .random
                    .borrow_mut()
                    .choice(command::processes(starts, runs))
                {
                    return pid;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let Ok(one) = timeout(self.kind.settle(), found).await else {
            return;
        };
        if fault == Fault::KillCommand {
            return command::signal(
                one,
                if self.coin() {
                    Signal::TERM
                } else {
                    Signal::KILL
                },
            );
        }
        command::signal(one, Signal::STOP);
        tokio::time::sleep(command::scaled(self.kind, length)).await;
        command::signal(one, Signal::CONT);
    }

    pub(super) async fn server(&self, fault: Fault, which: usize, length: Duration) {
        let server = self.servers.all()[which];
        match fault {
            Fault::PauseServer | Fault::PauseLeader => {
                // A leader of etcd 3.4.23 that wakes ends what it takes for expired (etcd#15247).
                let members = self.kind == Kind::EtcdCluster;
                let length = if members {
                    length.min(self.kind.ttl() / 2)
                } else {
                    length
                };
                server.pause().await.unwrap();
                tokio::time::sleep(length).await;
                server.resume().unwrap();
            }
            Fault::RestartServer | Fault::KillLeader => {
                server.kill().await.unwrap();
                tokio::time::sleep(length / 2).await;
                // A member of several is ready when enough of the others are.
                while server.start_again().await.is_err() {}
            }
            Fault::Isolate => {
                self.servers.isolate(which);
                tokio::time::sleep(length).await;
                self.servers.rejoin(which).await;
            }
            Fault::Partition => self.partition(which, length).await,
            Fault::OwnCluster => self.empty_member(which, length).await,
            Fault::FailOver => {
                drop(timeout(FAILED_OVER, self.servers.fail_over(self.any_lock())).await);
            }
            Fault::MoveSlot => self.servers.move_slot(self.any_lock()).await,
            Fault::FillMemory => {
                // Less than it has already.
                for most in ["1", "0"] {
                    changes::told(
                        self.servers.of_redis()[which],
                        &["CONFIG", "SET", "maxmemory", most],
                    )
                    .await;
                    tokio::time::sleep(length).await;
                }
            }
            Fault::EvictKeys => {
                self.evict_keys(self.servers.of_redis()[which], length)
                    .await;
            }
            Fault::ClockForward | Fault::ClockBack => {
                self.step_clock(server, fault == Fault::ClockBack);
            }
            Fault::ClockRate => self.change_rate(server, length).await,
            Fault::ChangeLimits => self.change_limits(which, length).await,
            Fault::StopServer | Fault::PauseBackend | Fault::RefuseConnections => {
                let Servers::Postgres(server, _) = self.servers else {
                    return;
                };
                match fault {
                    Fault::StopServer => databases::stop(server, length).await,
                    Fault::PauseBackend => databases::pause_backend(server, length).await,
                    _ => {
                        let further = self.random.borrow_mut().u64(0..3);
                        databases::refuse_connections(server, length, further).await;
                    }
                }
            }
            _ => {
                let all = if fault.is_of_all(self.kind) {
                    self.servers.all()
                } else {
                    vec![server]
                };
                // None of them has it from another one that is still there.
                for server in &all {
                    server.kill().await.unwrap();
                }
                join_all(all.into_iter().map(|server| lose(fault, server))).await;
            }
        }
    }

    /// A member and a client reach each other and nobody else.
    async fn partition(&self, member: usize, length: Duration) {
        let (client, closes) = (self.take_client(), self.random.borrow_mut().bool());
        let proxies = client
            .map(|client| &*self.clients[client].proxies)
            .unwrap_or_default();
        let beyond: Vec<_> = proxies
            .iter()
            .enumerate()
            .filter(|(to, _)| *to != member)
            .map(|(_, proxy)| proxy)
            .collect();
        self.servers.isolate(member);
        for proxy in &beyond {
            if closes {
                proxy.cut().await;
            } else {
                proxy.hold();
            }
        }
        tokio::time::sleep(length).await;
        self.servers.rejoin(member).await;
        for proxy in &beyond {
            proxy.heal().await;
        }
        client.into_iter().for_each(|client| self.mended(client));
    }

    fn any_lock(&self) -> &'static str {
        LOCKS[self.random.borrow_mut().usize(0..LOCKS.len())]
    }

    /// Some of a client's ways to the servers, and always one.
    pub(super) fn some<'a, T>(&self, ways: &'a [T]) -> Vec<&'a T> {
        let chosen: Vec<_> = ways
            .iter()
            .filter(|_| self.random.borrow_mut().u8(0..3) > 0)
            .collect();
        if chosen.is_empty() {
            ways.iter().collect()
        } else {
            chosen
        }
    }

    /// Breaks the ways of one client: of several servers those to some.
    async fn link(&self, fault: Fault, proxies: &[Proxy], length: Duration) {
        let chosen = self.some(proxies);
        for proxy in &chosen {
            match fault {
                Fault::Cut => proxy.cut().await,
                Fault::Hold => proxy.hold(),
                Fault::LateReplies => proxy.hold_replies(),
                Fault::LoseReplies => proxy.drop_replies(),
                Fault::Slow => proxy.delay(length / 8),
                Fault::Freeze => proxy.freeze(),
                _ => proxy.disconnect().await,
            }
        }
        if fault != Fault::Disconnect {
            tokio::time::sleep(length).await;
        }
        for proxy in &chosen {
            proxy.heal().await;
        }
    }

    /// Waits for one particular request of a client, and loses or delays its answer, or delays the request itself.
    async fn moment(&self, fault: Fault, moment: Moment, proxies: &[Proxy], length: Duration) {
        let (chosen, pattern) = (self.some(proxies), moment.pattern(self.kind));
        let one = async |proxy: &&Proxy| {
            let trap = match fault {
                Fault::LostAnswer(_) => proxy.lose_reply_matching(&pattern),
                Fault::LateAnswer(_) => proxy.hold_reply_matching(&pattern),
                _ => proxy.hold_matching(&pattern),
            };
            if timeout(length, trap.sprung()).await.is_ok() {
                tokio::time::sleep(length).await;
            }
            proxy.disarm();
        };
        join_all(chosen.iter().map(one)).await;
    }

    /// Changes what is in the store.
    pub(super) async fn content(&self, fault: Fault, lock: Option<&str>, length: Duration) {
        match (self.servers, lock) {
            (_, Some(lock)) if fault == Fault::Evict => self.evict(lock).await,
            // As often as it takes: it is over when the fault is.
            (_, Some(lock)) => {
                while !self.delete(lock).await {
                    tokio::time::sleep(AGAIN).await;
                }
            }
            _ if fault == Fault::ChangeNodes => self.change_nodes(length).await,
            (Servers::Pair(pair), _) => self.promote_beside(pair, length).await,
            (Servers::File(room), _) => self.of_file(room, fault, length).await,
            (Servers::Postgres(server, _), _) => {
                databases::terminate(server, self.kind.ttl()).await;
            }
            (Servers::Etcd(server), _) => self.of_etcd(server, fault).await,
            (Servers::EtcdCluster(cluster), _) => self.of_etcd(&cluster.members()[0], fault).await,
            (Servers::ZooKeeper(_) | Servers::Ensemble(_), _) => self.end_session().await,
            _ => self.tell_a_server(fault).await,
        }
    }

    /// Tells one server of Redis what makes the fault. One that is down or does not answer is left alone.
    async fn tell_a_server(&self, fault: Fault) {
        let number = LOCKS.len().to_string();
        let words: Vec<&str> = match fault {
            Fault::ForgetScripts => vec!["SCRIPT", "FLUSH"],
            Fault::CloseSubscriptions => vec!["CLIENT", "KILL", "TYPE", "pubsub"],
            _ => ["EVAL", AHEAD, &number].into_iter().chain(LOCKS).collect(),
        };
        let server = self.random.borrow_mut().choice(self.servers.of_redis());
        if let Some(server) = server {
            let _ = timeout(self.kind.ttl(), server.command(&words)).await;
        }
    }

    /// Ends the hold of whoever comes first, by the call for operators. It is asked until it has answered. Where nobody says who holds,
    /// nobody is evicted.
    async fn evict(&self, lock: &str) {
        let Some(operator) = &self.operator else {
            return;
        };
        let holder = async {
            loop {
                match operator.lock(lock).inspect().await {
                    Ok(queue) => break queue.holders.first().and_then(|holder| holder.token),
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
        };
        let token = timeout(self.kind.settle(), holder)
            .await
            .unwrap_or_default();
        while let Some(token) = token {
            match operator.evict(lock, token).await {
                Ok(_) => return,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Deletes all that the store has of a lock. Says whether that is certain.
    async fn delete(&self, lock: &str) -> bool {
        match self.servers {
            Servers::Redis(servers) => {
                // The lock alone, or its queue and sharers, too.
                let of = if self.random.borrow_mut().bool() {
                    &[][..]
                } else {
                    &["l", "s", "r"]
                };
                let others: Vec<String> = of.iter().map(|of| format!("{{{lock}}}:{of}")).collect();
                let words: Vec<&str> = ["DEL", lock]
                    .into_iter()
                    .chain(others.iter().map(String::as_str))
                    .collect();
                sure(servers, &words).await
            }
            Servers::Postgres(server, _) => {
                // With its line its last token is lost: a clock that was stepped back may be behind that.
                let line =
                    self.random.borrow_mut().bool() && !self.kinds.contains(&Fault::ClockBack);
                databases::delete(server, lock, line).await
            }
            Servers::Etcd(server) => delete_prefix(server, lock).await,
            Servers::EtcdCluster(cluster) => {
                let which = self.random.borrow_mut().usize(0..cluster.members().len());
                delete_prefix(&cluster.members()[which], lock).await
            }
            Servers::ZooKeeper(_) | Servers::Ensemble(_) => {
                let servers = self.servers.addresses();
                let deleted = delete_entries(&servers, lock);
                matches!(timeout(2 * self.kind.ttl(), deleted).await, Ok(Ok(())))
            }
            Servers::Memory
            | Servers::File(_)
            | Servers::Nodes(..)
            | Servers::Sentinel(_)
            | Servers::Pair(_)
            | Servers::Cluster(_) => true,
        }
    }
}

/// Starts a server that was killed, without its data or with those of before. The first time what it has is saved. After that this is what it
/// has again.
async fn lose(fault: Fault, server: &Server) {
    if fault != Fault::Restore {
        return server.restart_without_data().await.unwrap();
    }
    let saved = server.data().with_extension("saved");
    let [from, to] = if saved.exists() {
        [&saved, server.data()]
    } else {
        [server.data(), &saved]
    };
    copy(from, to);
    // The process in it may be another one by now.
    let _ = fs::remove_file(server.data().join("postmaster.pid"));
    while server.start_again().await.is_err() {}
}

async fn sure(servers: &[Redis], words: &[&str]) -> bool {
    for server in servers {
        if server.command(words).await.is_err() {
            return false;
        }
    }
    true
}

/// What is in one folder takes the place of what is in the other, with its owners.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    assert!(
        Command::new("cp")
            .arg("-a")
            .args([from, to])
            .status()
            .unwrap()
            .success(),
        "copying {}",
        from.display()
    );
}

/// The name of a lock as stores write it where `/` separates.
pub(super) fn escaped(lock: &str) -> String {
    lock.replace('/', "%2F")
}

async fn delete_prefix(server: &Etcd, lock: &str) -> bool {
    // `/` and `0` follow one another.
    let [from, to] =
        ['/', '0'].map(|end| BASE64_STANDARD.encode(format!("{}{end}", escaped(lock))));
    server
        .post(
            "/v3/kv/deleterange",
            &format!(r#"{{"key":"{from}","range_end":"{to}"}}"#),
        )
        .await
        .is_ok()
}

async fn delete_entries(servers: &str, lock: &str) -> Result<(), Error> {
    let (client, node) = (
        Client::connect(servers).await?,
        format!("/locks/{}", escaped(lock)),
    );
    let entries = match client.list_children(&node).await {
        Err(Error::NoNode) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        match client.delete(&format!("{node}/{entry}"), None).await {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
