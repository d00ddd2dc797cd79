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

#[cfg(test)]
mod tests {
    use std::io;

    use ErrorKind::{Ambiguous, Denied, Internal, Invalid, Unavailable, Unsupported};

    use super::*;

    /// What the client makes of this line of a server.
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
            ("NOAUTH Authentication required.", Denied, "wants a password"),
            ("WRONGPASS invalid username-password pair", Denied, "refused our credentials"),
            ("NOPERM User x has no permissions", Denied, "lacks a right"),
            ("READONLY You can't write against a read only replica.", Unavailable, "read-only replica"),
            ("LOADING Redis is loading the dataset in memory", Unavailable, "loading its data"),
            ("BUSY Redis is busy running a script.", Unavailable, "busy with a script"),
            ("NOSCRIPT No matching script.", Unavailable, "SCRIPT FLUSH"),
            ("MASTERDOWN Link with MASTER is down", Unavailable, "cannot serve"),
            ("CLUSTERDOWN Hash slot not served", Unavailable, "cannot serve"),
            ("TRYAGAIN Multiple keys request during rehashing", Unavailable, "being moved"),
            ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable, "out of memory"),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable, "too few replicas"),
            ("MISCONF Redis is configured to save RDB snapshots", Unavailable, "cannot save its data"),
            ("MOVED 3999 127.0.0.1:6381", Unsupported, "redis+cluster://"),
            ("ASK 3999 127.0.0.1:6381", Unsupported, "redis+cluster://"),
            ("CROSSSLOT Keys in request don't hash to the same slot", Unsupported, "redis+cluster://"),
            ("WRONGTYPE Operation against a key", Internal, "holds something that is no lock"),
            ("ERR max number of clients reached", Unavailable, "maxclients"),
            ("ERR DB index is out of range", Invalid, "no database of this number"),
            ("ERR invalid DB index", Invalid, "no database of this number"),
            ("ERR unknown command 'SSUBSCRIBE', with args beginning with: ", Unsupported, "Redis 6 or newer"),
            ("ERR something else", Internal, "refused a request"),
            ("NEWCODE from a later version", Internal, "refused a request"),
        ] {
            let error = of_request(&said(line));
            assert!(error.kind() == kind && error.to_string().contains(words), "{line}: {error:?}");
        }
    }

    /// Scripts say it in other words, behind a code that says nothing; the request that is repeated in a text counts for nothing.
    #[test]
    fn where_a_code_says_too_little_a_known_phrase_does() {
        for (line, kind) in [
            ("ERR Error running script: @user_script:1: WRONGTYPE Operation against a key", Internal),
            ("ERR Error running script: -READONLY You can't write against a read only replica.", Unavailable),
            ("ERR ACL failure in script: user has no permission", Denied),
            ("ERR The user executing the script can't access at least one of the keys", Denied),
            ("ERR unknown command 'X', with args beginning with: 'READONLY'", Unsupported),
            ("ERR wrong, with args beginning with: 'NOPERM'", Internal),
        ] {
            assert_eq!(of_request(&said(line)).kind(), kind, "{line}");
        }
    }

    #[test]
    fn no_text_of_a_server_is_shown() {
        for code in ["ERR", "NOAUTH", "WRONGPASS", "NOPERM", "READONLY", "WRONGTYPE", "MOVED", "NEWCODE"] {
            let e = said(&format!("{code} with S3CRET and s3cret"));
            for error in [of_request(&e), of_connect(&e), of_plain_connect(&e), of_sentinel(&e)] {
                assert!(!format!("{error:?}").to_lowercase().contains("s3cret"), "{error:?}");
            }
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
            assert!(error.kind() == kind && error.to_string().contains(words), "{how:?}: {error:?}");
            let error = of_connect(&broke(how));
            assert!(error.kind() == Unavailable && error.to_string().contains(words), "{how:?}: {error:?}");
        }
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
        assert!(hint(&broke(io::ErrorKind::ConnectionReset)) && hint(&broke(io::ErrorKind::UnexpectedEof)));
        assert!(!hint(&broke(io::ErrorKind::ConnectionRefused)) && !hint(&broke(io::ErrorKind::TimedOut)));
        assert!(!hint(&said("NOAUTH Authentication required.")));
        assert_eq!(of_plain_connect(&broke(io::ErrorKind::ConnectionReset)).kind(), Unavailable);
    }

    #[test]
    fn a_sentinel_has_credentials_of_its_own() {
        for (line, kind, words) in [
            ("ERR unknown command 'SENTINEL'", Unsupported, "without +sentinel"),
            ("NOAUTH Authentication required.", Denied, "sentinel_password"),
            ("WRONGPASS invalid", Denied, "sentinel_user"),
            ("NOPERM no", Denied, "on the sentinel"),
            ("LOADING it", Unavailable, "loading"),
        ] {
            let error = of_sentinel(&said(line));
            assert!(error.kind() == kind && error.to_string().contains(words), "{line}: {error:?}");
        }
        assert_eq!(of_sentinel(&broke(io::ErrorKind::TimedOut)).kind(), Unavailable);
    }

    #[test]
    fn a_server_of_another_mode_is_refused() {
        let words = |mode, cluster| of_mode(mode, cluster).map(|e| (e.kind(), e.to_string()));
        assert_eq!((words("cluster", true), words("standalone", false)), (None, None));
        for (mode, cluster, says) in [
            ("cluster", false, "redis+cluster://"),
            ("sentinel", false, "redis+sentinel://"),
            ("sentinel", true, "redis+sentinel://"),
            ("standalone", true, "no node of a Cluster"),
        ] {
            let (kind, text) = words(mode, cluster).unwrap();
            assert!(kind == Unsupported && text.contains(says), "{mode} {cluster}: {text}");
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
        assert_eq!((one.kind(), one.to_string()), (Internal, another.to_string()));
        assert!(another.kind() == Internal && another.to_string().starts_with("an entry is not"));
    }
}
