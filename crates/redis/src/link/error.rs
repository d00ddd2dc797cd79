//! Turns the client crate's errors into ours: `Unavailable` if the request was certainly not
//! executed, `Ambiguous` if it may have been.
//!
//! A server's text may repeat the request that it refuses, with its password and claim ids. The
//! server's code therefore chooses our words, or a known phrase where the code says too little.
//! From an unknown text only those words are shown that can be no part of a request.

use std::io;

use leasehold_core::{Error, ErrorKind};
use redis::{ErrorKind as Kind, ProtocolVersion, RedisError, Value};

/// Phrases of servers, proxies and scripts behind a code that says too little, and the code that
/// each stands for. The phrases of scripts are those of Redis before 7, of 7.0, of 7.2 and later,
/// and of Valkey.
const PHRASES: [(&str, &str); 30] = [
    (NO_HOST, "NOHOST"),
    ("WRONGTYPE", "WRONGTYPE"),
    ("READONLY", "READONLY"),
    ("NOREPLICAS", "NOREPLICAS"),
    ("MISCONF", "MISCONF"),
    ("NOPERM", "NOPERM"),
    ("OOM ", "OOM"),
    ("ACL failure in script", "NOPERM"),
    ("The user executing the script can't", "NOPERM"),
    ("can't run this command", "NOPERM"),
    ("no permissions to", "NOPERM"),
    ("DB index is out of range", "DB"),
    ("invalid DB index", "DB"),
    ("SELECT is not allowed in cluster mode", "DB"),
    ("max number of clients", "CLIENTS"),
    ("non local key", "SPREAD"),
    ("do not hash to the same slot", "SPREAD"),
    ("don't hash to the same slot", "SPREAD"),
    ("sent AUTH, but no password", "WRONGPASS"),
    ("without any password configured", "WRONGPASS"),
    ("invalid password", "WRONGPASS"),
    ("unknown command", "UNKNOWN"),
    ("Unknown Redis command", "UNKNOWN"),
    ("Unknown command called from script", "UNKNOWN"),
    ("nknown redis command", "UNKNOWN"),
    ("unsupported", "UNKNOWN"),
    ("not supported", "UNKNOWN"),
    ("command is not allowed", "UNKNOWN"),
    ("cluster support disabled", "ALONE"),
    ("Protocol error", "PROTOCOL"),
];

/// The commands that we send and that our scripts call: no other word of a server's text names a
/// command.
const COMMANDS: [&str; 57] = [
    "auth",
    "client",
    "cluster",
    "cluster|slots",
    "config",
    "config|get",
    "del",
    "discard",
    "eval",
    "evalsha",
    "exec",
    "exists",
    "get",
    "hdel",
    "hello",
    "hget",
    "hgetall",
    "hlen",
    "hmget",
    "hset",
    "hsetnx",
    "incrby",
    "info",
    "mget",
    "multi",
    "pexpire",
    "ping",
    "pttl",
    "publish",
    "pubsub",
    "pubsub|numsub",
    "rename",
    "scan",
    "script",
    "select",
    "sentinel",
    "sentinel|get-master-addr-by-name",
    "sentinel|master",
    "set",
    "setrange",
    "subscribe",
    "time",
    "type",
    "unlink",
    "unsubscribe",
    "unwatch",
    "wait",
    "watch",
    "zadd",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zremrangebyscore",
    "zrevrange",
    "zscore",
    "asking",
];

