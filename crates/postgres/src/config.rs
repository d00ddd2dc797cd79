//! From a URL to what is needed to connect.

mod server;

use std::fmt;
use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::support::{Credentials, Host};
#[cfg(feature = "tls")]
use leasehold_tls::Tls;

pub(crate) use self::server::Server;
use self::server::{address_of, invalid};
use crate::scripts::{SCHEMA, check_schema};

/// The limit of one request.
const REQUEST: Duration = Duration::from_secs(1);
/// How many connections the verbs may open, so that one that waits for a row holds up no other.
const CONNECTIONS: usize = 4;

/// Where the server is, and how the store uses it.
///
/// ```
/// # use std::time::Duration;
/// use leasehold_postgres::Config;
///
/// let config = Config::from_url("postgres://app:secret@10.0.0.1/orders?schema=locks")?.timeout(Duration::from_millis(500));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Config {
    /// For the verbs and the renewals.
    pub(crate) server: Server,
    pub(crate) bells: Bells,
    /// The schema with the tables and functions.
    pub(crate) schema: String,
    /// The limit of one request.
    pub(crate) timeout: Duration,
    /// How many connections the verbs may open.
    pub(crate) connections: usize,
    /// Whether the schema is installed where it is missing.
    pub(crate) install: bool,
}

/// Where notifications are listened to.
#[derive(Clone)]
pub(crate) enum Bells {
    /// Where the verbs are executed.
    Same,
    /// Past the pooler.
    At(Box<Server>),
    /// Nowhere: waiters poll.
    Off,
}

impl Config {
    /// Reads `postgres://user:password@host[:port][,host[:port]…]/database`, or `postgresql://…`. Several hosts are the servers of one
    /// cluster: that one is used which is no standby. After a `?`, joined by `&`, may stand:
    ///
    /// * `schema=name`: where the tables and functions are (`leasehold`): lower-case letters, digits and `_`. Each schema is a store of
    ///   its own.
    /// * `timeout=ms`: the limit of each request, from 10 to 60000 (1000).
    /// * `connections=n`: how many connections claims and releases may open, from 1 to 64 (4). Renewals have two more, and the bell
    ///   another one.
    /// * `bells=host[:port]` or `bells=postgres://…`: where notifications are listened to, if the host of the URL is a pooler: the server
    ///   itself. What this does not say is as in the URL; `@` in it is written `%40`. `bells=off`: nowhere, waiters poll.
    /// * `install=false`: the schema is not installed where it is missing.
    /// * `sslmode=verify-full`, with the feature `tls`: every connection is over TLS, and the server's certificate is verified, by the CAs
    ///   of `sslrootcert=file`, or those of the operating system; `sslcert=file` and `sslkey=file` are shown to the server. Without
    ///   it, or with `sslmode=disable`, no connection is. The modes that verify less are refused.
    /// * `target_session_attrs=read-write` or `=primary`: what is done anyway.
    ///
    /// # Errors
    ///
    /// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a URL that is not like this, and [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for TLS without the
    /// feature. Neither shows the credentials.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = address_of(url)?;
        let timeout = address.timeout()?;
        let schema = address.take("schema");
        let connections = match address.take("connections").map(|text| text.parse()) {
            None => CONNECTIONS,
            Some(Ok(number @ 1..=64)) => number,
            Some(_) => return Err(invalid("connections is a number from 1 to 64")),
        };
        let install = match address.take("install").as_deref() {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(invalid("install is true or false")),
        };
        let bells = address.take("bells");
        let server = Server::read(address)?;
        let bells = match bells.as_deref() {
            None => Bells::Same,
            Some("off") => Bells::Off,
            Some(place) => Bells::At(Box::new(server.beside(place)?)),
        };
        let mut config = Config { server, bells, timeout, connections, install, ..Config::default() };
        if let Some(schema) = schema {
            config.schema = schema;
        }
        config.check().map(|()| config)
    }

    /// The schema with the tables and functions, `leasehold` unless set.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Config {
        self.schema = name.into();
        self
    }

    /// How many connections claims and releases may open, 4 unless set: from 1 to 64, and the nearest of these for any other. They are opened
    /// when they are needed, and closed when they were not for a minute.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Config {
        self.connections = most.clamp(1, 64);
        self
    }

    /// The limit of each request: from 10 ms to 60 s, and the nearest of these for any other.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(Duration::from_millis(10), Duration::from_secs(60));
        self
    }

    /// Asks this function for the user and the password before each connection, so that they can be rotated without a restart. It
    /// replaces those of the URL, also for the bell.
    ///
    /// PostgreSQL asks for them once in each connection. The function may take as long as connecting may; what it fails with is
    /// [`Unavailable`](leasehold_core::ErrorKind::Unavailable) unless it is `Invalid` or `Denied`.
    ///
    /// ```
    /// use leasehold_core::{Error, ErrorKind};
    /// use leasehold_postgres::Config;
    ///
    /// let config = Config::from_url("postgres://10.0.0.1/orders")?.credentials(|| async {
    ///     let read = |e| Error::new(ErrorKind::Unavailable, "no password").with_source(e);
    ///     let password = std::fs::read_to_string("/run/secrets/postgres").map_err(read)?;
    ///     Ok(("me".to_owned(), password.trim().to_owned()))
    /// });
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn credentials<F>(mut self, function: impl Fn() -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        let credentials = Credentials::new(function);
        if let Bells::At(server) = &mut self.bells {
            server.credentials = Some(credentials.clone());
        }
        self.server.credentials = Some(credentials);
        self
    }

    /// Makes every connection over TLS, and none without.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        if let Bells::At(server) = &mut self.bells {
            server.tls = Some(tls.clone());
        }
        self.server.tls = Some(tls);
        self
    }

    /// Whether something was configured wrongly.
    pub(crate) fn check(&self) -> Result<()> {
        check_schema(&self.schema)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            server: Server::default(),
            bells: Bells::Same,
            schema: SCHEMA.to_owned(),
            timeout: REQUEST,
            connections: CONNECTIONS,
            install: true,
        }
    }
}

