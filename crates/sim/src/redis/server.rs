//! A Redis server in memory: its connections, and the commands that are not about data. It does no
//! I/O, and has no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use crate::redis::commands::execute;
use crate::redis::data::Data;
use crate::redis::reply::{Reply, integer};
use crate::redis::script::run;
use crate::redis::state::{State, syntax};

/// The time that a command takes, in microseconds.
const TAKES: u64 = 3;

/// A Redis server in memory, with the commands that Leasehold uses.
#[derive(Default)]
pub struct MiniRedis {
    pub(crate) state: State,
    scripts: BTreeMap<String, Vec<u8>>,
    connections: BTreeMap<u64, Connection>,
    /// The wall clock at the last call, and the time that calls have taken since that clock moved.
    clock: (u64, u64),
    /// The lead of its clock in microseconds, and whether it was ever set back.
    ahead: i64,
    stepped_back: bool,
    /// The number of scripts that were run for clients.
    calls: u64,
    /// The number of its restarts.
    restarts: u64,
    /// The number of scripts that clients have sent or asked for, and of their pings.
    requests: u64,
}

impl std::fmt::Debug for MiniRedis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MiniRedis")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Connection {
    input: Vec<u8>,
    output: Vec<u8>,
    three: bool,
    channels: BTreeSet<Vec<u8>>,
}

impl MiniRedis {
    /// A server whose scripts may use only the keys that they declared.
    pub(crate) fn strict() -> MiniRedis {
        let mut server = MiniRedis::default();
        server.state.is_strict = true;
        server
    }

    /// Begins the connection of a client.
    pub fn opened(&mut self, connection: u64) {
        self.connections.insert(connection, Connection::default());
    }

    /// Handles bytes of a client that have arrived at this time, in microseconds since 1970.
    /// Returns the bytes to send, by connection.
    pub fn received(&mut self, connection: u64, bytes: &[u8], wall: u64) -> Vec<(u64, Vec<u8>)> {
        let Some(client) = self.connections.get_mut(&connection) else {
            return Vec::new();
        };
        client.input.extend_from_slice(bytes);
        let mut input = take(&mut client.input);
        let mut read = 0;
        while let Some((words, many)) = request(&input[read..]) {
            read += many;
            let replies = self.answer(connection, &words, wall);
            self.deliver();
            let Some(client) = self.connections.get_mut(&connection) else {
                break;
            };
            replies
                .iter()
                .for_each(|reply| reply.encode(client.three, &mut client.output));
        }
        input.drain(..read);
        if let Some(client) = self.connections.get_mut(&connection) {
            client.input = input;
        }
        self.output()
    }

    /// Ends the connection of a client.
    pub fn closed(&mut self, connection: u64) {
        self.connections.remove(&connection);
        self.state
            .subscribers
            .values_mut()
            .for_each(|those| _ = those.remove(&connection));
        self.state.subscribers.retain(|_, those| !those.is_empty());
    }

    /// Executes a command that somebody enters by hand, and drops its reply. Returns the bytes to
    /// send, by connection.
    pub fn by_hand(&mut self, words: &[&str], wall: u64) -> Vec<(u64, Vec<u8>)> {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.answer(0, &words, wall);
        self.deliver();
        self.output()
    }

    /// The number of scripts that were run for clients.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// The number of requests that clients have made with scripts, known or not, and of their
    /// pings: `eval`, `evalsha`, `script load` and `ping`. A real server reports them in `INFO
    /// commandstats`.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// All keys, with the time that each still lives, in milliseconds: -1 for ever.
    pub fn keys(&mut self, wall: u64) -> Vec<(String, i64)> {
        self.tick(wall);
        let now = self.state.now();
        let all = self.state.data.all(now).into_iter();
        let lives = |data: &mut Data, key: &[u8]| {
            data.expires(key, now).flatten().map_or(-1, |at| at - now)
        };
        all.map(|(key, _)| {
            (
                String::from_utf8_lossy(&key).into_owned(),
                lives(&mut self.state.data, &key),
            )
        })
        .collect()
    }