/// The error of a request that was sent, or tried.
pub(crate) fn of_request(e: &RedisError) -> Error {
    let text = e.to_string();
    let (kind, what) = match code(e, &text) {
        "NOAUTH" => (
            ErrorKind::Denied,
            "Redis wants a password, in the URL as redis://:password@host",
        ),
        "WRONGPASS" => (ErrorKind::Denied, "Redis refused our credentials"),
        "NOPERM" => return Error::new(ErrorKind::Denied, lacking(&text)),
        "DENIED" => (
            ErrorKind::Unsupported,
            "Redis is in protected mode, and serves clients of its own host only: give it a password (requirepass) or users, or set \
             protected-mode no",
        ),
        "READONLY" => (
            ErrorKind::Unavailable,
            "this Redis is a read-only replica: the URL has to name the primary, or its sentinels",
        ),
        "LOADING" => (ErrorKind::Unavailable, "Redis is loading its data"),
        "BUSY" => (
            ErrorKind::Unavailable,
            "Redis is busy with a script of another client (SCRIPT KILL ends it)",
        ),
        "NOSCRIPT" => (
            ErrorKind::Unavailable,
            "Redis forgot our scripts while they were sent (SCRIPT FLUSH)",
        ),
        "MASTERDOWN" => (
            ErrorKind::Unavailable,
            "Redis cannot serve now: it is a replica that has lost its primary",
        ),
        "CLUSTERDOWN" => (
            ErrorKind::Unavailable,
            "Redis cannot serve now: its Cluster is down, or no node serves this slot (redis-cli --cluster check)",
        ),
        "TRYAGAIN" => (
            ErrorKind::Unavailable,
            "the slot of this name is being moved to another node of the Cluster",
        ),
        "NOHOST" => {
            let why = e.detail().unwrap_or("it has no address");
            let what = format!("Redis cannot be reached: {NO_HOST}: is it written right? ({why})");
            return Error::new(ErrorKind::Unavailable, what);
        }
        "CLIENTS" => (
            ErrorKind::Unavailable,
            "Redis has as many clients as it may: raise maxclients, or close some",
        ),
        "OOM" => (
            ErrorKind::Unavailable,
            "Redis is out of memory: raise maxmemory, or delete something",
        ),
        "NOREPLICAS" => (
            ErrorKind::Unavailable,
            "Redis refuses writes: too few replicas follow it (min-replicas-to-write)",
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            "Redis refuses writes: it cannot save its data, its log says why (stop-writes-on-bgsave-error)",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => (ErrorKind::Unsupported, CLUSTER),
        "ALONE" => (ErrorKind::Unsupported, ALONE),
        "SPREAD" => (ErrorKind::Unsupported, SPREAD),
        "DB" => (ErrorKind::Invalid, "Redis has no database of this number"),
        "NOPROTO" => (ErrorKind::Unsupported, NO_HELLO),
        "UNKNOWN" => return no_command(named_command(&text)),
        "PROTOCOL" => (ErrorKind::Unsupported, NO_REDIS),
        "WRONGTYPE" => {
            let what = "a key of this name holds something that is no lock: delete it, or use a `prefix` for the locks";
            (ErrorKind::Corrupt, what)
        }
        "" => match e.kind() {
            Kind::AuthenticationFailed => (ErrorKind::Denied, "Redis refused our credentials"),
            Kind::InvalidClientConfig => {
                (ErrorKind::Invalid, "the configuration of the connection")
            }
            Kind::RESP3NotSupported => (ErrorKind::Unsupported, NO_HELLO),
            Kind::Io if e.is_connection_refusal() => (
                ErrorKind::Unavailable,
                "Redis cannot be reached: connection refused: is it running there, and is the port right?",
            ),
            Kind::Io if e.is_timeout() => (ErrorKind::Ambiguous, "Redis did not answer in time"),
            Kind::Io => (
                ErrorKind::Ambiguous,
                "the connection to Redis broke before the answer came",
            ),
            _ => (ErrorKind::Internal, "Redis answered what it never should"),
        },
        _ => {
            let what = format!("Redis refused a request: {}", said(e));
            return Error::new(ErrorKind::Internal, what);
        }
    };
    let code = code(e, &text);
    let error = match QUOTED.contains(&code) {
        true => Error::new(kind, format!("{what} (it said {})", said(e))),
        false => Error::new(kind, what),
    };
    match code {
        // Nothing was answered, or the same request can be served a moment later.
        "" | "NOHOST" | "NOSCRIPT" | "TRYAGAIN" => error,
        _ => error.answered(),
    }
}

/// The codes behind which a server says more than the code: which of its limits is reached, or what
/// its disk lacks. It repeats no request there.
const QUOTED: [&str; 10] = [
    "DENIED",
    "READONLY",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "CLIENTS",
    "OOM",
    "NOREPLICAS",
    "MISCONF",
];

const NO_HELLO: &str = "this server, or the proxy before it, knows no HELLO 3 (RESP3): Redis 6 or newer is needed, or protocol=2 in the URL of one \
     server";

/// The way in which a server refuses `HELLO 3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHello {
    /// By an error that names the command, or its version.
    Said,
    /// By another error, or it closes the connection: for any reason.
    Unclear,
}

/// What stands behind the error of a refusal that does not tell what is refused.
const UNCLEAR: &str = "the reason is not known";

