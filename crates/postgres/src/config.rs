//! The configuration of the store, and its form as a URL.

mod server;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{Error, Result, StoreId};
#[cfg(feature = "tls")]
use leasehold_net::Tls;
use leasehold_net::{Credentials, Host};

pub(crate) use self::server::Server;
use self::server::{address_of, invalid};
use crate::scripts::{SCHEMA, check_schema};

/// The limit of one request.
const REQUEST: Duration = Duration::from_secs(1);
/// The number of connections that the verbs may open, so that one that waits for a row holds up no
/// other.
const CONNECTIONS: usize = 4;

/// The address of the server, and the settings with which the store uses it.
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
    /// The database for verbs and renewals.
    pub(crate) server: Server,
    pub(crate) listen: Listen,
    /// The schema with the tables and functions.
    pub(crate) schema: String,
    /// The limit of one request.
    pub(crate) timeout: Duration,
    /// The number of connections that the verbs may open.
    pub(crate) connections: usize,
    /// If set, the schema is installed where it is missing.
    pub(crate) install: bool,
    /// The identity that the database has to have, if one is named.
    pub(crate) store_id: Option<StoreId>,
}

/// The server on which the client listens to notifications.
#[derive(Clone)]
pub(crate) enum Listen {
    /// The server that executes the verbs.
    Same,
    /// The server itself, past the pooler.
    At(Box<Server>),
    /// None: waiters poll.
    Off,
}

impl Config {
    /// Reads `postgres://user[:password]@host[:port][,host[:port]…]/database`, or `postgresql://…`.
    /// Several hosts are the servers of one cluster: the store uses one that is no standby. After a
    /// `?`, these parameters may follow, joined by `&`:
    ///
    /// * `schema=name`: the schema of the tables and functions (`leasehold`): lower-case letters,
    ///   digits and `_`. Each schema is a store of its own, and has nothing else in it, so `public`
    ///   is refused.
    /// * `timeout=ms`: the limit of each request, from 10 to 60000 (1000).
    /// * `connections=n`: the number of connections that claims and releases may open in each
    ///   runtime, from 1 to 64 (4). Renewals may open two more, and notifications have another one.
    ///   If the server accepts no more, one suffices for everything.
    /// * `listen=host[:port]` or `listen=postgres://…`: the address of the server itself, for
    ///   notifications, if the host of the URL is a pooler. Parts that it leaves out are as in the
    ///   URL; `@` in it is written `%40`. `listen=off`: no notifications; waiters poll.
    /// * `install=false`: a schema that is missing is not installed.
    /// * `sslmode=verify-full`, with the feature `tls`: every connection is over TLS, and the
    ///   server's certificate is verified by the CAs of `sslrootcert=file`, or those of the
    ///   operating system; the client shows `sslcert=file` and `sslkey=file` to the server. Without
    ///   it, or with `sslmode=disable`, no connection is over TLS. The modes that verify less are
    ///   refused.
    /// * `store=id`: the [identity](Config::store_id) of the database.
    /// * `target_session_attrs=read-write` or `=primary`: accepted, since the store connects only
    ///   to a primary.
    ///
    /// # Errors
    ///
    /// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a URL of another form, and
    /// [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for TLS without the feature. Neither
    /// shows the credentials.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = address_of(url)?;
        let timeout = address.timeout()?;
        let schema = address.take("schema");
        let store_id = address.store_id("postgres")?;
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
        let listen = address.take("listen");
        let server = Server::read(address)?;
        let listen = match listen.as_deref() {
            None => Listen::Same,
            Some("off") => Listen::Off,
            Some(place) => Listen::At(Box::new(server.beside(place)?)),
        };
        let mut config = Config {
            server,
            listen,
            timeout,
            connections,
            install,
            store_id,
            ..Config::default()
        };
        if let Some(schema) = schema {
            config.schema = schema;
        }
        config.check().map(|()| config)
    }

    /// Sets the schema with the tables and functions, `leasehold` unless set.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Config {
        self.schema = name.into();
        self
    }

    /// Uses the database with this identity, and no other: see [`StoreId`]. Without it, the first
    /// one that answers is used, and no other later.
    #[must_use]
    pub fn store_id(mut self, id: StoreId) -> Config {
        self.store_id = Some(id);
        self
    }

    /// Sets the number of connections that claims and releases may open in each runtime, 4 unless
    /// set: from 1 to 64, and the nearest of these for any other number. They are opened when they
    /// are needed, and closed after a minute without use.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Config {
        self.connections = most.clamp(1, 64);
        self
    }

    /// Sets the limit of each request: from 10 ms to 60 s, and the nearest of these for any other
    /// duration.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(Duration::from_millis(10), Duration::from_secs(60));
        self
    }

    /// Asks this function for the user and the password before each connection, so that they can be
    /// rotated without a restart. They replace those of the URL, also on the connection for
    /// notifications.
    ///
    /// PostgreSQL asks for them once in each connection. The function may take as long as
    /// connecting may; its error becomes [`Unavailable`](leasehold_core::ErrorKind::Unavailable)
    /// unless it is `Invalid` or `Denied`.
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
        if let Listen::At(server) = &mut self.listen {
            server.credentials = Some(credentials.clone());
        }
        self.server.credentials = Some(credentials);
        self
    }

    /// Makes every connection over TLS with these settings, and none without.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        if let Listen::At(server) = &mut self.listen {
            server.tls = Some(tls.clone());
        }
        self.server.tls = Some(tls);
        self
    }

    /// Refuses a name of a schema that is not allowed.
    pub(crate) fn check(&self) -> Result<()> {
        check_schema(&self.schema)
    }
}

