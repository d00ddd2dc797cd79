//! The URL of a store: one strict grammar for every store, and no message shows a credential.
//!
//! Every store reads its URL with this grammar, so that `timeout` or a percent-encoded password
//! means the same everywhere, and no store shows a password in a message because it forgot one
//! case.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result, StoreId};
use percent_encoding::percent_decode_str;

use crate::parameters::shown;

/// A store's URL, taken apart:
/// `scheme://[[user]:password@]host[:port][,host[:port]…][/path][?key=value[&key=value…]]`.
///
/// One strict grammar for every store. User, password, path and values are percent-decoded. A store
/// takes the parameters that it knows, and then calls [`done`](Address::done), so that
/// a misspelt parameter is refused instead of ignored. No message shows a credential.
///
/// # Examples
///
/// ```
/// use leasehold_net::Address;
///
/// # fn main() -> leasehold_core::Result<()> {
/// let mut url = Address::parse("redis://:secret@db-1,db-2:7000/0?timeout=250", "redis", 6379)?;
/// assert_eq!(url.hosts[1].port, 7000);
/// assert_eq!(url.timeout()?.as_millis(), 250);
/// url.done()
/// # }
/// ```
pub struct Address {
    /// The user, if the URL names one.
    pub user: Option<String>,
    /// The password, if there is one.
    pub password: Option<String>,
    /// The servers, at least one.
    pub hosts: Vec<Host>,
    /// The path behind the hosts, without the slashes around it.
    pub path: String,
    /// The scheme asks for TLS.
    pub tls: bool,
    parameters: Vec<Parameter>,
}

struct Parameter {
    name: String,
    value: String,
    /// A message may show the name: it is surely no part of a password.
    is_shown: bool,
}

/// One server. It displays as `host:port`, with an IPv6 address in brackets.
///
/// On PostgreSQL it may be the folder of a Unix socket, whose name begins with `/`.
///
/// # Examples
///
/// ```
/// use leasehold_net::Host;
///
/// assert_eq!(Host::parse("[::1]", 6379).unwrap().to_string(), "[::1]:6379");
/// assert!(Host::parse("db:0", 6379).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// A name or an address, without brackets; or the folder of a Unix socket, or its file.
    pub name: String,
    /// From 1 to 65535; 0 for the file of a socket.
    pub port: u16,
}

/// The rules by which the part of a URL between its scheme and its path is read.
#[derive(Clone, Copy)]
enum Grammar {
    /// At least one host, and no user without a password.
    Strict,
    /// Those of PostgreSQL's libpq.
    Libpq,
}

/// The drivers of Python's SQLAlchemy for PostgreSQL, in whose URLs they stand behind the scheme.
const DRIVERS: [&str; 8] = [
    "psycopg",
    "psycopg2",
    "psycopg2cffi",
    "asyncpg",
    "pg8000",
    "aiopg",
    "pygresql",
    "pypostgresql",
];

/// The part of a URL behind `scheme://`, if it begins so, in any case of its letters.
fn behind<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let (begin, rest) = url.split_once("://")?;
    begin.eq_ignore_ascii_case(scheme).then_some(rest)
}

fn malformed() -> Error {
    invalid("a host is missing or malformed")
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("the store's URL: {what}"))
}

impl Address {
    /// Reads a URL of this scheme, in any case of its letters.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid), with the part that is wrong, and without
    /// credentials.
    pub fn parse(url: &str, scheme: &str, default_port: u16) -> Result<Address> {
        let rest = behind(url, scheme)
            .ok_or_else(|| invalid(format_args!("it does not begin with {scheme}://")))?;
        Address::read(rest, default_port, Grammar::Strict)
    }

