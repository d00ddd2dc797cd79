//! What the tests of this store share: a private server, clients, and short words for claims.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test uses a part"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::time::{Duration, Instant};

use leasehold_core::backend::{Backend, Claim, Grant, Mode, Moment, WaitPolicy};
use leasehold_redis::Redis;
pub use leasehold_testbed::Redis as Server;
use leasehold_testbed::Reply;
pub use leasehold_testbed::verbs::*;

#[allow(clippy::disallowed_methods, reason = "how long a test takes")]
pub fn clock() -> Instant {
    Instant::now()
}

pub async fn server() -> Server {
    Server::start().await.unwrap()
}

/// With a limit that a busy machine keeps: no test with such a client is about silence.
pub async fn client(server: &Server) -> Redis {
    Redis::connect(&format!("{}?timeout=10000", server.url()))
        .await
        .unwrap()
}

/// Releases, whatever outages there are meanwhile.
pub async fn surely_released(store: &Redis, claim: &Claim) {
    while let Err(e) = store.release(claim, None).await {
        assert!(e.is_retryable(), "{e:?}");
        sleep(10).await;
    }
}

pub fn claim(name: &str, policy: WaitPolicy, ttl: Duration, label: &str) -> Claim {
    Claim::new(name, Mode::Exclusive, policy, ttl, label)
}

pub fn fair(name: &str) -> Claim {
    claim(name, WaitPolicy::Fair, TTL, "fair")
}

pub const SHARED: Mode = Mode::Shared;

pub fn permits(n: u32, of: u32) -> Mode {
    Mode::Permits { n, of }
}

/// A fair claim of `x` in this mode.
pub fn moded(mode: Mode, label: &str) -> Claim {
    Claim::new("x", mode, WaitPolicy::Fair, TTL, label)
}

/// The same claim as this mode.
pub fn as_mode(claim: &Claim, mode: Mode) -> Claim {
    let mut claim = claim.clone();
    claim.mode = mode;
    claim
}

/// The same claim as a try.
pub fn as_try(claim: &Claim) -> Claim {
    let mut claim = claim.clone();
    claim.policy = WaitPolicy::Try;
    claim
}

/// The instant from which a validity counts; only its `Debug` shows it.
pub fn since(grant: &Grant) -> Duration {
    seconds(&format!("{:?}", grant.validity), "Moment(")
}

pub fn now() -> Duration {
    seconds(&format!("{:?}", Moment::now()), "Moment(")
}

fn seconds(text: &str, before: &str) -> Duration {
    let number = text
        .split_once(before)
        .unwrap()
        .1
        .split_once("s)")
        .unwrap()
        .0;
    Duration::from_secs_f64(number.parse().unwrap())
}

/// How many requests a client sent meanwhile, by the server's count of scripts; and how much was published.
pub struct Count<'a>(&'a Server);

impl<'a> Count<'a> {
    pub async fn from_here(server: &'a Server) -> Count<'a> {
        server.reset_commandstats().await.unwrap();
        Count(server)
    }

    pub async fn of(&self, command: &str) -> u64 {
        self.0
            .commandstats()
            .await
            .unwrap()
            .get(command)
            .copied()
            .unwrap_or_default()
    }

    /// What scripts call.
    pub async fn inner(&self) -> u64 {
        let own = [
            "eval",
            "evalsha",
            "script|load",
            "config|resetstat",
            "info",
            "ping",
            "hello",
            "subscribe",
        ];
        let stats = self.0.commandstats().await.unwrap();
        stats
            .iter()
            .filter(|(command, _)| !own.contains(&command.as_str()))
            .map(|(_, calls)| calls)
            .sum()
    }

    /// Requests: whatever is not called by a script.
    pub async fn requests(&self) -> u64 {
        let stats = self.0.commandstats().await.unwrap();
        let own = [
            "eval",
            "evalsha",
            "scan",
            "ping",
            "subscribe",
            "hello",
            "script|load",
        ];
        own.iter().filter_map(|c| stats.get(*c)).sum()
    }
}

pub async fn number(server: &Server, words: &[&str]) -> i64 {
    server.command(words).await.unwrap().integer().unwrap()
}

pub async fn text(server: &Server, words: &[&str]) -> Option<String> {
    match server.command(words).await.unwrap() {
        Reply::Nil => None,
        reply => reply.text(),
    }
}

/// The id of the exclusive holder, as the lock's value shows it.
pub async fn held_by(server: &Server, name: &str) -> String {
    text(server, &["GET", name]).await.unwrap()[1..33].to_owned()
}

/// How many wait for this name.
pub async fn in_line(server: &Server, name: &str) -> i64 {
    text(server, &["HGET", &format!("{{{name}}}:l"), "n"])
        .await
        .map_or(0, |n| n.parse().unwrap())
}

/// The place of a waiter: its ticket, and what is kept with it.
pub async fn place(server: &Server, claim: &Claim) -> Option<(String, String)> {
    let line = format!("{{{}}}:l", claim.name);
    let ticket = text(server, &["HGET", &line, &claim.id.to_string()]).await?;
    let entry = text(server, &["HGET", &line, &ticket]).await?;
    Some((ticket, entry))
}

/// The keys but for the last token of all names, and the mark of the database.
pub async fn traces(server: &Server) -> Vec<String> {
    let all = server.keys("*").await.unwrap();
    let lasting = ["{}:f", "{}:store"];
    all.into_iter()
        .filter(|key| !lasting.contains(&&**key))
        .collect()
}
