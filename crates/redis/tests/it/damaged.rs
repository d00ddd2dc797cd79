//! Keys that were changed by hand: whatever they hold, a request is answered, refused with its reason, or mends what is there. No script
//! stops in its midst.
//!
//! `LEASEHOLD_FUZZ=10000000 cargo test --profile fuzz -p leasehold-redis --test it damaged::`

use std::sync::Mutex;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, Moment, WaitPolicy};
use leasehold_core::{Error, ErrorKind, FencingToken};
use leasehold_fuzz::fuzz_servers;
use leasehold_redis::Redis;
use leasehold_redis::client::aio::MultiplexedConnection;
use leasehold_redis::client::{self, Client};

/// What is done to keys, and to which.
const COMMANDS: [&str; 12] = [
    "SET", "DEL", "HSET", "HDEL", "ZADD", "RPUSH", "SADD", "APPEND", "SETRANGE", "LPUSH",
    "PEXPIRE", "ZREM",
];
const KEYS: [&str; 6] = ["x", "{x}:l", "{x}:o", "{x}:s", "{x}:r", "{}:f"];
/// All keys and what they hold, and when the first of them ends by itself.
const STATE: &str = r#"
local reads = { string = { 'GET' }, hash = { 'HGETALL' }, list = { 'LRANGE', 0, -1 }, set = { 'SMEMBERS' },
  zset = { 'ZRANGE', 0, -1, 'WITHSCORES' } }