/// Returns how the server refused `HELLO 3`, if that may be why a connection was not opened.
pub(crate) fn refusal_of_hello(e: &RedisError) -> Option<NoHello> {
    if e.detail() == Some(UNCLEAR) {
        return Some(NoHello::Unclear);
    }
    if e.kind() == Kind::RESP3NotSupported || code(e, &e.to_string()) == "NOPROTO" {
        return Some(NoHello::Said);
    }
    let is_closed = e.is_connection_dropped() && !e.is_connection_refusal();
    is_closed.then_some(NoHello::Unclear)
}

const NO_REDIS: &str =
    "what answers there does not speak the protocol of Redis: are the host and the port right?";

/// The error that the server, or a proxy, lacks a command.
pub(crate) fn no_command(named: Option<&str>) -> Error {
    let named = named.map_or_else(String::new, |it| format!(" {}", it.to_uppercase()));
    let what = format!(
        "Redis, or the proxy before it, lacks the command{named}, which locks need: Redis 6 or newer is needed, with no command renamed or \
         forbidden"
    );
    Error::new(ErrorKind::Unsupported, what)
}

/// The error for a proxy that sends scripts for one lock to several servers.
pub(crate) fn of_spread() -> Error {
    Error::new(ErrorKind::Unsupported, SPREAD)
}

const SPREAD: &str = "this server, or the proxy before it, spreads keys over several servers, and the keys of a lock have to be on one: a Redis or a \
     Valkey itself is needed, or the Cluster behind it (redis+cluster://)";

/// The error that a user lacks a right, with the right as far as the server names it: `+command`,
/// as in `ACL SETUSER`.
fn lacking(text: &str) -> String {
    let text = before_args(text);
    let what = match named_command(text) {
        Some(command) => format!(": +{command}"),
        None if text.contains("channel") => format!(": {CHANNELS}"),
        None if text.contains("key") && !is_of_command(text) => {
            ": one of the keys of a lock".to_owned()
        }
        None => String::new(),
    };
    format!("{LACKS}{what}. {LISTED}")
}

/// The beginning and the end of an error about a right that a user lacks.
pub(crate) const LACKS: &str = "this user lacks a right on Redis";
pub(crate) const LISTED: &str = "The store's documentation lists them all";
/// The channels of a store.
pub(crate) const CHANNELS: &str = "&leasehold:*";

/// Returns whether the user may not use the command, rather than its key.
pub(crate) fn is_of_command(why: &str) -> bool {
    why.contains("can't run this command") || why.contains("permissions to run")
}

/// The first of our commands that a text names in quotes.
fn named_command(text: &str) -> Option<&'static str> {
    let words = before_args(text).split(['\'', '`', '"']);
    let mut words = words.skip(1).map(str::to_lowercase);
    words.find_map(|word| COMMANDS.into_iter().find(|command| **command == *word))
}

/// The words of a server's error that can be shown.
fn said(e: &RedisError) -> String {
    let parts = [e.code(), e.detail()];
    let parts: Vec<&str> = parts.into_iter().flatten().collect();
    shown(&parts.join(" "))
}

/// The words of a text that can be no part of a request: letters only, and few. The rest may be an
/// id or a password.
fn shown(text: &str) -> String {
    let is_word = |word: &str| {
        let word = word.trim_matches(['.', ',', ':', ';', '(', ')', '\'']);
        // As in `can't`.
        let letters = |c: u8| c.is_ascii_alphabetic() || c == b'\'';
        (1..=16).contains(&word.len()) && word.bytes().all(letters)
    };
    let mut words = String::new();
    for word in before_args(text).split_whitespace().take(16) {
        words.push_str(if is_word(word) { word } else { "…" });
        words.push(' ');
    }
    format!("\u{201c}{}\u{201d}", words.trim_end())
}

/// The error of an attempt to connect: nothing was executed.
pub(crate) fn of_connect(e: &RedisError) -> Error {
    match of_request(e) {
        error if error.kind() != ErrorKind::Ambiguous => error,
        error => Error::new(
            ErrorKind::Unavailable,
            format!("Redis cannot be reached: {error}"),
        ),
    }
}

/// The error of an attempt to connect in plain text: a server that speaks TLS closes the connection
/// without a word, and so do some proxies.
pub(crate) fn of_plain_connect(e: &RedisError) -> Error {
    match of_connect(e) {
        error if e.is_connection_dropped() && !e.is_connection_refusal() => {
            let what = format!(
                "{error}. Does it speak TLS there? Then the scheme of the URL is rediss://, rediss+sentinel://, rediss+cluster:// or \
                 redlocks://"
            );
            Error::new(error.kind(), what)
        }
        error => error,
    }
}