impl FromStr for Config {
    type Err = Error;

    /// Reads a URL, as [`from_url`](Config::from_url) does.
    fn from_str(url: &str) -> Result<Config> {
        Config::from_url(url)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            server: Server::default(),
            listen: Listen::Same,
            schema: SCHEMA.to_owned(),
            timeout: REQUEST,
            connections: CONNECTIONS,
            install: true,
            store_id: None,
        }
    }
}

/// Shows no credentials.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.server.hosts.iter().map(Host::to_string).collect();
        write!(
            f,
            "{}/{}, schema {}",
            hosts.join(","),
            self.server.database,
            self.schema
        )
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
        assert_eq!(
            format!("{config:?}"),
            "10.0.0.1:5432,[::1]:7/orders, schema locks"
        );
        assert_eq!(
            (config.timeout, config.connections, config.install),
            (Duration::from_millis(250), 2, false)
        );
        assert_eq!(
            config.server.user().await.unwrap(),
            ("me".into(), Some("p@ss/word".into()))
        );
        assert!(matches!(config.listen, Listen::Same));
        // Without a password: for a server that asks for none, or for a certificate.
        for url in ["postgres://me@h/db", "postgres://me@h/db?timeout=250"] {
            let alone = Config::from_url(url).unwrap();
            assert_eq!(alone.server.user().await.unwrap(), ("me".into(), None));
        }
        let nobody = Config::from_url("postgres://h/db").unwrap();
        assert_eq!(
            nobody.server.user().await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }

    #[tokio::test]
    async fn the_bell_may_be_elsewhere_with_the_same_user() {
        let at = |url: &str| match Config::from_url(url).unwrap().listen {
            Listen::At(server) => *server,
            Listen::Same | Listen::Off => panic!("{url}"),
        };
        let short = at("postgres://me:secret@pool:6432/db?listen=direct:7");
        assert_eq!(
            (short.hosts[0].to_string(), &*short.database),
            ("direct:7".into(), "db")
        );
        assert_eq!(
            short.user().await.unwrap(),
            ("me".into(), Some("secret".into()))
        );
        let long = at("postgres://me:secret@pool/db?listen=postgres://you:other%40direct/db2");
        assert_eq!(
            (long.hosts[0].to_string(), &*long.database),
            ("direct:5432".into(), "db2")
        );
        assert_eq!(
            long.user().await.unwrap(),
            ("you".into(), Some("other".into()))
        );
        assert!(matches!(
            Config::from_url("postgres://h/db?listen=off")
                .unwrap()
                .listen,
            Listen::Off
        ));
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
            "postgres://h/db?schema=public",
            "postgres://h/db?schema=",
            "postgres://h/db?connections=secret",
            "postgres://h/db?connections=65",
            "postgres://h/db?install=secret",
            "postgres://h/db?sslmode=prefer",
            "postgres://h/db?sslmode=require",
            "postgres://h/db?sslmode=secret",
            "postgres://h/db?sslrootcert=/secret",
            "postgres://h/db?target_session_attrs=any",
            "postgres://h/db?listen=",
            "postgres://h/db?listen=redis://secret",
            "postgres://h/db?listen=postgres://h/db?listen=off",
            "postgres://h/db?secret=1%20secret",
            "postgres://secret%f@h/db",
            "postgres://me:secret%f@h/db",
            "postgres://h/db#secret",
        ] {
            let error = Config::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!format!("{error:?}").contains("1 secret"), "{bad}");
        }
        let read =
            Config::from_url("postgres://me:secret@h/db?sslmode=verify-full&sslrootcert=/a.pem");
        if cfg!(feature = "tls") {
            assert!(!format!("{:?}", read.unwrap()).contains("secret"));
        } else {
            let error = read.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Unsupported && error.to_string().contains("\"tls\""),
                "{error}"
            );
        }
    }

    #[test]
    fn whatever_a_url_says_it_is_read_or_refused_and_no_secret_is_shown() {
        fuzz_urls(
            include_str!("../corpus/urls"),
            |url| match Config::from_url(url) {
                Ok(config) => format!("{config:?}"),
                Err(e) => {
                    assert!(
                        matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported),
                        "{e}"
                    );
                    format!("{e} {e:?}")
                }
            },
        );
    }

    #[tokio::test]
    async fn each_setting_is_kept_within_its_bounds() {
        let ms = Duration::from_millis;
        let config = || Config::from_url("postgres://me:pw@h/db?listen=direct").unwrap();
        assert_eq!(config().schema("locks").schema, "locks");
        assert_eq!(
            [0, 1, 7, 65].map(|most| config().connections(most).connections),
            [1, 1, 7, 64]
        );
        assert_eq!(
            [0, 250, 99_999].map(|of| config().timeout(ms(of)).timeout),
            [ms(10), ms(250), ms(60_000)]
        );
        assert_eq!(
            config().schema("x;y").check().unwrap_err().kind(),
            ErrorKind::Invalid
        );
        let asked = config().credentials(|| async { Ok(("you".to_owned(), "new".to_owned())) });
        let Listen::At(direct) = &asked.listen else {
            panic!("{asked:?}")
        };
        for server in [&asked.server, &**direct] {
            assert_eq!(
                server.user().await.unwrap(),
                ("you".into(), Some("new".into()))
            );
        }
    }
}