    /// Reads a URL of PostgreSQL by the rules of libpq: a user may stand without a password, there
    /// may be no host, and a host may be percent-encoded, as the folder of a Unix socket is. A
    /// driver of Python's SQLAlchemy may stand behind the scheme (`postgresql+psycopg://`), and
    /// nothing else may.
    ///
    /// # Errors
    ///
    /// As [`parse`](Address::parse).
    pub fn parse_libpq(url: &str, default_port: u16) -> Result<Address> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (kind, driver) = match scheme.split_once('+') {
            Some((kind, driver)) => (kind, Some(driver)),
            None => (scheme, None),
        };
        if kind.to_ascii_lowercase().starts_with("jdbc:") {
            return Err(invalid(
                "jdbc: is left out, and user and password stand before the host: postgresql://user:password@host/database",
            ));
        }
        let known = ["postgres", "postgresql"];
        if !known.iter().any(|known| known.eq_ignore_ascii_case(kind)) {
            return Err(invalid("it does not begin with postgres://"));
        }
        let is_driver = |it: &str| DRIVERS.iter().any(|known| known.eq_ignore_ascii_case(it));
        if driver.is_some_and(|driver| !is_driver(driver)) {
            return Err(invalid(
                "behind postgresql+ stands a driver of SQLAlchemy, such as psycopg, and nothing else: write postgresql://, with sslmode=verify-full for TLS",
            ));
        }
        Address::read(rest, default_port, Grammar::Libpq)
    }

    /// Reads a URL of this scheme, or of the scheme with an `s` behind it, which asks for
    /// [`tls`](Address::tls) and may have another default port.
    ///
    /// # Errors
    ///
    /// As [`parse`](Address::parse).
    pub fn parse_tls(url: &str, scheme: &str, default_port: u16, tls_port: u16) -> Result<Address> {
        let Some(rest) = behind(url, &format!("{scheme}s")) else {
            return Address::parse(url, scheme, default_port);
        };
        Ok(Address {
            tls: true,
            ..Address::read(rest, tls_port, Grammar::Strict)?
        })
    }

    /// Reads the part of a URL behind the scheme.
    fn read(rest: &str, default_port: u16, grammar: Grammar) -> Result<Address> {
        if rest.contains('#') {
            return Err(invalid(
                "a fragment (#…) means nothing here; # itself is written %23",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains([':', '@']) && (path.contains('@') || query.contains('@')) {
            // Otherwise a part of a password would be taken for a port and a path, which messages
            // may show.
            return Err(invalid(
                "in a password / is written %2F and ? is written %3F; after the hosts @ is written %40",
            ));
        }
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let mut user = None;
        let mut password = None;
        if let Some(credentials) = credentials {
            let (name, secret) = match (credentials.split_once(':'), grammar) {
                (Some((name, "")), Grammar::Libpq) => (name, None),
                (Some((name, secret)), _) => (name, Some(secret)),
                (None, Grammar::Libpq) => (credentials, None),
                (None, Grammar::Strict) => {
                    return Err(invalid(
                        "a user without a password (a password alone is written :password@)",
                    ));
                }
            };
            user = Some(decoded(name, "the user")?).filter(|name| !name.is_empty());
            password = secret
                .map(|secret| decoded(secret, "the password"))
                .transpose()?;
        }
        let mut is_behind_secret = false;
        let parameter = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name, "a parameter")?;
            is_behind_secret |= may_be_secret(&name);
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            let is_word = pair.contains('=') && name.bytes().all(plain);
            Ok(Parameter {
                value: decoded(value, "a parameter")?,
                // The `&` before it may be one of a password.
                is_shown: is_word && (!is_behind_secret || may_be_secret(&name)),
                name,
            })
        };
        let hosts = match grammar {
            Grammar::Libpq if hosts.is_empty() => Vec::new(),
            _ => hosts
                .split(',')
                .map(|host| Host::read(host, default_port, grammar))
                .collect::<Result<_>>()?,
        };
        Ok(Address {
            user,
            password,
            hosts,
            path: decoded(path.strip_suffix('/').unwrap_or(path), "the path")?,
            tls: false,
            parameters: query
                .split('&')
                .filter(|pair| !pair.is_empty())
                .map(parameter)
                .collect::<Result<_>>()?,
        })
    }

    /// Takes the parameter `timeout`: in milliseconds, from 10 to 60000; one second if it is not
    /// given.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for another value.
    pub fn timeout(&mut self) -> Result<Duration> {
        self.timeout_or(Duration::from_secs(1))
    }

    /// Takes the parameter `timeout`, with this default. See
    /// [`timeout`](Address::timeout).
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a value that is no number from 10 to 60000.
    pub fn timeout_or(&mut self, default: Duration) -> Result<Duration> {
        let Some(text) = self.take("timeout") else {
            return Ok(default);
        };
        let millis = text.parse().ok().filter(|ms| (10..=60_000).contains(ms));
        millis
            .map(Duration::from_millis)
            .ok_or_else(|| invalid("timeout is in milliseconds, from 10 to 60000"))
    }

    /// Takes the parameter `store`: the identity of the store of this kind that the servers must
    /// belong to.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a text that is no identity of such a store.
    pub fn store_id(&mut self, kind: &str) -> Result<Option<StoreId>> {
        let Some(text) = self.take("store") else {
            return Ok(None);
        };
        let id: StoreId = text.parse()?;
        match id.as_str().strip_prefix(kind) {
            Some(rest) if rest.starts_with('-') => Ok(Some(id)),
            _ => Err(invalid(format_args!(
                "store: the identity of this kind of store begins with {kind}-"
            ))),
        }
    }

    /// Takes a parameter out; `None` if it is not given. It is one of
    /// [`parameters`](crate::parameters), which says what of it may be shown.
    pub fn take(&mut self, key: &str) -> Option<String> {
        debug_assert!(shown(key).is_some(), "parameters.rs lacks {key}");
        let at = self.parameters.iter().position(|it| it.name == key)?;
        Some(self.parameters.remove(at).value)
    }

    /// Gives a parameter of another client the name that it has here.
    pub fn rename(&mut self, theirs: &str, ours: &str) {
        debug_assert!(shown(theirs).is_some(), "parameters.rs lacks {theirs}");
        let theirs = self.parameters.iter_mut().filter(|it| it.name == theirs);
        theirs.for_each(|it| ours.clone_into(&mut it.name));
    }

    /// Refuses parameters that were not taken.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for the first one: it is unknown, or was given twice. The
    /// error has its name, unless that may be a part of a password with an `&`.
    pub fn done(&self) -> Result<()> {
        match self.parameters.first() {
            Some(it) if it.is_shown => Err(invalid(format_args!(
                "the parameter {:?} is unknown, or given twice: leave it out",
                it.name
            ))),
            Some(_) => Err(invalid(
                "a parameter is unknown, or given twice: leave it out (& in a value is written %26)",
            )),
            None => Ok(()),
        }
    }
}

