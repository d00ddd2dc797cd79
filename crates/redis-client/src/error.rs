//! The client's errors to ours, honestly: what was surely not executed is `Unavailable`, what may have been is `Ambiguous`.
//!
//! A server's text may repeat the request that it refuses, password and claim ids included. So no text of a server is ever
//! shown: its code chooses our words, and where the code says too little, a known phrase does.

use leasehold_core::{Error, ErrorKind};
use redis::{ErrorKind as Kind, RedisError};

/// What servers and scripts say behind a code that says nothing, and the code that it stands for. The words of scripts are those
/// of Redis before 7, and of 7.0 and later.
const PHRASES: [(&str, &str); 13] = [
    ("WRONGTYPE", "WRONGTYPE"),
    ("READONLY", "READONLY"),
    ("NOREPLICAS", "NOREPLICAS"),
    ("MISCONF", "MISCONF"),
    ("NOPERM", "NOPERM"),
    ("OOM ", "OOM"),
    ("ACL failure in script", "NOPERM"),
    ("The user executing the script can't", "NOPERM"),
    ("can't run this command", "NOPERM"),
    ("DB index is out of range", "DB"),
    ("invalid DB index", "DB"),
    ("max number of clients", "CLIENTS"),
    ("unknown command", "UNKNOWN"),
];

/// Of a request that was sent, or tried.
pub fn of_request(e: &RedisError) -> Error {
    let (kind, what) = match code(e) {
        "NOAUTH" => (ErrorKind::Denied, "Redis wants a password, in the URL as redis://:password@host"),
        "WRONGPASS" => (ErrorKind::Denied, "Redis refused our credentials"),
        "NOPERM" => (ErrorKind::Denied, "this user lacks a right on Redis: the store's documentation lists them all"),
        "READONLY" => (ErrorKind::Unavailable, "this Redis is a read-only replica"),
        "LOADING" => (ErrorKind::Unavailable, "Redis is loading its data"),
        "BUSY" => (ErrorKind::Unavailable, "Redis is busy with a script"),
        "NOSCRIPT" => (ErrorKind::Unavailable, "Redis forgot our scripts while they were sent (SCRIPT FLUSH)"),
        "MASTERDOWN" | "CLUSTERDOWN" => (ErrorKind::Unavailable, "Redis cannot serve now"),
        "TRYAGAIN" => (ErrorKind::Unavailable, "the slot of this name is being moved to another node of the Cluster"),
        "CLIENTS" => (ErrorKind::Unavailable, "Redis has as many clients as it may (maxclients)"),
        "OOM" => (ErrorKind::Unavailable, "Redis is out of memory (maxmemory)"),
        "NOREPLICAS" => (ErrorKind::Unavailable, "Redis refuses writes: too few replicas (min-replicas-to-write)"),
        "MISCONF" => (ErrorKind::Unavailable, "Redis refuses writes: it cannot save its data"),
        "MOVED" | "ASK" | "CROSSSLOT" => (ErrorKind::Unsupported, CLUSTER),
        "DB" => (ErrorKind::Invalid, "Redis has no database of this number"),
        "UNKNOWN" => {
            (ErrorKind::Unsupported, "Redis lacks a command that this store needs: Redis 6 or newer, none renamed")
        }
        "WRONGTYPE" => {
            let what = "a key of this name holds something that is no lock: delete it, or use a `prefix` for the locks";
            (ErrorKind::Internal, what)
        }
        "" => match e.kind() {
            Kind::AuthenticationFailed => (ErrorKind::Denied, "Redis refused our credentials"),
            Kind::InvalidClientConfig => (ErrorKind::Invalid, "the configuration of the connection"),
            Kind::RESP3NotSupported => (ErrorKind::Unsupported, "Redis 6 or newer is needed (RESP3)"),
            Kind::Io if e.is_connection_refusal() => {
                (ErrorKind::Unavailable, "Redis cannot be reached: connection refused")
            }
            Kind::Io if e.is_timeout() => (ErrorKind::Ambiguous, "Redis did not answer in time"),
            Kind::Io => (ErrorKind::Ambiguous, "the connection to Redis broke before the answer came"),
            _ => (ErrorKind::Internal, "Redis answered what it never should"),
        },
        _ => (ErrorKind::Internal, "Redis refused a request"),
    };
    Error::new(kind, what)
}

/// Of making a connection: nothing was executed.
pub(crate) fn of_connect(e: &RedisError) -> Error {
    match of_request(e) {
        error if error.kind() != ErrorKind::Ambiguous => error,
        error => Error::new(ErrorKind::Unavailable, format!("Redis cannot be reached: {error}")),
    }
}

/// Of making a connection in plain text: a server that speaks TLS closes it without a word.
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

/// Of asking a sentinel: it has credentials of its own.
pub(crate) fn of_sentinel(e: &RedisError) -> Error {
    let (kind, what) = match code(e) {
        "UNKNOWN" => (
            ErrorKind::Unsupported,
            "this is no Redis Sentinel: a server itself is redis://host:6379, without +sentinel",
        ),
        "NOAUTH" => (ErrorKind::Denied, "the sentinel wants a password, in the URL as sentinel_password=…"),
        "WRONGPASS" => (ErrorKind::Denied, "the sentinel refused our sentinel_user or sentinel_password"),
        "NOPERM" => {
            (ErrorKind::Denied, "our user lacks a right on the sentinel: the store's documentation lists them all")
        }
        _ => return of_connect(e),
    };
    Error::new(kind, what)
}

/// Of a server that this store can never use.
pub(crate) fn of_mode(mode: &str, cluster: bool) -> Option<Error> {
    let what = match mode {
        "cluster" if cluster => return None,
        "cluster" => CLUSTER,
        "sentinel" => {
            "this is a Redis Sentinel, which keeps no locks: with redis+sentinel://host:26379/name it is asked where the master is"
        }
        _ if cluster => "this Redis is no node of a Cluster: the URL of one server begins with redis://",
        _ => return None,
    };
    Some(Error::new(ErrorKind::Unsupported, what))
}

const CLUSTER: &str =
    "this is a node of a Redis Cluster: its URL begins with redis+cluster://, and Redlock cannot use it";

/// Whether another connection may do better.
pub(crate) fn ends_connection(e: &RedisError) -> bool {
    matches!(code(e), "READONLY" | "LOADING" | "MASTERDOWN") || e.is_unrecoverable_error()
}

/// An answer that does not follow the grammar of our scripts.
pub fn junk(what: &str) -> Error {
    let what = format!("{what} is not what Leasehold writes; was a `{{name}}:…` key changed by hand?");
    Error::new(ErrorKind::Internal, what)
}

/// The same error for one more of those that it concerns.
pub fn again(e: &Error) -> Error {
    Error::new(e.kind(), e.to_string())
}

/// What the server says in one word; empty if it is no error of the server's.
fn code(e: &RedisError) -> &str {
    let said = e.code().unwrap_or_default();
    if !matches!(said, "" | "ERR") {
        return said;
    }
    // The client wraps what is refused while it connects, and cuts the code off other texts.
    let text = e.to_string();
    let known = PHRASES.iter().find(|(phrase, _)| before_args(&text).contains(phrase));
    known.map_or(said, |(_, code)| code)
}

/// What stands before the part that repeats the request.
fn before_args(text: &str) -> &str {
    text.split("with args").next().unwrap_or_default()
}