    /// Restarts the server: all clients are gone, and it knows no script. It keeps its data.
    pub fn restart(&mut self) {
        self.restarts += 1;
        self.connections.clear();
        self.scripts.clear();
        self.state.subscribers.clear();
    }

    /// Steps its clock by this many microseconds.
    pub(crate) fn step(&mut self, by: i64) {
        self.ahead += by;
        self.stepped_back |= by < 0;
    }

    pub(crate) fn has_stepped_back(&self) -> bool {
        self.stepped_back
    }

    /// Sets its clock by this time.
    fn tick(&mut self, wall: u64) {
        self.clock = if self.clock.0 == wall {
            (wall, self.clock.1 + TAKES)
        } else {
            (wall, 0)
        };
        self.state.micros = (wall + self.clock.1).saturating_add_signed(self.ahead);
    }

    fn output(&mut self) -> Vec<(u64, Vec<u8>)> {
        let all = self
            .connections
            .iter_mut()
            .filter(|(_, client)| !client.output.is_empty());
        all.map(|(nth, client)| (*nth, take(&mut client.output)))
            .collect()
    }

    /// Sends the waiting messages to subscribers.
    fn deliver(&mut self) {
        for (to, push) in take(&mut self.state.pushes) {
            if let Some(client) = self.connections.get_mut(&to) {
                push.encode(client.three, &mut client.output);
            }
        }
    }

    fn answer(&mut self, connection: u64, words: &[Vec<u8>], wall: u64) -> Vec<Reply> {
        self.tick(wall);
        let text = |nth: usize| {
            words
                .get(nth)
                .map(|word| String::from_utf8_lossy(word).to_ascii_lowercase())
        };
        let name = text(0).unwrap_or_default();
        let second = text(1).unwrap_or_default();
        self.requests += u64::from(matches!(
            (&*name, &*second),
            ("eval" | "evalsha" | "ping", _) | ("script", "load")
        ));
        vec![match (&*name, &*second) {
            ("subscribe" | "unsubscribe", _) => {
                return self.subscribe(connection, words, name == "subscribe");
            }
            ("eval" | "evalsha", _) => self
                .eval(words, name == "eval")
                .unwrap_or_else(|error| error),
            ("script", "flush") => {
                self.scripts.clear();
                Reply::ok()
            }
            ("script", "load") => {
                let source = words.get(2).cloned().unwrap_or_default();
                let hash = hash_of(&source);
                self.scripts.insert(hash.clone(), source);
                Reply::bulk(hash)
            }
            ("hello", _) => self.hello(connection, words),
            ("client", "id") => Reply::Int(connection as i64),
            ("client", _) | ("select", "0") | ("auth", _) => Reply::ok(),
            ("select", _) => Reply::error("ERR DB index is out of range"),
            ("config", "set") => {
                self.state.full = words.get(3).is_some_and(|most| most != b"0");
                Reply::ok()
            }
            ("config", _) => {
                let facts = [("save", ""), ("appendfsync", "always")];
                let asked = facts
                    .iter()
                    .filter(|(name, _)| words[2..].iter().any(|word| word == name.as_bytes()));
                Reply::Map(
                    asked
                        .map(|(name, value)| (Reply::bulk(name), Reply::bulk(value)))
                        .collect(),
                )
            }
            ("info", _) => Reply::Verbatim(format!(
                "# Server\r\nrun_id:{:040}\r\n# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n",
                self.restarts
            )),
            ("pubsub", "numsub") => {
                let many = |channel: &Vec<u8>| {
                    self.state.subscribers.get(channel).map_or(0, BTreeSet::len)
                };
                let each = words[2..]
                    .iter()
                    .flat_map(|it| [Reply::bulk(it), Reply::Int(many(it) as i64)]);
                Reply::Array(each.collect())
            }
            ("wait", _) => Reply::Int(0),
            _ => execute(&mut self.state, words, false),
        }]
    }