/// Shows no credentials.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.server.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}/{}, schema {}", hosts.join(","), self.server.database, self.schema)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;
    use leasehold_fuzz::fuzz_urls;

    use super::*;

    #[tokio::test]
    async fn a_url_says_where_and_as_whom() {
        let url = "postgresql://me:p%40ss%2Fword@10.0.0.1,[::1]:7/orders?timeout=250&schema=locks&connections=2&install=false";
        let config = Config::from_url(url).unwrap();
        assert_eq!(format!("{config:?}"), "10.0.0.1:5432,[::1]:7/orders, schema locks");
        assert_eq!((config.timeout, config.connections, config.install), (Duration::from_millis(250), 2, false));
        assert_eq!(config.server.user().await.unwrap(), ("me".into(), Some("p@ss/word".into())));
        assert!(matches!(config.bells, Bells::Same));
        let nobody = Config::from_url("postgres://h/db").unwrap();
        assert_eq!(nobody.server.user().await.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[tokio::test]
    async fn the_bell_may_be_elsewhere_with_the_same_user() {
        let at = |url: &str| match Config::from_url(url).unwrap().bells {
            Bells::At(server) => *server,
            Bells::Same | Bells::Off => panic!("{url}"),
        };
        let short = at("postgres://me:secret@pool:6432/db?bells=direct:7");
        assert_eq!((short.hosts[0].to_string(), &*short.database), ("direct:7".into(), "db"));
        assert_eq!(short.user().await.unwrap(), ("me".into(), Some("secret".into())));
        let long = at("postgres://me:secret@pool/db?bells=postgres://you:other%40direct/db2");
        assert_eq!((long.hosts[0].to_string(), &*long.database), ("direct:5432".into(), "db2"));
        assert_eq!(long.user().await.unwrap(), ("you".into(), Some("other".into())));
        assert!(matches!(Config::from_url("postgres://h/db?bells=off").unwrap().bells, Bells::Off));
    }

    #[test]
    fn a_bad_url_is_invalid_and_shows_no_secret() {
        for bad in [
            "redis://h",
            "postgres://",
            "postgres://h",
            "postgres://h/",
            "postgres://h/a/b",
            "postgres://h/%00",
            "postgres://me:secret%00@h/a",
            "postgres://h:0/db",
            "postgres://h/db?timeout=0",
            "postgres://h/db?schema=secret%22",
            "postgres://h/db?schema=pg_secret",
            "postgres://h/db?schema=",
            "postgres://h/db?connections=secret",
            "postgres://h/db?connections=65",
            "postgres://h/db?install=secret",
            "postgres://h/db?sslmode=prefer",
            "postgres://h/db?sslmode=require",
            "postgres://h/db?sslmode=secret",
            "postgres://h/db?sslrootcert=/secret",
            "postgres://h/db?target_session_attrs=any",
            "postgres://h/db?bells=",
            "postgres://h/db?bells=redis://secret",
            "postgres://h/db?bells=postgres://h/db?bells=off",
            "postgres://h/db?secret=1%20secret",
            "postgres://secret@h/db",
            "postgres://me:secret%f@h/db",
            "postgres://h/db#secret",
        ] {
            let error = Config::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!format!("{error:?}").contains("1 secret"), "{bad}");
        }
        let read = Config::from_url("postgres://me:secret@h/db?sslmode=verify-full&sslrootcert=/a.pem");
        if cfg!(feature = "tls") {
            assert!(!format!("{:?}", read.unwrap()).contains("secret"));
        } else {
            let error = read.unwrap_err();
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("\"tls\""), "{error}");
        }
    }

    #[test]
    fn whatever_a_url_says_it_is_read_or_refused_and_no_secret_is_shown() {
        fuzz_urls(include_str!("../corpus/urls"), |url| match Config::from_url(url) {
            Ok(config) => format!("{config:?}"),
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported), "{e}");
                format!("{e} {e:?}")
            }
        });
    }

    #[tokio::test]
    async fn each_setting_is_kept_within_its_bounds() {
        let ms = Duration::from_millis;
        let config = || Config::from_url("postgres://me:pw@h/db?bells=direct").unwrap();
        assert_eq!(config().schema("locks").schema, "locks");
        assert_eq!([0, 1, 7, 65].map(|most| config().connections(most).connections), [1, 1, 7, 64]);
        assert_eq!([0, 250, 99_999].map(|of| config().timeout(ms(of)).timeout), [ms(10), ms(250), ms(60_000)]);
        assert_eq!(config().schema("x;y").check().unwrap_err().kind(), ErrorKind::Invalid);
        let asked = config().credentials(|| async { Ok(("you".to_owned(), "new".to_owned())) });
        let Bells::At(bell) = &asked.bells else { panic!("{asked:?}") };
        for server in [&asked.server, &**bell] {
            assert_eq!(server.user().await.unwrap(), ("you".into(), Some("new".into())));
        }
    }
}