/// The error of a host without a known address, for this reason. The client crate would take it for
/// a connection that broke.
pub(crate) fn no_host(why: &str) -> RedisError {
    (Kind::InvalidClientConfig, NO_HOST, why.to_owned()).into()
}

/// The text of that error.
const NO_HOST: &str = "the host name cannot be looked up";

/// The error in the words that a server sent before it closed a connection, or in place of an
/// answer to our first request: `HELLO` over RESP3, and over RESP2 `AUTH` or `SELECT`. `e` is the
/// client crate's error.
pub(crate) fn of_first_words(words: &[u8], e: RedisError, protocol: ProtocolVersion) -> RedisError {
    // A server that expects TLS answers plain text with an alert.
    if let [21, 3, ..] = words {
        return io::Error::from(io::ErrorKind::ConnectionReset).into();
    }
    let line = match words.split_first() {
        Some((b'-', rest)) => rest
            .split(|c| matches!(c, b'\r' | b'\n'))
            .next()
            .unwrap_or_default(),
        // No answer begins with this byte.
        Some((first, _)) if !b"+:$*_,#!=(%~>|".contains(first) => b"ERR Protocol error",
        _ => return e,
    };
    let said = redis::parse_redis_value(&[b"-", line, b"\r\n"].concat());
    let said = said.ok().and_then(|said| said.extract_error().err());
    let says = said.as_ref().map(|said| code(said, &said.to_string()));
    // The words of other refusals are not shown, since the request has the password.
    match says.unwrap_or_default() {
        known if REFUSALS.contains(&known) => said.unwrap_or(e),
        "UNKNOWN" if protocol == ProtocolVersion::RESP2 => said.unwrap_or(e),
        _ if protocol == ProtocolVersion::RESP2 => e,
        "UNKNOWN" => (Kind::RESP3NotSupported, "HELLO is not known").into(),
        _ => {
            let why = UNCLEAR.to_owned();
            (Kind::RESP3NotSupported, "HELLO was refused", why).into()
        }
    }
}

/// The codes with which a client is refused.
const REFUSALS: [&str; 14] = [
    "DB",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "DENIED",
    "NOPROTO",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "CLIENTS",
    "MISCONF",
    "OOM",
    "PROTOCOL",
];

/// The error of a request to a sentinel, which has credentials of its own.
pub(crate) fn of_sentinel(e: &RedisError) -> Error {
    let (kind, what) = match code(e, &e.to_string()) {
        "UNKNOWN" => (
            ErrorKind::Unsupported,
            "this is no Redis Sentinel: a server itself is redis://host:6379, without +sentinel",
        ),
        "NOAUTH" => (
            ErrorKind::Denied,
            "the sentinel wants a password, in the URL as sentinel_password=…",
        ),
        "WRONGPASS" => (
            ErrorKind::Denied,
            "the sentinel refused our sentinel_user or sentinel_password",
        ),
        "NOPERM" => {
            let what = lacking(&e.to_string()).replace("on Redis", "on the sentinel");
            return Error::new(ErrorKind::Denied, what.replace(CHANNELS, "&+switch-master"));
        }
        _ => return of_connect(e),
    };
    Error::new(kind, what)
}

/// The error for a server that this store can never use.
pub(crate) fn of_mode(mode: &str, cluster: bool) -> Option<Error> {
    let what = match mode {
        "cluster" if cluster => return None,
        "cluster" => CLUSTER,
        "sentinel" => {
            "this is a Redis Sentinel, which keeps no locks: with redis+sentinel://host:26379/name it is asked where the master is"
        }
        _ if cluster => ALONE,
        _ => return None,
    };
    Some(Error::new(ErrorKind::Unsupported, what))
}

const ALONE: &str =
    "this Redis is no node of a Cluster: the URL of one server begins with redis://";
const CLUSTER: &str = "this is a node of a Redis Cluster: its URL begins with redis+cluster://, and Redlock cannot use it";

/// Returns whether another connection may do better.
pub(crate) fn ends_connection(e: &RedisError) -> bool {
    matches!(
        code(e, &e.to_string()),
        "READONLY" | "LOADING" | "MASTERDOWN"
    ) || e.is_unrecoverable_error()
}

