//! What a server, or a proxy before it, may say and do, and what a person is told of it. The store's page has the same table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Backend, WaitPolicy};
use leasehold_core::{Error, ErrorKind};
use leasehold_redis::Redis;
use leasehold_testbed::reasons::{are_on_page, exit_code};
use leasehold_testbed::{RedisLike, RedisOptions};

use crate::support::*;

use ErrorKind::{Corrupt, Denied, Internal, Invalid, Unavailable, Unsupported};
use Made::{Answers, Says, Server};
use When::{Connecting, Request};

/// One line of the table.
struct Reason {
    /// What the page calls it.
    is: &'static str,
    made: Made,
    when: When,
    kind: ErrorKind,
    /// A part of the error.
    told: &'static str,
}

/// How it comes about.
enum Made {
    /// An imitation says this, and closes the connection.
    Says(&'static str),
    /// An imitation answers this request so; with nothing, it closes the connection.
    Answers(&'static str, &'static str),
    /// A Redis with these options, to which these commands were sent: both separated by blanks, the commands by `;`. And what stands in
    /// the URL before and after the address.
    Server(&'static str, &'static str, &'static str, &'static str),
}

/// What the client was doing.
#[derive(Clone, Copy, PartialEq, Debug)]
enum When {
    Connecting,
    Request,
}

const fn reason(
    is: &'static str,
    made: Made,
    when: When,
    kind: ErrorKind,
    told: &'static str,
) -> Reason {
    Reason {
        is,
        made,
        when,
        kind,
        told,
    }
}

const NO_HELLO: &str = "this server, or the proxy before it, knows no HELLO 3 (RESP3): Redis 6 or newer is needed, or protocol=2 in the URL of one \
server";

/// As Redis 7.0 says it: longer than what is kept of it.
const DENIED: &str = "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default \
user. In this mode connections are only accepted from the loopback interface. If you want to connect from external computers to Redis \
you may adopt one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET protected-mode no' from \
the loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE Redis is not publicly \
accessible from internet if you do so. Use CONFIG REWRITE to make this change permanent.\r\n";

#[rustfmt::skip]
const REASONS: [Reason; 30] = [
    reason("`ERR max number of clients reached`, and closes", Says("-ERR max number of clients reached\r\n"), Connecting, Unavailable,
        "Redis has as many clients as it may: raise maxclients, or close some"),
    reason("`DENIED`: protected mode, and closes", Says(DENIED), Connecting, Unsupported,
        "Redis is in protected mode, and serves clients of its own host only: give it a password (requirepass) or users, or set protected-mode no"),
    reason("Closes without a word (a TLS port)", Says(""), Connecting, Unavailable,
        "Does it speak TLS there? Then the scheme of the URL is rediss://"),
    reason("No protocol of Redis (an HTTP port)", Says("HTTP/1.1 400 Bad Request\r\n\r\n"), Connecting, Unsupported,
        "what answers there does not speak the protocol of Redis: are the host and the port right?"),
    reason("`HELLO` is refused, with `protocol=3`", Server("--rename-command HELLO #", "", "", "?protocol=3"), Connecting, Unsupported, NO_HELLO),
    reason("`HELLO` and `EVAL` are refused", Server("--rename-command HELLO # --rename-command EVAL #", "", "", ""), Connecting, Unsupported,
        "Redis, or the proxy before it, lacks the command EVAL, which locks need"),
    reason("`NOAUTH`", Server("--requirepass s3cret", "", "", ""), Connecting, Denied, "Redis wants a password, in the URL as redis://:password@host"),
    reason("`WRONGPASS`", Server("--requirepass s3cret", "", ":wr0ng@", ""), Connecting, Denied, "Redis refused our credentials"),
    reason("`NOPERM`: a command", Server("", "ACL SETUSER app on >pw ~* &* +@all -evalsha", "app:pw@", ""), Connecting, Denied,
        "this user lacks a right on Redis: +evalsha"),
    reason("`NOPERM`: a command in a script", Server("", "ACL SETUSER app on >pw ~* &* +@all -pexpire -zadd", "app:pw@", ""), Connecting, Denied,
        "this user lacks a right on Redis: +pexpire +zadd"),
    reason("`NOPERM`: a channel", Server("", "ACL SETUSER app on >pw ~* resetchannels +@all", "app:pw@", ""), Connecting, Denied,
        "this user lacks a right on Redis: &leasehold:*"),
    reason("`NOPERM`: the key of the tokens", Server("", "ACL SETUSER app on >pw ~x ~{x}:* &* +@all", "app:pw@", ""), Connecting, Denied,
        "this user lacks a right on Redis: ~{}:f"),
    reason("`NOPERM`: a key of this lock", Server("", "ACL SETUSER app on >pw ~x ~{}:f &* +@all", "app:pw@", ""), Request, Denied,
        "this user lacks a right on Redis: ~{x}:l ~{x}:o ~{x}:s ~{x}:r"),
    reason("`NOPERM`: every script", Server("", "ACL SETUSER app on >pw ~* &* +@all -@scripting", "app:pw@", ""), Connecting, Denied,
        "Where scripts are forbidden, scripts=off in the URL makes this a store of exclusive locks alone"),
    reason("`ERR unknown command 'EVALSHA'` (renamed)", Server("--rename-command EVALSHA #", "", "", ""), Connecting, Unsupported,
        "lacks the command EVALSHA, which locks need"),
    reason("A command of a script is renamed", Server("--rename-command HSET #", "", "", ""), Connecting, Unsupported,
        "lacks the command HSET, which locks need"),
    reason("`don't hash to the same slot` (Redis Enterprise)", Answers("EVALSHA", "-ERR EVALSHA - all keys in the script don't hash to the same slot"), Connecting, Unsupported,
        "spreads keys over several servers, and the keys of a lock have to be on one: a Redis or a Valkey itself is needed, or the Cluster behind it (redis+cluster://)"),
    reason("`CROSSSLOT`, `MOVED`: a node of a Cluster", Answers("EVALSHA", "-CROSSSLOT Keys in request don't hash to the same slot"), Connecting, Unsupported,
        "this is a node of a Redis Cluster: its URL begins with redis+cluster://"),
    reason("`ERR DB index is out of range`", Server("", "", "", "/99"), Connecting, Invalid, "Redis has no database of this number"),
    reason("`LOADING`", Answers("HELLO", "-LOADING Redis is loading the dataset in memory"), Connecting, Unavailable, "Redis is loading its data"),
    reason("`MASTERDOWN`", Answers("EVALSHA", "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), Request, Unavailable,
        "Redis cannot serve now: it is a replica that has lost its primary"),
    reason("`CLUSTERDOWN`", Answers("EVALSHA", "-CLUSTERDOWN The cluster is down"), Request, Unavailable,
        "Redis cannot serve now: its Cluster is down, or no node serves this slot (redis-cli --cluster check)"),
    reason("`READONLY`", Server("", "REPLICAOF 127.0.0.1 1", "", ""), Request, Unavailable,
        "this Redis is a read-only replica: the URL has to name the primary, or its sentinels"),
    reason("A replica that takes writes (`replica-read-only no`)", Server("", "CONFIG SET replica-read-only no;REPLICAOF 127.0.0.1 1", "", ""), Connecting, Unavailable,
        "this Redis is a replica that takes writes (replica-read-only no), and would grant what its primary grants too: the URL has to name the primary, or its sentinels"),
    reason("`OOM`", Server("", "CONFIG SET maxmemory 1", "", ""), Request, Unavailable, "Redis is out of memory: raise maxmemory, or delete something"),
    reason("`NOREPLICAS`", Server("", "CONFIG SET min-replicas-to-write 1", "", ""), Request, Unavailable,
        "Redis refuses writes: too few replicas follow it (min-replicas-to-write)"),
    reason("`MISCONF`", Answers("EVALSHA", "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), Request, Unavailable,
        "Redis refuses writes: it cannot save its data, its log says why (stop-writes-on-bgsave-error)"),
    reason("`BUSY`", Answers("EVALSHA", "-BUSY Redis is busy running a script."), Request, Unavailable,
        "Redis is busy with a script of another client (SCRIPT KILL ends it)"),
    reason("`WRONGTYPE`", Server("", "RPUSH x 1", "", ""), Request, Corrupt,
        "a key of this name holds something that is no lock: delete it, or use a `prefix` for the locks"),
    reason("Any other refusal", Answers("EVALSHA", "-ERR the tenant a8f5f167f44f is suspended"), Request, Internal,
        "Redis refused a request: “ERR the tenant … is suspended”"),
];

/// No answer takes so long, unless a server is silent.
const LONG: Duration = Duration::from_secs(60);

impl Reason {
    /// As the page has it.
    fn line(&self) -> String {
        let code = exit_code(self.kind);
        let when = match self.when {
            Connecting => "connects",
            Request => "asks",
        };
        format!(
            "| {} | {when} | {:?}, {code} | {} |",
            self.is, self.kind, self.told
        )
    }

    /// What a client is told, and when.
    async fn happens(&self) -> (When, Error) {
        let url = |before: &str, addr: &str, after: &str| {
            let joined = if after.contains('?') { '&' } else { '?' };
            format!(
                "redis://{before}{addr}{after}{joined}timeout={}",
                LONG.as_millis()
            )
        };
        match self.made {
            Says(bytes) => {
                let server = RedisLike::saying(bytes).await.unwrap();
                told(&url("", server.addr(), "")).await
            }
            Answers(verb, line) => {
                let asks_rights = |words: &[String]| words.iter().any(|word| word == "exists #");
                let connecting = self.when == Connecting;
                let answer = move |words: &[String]| {
                    let is_it = words[0] == verb && (connecting || !asks_rights(words));
                    is_it.then(|| line.to_owned())
                };
                let server = RedisLike::answering(answer).await.unwrap();
                told(&url("", server.addr(), "")).await
            }
            Server(options, commands, before, after) => {
                let extra = options.split_whitespace().map(|word| word.replace('#', ""));
                let options = RedisOptions {
                    password: options.strip_prefix("--requirepass ").map(str::to_owned),
                    extra: extra.collect(),
                    ..RedisOptions::default()
                };
                let server = super::Server::start_with(&options).await.unwrap();
                for command in commands.split(';').filter(|command| !command.is_empty()) {
                    let words: Vec<&str> = command.split_whitespace().collect();
                    server.command(&words).await.unwrap();
                }
                told(&url(before, server.addr(), after)).await
            }
        }
    }
}

/// What a client is told that connects there and claims `x`.
async fn told(url: &str) -> (When, Error) {
    match Redis::connect(url).await {
        Err(e) => (Connecting, e),
        Ok(store) => {
            let asked = store.claim(&claim("x", WaitPolicy::Fair, TTL, "")).await;
            (Request, asked.unwrap_err())
        }
    }
}

#[tokio::test]
async fn each_reason_reaches_the_person() {
    bounded(async {
        let mut other = Vec::new();
        for reason in REASONS {
            let (when, error) = Box::pin(reason.happens()).await;
            let kind = error.kind();
            let words = words_without(&["s3cret", "wr0ng"], Err::<(), _>(error));
            let asks_about_tls = words.contains("speak TLS") == reason.told.contains("speak TLS");
            if !words.contains(reason.told)
                || !asks_about_tls
                || (kind, when) != (reason.kind, reason.when)
            {
                other.push(format!("{}: {when:?}: {words}", reason.is));
            }
        }
        assert!(other.is_empty(), "{}", other.join("\n"));
    })
    .await;
}

/// The server closes the connection after its words, and what we have written meanwhile makes it reset it.
#[tokio::test]
async fn a_full_server_says_so_to_each_client() {
    bounded(async {
        let server = server().await;
        let _first = client(&server).await;
        server
            .command(&["CONFIG", "SET", "maxclients", "1"])
            .await
            .unwrap();
        for _ in 0..8 {
            let error = Redis::connect(&server.url()).await.unwrap_err();
            assert!(
                error.kind() == Unavailable && error.to_string().contains("raise maxclients"),
                "{error:?}"
            );
        }
    })
    .await;
}

/// A server's own words follow, where they say more than which refusal it is.
#[tokio::test]
async fn the_words_of_the_server_are_told_too() {
    bounded(async {
        for line in [
            "MISCONF Errors writing to the AOF file: No space left on device",
            "OOM command not allowed when used memory is too great.",
            "READONLY You can't write against a read only replica.",
            "LOADING this instance is waking up",
        ] {
            let (at, _) = line.split_once(' ').unwrap();
            let verb = if at == "LOADING" { "HELLO" } else { "EVALSHA" };
            let is_it = move |words: &[String]| {
                let checks = words.iter().any(|word| word == "exists #");
                (words[0] == verb && !checks).then(|| format!("-{line}"))
            };
            let server = RedisLike::answering(is_it).await.unwrap();
            let (_, error) = told(&format!("redis://{}", server.addr())).await;
            let quoted = format!("(it said \u{201c}{line}\u{201d})");
            assert!(error.to_string().contains(&quoted), "{error}");
            assert_eq!(exit_code(error.kind()), 69);
        }
    })
    .await;
}

/// A proxy that begins to refuse clients may be in the middle of being replaced: who waits asks again, and is told why meanwhile.
#[tokio::test]
async fn what_is_a_mistake_at_first_may_pass_later() {
    bounded(async {
        let refuses = Arc::new(AtomicBool::new(false));
        let now = refuses.clone();
        let server = RedisLike::answering(move |words| {
            let line = match words[0].as_str() {
                "HELLO" => "-ERR unknown command 'HELLO'",
                // It closes the connection.
                _ => "",
            };
            now.load(Ordering::SeqCst).then(|| line.to_owned())
        });
        let server = server.await.unwrap();
        let url = format!("redis://{}", server.addr());
        let store = Redis::connect(&url).await.unwrap();
        refuses.store(true, Ordering::SeqCst);
        loop {
            let asked = store.claim(&claim("x", WaitPolicy::Fair, TTL, "")).await;
            let error = asked.unwrap_err();
            assert!(error.is_retryable(), "{error:?}");
            if error.to_string().contains(NO_HELLO) {
                break assert_eq!(error.kind(), Unavailable);
            }
            sleep(1).await;
        }
    })
    .await;
}

/// Of the way to a sentinel, and to the first node of a Cluster.
#[tokio::test]
async fn a_sentinel_and_a_node_that_refuse_a_client_say_why() {
    bounded(async {
        for (line, kind, told) in [
            (
                "-ERR max number of clients reached\r\n",
                Unavailable,
                "raise maxclients",
            ),
            (
                "-DENIED Redis is running in protected mode\r\n",
                Unsupported,
                "protected mode",
            ),
        ] {
            let server = RedisLike::saying(line).await.unwrap();
            for url in ["redis+sentinel://ADDR/main", "redis+cluster://ADDR"] {
                let error = Redis::connect(&url.replace("ADDR", server.addr()))
                    .await
                    .unwrap_err();
                assert!(
                    error.kind() == kind && error.to_string().contains(told),
                    "{url}: {error:?}"
                );
                assert!(!error.to_string().contains("TLS"), "{url}: {error:?}");
            }
        }
    })
    .await;
}

#[test]
fn the_page_has_the_same_table() {
    are_on_page(
        "redis",
        "What a server says",
        REASONS.iter().map(Reason::line),
    );
}