/// Returns whether the value of a parameter with this name may be a secret, so that the parameters
/// behind it may be parts of one that has an `&`.
#[doc(hidden)]
pub fn may_be_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "pwd", "secret", "token"]
        .iter()
        .any(|word| name.contains(word))
}

impl Host {
    /// Reads `host[:port]`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a malformed host, or for a port that is no number
    /// from 1 to 65535.
    pub fn parse(text: &str, default_port: u16) -> Result<Host> {
        Host::read(text, default_port, Grammar::Strict)
    }

    /// The host of a name, an address without brackets, or the folder of a Unix socket.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a malformed name.
    pub fn named(name: &str, port: u16) -> Result<Host> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let good = match name.strip_prefix('/') {
            Some(folder) => !folder.contains('\0'),
            None if name.contains(':') => name.parse::<Ipv6Addr>().is_ok(),
            None => !name.is_empty() && name.bytes().all(plain),
        };
        if !good {
            return Err(malformed());
        }
        Ok(Host {
            name: name.to_owned(),
            port,
        })
    }

    /// Returns whether this is the folder of a Unix socket.
    pub fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }

    fn read(text: &str, default_port: u16, grammar: Grammar) -> Result<Host> {
        let (name, port) = match text.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
            Some((v6, "")) => (v6, None),
            Some((v6, port)) => (v6, Some(port.strip_prefix(':').unwrap_or_default())),
            None => text
                .split_once(':')
                .map_or((text, None), |(name, port)| (name, Some(port))),
        };
        let name = match grammar {
            Grammar::Libpq => decoded(name, "a host")?,
            Grammar::Strict => name.to_owned(),
        };
        let is_socket = name.starts_with('/');
        let is_v6 = name.contains(':') && !is_socket;
        if text.starts_with('[') != is_v6 || is_socket && matches!(grammar, Grammar::Strict) {
            return Err(malformed());
        }
        let host = Host::named(&name, default_port)?;
        let port = port.map_or(Some(default_port), |port| {
            port.parse().ok().filter(|port| *port != 0)
        });
        let port = port.ok_or_else(|| invalid("a port is not a number from 1 to 65535"))?;
        Ok(Host { port, ..host })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Host { name, port } = self;
        if self.is_socket() && *port == 0 {
            f.write_str(name)
        } else if name.contains(':') && !self.is_socket() {
            write!(f, "[{name}]:{port}")
        } else {
            write!(f, "{name}:{port}")
        }
    }
}

