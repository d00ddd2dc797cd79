//! Imitations of proxies and services before a real Redis that refuse what a Redis itself allows.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
};

use crate::{
    background::{self, Task},
    error::Result,
    ports, resp,
};

/// A function in the place of `redis`, before each script: it refuses each call with a key that the
/// script did not declare. The server itself knows which words of a call are keys.
const DECLARED_ONLY: &str = "\
local redis = (function(real) \
local declared = {} \
for _, key in ipairs(KEYS) do declared[key] = true end \
local function refusal(...) \
local keys = real.pcall('COMMAND', 'GETKEYS', ...) \
for i = 1, keys.err and 0 or #keys do \
if not declared[keys[i]] then return 'ERR script tried accessing undeclared key, key: ' .. keys[i] end \
end end \
return setmetatable({ \
call = function(...) local why = refusal(...) if why then error(why, 0) end return real.call(...) end, \
pcall = function(...) local why = refusal(...) if why then return { err = why } end return real.pcall(...) end, \
}, { __index = real }) end)(redis) ";

/// The commands that the proxies pass on. Those that they imitate know more, but none that is not
/// for a key, and neither `HELLO` nor `SUBSCRIBE`.
const PASSED: [&str; 6] = ["auth", "ping", "get", "set", "eval", "evalsha"];

/// What a gate does with requests.
enum Rule {
    /// A script may only use the keys that it declared.
    DeclaredKeys(Scripts),
    /// Only these commands are passed on. Any other is answered by an error, or by closing the
    /// connection. Each goes to the server of its first key.
    Few { closes: bool },
}

/// The hash under which the server knows a checked script, by the hash of the script itself.
type Scripts = Mutex<HashMap<String, String>>;

/// A proxy that refuses some requests, as some services do.
pub struct RedisGate {
    addr: String,
    _accepting: Task,
}

impl RedisGate {
    /// As Dragonfly and the serverless services of clouds: scripts that touch a key which they did
    /// not declare fail at that call.
    pub async fn declared_keys(upstream: &str) -> Result<Self> {
        Self::start(
            vec![upstream.to_owned()],
            Rule::DeclaredKeys(Scripts::default()),
        )
    }

    /// As twemproxy: RESP2, few commands, and a closed connection for any other. With several
    /// servers, a script runs at the server of its first key.
    pub async fn twemproxy(upstreams: Vec<String>) -> Result<Self> {
        Self::start(upstreams, Rule::Few { closes: true })
    }

    /// As Envoy: RESP2, few commands, and an error for any other.
    pub async fn envoy(upstream: &str) -> Result<Self> {
        Self::start(vec![upstream.to_owned()], Rule::Few { closes: false })
    }

    fn start(upstreams: Vec<String>, rule: Rule) -> Result<Self> {
        let (listener, addr) = ports::listen()?;
        let shared = Arc::new((upstreams, rule));
        let accepting = background::spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((client, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    // The connection ends with the first failure.
                    let _ = match &shared.1 {
                        Rule::DeclaredKeys(scripts) => check(client, &shared.0[0], scripts).await,
                        Rule::Few { closes } => pass(client, &shared.0, *closes).await,
                    };
                });
            }
        })?;
        Ok(Self {
            addr: addr.to_string(),
            _accepting: accepting,
        })
    }

    /// The address to which clients connect: `host:port`.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }
}

impl fmt::Debug for RedisGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisGate({})", self.addr)
    }
}

type Halves = (BufReader<OwnedReadHalf>, OwnedWriteHalf);

fn halves(stream: TcpStream) -> Halves {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    (BufReader::new(read), write)
}