    fn hello(&mut self, connection: u64, words: &[Vec<u8>]) -> Reply {
        let client = self.connections.entry(connection).or_default();
        match words.get(1).map(Vec::as_slice) {
            None => {}
            Some(version @ (b"2" | b"3")) => client.three = version == b"3",
            Some(_) => return Reply::error("NOPROTO unsupported protocol version"),
        }
        let text = |name: &str, value: &str| (Reply::bulk(name), Reply::bulk(value));
        Reply::Map(vec![
            text("server", "redis"),
            text("version", "7.0.15"),
            (
                Reply::bulk("proto"),
                Reply::Int(if client.three { 3 } else { 2 }),
            ),
            (Reply::bulk("id"), Reply::Int(connection as i64)),
            text("mode", "standalone"),
            text("role", "master"),
            (Reply::bulk("modules"), Reply::Array(Vec::new())),
        ])
    }

    /// Answers by one push for each channel.
    fn subscribe(&mut self, connection: u64, words: &[Vec<u8>], joins: bool) -> Vec<Reply> {
        let Some(client) = self.connections.get_mut(&connection) else {
            return Vec::new();
        };
        let named = words[1..].to_vec();
        let channels = if named.is_empty() && !joins {
            client.channels.iter().cloned().collect()
        } else {
            named
        };
        let mut replies = Vec::new();
        for channel in channels {
            let those = self.state.subscribers.entry(channel.clone()).or_default();
            if joins {
                those.insert(connection);
                client.channels.insert(channel.clone());
            } else {
                those.remove(&connection);
                client.channels.remove(&channel);
            }
            let word = if joins { "subscribe" } else { "unsubscribe" };
            let many = Reply::Int(client.channels.len() as i64);
            replies.push(Reply::Push(vec![
                Reply::bulk(word),
                Reply::bulk(channel),
                many,
            ]));
        }
        replies
    }

    fn eval(&mut self, words: &[Vec<u8>], with_source: bool) -> Result<Reply, Reply> {
        let script = words.get(1).ok_or_else(syntax)?;
        let no_number = || Reply::error("ERR value is not an integer or out of range");
        let many = words
            .get(2)
            .and_then(|many| integer(many))
            .ok_or_else(no_number)?;
        let many = usize::try_from(many)
            .map_err(|_| Reply::error("ERR Number of keys can't be negative"))?;
        if many > words.len() - 3 {
            return Err(Reply::error(
                "ERR Number of keys can't be greater than number of args",
            ));
        }
        let hash = if with_source {
            hash_of(script)
        } else {
            String::from_utf8_lossy(script).to_ascii_lowercase()
        };
        if with_source {
            self.scripts.insert(hash.clone(), script.clone());
        }
        let unknown = || Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        let source = self.scripts.get(&hash).ok_or_else(unknown)?;
        self.calls += 1;
        let (keys, args) = words[3..].split_at(many);
        Ok(run(&mut self.state, &hash, source, keys, args))
    }
}

fn hash_of(source: &[u8]) -> String {
    redis::Script::new(&String::from_utf8_lossy(source))
        .get_hash()
        .to_owned()
}

/// The first request in these bytes if it is complete, and its length.
fn request(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |from: usize| {
        let end = from
            + bytes
                .get(from..)?
                .windows(2)
                .position(|two| two == b"\r\n")?;
        let number: usize = str::from_utf8(bytes.get(from + 1..end)?)
            .ok()?
            .parse()
            .ok()?;
        Some((number, end + 2))
    };
    let (many, mut at) = line(0)?;
    let mut words = Vec::with_capacity(many);
    for _ in 0..many {
        let (long, from) = line(at)?;
        words.push(bytes.get(from..from + long)?.to_vec());
        at = from + long + 2;
        if bytes.len() < at {
            return None;
        }
    }
    Some((words, at))
}