local all, first = {}, -1
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local read = reads[kind]
  local held = redis.call(read[1], key, unpack(read, 2))
  if kind == 'hash' then
    local fields = {}
    for i = 1, #held, 2 do fields[#fields + 1] = held[i] .. '=' .. held[i + 1] end
    table.sort(fields)
    held = fields
  end
  local left = redis.call('PTTL', key)
  if left >= 0 and (first < 0 or left < first) then first = left end
  all[#all + 1] = key .. ' ' .. (type(held) == 'table' and table.concat(held, ' ') or held)
end
table.sort(all)
return { first, all }"#;

struct World {
    store: Redis,
    connection: MultiplexedConnection,
    claims: Vec<Claim>,
}

/// All keys, until one of them ends by itself.
struct State {
    keys: Vec<Vec<u8>>,
    until: Option<Moment>,
}

impl State {
    /// Whether all that is missing by now was deleted.
    fn is_current(&self) -> bool {
        self.until.is_none_or(|until| Moment::now() < until)
    }

    fn shown(&self) -> Vec<String> {
        self.keys
            .iter()
            .map(|key| key.escape_ascii().to_string())
            .collect()
    }
}

impl World {
    async fn state(&mut self) -> State {
        let asked = Moment::now();
        let state = client::cmd("EVAL")
            .arg(STATE)
            .arg(0)
            .query_async(&mut self.connection)
            .await;
        let (first, keys): (i64, _) = state.unwrap();
        // A server's milliseconds begin and end within ours.
        let until = u64::try_from(first)
            .ok()
            .map(|left| asked + Duration::from_millis(left.saturating_sub(1)));
        State { keys, until }
    }

    /// What a script must not answer.
    async fn judge(&mut self, line: &str, before: &State, e: &Error) {
        let text = format!("{e} {e:?}");
        assert!(!text.contains("should"), "{text}");
        // `Unavailable` is a connection that was given up by a request before this one, which was answered too late.
        let kinds = [
            ErrorKind::Corrupt,
            ErrorKind::Ambiguous,
            ErrorKind::Unavailable,
            ErrorKind::Invalid,
            ErrorKind::Unsupported,
        ];
        assert!(kinds.contains(&e.kind()), "{text}");
        if text.contains("Redis refused") || text.contains("no lock") {
            let after = self.state().await;
            let same = after.shown() == before.shown() || !before.is_current();
            assert!(
                same,
                "a script stopped in its midst, at {line:?}: {text}\n{:?}\n{:?}",
                before.shown(),
                after.shown()
            );
        }
    }

    /// One line of the program: a command on a key, or a verb.
    async fn step(&mut self, line: &str) {
        let words: Vec<&str> = line.split('\t').collect();
        if COMMANDS.contains(&words[0]) && words.get(1).is_some_and(|key| KEYS.contains(key)) {
            let mut command = client::cmd(words[0]);
            for word in &words[1..] {
                command.arg(word);
            }
            // One of another form is refused.
            let _ = command
                .query_async::<client::Value>(&mut self.connection)
                .await;
            return;
        }
        let mode = match words.get(1) {
            Some(&"s") => Mode::Shared,
            Some(&"p") => permits(1, 2),
            _ => Mode::Exclusive,
        };
        let before = self.state().await;
        let last = self.claims.last().cloned().unwrap_or_else(|| fair("x"));
        let first = self.claims.first().cloned().unwrap_or_else(|| fair("x"));
        let answer = match words[0] {
            "hold" | "wait" | "try" | "claim" => {
                let policy = if words[0] == "try" {
                    WaitPolicy::Try
                } else {
                    WaitPolicy::Fair
                };
                let claim = if words[0] == "claim" {
                    last
                } else {
                    Claim::new("x", mode, policy, TTL, "a label")
                };
                let foreign =
                    before.keys.iter().any(|key| key.starts_with(b"x ")) && self.is_foreign().await;
                let answer = self.store.claim(&claim).await;
                let beside =
                    foreign && matches!(answer, Ok(Claimed::Granted(_))) && before.is_current();
                assert!(!beside, "a grant beside another tool's");
                self.claims.push(claim);
                answer.map(drop)
            }
            "renew" => self
                .store
                .renew(&[lease(&first, FencingToken::new(1)), lease(&last, None)])
                .await
                .map(drop),
            "release" => self.store.release(&first, None).await,
            "lapse" => {
                self.store
                    .release_after(&first, None, Duration::from_millis(5))
                    .await
            }
            "inspect" => self.store.inspect(&"x".into()).await.map(drop),
            "evict" => self
                .store
                .evict(&"x".into(), FencingToken::new(words.len() as u64 - 1))
                .await
                .map(drop),
            "all" => self
                .store
                .claim_all(&[attempt("x"), attempt("y")])
                .await
                .map(drop),
            "list" => self.store.list("", None, 5).await.map(drop),
            _ => Ok(()),
        };
        if let Err(e) = answer {
            self.judge(line, &before, &e).await;
        }
    }

    /// Whether the lock's key holds what no client of ours writes.
    async fn is_foreign(&mut self) -> bool {
        let value: Result<String, _> = client::cmd("GET")
            .arg("x")
            .query_async(&mut self.connection)
            .await;
        value.is_ok_and(|value| !value.starts_with(['-', '+', '*', '.', '=']))
    }

    async fn run(&mut self, program: &str) {
        client::cmd("FLUSHALL")
            .query_async::<()>(&mut self.connection)
            .await
            .unwrap();
        self.claims.clear();
        for line in program.lines().take(30) {
            self.step(line).await;
        }
        // Who deletes what is damaged has a lock again.
        client::cmd("DEL")
            .arg(&KEYS)
            .query_async::<()>(&mut self.connection)
            .await
            .unwrap();
        granted(&self.store, &fair("x")).await;
    }
}

fn attempt(name: &str) -> Claim {
    claim(name, WaitPolicy::Try, TTL, "")
}

#[test]
fn damaged_keys() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (server, world) = runtime.block_on(async {
        let server = server().await;
        let store = client(&server).await;
        let connection = Client::open(server.url())
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        (
            server,
            Mutex::new(World {
                store,
                connection,
                claims: Vec::new(),
            }),
        )
    });
    fuzz_servers(include_str!("../../corpus/damages"), |program| {
        let mut world = world
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        runtime.block_on(world.run(&String::from_utf8_lossy(program)));
    });
    drop(server);
}