/// Returns whether a node of a Cluster says that the key is at another node, or at none now.
pub(crate) fn is_elsewhere(e: &RedisError) -> bool {
    matches!(code(e, &e.to_string()), "MOVED" | "ASK" | "CLUSTERDOWN")
}

/// The error for an answer that does not follow the grammar of our scripts.
pub(crate) fn junk(what: &str) -> Error {
    let what =
        format!("{what} is not what Leasehold writes; was a `{{name}}:…` key changed by hand?");
    Error::new(ErrorKind::Corrupt, what)
}

/// A copy of the error, for another of the requests that it concerns.
pub(crate) fn again(e: &Error) -> Error {
    let again = Error::new(e.kind(), e.to_string());
    if e.is_answer() {
        again.answered()
    } else {
        again
    }
}

/// Returns whether the server refused a request for want of a right.
pub(crate) fn is_denied(answer: &Value) -> bool {
    match answer {
        Value::ServerError(e) => {
            let e = RedisError::from(e.clone());
            code(&e, &e.to_string()) == "NOPERM"
        }
        _ => false,
    }
}

/// The code of the server's error; empty if the error is not the server's.
fn code<'a>(e: &'a RedisError, text: &str) -> &'a str {
    let said = e.code().unwrap_or_default();
    if said.bytes().all(|c| c.is_ascii_uppercase()) && !matches!(said, "" | "ERR") {
        return said;
    }
    // The client crate wraps refusals while it connects, and cuts the code off other texts.
    phrase_in(text).unwrap_or(said)
}

/// The code that a known phrase in this text stands for.
pub(crate) fn phrase_in(text: &str) -> Option<&'static str> {
    let text = before_args(text);
    let known = PHRASES.iter().find(|(phrase, _)| text.contains(phrase));
    known.map(|(_, code)| *code)
}