/// Passes everything on, with the check before each script. Replies and pushes pass as they are.
async fn check(client: TcpStream, upstream: &str, scripts: &Scripts) -> io::Result<()> {
    let (mut requests, mut to_client) = halves(client);
    let (mut replies, mut to_server) = halves(TcpStream::connect(upstream).await?);
    let there = async {
        while let Some(mut words) = resp::request(&mut requests).await {
            checked(&mut words, scripts);
            to_server.write_all(&resp::of_words(&words)).await?;
        }
        to_server.shutdown().await
    };
    let back = async {
        tokio::io::copy_buf(&mut replies, &mut to_client).await?;
        Err::<(), _>(io::ErrorKind::UnexpectedEof.into())
    };
    tokio::try_join!(there, back).map(drop)
}

/// Puts the check before the script of a request, or the hash of the checked script in the place
/// of its own.
fn checked(words: &mut [Vec<u8>], scripts: &Scripts) {
    let [verb, script, ..] = words else { return };
    let mut scripts = scripts.lock().unwrap_or_else(PoisonError::into_inner);
    match verb.to_ascii_lowercase().as_slice() {
        b"eval" => {
            let its = hash_of(script);
            script.splice(..0, DECLARED_ONLY.bytes());
            scripts.insert(its, hash_of(script));
        }
        b"evalsha" => {
            if let Some(hash) = scripts.get(&*String::from_utf8_lossy(script)) {
                *script = hash.clone().into_bytes();
            }
        }
        _ => {}
    }
}

fn hash_of(script: &[u8]) -> String {
    sha1_smol::Sha1::from(script).digest().to_string()
}

/// Passes one request after the other on to the server of its first key.
async fn pass(client: TcpStream, upstreams: &[String], closes: bool) -> io::Result<()> {
    let (mut requests, mut to_client) = halves(client);
    let mut servers: BTreeMap<usize, Halves> = BTreeMap::new();
    while let Some(words) = resp::request(&mut requests).await {
        let verb = String::from_utf8_lossy(&words[0]).to_lowercase();
        let key = match (&*verb, words.get(2).map(Vec::as_slice)) {
            // A script without a key has no server.
            ("eval" | "evalsha", None | Some(b"0")) => None,
            ("eval" | "evalsha", _) => words.get(3),
            _ => words.get(1).or(words.first()),
        };
        let Some(key) = key.filter(|_| PASSED.contains(&&*verb)) else {
            if closes {
                return Ok(());
            }
            let refusal = format!("-unsupported command '{verb}'\r\n");
            to_client.write_all(refusal.as_bytes()).await?;
            continue;
        };
        let nth = hash_of_tag(key) % upstreams.len();
        let (replies, to_server) = match servers.entry(nth) {
            Entry::Occupied(server) => server.into_mut(),
            Entry::Vacant(place) => {
                place.insert(halves(TcpStream::connect(&upstreams[nth]).await?))
            }
        };
        to_server.write_all(&resp::of_words(&words)).await?;
        let reply = resp::raw_reply(replies).await?;
        to_client.write_all(&reply).await?;
    }
    Ok(())
}

/// A number by which keys are spread: of what stands between their first braces, if there is anything.
fn hash_of_tag(key: &[u8]) -> usize {
    let text = String::from_utf8_lossy(key);
    let tag = text
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let hashed = tag.unwrap_or(&text);
    let sum = sha1_smol::Sha1::from(hashed.as_bytes()).digest().bytes();
    usize::from(sum[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_known_by_the_hash_of_its_check_once_it_was_sent() {
        let scripts = Scripts::default();
        let words = |words: &[&str]| -> Vec<Vec<u8>> {
            words.iter().map(|word| word.as_bytes().to_vec()).collect()
        };
        let its = hash_of(b"return 1");
        let mut unknown = words(&["EVALSHA", &its, "0"]);
        checked(&mut unknown, &scripts);
        assert_eq!(unknown, words(&["EVALSHA", &its, "0"]));
        let mut taught = words(&["EVAL", "return 1", "0"]);
        checked(&mut taught, &scripts);
        assert_eq!(taught[1], [DECLARED_ONLY, "return 1"].concat().as_bytes());
        let mut known = words(&["evalsha", &its, "0"]);
        checked(&mut known, &scripts);
        assert_eq!(known[1], hash_of(&taught[1]).as_bytes());
    }
}