/// Shows no credentials.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("hosts", &self.hosts)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn decoded(text: &str, what: &str) -> Result<String> {
    let hex = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    let whole = text
        .match_indices('%')
        .all(|(at, _)| hex(at + 1) && hex(at + 2));
    let decoded = percent_decode_str(text)
        .decode_utf8()
        .ok()
        .filter(|_| whole);
    decoded
        .map(Into::into)
        .ok_or_else(|| invalid(format_args!("{what} is not percent-encoded UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address> {
        Address::parse(url, "redis", 6379)
    }

    #[test]
    fn reads_every_part() {
        let mut address =
            parse("redis://me:s%40c%23@a.b:7000,[::1],c:1/prod/x/?timeout=250&prefix=app%3A")
                .unwrap();
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("me"), Some("s@c#"))
        );
        let hosts: Vec<String> = address.hosts.iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["a.b:7000", "[::1]:6379", "c:1"]);
        assert_eq!(address.path, "prod/x");
        assert_eq!(address.timeout().unwrap(), Duration::from_millis(250));
        assert!(address.done().is_err());
        assert_eq!(address.take("prefix").as_deref(), Some("app:"));
        assert!(address.done().is_ok());
        let alone = parse("redis://:secret@host").unwrap();
        let shown = format!("{alone:?}");
        assert!(
            shown.contains("host") && !shown.contains("secret"),
            "{shown}"
        );
        assert_eq!(
            (alone.user, alone.password.as_deref()),
            (None, Some("secret"))
        );
    }

    #[test]
    fn an_s_behind_the_scheme_asks_for_tls() {
        let read =
            |url| Address::parse_tls(url, "redis", 6379, 6380).map(|it| (it.tls, it.hosts[0].port));
        assert_eq!(
            (read("redis://h").unwrap(), read("rediss://h").unwrap()),
            ((false, 6379), (true, 6380))
        );
        assert_eq!(read("ReDiSS://h").unwrap(), (true, 6380));
        for bad in ["redisss://h", "rediss:/h", "etcds://h"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(parse("rediss://h").is_err());
    }

    #[test]
    fn libpq_knows_users_alone_and_sockets() {
        let read = |url| Address::parse_libpq(url, 5432);
        for (url, user, password, hosts) in [
            ("postgres://me@h/db", Some("me"), None, &["h:5432"][..]),
            (
                "POSTGRESQL://me:@h:1,i/db",
                Some("me"),
                None,
                &["h:1", "i:5432"],
            ),
            (
                "postgresql+psycopg://:p%40@[::1]/db",
                None,
                Some("p@"),
                &["[::1]:5432"],
            ),
            (
                "postgres://me@there:p@h/db",
                Some("me@there"),
                Some("p"),
                &["h:5432"],
            ),
            ("postgres:///db", None, None, &[]),
            ("postgres://me@/db", Some("me"), None, &[]),
            (
                "postgres://%2Fcloudsql%2Fa%3Ab:7/db",
                None,
                None,
                &["/cloudsql/a:b:7"],
            ),
        ] {
            let address = read(url).unwrap();
            assert_eq!(
                (address.user.as_deref(), address.password.as_deref()),
                (user, password)
            );
            let read: Vec<String> = address.hosts.iter().map(Host::to_string).collect();
            assert_eq!(
                (read, &*address.path),
                (hosts.iter().map(ToString::to_string).collect(), "db"),
                "{url}"
            );
        }
        for driver in DRIVERS {
            for driver in [driver.to_owned(), driver.to_uppercase()] {
                let url = format!("postgresql+{driver}://h/db");
                assert!(Address::parse_libpq(&url, 5432).is_ok(), "{url}");
            }
        }
        for bad in [
            "redis://h",
            "postgres:/h",
            "postgres://a,/db",
            "postgres://%00/db",
            "postgres://a%3Ab/db",
            "postgresql+tls://h/db",
            "postgresql+://h/db",
            "postgresql+psycopg+tls://h/db",
        ] {
            assert_eq!(read(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
        assert!(Host::named("/run/x", 1).unwrap().is_socket());
        assert!(Host::parse("/run/x", 1).is_err() && !Host::parse("h", 1).unwrap().is_socket());
    }

    #[test]
    fn an_unknown_parameter_is_named_unless_it_may_be_a_part_of_a_password() {
        for (query, shown) in [
            ("timeuot=9", Some("timeuot")),
            ("passwort=s3ntinel", Some("passwort")),
            ("password=a&password=s3ntinel", Some("password")),
            ("s3ntinel", None),
            ("a%20s3ntinel=1", None),
            ("password=a&s3ntinel", None),
            ("pass=a&s3ntinel=b", None),
            ("sentinel_password=a&prefix=b&s3ntinel=c", None),
            ("sslpassword=a&s3ntinel", None),
        ] {
            let mut address = parse(&format!("redis://host?{query}")).unwrap();
            for known in [
                "password",
                "pass",
                "sentinel_password",
                "sslpassword",
                "prefix",
            ] {
                address.take(known);
            }
            let error = address.done().unwrap_err().to_string();
            assert!(!error.contains("s3ntinel"), "{error}");
            match shown {
                Some(name) => assert!(error.contains(&format!("{name:?}")), "{error}"),
                None => assert!(error.contains("%26"), "{error}"),
            }
        }
    }

    #[test]
    fn refuses_the_rest_and_shows_no_secret() {
        for bad in [
            "redis:/host",
            "etcd://host",
            "redis://",
            "redis://s3ntinel@host",
            "redis://me:s3ntinel@",
            "redis://me:s3ntinel@host:99999",
            "redis://me:s3ntinel@host:0",
            "redis://me:s3ntinel@host:x",
            "redis://me:s3ntinel@ho st",
            "redis://me:s3ntinel@[::1",
            "redis://me:s3ntinel@[nonsense]:1",
            "redis://me:s3ntinel@a,,b",
            "redis://me:s3ntinel@host#fragment",
            "redis://me:s3ntinel%FF@host",
            "redis://me:s3ntinel%f@host",
            "redis://me:1/s3ntinel@host",
            "redis://me:1?s3ntinel@host",
            "redis://me:1@a/s3ntinel@host",
            "redis://me:1@a?s3ntinel@host",
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(
                !format!("{error} {error:?}").contains("s3ntinel"),
                "{error}"
            );
        }
        for bad in ["9", "60001", "-1", "1s", ""] {
            assert!(
                parse(&format!("redis://host?timeout={bad}"))
                    .unwrap()
                    .timeout()
                    .is_err(),
                "{bad}"
            );
        }
        let address = parse("redis://me:s3ntinel@host").unwrap();
        assert!(!format!("{address:?}").contains("s3ntinel"));
    }
}
