//! The client's errors to ours, honestly: what was surely not executed is `Unavailable`, what may have been is `Ambiguous`.

use leasehold_core::{Error, ErrorKind};
use redis::{ErrorKind as Kind, RedisError, ServerErrorKind as Server};

/// Codes that a script's own errors carry inside their text before Redis 7.
const INNER: [&str; 6] = ["WRONGTYPE", "OOM", "READONLY", "NOREPLICAS", "MISCONF", "NOPERM"];

/// Of a request that was sent, or tried.
pub fn of_request(e: &RedisError) -> Error {
    let (kind, what) = match code(e) {
        "NOAUTH" => (ErrorKind::Denied, "Redis wants a password, in the URL as redis://:password@host"),
        "WRONGPASS" | "NOPERM" => (ErrorKind::Denied, "Redis refused our credentials or rights"),
        "READONLY" => (ErrorKind::Unavailable, "this Redis is a read-only replica"),
        "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" => {
            (ErrorKind::Unavailable, "Redis cannot serve now")
        }
        "OOM" => (ErrorKind::Unavailable, "Redis is out of memory (maxmemory)"),
        "NOREPLICAS" | "MISCONF" => (ErrorKind::Unavailable, "Redis refuses writes"),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (ErrorKind::Unsupported, "this is a Redis Cluster, which this store cannot use")
        }
        "WRONGTYPE" => {
            let what = "a key of this name holds something that is no lock: delete it, or use a `prefix` for the locks";
            (ErrorKind::Internal, what)
        }
        "" => match e.kind() {
            Kind::AuthenticationFailed => (ErrorKind::Denied, "Redis refused our credentials"),
            Kind::InvalidClientConfig => (ErrorKind::Invalid, "the configuration of the connection"),
            Kind::RESP3NotSupported => (ErrorKind::Unsupported, "Redis 6 or newer is needed (RESP3)"),
            Kind::Io if e.is_connection_refusal() => (ErrorKind::Unavailable, "Redis cannot be reached"),
            Kind::Io if e.is_timeout() => (ErrorKind::Ambiguous, "Redis did not answer in time"),
            Kind::Io => (ErrorKind::Ambiguous, "the connection to Redis broke before the answer came"),
            _ => (ErrorKind::Internal, "Redis answered what it never should"),
        },
        _ => (ErrorKind::Internal, "Redis refused a request"),
    };
    Error::new(kind, format!("{what}: {e}"))
}

/// Of making a connection: nothing was executed.
pub(crate) fn of_connect(e: &RedisError) -> Error {
    match of_request(e) {
        error if error.kind() != ErrorKind::Ambiguous => error,
        _ => Error::new(ErrorKind::Unavailable, format!("Redis cannot be reached: {e}")),
    }
}

/// Whether another connection may do better.
pub(crate) fn ends_connection(e: &RedisError) -> bool {
    matches!(code(e), "READONLY" | "LOADING" | "MASTERDOWN") || e.is_unrecoverable_error()
}

/// An answer that does not follow the grammar of our scripts.
pub fn junk(what: &str) -> Error {
    Error::new(
        ErrorKind::Internal,
        format!("{what} is not what Leasehold writes; was a `{{name}}:…` key changed by hand?"),
    )
}

/// The same error for one more of those that it concerns.
pub fn again(e: &Error) -> Error {
    Error::new(e.kind(), e.to_string())
}

/// The server's code; empty if it is no error of the server's.
fn code(e: &RedisError) -> &str {
    let code = e.code().unwrap_or_default();
    let inner = || INNER.into_iter().find(|inner| e.detail().is_some_and(|text| text.contains(inner)));
    if e.kind() == Kind::Server(Server::ResponseError) { inner().unwrap_or(code) } else { code }
}