/// The part of a text before the request that it repeats.
fn before_args(text: &str) -> &str {
    text.split("with args").next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io;

    use ErrorKind::{Ambiguous, Corrupt, Denied, Internal, Invalid, Unavailable, Unsupported};

    use super::*;

    /// The client crate's error for this line of a server.
    fn said(line: &str) -> RedisError {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        answer.extract_error().unwrap_err()
    }

    fn broke(kind: io::ErrorKind) -> RedisError {
        io::Error::from(kind).into()
    }

    #[test]
    fn a_code_chooses_the_kind_and_our_words() {
        for (line, kind, words) in [
            (
                "NOAUTH Authentication required.",
                Denied,
                "wants a password",
            ),
            (
                "WRONGPASS invalid username-password pair",
                Denied,
                "refused our credentials",
            ),
            ("NOPERM User x has no permissions", Denied, "lacks a right"),
            (
                "READONLY You can't write against a read only replica.",
                Unavailable,
                "read-only replica",
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                Unavailable,
                "loading its data",
            ),
            (
                "BUSY Redis is busy running a script.",
                Unavailable,
                "busy with a script",
            ),
            ("NOSCRIPT No matching script.", Unavailable, "SCRIPT FLUSH"),
            (
                "MASTERDOWN Link with MASTER is down",
                Unavailable,
                "cannot serve",
            ),
            (
                "CLUSTERDOWN Hash slot not served",
                Unavailable,
                "cannot serve",
            ),
            (
                "TRYAGAIN Multiple keys request during rehashing",
                Unavailable,
                "being moved",
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Unavailable,
                "out of memory",
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                Unavailable,
                "too few replicas",
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                Unavailable,
                "cannot save its data",
            ),
            ("MOVED 3999 127.0.0.1:6381", Unsupported, "redis+cluster://"),
            ("ASK 3999 127.0.0.1:6381", Unsupported, "redis+cluster://"),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                Unsupported,
                "redis+cluster://",
            ),
            (
                "WRONGTYPE Operation against a key",
                Corrupt,
                "holds something that is no lock",
            ),
            (
                "ERR max number of clients reached",
                Unavailable,
                "maxclients",
            ),
            (
                "ERR DB index is out of range",
                Invalid,
                "no database of this number",
            ),
            (
                "ERR invalid DB index",
                Invalid,
                "no database of this number",
            ),
            (
                "ERR unknown command 'SSUBSCRIBE', with args beginning with: ",
                Unsupported,
                "Redis 6 or newer",
            ),
            ("ERR something else", Internal, "refused a request"),
            (
                "NEWCODE from a later version",
                Internal,
                "refused a request",
            ),
        ] {
            let error = of_request(&said(line));
            assert!(
                error.kind() == kind && error.to_string().contains(words),
                "{line}: {error:?}"
            );
        }
    }

    /// Scripts report a refusal in other words, behind a code that says too little. The request
    /// that a text repeats does not count.
    #[test]
    fn where_a_code_says_too_little_a_known_phrase_does() {
        for (line, kind) in [
            (
                "ERR Error running script: @user_script:1: WRONGTYPE Operation against a key",
                Corrupt,
            ),
            (
                "ERR Error running script: -READONLY You can't write against a read only replica.",
                Unavailable,
            ),
            ("ERR ACL failure in script: user has no permission", Denied),
            (
                "ERR The user executing the script can't access at least one of the keys",
                Denied,
            ),
            (
                "ERR unknown command 'X', with args beginning with: 'READONLY'",
                Unsupported,
            ),
            ("ERR wrong, with args beginning with: 'NOPERM'", Internal),
        ] {
            assert_eq!(of_request(&said(line)).kind(), kind, "{line}");
        }
    }

    /// A try ends with such a refusal at once.
    #[test]
    fn a_refusal_is_an_answer_and_a_broken_connection_is_none() {
        for line in [
            "LOADING it",
            "READONLY it",
            "NOREPLICAS it",
            "BUSY it",
            "OOM it",
            "MISCONF it",
            "MASTERDOWN it",
            "CLUSTERDOWN it",
            "ERR max number of clients reached",
        ] {
            let error = of_connect(&said(line));
            assert!(error.is_answer() && again(&error).is_answer(), "{line}");
            assert_eq!(error.kind(), Unavailable, "{line}");
        }
        for line in ["NOSCRIPT it", "TRYAGAIN it"] {
            assert!(!of_request(&said(line)).is_answer(), "{line}");
        }
        for how in [
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::TimedOut,
            io::ErrorKind::ConnectionReset,
        ] {
            let error = of_connect(&broke(how));
            assert!(!error.is_answer() && !again(&error).is_answer(), "{how:?}");
        }
        assert!(!of_connect(&no_host("try again later")).is_answer());
    }

    #[test]
    fn no_part_of_a_request_is_shown() {
        for code in [
            "ERR",
            "NOAUTH",
            "WRONGPASS",
            "NOPERM",
            "READONLY",
            "WRONGTYPE",
            "MOVED",
            "NEWCODE",
        ] {
            let e = said(&format!("{code} with S3CRET and s3cret"));
            for error in [
                of_request(&e),
                of_connect(&e),
                of_plain_connect(&e),
                of_sentinel(&e),
            ] {
                assert!(
                    !format!("{error:?}").to_lowercase().contains("s3cret"),
                    "{error:?}"
                );
            }
        }
    }

    #[test]
    fn of_a_text_that_is_not_known_plain_words_are_shown() {
        for (line, shows) in [
            (
                "ERR the tenant a8f5f167f44f is suspended.",
                "“ERR the tenant … is suspended.”",
            ),
            (
                "ERR no such thing: 'hunter2' [x]",
                "“ERR no such thing: … …”",
            ),
            (
                "ERR wrong, with args beginning with: 'secret'",
                "“ERR wrong,”",
            ),
            ("ERR hunterhunterhunter said", "“ERR … said”"),
        ] {
            let error = of_request(&said(line)).to_string();
            assert!(error.ends_with(shows), "{error}");
        }
    }

    #[test]
    fn a_command_is_named_if_it_is_one_of_ours() {
        let told = |line: &str| of_request(&said(line)).to_string();
        for (line, words) in [
            (
                "NOPERM this user has no permissions to run the 'config|get' command",
                "on Redis: +config|get. ",
            ),
            (
                "NOPERM User x has no permissions to run the 'pexpire' command",
                "on Redis: +pexpire. ",
            ),
            (
                "NOPERM User x has no permissions to run the 's3cret' command",
                "on Redis. ",
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                "on Redis: one of the keys",
            ),
            (
                "NOPERM No permissions to access a channel",
                "on Redis: &leasehold:*. ",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "on Redis. ",
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
                "one of the keys",
            ),
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'get'",
                "the command EVALSHA, ",
            ),
            ("ERR unknown command `evalsha`", "the command EVALSHA, "),
            ("ERR unknown command 's3cret'", "the command, "),
        ] {
            let told = told(line);
            assert!(
                told.contains(words) && !told.contains("s3cret"),
                "{line}: {told}"
            );
        }
    }

    #[test]
    fn what_is_said_before_a_connection_closes_is_the_reason() {
        let closed = || broke(io::ErrorKind::UnexpectedEof);
        let kind = |words: &str| {
            let e = of_first_words(words.as_bytes(), closed(), ProtocolVersion::RESP3);
            let error = of_plain_connect(&e);
            assert!(!error.to_string().contains("hunter"), "{error}");
            (error.kind(), error.to_string().contains("TLS"))
        };
        for (words, expected) in [
            (
                "-ERR max number of clients reached\r\n",
                (Unavailable, false),
            ),
            (
                "-DENIED Redis is running in protected mode",
                (Unsupported, false),
            ),
            (
                "-NOAUTH HELLO must be called with the client already authenticated\r\n+OK\r\n",
                (Denied, false),
            ),
            (
                "-ERR Client sent AUTH, but no password is set\r\n",
                (Denied, false),
            ),
            (
                "-ERR unknown command 'HELLO'\r\n-ERR unknown command 'CLIENT'\r\n",
                (Unsupported, false),
            ),
            ("-unsupported command 'HELLO'\r\n", (Unsupported, false)),
            (
                "-ERR whatever a proxy says of hunter\r\n",
                (Unsupported, false),
            ),
            ("-ZZZ hunter\r\n", (Unsupported, false)),
            ("-\u{7f}", (Unsupported, false)),
            (
                "-LOADING Redis is loading the dataset in memory\r\n",
                (Unavailable, false),
            ),
            ("", (Unavailable, true)),
            ("HTTP/1.1 400 Bad Request\r\n", (Unsupported, false)),
            ("\u{15}\u{3}\u{1}\0\u{2}\u{2}F", (Unavailable, true)),
            // `HELLO` was accepted, and something else failed.
            ("%1\r\n+proto\r\n:3\r\n", (Unavailable, true)),
        ] {
            assert_eq!(kind(words), expected, "{words:?}");
        }
    }

    /// There the first request is `AUTH` or `SELECT`.
    #[test]
    fn over_resp2_no_refusal_is_one_of_hello() {
        for (words, kind) in [
            ("-ERR DB index is out of range\r\n", Invalid),
            ("-WRONGPASS invalid username-password pair\r\n", Denied),
            ("-ERR invalid password\r\n", Denied),
            ("-NOAUTH Authentication required.\r\n", Denied),
            (
                "-ERR unknown command 'AUTH', with args beginning with: 'hunter'",
                Unsupported,
            ),
            ("-ERR whatever a proxy says of hunter\r\n", Unavailable),
        ] {
            let closed = broke(io::ErrorKind::UnexpectedEof);
            let e = of_first_words(words.as_bytes(), closed, ProtocolVersion::RESP2);
            let error = of_plain_connect(&e);
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{words}: {text}");
            assert!(
                !text.contains("HELLO") && !text.contains("hunter"),
                "{text}"
            );
            let is_silent = kind == Unavailable;
            assert_eq!(refusal_of_hello(&e), is_silent.then_some(NoHello::Unclear));
        }
    }

    /// A reason that may pass is none to give up RESP3 for good.
    #[test]
    fn only_a_refusal_that_names_it_says_that_there_is_no_hello() {
        for (words, how) in [
            ("-ERR unknown command 'HELLO'\r\n", Some(NoHello::Said)),
            ("-unsupported command 'hello'\r\n", Some(NoHello::Said)),
            (
                "-NOPROTO unsupported protocol version\r\n",
                Some(NoHello::Said),
            ),
            ("-ERR the tenant is suspended\r\n", Some(NoHello::Unclear)),
            ("-ERR upstream failure\r\n", Some(NoHello::Unclear)),
            ("", Some(NoHello::Unclear)),
            ("-LOADING Redis is loading the dataset in memory\r\n", None),
            ("-ERR DB index is out of range\r\n", None),
        ] {
            let closed = broke(io::ErrorKind::UnexpectedEof);
            let e = of_first_words(words.as_bytes(), closed, ProtocolVersion::RESP3);
            assert_eq!(refusal_of_hello(&e), how, "{words:?}");
        }
    }

    #[test]
    fn a_connection_that_breaks_leaves_in_doubt_what_was_sent_and_no_connection() {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut};

        for (how, kind, words) in [
            (ConnectionRefused, Unavailable, "connection refused"),
            (TimedOut, Ambiguous, "in time"),
            (ConnectionReset, Ambiguous, "broke before the answer"),
            (BrokenPipe, Ambiguous, "broke before the answer"),
        ] {
            let error = of_request(&broke(how));
            assert!(
                error.kind() == kind && error.to_string().contains(words),
                "{how:?}: {error:?}"
            );
            let error = of_connect(&broke(how));
            assert!(
                error.kind() == Unavailable && error.to_string().contains(words),
                "{how:?}: {error:?}"
            );
        }
        let error = of_plain_connect(&no_host("try again later"));
        assert_eq!(error.kind(), Unavailable);
        let words = error.to_string();
        assert!(
            words.ends_with("is it written right? (try again later)"),
            "{words}"
        );
        assert_eq!(of_connect(&said("WRONGPASS no")).kind(), Denied);
        for (kind, ours) in [
            (Kind::AuthenticationFailed, Denied),
            (Kind::InvalidClientConfig, Invalid),
            (Kind::RESP3NotSupported, Unsupported),
            (Kind::UnexpectedReturnType, Internal),
        ] {
            assert_eq!(of_request(&(kind, "it").into()).kind(), ours, "{kind:?}");
        }
    }

    #[test]
    fn a_server_that_hangs_up_on_plain_text_may_speak_tls() {
        let hint = |e: &RedisError| of_plain_connect(e).to_string().contains("rediss://");
        assert!(
            hint(&broke(io::ErrorKind::ConnectionReset))
                && hint(&broke(io::ErrorKind::UnexpectedEof))
        );
        assert!(
            !hint(&broke(io::ErrorKind::ConnectionRefused))
                && !hint(&broke(io::ErrorKind::TimedOut))
        );
        assert!(!hint(&said("NOAUTH Authentication required.")));
        assert_eq!(
            of_plain_connect(&broke(io::ErrorKind::ConnectionReset)).kind(),
            Unavailable
        );
    }

    #[test]
    fn a_sentinel_has_credentials_of_its_own() {
        for (line, kind, words) in [
            (
                "ERR unknown command 'SENTINEL'",
                Unsupported,
                "without +sentinel",
            ),
            (
                "NOAUTH Authentication required.",
                Denied,
                "sentinel_password",
            ),
            ("WRONGPASS invalid", Denied, "sentinel_user"),
            ("NOPERM no", Denied, "on the sentinel"),
            ("LOADING it", Unavailable, "loading"),
        ] {
            let error = of_sentinel(&said(line));
            assert!(
                error.kind() == kind && error.to_string().contains(words),
                "{line}: {error:?}"
            );
        }
        assert_eq!(
            of_sentinel(&broke(io::ErrorKind::TimedOut)).kind(),
            Unavailable
        );
    }

    #[test]
    fn a_server_of_another_mode_is_refused() {
        let words = |mode, cluster| of_mode(mode, cluster).map(|e| (e.kind(), e.to_string()));
        assert_eq!(
            (words("cluster", true), words("standalone", false)),
            (None, None)
        );
        for (mode, cluster, says) in [
            ("cluster", false, "redis+cluster://"),
            ("sentinel", false, "redis+sentinel://"),
            ("sentinel", true, "redis+sentinel://"),
            ("standalone", true, "no node of a Cluster"),
        ] {
            let (kind, text) = words(mode, cluster).unwrap();
            assert!(
                kind == Unsupported && text.contains(says),
                "{mode} {cluster}: {text}"
            );
        }
    }

    #[test]
    fn a_server_that_cannot_write_and_a_connection_that_broke_are_left() {
        for line in ["READONLY it", "LOADING it", "MASTERDOWN it"] {
            assert!(ends_connection(&said(line)), "{line}");
        }
        assert!(ends_connection(&broke(io::ErrorKind::BrokenPipe)));
        for line in ["NOSCRIPT it", "BUSY it", "WRONGTYPE it", "OOM it"] {
            assert!(!ends_connection(&said(line)), "{line}");
        }
    }

    #[test]
    fn the_same_error_for_another_says_the_same() {
        let one = junk("an entry");
        let another = again(&one);
        assert_eq!(
            (one.kind(), one.to_string()),
            (Corrupt, another.to_string())
        );
        assert!(another.kind() == Corrupt && another.to_string().starts_with("an entry is not"));
    }
}
