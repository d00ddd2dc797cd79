//! The configuration of the store, and its form as a URL.

mod files;
mod pooled;
mod server;
#[cfg(all(test, feature = "tls-no-provider"))]
mod shapes;
mod words;

use std::env;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{Error, Result, StoreId};
#[cfg(feature = "tls-no-provider")]
use leasehold_net::Tls;
use leasehold_net::{Credentials, Host};
use tokio_postgres::{Client, Config as Settings};

use self::files::{Environment, Passwords};
pub use self::pooled::PoolOptions;
pub(crate) use self::server::Server;
use self::server::address_of;
use self::words::Words;
use crate::client::link::session;
use crate::scripts::{SCHEMA, check_schema};

/// The limit of one request.
const REQUEST: Duration = Duration::from_secs(1);
/// The number of connections that the verbs may open, so that one that waits for a row holds up no
/// other.
const CONNECTIONS: usize = 4;
/// The greatest number of these connections.
const MOST: usize = 64;
/// The words for that number: ours, and those of Prisma, Rails and pgx, whose numbers may be
/// greater.
const POOLS: [&str; 4] = ["connections", "connection_limit", "pool", "pool_max_conns"];

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
    /// The time that a verb waits for one of them to be free, if it is not that of a request.
    pub(crate) patience: Option<Duration>,
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
    /// Reads `postgres://[user[:password]@][host[:port][,host[:port]…]][/database]`, or
    /// `postgresql://…`, by the rules of libpq. Several hosts are the servers of one cluster: the
    /// store uses one that is no standby. After a `?`, these parameters of the store may follow,
    /// joined by `&`:
    ///
    /// * `schema=name`: the schema of the tables and functions (`leasehold`): lower-case letters,
    ///   digits and `_`. Each schema is a store of its own, and has nothing else in it, so `public`
    ///   is refused.
    /// * `timeout=ms`: the limit of each request, from 10 to 60000 (1000).
    /// * `connections=n`: the number of connections that claims and releases may open in each
    ///   runtime, from 1 to 64 (4). Renewals may open two more, and notifications have another one.
    ///   If the server accepts no more, one suffices for everything.
    /// * `listen=host[:port]` or `listen=postgres://…`: the address of the server itself, for
    ///   notifications, if the host of the URL is a pooler. Parts behind the host that it leaves out
    ///   are as in the URL; `@` in it is written `%40`. `listen=off`: no notifications; waiters poll.
    /// * `install=false`: a schema that is missing is not installed.
    /// * `store=id`: the [identity](Config::store_id) of the database.
    ///
    /// The words of libpq mean what they mean there: among them `sslmode` with `sslrootcert`,
    /// `sslcert` and `sslkey`, `channel_binding`, `application_name`, `options`, `connect_timeout`
    /// and `keepalives`. Without `sslmode` a connection is over TLS if the server offers that, and
    /// the server is not verified; **write `sslmode=verify-full`**. A mode that verifies nothing
    /// warns. Without the feature `tls`, no connection is over TLS unless a word demands it. What
    /// the URL leaves out is taken from the variables of libpq (`PGHOST`, `PGUSER`, `PGPASSWORD`
    /// and so on). The store's page lists all words, those of other clients too, and how they are
    /// read.
    ///
    /// # Errors
    ///
    /// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a URL of another form, for a word that
    /// is unknown, and for one that cannot be followed; and
    /// [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for TLS without the feature. Neither
    /// shows the credentials.
    pub fn from_url(url: &str) -> Result<Config> {
        Config::read(url, &|variable| env::var_os(variable))
    }

    /// Reads a URL, and what it leaves out in this environment.
    fn read(url: &str, environment: Environment<'_>) -> Result<Config> {
        let mut words = Words::with(address_of(url)?, environment)?;
        let timeout = words.url().timeout()?;
        let schema = words.url().take("schema");
        let store_id = words.url().store_id("postgres")?;
        let connections = connections(&mut words)?;
        let install = words.flag("install")?.unwrap_or(true);
        let patience = words.number("pool_timeout", "seconds")?.map(|n| match n {
            // Prisma waits without a limit then.
            0 => Duration::MAX,
            n => Duration::from_secs(n.into()),
        });
        let listen = words.url().take("listen");
        let is_pooled = words.flag("pgbouncer")?.unwrap_or_default();
        let passwords = Passwords::find(words.take("passfile"), environment);
        let server = Server::read(words, Settings::new(), None)?.complete(passwords)?;
        let listen = match listen.as_deref() {
            Some("off") => Listen::Off,
            Some(place) => Listen::At(Box::new(server.beside(place)?)),
            // A pooler in transaction mode lets no notification through.
            None if is_pooled => Listen::Off,
            None => Listen::Same,
        };
        let mut config = Config {
            server,
            listen,
            timeout,
            connections,
            patience,
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
        self.connections = most.clamp(1, MOST);
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
        self.server.exposed = None;
        self.server.credentials = Some(credentials);
        self
    }

    /// Makes every connection over TLS with these settings, and none without.
    #[cfg(feature = "tls-no-provider")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        if let Listen::At(server) = &mut self.listen {
            server.only_by(tls.clone());
        }
        self.server.only_by(tls);
        self
    }

    /// The warnings that follow from words of the URL.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let beside = match &self.listen {
            Listen::At(server) => server.warning.clone(),
            Listen::Same | Listen::Off => None,
        };
        let mut warnings: Vec<String> = self.server.warning.iter().cloned().collect();
        warnings.extend(beside.filter(|warning| !warnings.contains(warning)));
        warnings.extend(self.server.exposed.clone());
        if !self.server.chosen.is_empty() && self.store_id.is_none() {
            warnings.push(format!(
                "{} ({}): the same URL elsewhere may be another database, whose locks are others. Write all parts, or store=id",
                self.server.chosen.join(", "),
                self.server
            ));
        }
        warnings
    }

    /// The servers that the URL names, for `leasehold verify`.
    #[doc(hidden)]
    pub fn hosts(&self) -> &[Host] {
        &self.server.hosts
    }

    /// A session at one of these servers, for `leasehold verify`.
    ///
    /// # Errors
    ///
    /// Those of a connection of the store.
    #[doc(hidden)]
    pub async fn session(&self, host: &Host) -> Result<Client> {
        session(&self.server, host, self.timeout).await
    }

    /// The name of the database, for the command.
    #[doc(hidden)]
    pub fn database(&self) -> &str {
        &self.server.database
    }

    /// The schema and the number of connections, for `leasehold verify`.
    #[doc(hidden)]
    pub fn uses(&self) -> (&str, usize) {
        (&self.schema, self.connections)
    }

    /// Refuses a name of a schema that is not allowed.
    pub(crate) fn check(&self) -> Result<()> {
        check_schema(&self.schema)
    }
}

/// Reads the number of connections. A pool of other clients may be greater than the store's.
fn connections(words: &mut Words) -> Result<usize> {
    let mut found = None;
    for word in POOLS {
        let Some(number) = words.number(word, "connections")? else {
            continue;
        };
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        if number == 0 || number > MOST && word == POOLS[0] {
            return Err(words.invalid(word, "is a number from 1 to 64"));
        }
        if found.replace(number.min(MOST)).is_some() {
            return Err(words.invalid(word, "is written beside connections: leave one out"));
        }
    }
    Ok(found.unwrap_or(CONNECTIONS))
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
            patience: None,
            install: true,
            store_id: None,
        }
    }
}

/// Shows no credentials.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, schema {}", self.server, self.schema)
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
    }

    /// What `from_url` reads in such an environment.
    fn read(url: &str, variables: &[(&str, &str)]) -> Result<Config> {
        Config::read(url, &|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    fn hosts(config: &Config) -> String {
        let each: Vec<String> = config.server.hosts.iter().map(Host::to_string).collect();
        format!("{} {}", each.join(","), config.server.database)
    }

    #[tokio::test]
    async fn what_a_url_leaves_out_is_as_in_libpq() {
        let variables = [
            ("PGHOST", "e,f"),
            ("PGPORT", "7"),
            ("PGUSER", "you"),
            ("PGPASSWORD", "word"),
            ("PGDATABASE", "theirs"),
            ("PGAPPNAME", ""),
        ];
        for (url, read_as, user, password) in [
            ("postgres:///", "e:7,f:7 theirs", "you", Some("word")),
            ("postgres://h", "h:7 theirs", "you", Some("word")),
            ("postgres://h,i/db", "h:5432,i:5432 db", "you", Some("word")),
            (
                "postgres://me@h:1,i/db",
                "h:1,i:5432 db",
                "me",
                Some("word"),
            ),
            (
                "postgres://me:pw@/db?host=/run/x",
                "/run/x:7 db",
                "me",
                Some("pw"),
            ),
            (
                "postgres://me:pw@h:1/db?host=/a:b,j&port=2,",
                "/a:b:2,j:5432 db",
                "me",
                Some("pw"),
            ),
            (
                "postgres://%2Frun%2Fx:3/db?user=i&password=j",
                "/run/x:3 db",
                "i",
                Some("j"),
            ),
            ("postgres://h/db?dbname=there&user=", "h:7 there", "", None),
        ] {
            let config = read(url, &variables).unwrap();
            assert_eq!(hosts(&config), read_as, "{url}");
            if !user.is_empty() {
                let password = password.map(str::to_owned);
                assert_eq!(
                    config.server.user().await.unwrap(),
                    (user.to_owned(), password),
                    "{url}"
                );
            }
        }
        let alone = read("postgres:///", &[("PGUSER", "you")]).unwrap();
        assert!(alone.server.hosts[0].is_socket() && alone.server.database == "you");
        let of_system = read("postgres://h", &[]).unwrap();
        assert_eq!(
            of_system.server.user().await.unwrap().0,
            of_system.server.database
        );
    }

    #[tokio::test]
    async fn services_and_passwords_may_be_in_files() {
        use std::fs::{set_permissions, write};
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        write(
            at("services"),
            "[jobs]\nhost=h\nport=7\nuser=me\ndbname=theirs\n[bad]\nldap=x\n",
        )
        .unwrap();
        write(
            at(".pgpass"),
            "h:7:theirs:me:s3cret\nlocalhost:5432:*:me:l0cal\n",
        )
        .unwrap();
        set_permissions(at(".pgpass"), PermissionsExt::from_mode(0o600)).unwrap();
        let services = at("services");
        let home = at("");
        let variables = [
            ("PGSERVICEFILE", &*services),
            ("HOME", &*home),
            ("PGPORT", "9"),
            ("PGSYSCONFDIR", "/no/folder"),
        ];
        let password = async |config: &Config| {
            let (user, password) = config.server.user().await.unwrap();
            config
                .server
                .password(&config.server.hosts[0], &user, password)
                .await
        };
        for (url, read_as, expected) in [
            ("postgres:///?service=jobs", "h:7 theirs", Some("s3cret")),
            ("postgres://:pw@/?service=jobs", "h:7 theirs", Some("pw")),
            ("postgres:///mine?service=jobs", "h:7 mine", None),
            (
                "postgres://me@/db?host=/tmp&port=5432",
                "/tmp:5432 db",
                Some("l0cal"),
            ),
            ("postgres://me@h/theirs", "h:9 theirs", None),
        ] {
            let config = read(url, &variables).unwrap();
            assert_eq!(hosts(&config), read_as, "{url}");
            assert_eq!(
                password(&config).await.unwrap().as_deref(),
                expected,
                "{url}"
            );
        }
        let by_variable = read("postgres:///", &[("PGSERVICE", "jobs"), variables[0]]).unwrap();
        assert_eq!(hosts(&by_variable), "h:7 theirs");
        for (service, says) in [
            ("none", "leave service out"),
            ("bad", "\"ldap\" is unknown"),
        ] {
            let error = read(&format!("postgres:///?service={service}"), &variables).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Invalid && error.to_string().contains(says),
                "{error}"
            );
        }
        let warned = read("postgres:///?service=jobs", &variables)
            .unwrap()
            .warnings();
        assert!(
            matches!(&warned[..], [password, place]
                if password.contains(".pgpass has the password for h:7")
                    && place.starts_with("the service in ")),
            "{warned:?}"
        );
        set_permissions(at(".pgpass"), PermissionsExt::from_mode(0o644)).unwrap();
        let open = read("postgres:///?service=jobs", &variables).unwrap();
        let error = password(&open).await.unwrap_err().to_string();
        assert!(
            error.contains("chmod 600") && !error.contains("s3cret"),
            "{error}"
        );
        write(at("services"), b"[jobs]\nhost=h\xff\n").unwrap();
        let error = read("postgres:///?service=jobs", &variables).unwrap_err();
        assert!(error.to_string().contains("it is not UTF-8"), "{error}");
        let gone = read("postgres://me@h/db?passfile=/no/file", &variables).unwrap();
        let none = read("postgres://me@h/db?passfile=/dev/null", &variables).unwrap();
        assert_eq!(password(&none).await.unwrap(), None);
        assert!(
            password(&gone)
                .await
                .unwrap_err()
                .to_string()
                .contains("/no/file cannot be read")
        );
    }

    #[test]
    fn the_words_of_a_session_are_used() {
        let url = "postgres://me@h/db?application_name=app&options=-c%20a%3Db&connect_timeout=7&channel_binding=disable\
                   &keepalives=0&keepalives_idle=5&keepalives_interval=6&keepalives_count=8&tcp_user_timeout=9";
        let config = read(url, &[("PGAPPNAME", "other")]).unwrap();
        let settings = &config.server.settings;
        let seconds = Duration::from_secs;
        assert_eq!(
            (
                settings.get_application_name(),
                settings.get_options(),
                settings.get_keepalives()
            ),
            (Some("app"), Some("-c a=b"), false)
        );
        assert_eq!(
            (
                settings.get_keepalives_idle(),
                settings.get_keepalives_interval(),
                settings.get_keepalives_retries()
            ),
            (seconds(5), Some(seconds(6)), Some(8))
        );
        assert_eq!(
            settings.get_tcp_user_timeout(),
            Some(&Duration::from_millis(9))
        );
        assert_eq!(config.server.connect_limit(seconds(1)), seconds(7));
        let plain = read("postgres://h/db?fallback_application_name=a", &[]).unwrap();
        assert_eq!(plain.server.settings.get_application_name(), Some("a"));
        assert_eq!(plain.server.connect_limit(seconds(1)), seconds(1));
    }

    #[test]
    fn the_words_of_other_pools_are_used() {
        let config = read(
            "postgres://h/db?pgbouncer=true&connection_limit=99&pool_timeout=20&statement_cache_size=0",
            &[],
        )
        .unwrap();
        assert!(matches!(config.listen, Listen::Off));
        assert_eq!(
            (config.connections, config.patience),
            (64, Some(Duration::from_secs(20)))
        );
        let config = read(
            "postgres://h/db?pgbouncer=true&listen=d&pool=3&pool_timeout=0",
            &[],
        )
        .unwrap();
        assert!(matches!(config.listen, Listen::At(_)));
        assert_eq!(
            (config.connections, config.patience),
            (3, Some(Duration::MAX))
        );
    }

    /// The ways to connect: plain text, and TLS that verifies so much.
    #[cfg(feature = "tls-no-provider")]
    fn ways(server: &Server) -> Vec<String> {
        let way = |way: &Option<Tls>| match way {
            None => "plain".to_owned(),
            Some(tls) => {
                let shown = format!("{tls:?}");
                shown.rsplit(' ').nth(1).unwrap_or_default().to_owned()
            }
        };
        server.ways.iter().map(way).collect()
    }

    #[cfg(feature = "tls-no-provider")]
    #[test]
    fn each_mode_of_tls_is_honest() {
        for (words, expected, warns) in [
            ("", &["Nothing", "plain"][..], false),
            ("?sslmode=disable", &["plain"], false),
            ("?sslmode=allow", &["plain", "Nothing"], true),
            ("?sslmode=prefer", &["Nothing", "plain"], true),
            ("?sslcert=c&sslkey=k", &["Nothing"], true),
            ("?ssl=true&sslmode=verify-full", &["Name"], false),
            ("?sslmode=verify-full&ssl=true", &["Name"], false),
            ("?sslmode=disable&ssl=false", &["plain"], false),
            ("?ssl=verify-full&sslmode=verify-full", &["Name"], false),
            ("?sslmode=require", &["Nothing"], true),
            (
                "?sslmode=require&channel_binding=require",
                &["Nothing"],
                false,
            ),
            ("?ssl=true", &["Name"], false),
            ("?ssl=true&sslmode=require", &["Nothing"], true),
            ("?ssl=true&sslmode=prefer", &["Nothing", "plain"], true),
            ("?ssl=false", &["plain"], false),
            ("?ssl=verify-full", &["Name"], false),
            ("?sslmode=require&sslrootcert=/a.pem", &["Ca"], false),
            ("?sslmode=verify-ca&sslrootcert=/a.pem", &["Ca"], false),
            ("?sslmode=verify-full&sslrootcert=/a.pem", &["Name"], false),
            ("?sslmode=verify-full", &["Name"], false),
            ("?sslrootcert=system", &["Name"], false),
        ] {
            let config = read(&format!("postgres://h/db{words}"), &[]).unwrap();
            assert_eq!(ways(&config.server), expected, "{words}");
            let warned = config.warnings();
            assert_eq!(warned.len(), usize::from(warns), "{words}: {warned:?}");
            assert!(
                warned
                    .iter()
                    .all(|warning| warning.contains("sslmode=verify-full")),
                "{warned:?}"
            );
        }
        let beside = |words: &str| {
            let url =
                format!("postgres://h/db?sslmode=require&listen=postgres:%2F%2Fd%2Fdb{words}");
            match read(&url, &[]).unwrap().listen {
                Listen::At(server) => ways(&server),
                Listen::Same | Listen::Off => panic!("{url}"),
            }
        };
        assert_eq!(
            (beside(""), beside("%3Fsslmode%3Ddisable")),
            (vec!["Nothing".into()], vec!["plain".into()])
        );
        let with_parent = |words: &str| {
            let url = format!(
                "postgres://h/db?{words}&listen=postgres:%2F%2Fd%3Fsslcert%3Dc%26sslkey%3Dk"
            );
            match read(&url, &[]).unwrap().listen {
                Listen::At(server) => ways(&server),
                Listen::Same | Listen::Off => panic!("{url}"),
            }
        };
        assert_eq!(
            (
                with_parent("sslmode=verify-full"),
                with_parent("sslmode=verify-ca&sslrootcert=/a.pem"),
                with_parent("timeout=250")
            ),
            (
                vec!["Name".into()],
                vec!["Ca".into()],
                vec!["Nothing".into()]
            )
        );
        for (ssl, mode, expected) in [
            ("true", "verify-full", "Name"),
            ("true", "disable", "Name"),
            ("true", "require", "Name"),
            ("false", "verify-full", "plain"),
        ] {
            let url = format!("postgres://h/db?ssl={ssl}");
            let config = read(&url, &[("PGSSLMODE", mode)]).unwrap();
            assert_eq!(ways(&config.server), [expected], "{ssl} {mode}");
        }
        for (variables, expected) in [
            (&[("PGSSLMODE", "disable")][..], &["plain"][..]),
            (&[("PGREQUIRESSL", "1")], &["Nothing"]),
            (&[("PGREQUIRESSL", "0")], &["Nothing", "plain"]),
            (
                &[("PGREQUIRESSL", "1"), ("PGSSLMODE", "disable")],
                &["plain"],
            ),
        ] {
            let config = read("postgres://h/db", variables).unwrap();
            assert_eq!(ways(&config.server), expected, "{variables:?}");
        }
        // A socket has no TLS, so that nothing is to be said about it.
        let socket = read("postgres://me@/db?host=/run/x&sslmode=require", &[]).unwrap();
        assert!(socket.warnings().is_empty(), "{:?}", socket.warnings());
        let in_code = read("postgres://h/db?sslmode=require", &[])
            .unwrap()
            .tls(Tls::new());
        assert!(ways(&in_code.server) == ["Name"] && in_code.warnings().is_empty());
    }

    /// The server for notifications has the TLS of the main one, with the files that its own URL
    /// names in their places.
    #[cfg(feature = "tls-no-provider")]
    #[test]
    fn files_of_the_server_for_notifications_replace_those_of_the_main_one() {
        let main = "sslmode=verify-full&sslrootcert=/a.pem&sslcert=/c.pem&sslkey=/k.pem";
        for (own, expected) in [
            ("sslrootcert%3D/b.pem", ["/b.pem", "/c.pem", "/k.pem"]),
            (
                "sslcert%3D/d.pem%26sslkey%3D/l.pem",
                ["/a.pem", "/d.pem", "/l.pem"],
            ),
        ] {
            let url = format!("postgres://h/db?{main}&listen=postgres:%2F%2Fd%3F{own}");
            let Listen::At(server) = read(&url, &[]).unwrap().listen else {
                panic!("{url}")
            };
            assert_eq!(ways(&server), ["Name"], "{own}");
            assert_eq!(server.tls_files(), expected.map(Some), "{own}");
        }
    }

    #[test]
    fn a_word_that_cannot_be_followed_is_refused_and_says_what_to_write() {
        for (words, says) in [
            ("sslmode=verify-ca", "sslrootcert=file"),
            ("sslmode=verify-full&ssl=false", "leave ssl out"),
            ("ssl=false&sslmode=verify-full", "leave ssl out"),
            ("ssl=true&sslmode=disable", "leave ssl out"),
            ("ssl=require&sslmode=verify-full", "leave ssl out"),
            (
                "sslmode=allow&channel_binding=require",
                "sslmode=verify-full",
            ),
            ("sslmode=", "verify-full"),
            ("channel_binding=", "disable, prefer or require"),
            ("requiressl=1", "sslmode=verify-full"),
            ("listen=/run/x:0", "1 to 65535"),
            ("keepalives_idle=86400", "at most 32767"),
            ("keepalives_interval=32768", "at most 32767"),
            ("tcp_user_timeout=2147483648", "at most 2147483647"),
            ("keepalives_count=128", "at most 127"),
            ("sslmode=require&sslrootcert=system", "sslmode=verify-full"),
            ("sslrootcert=/a.pem", "sslmode=verify-full"),
            (
                "sslmode=disable&sslcert=/a&sslkey=/b",
                "sslmode=verify-full",
            ),
            (
                "sslmode=disable&channel_binding=require",
                "sslmode=verify-full",
            ),
            ("channel_binding=s3cret", "disable, prefer or require"),
            ("connect_timeout=0", "1 or more"),
            ("connect_timeout=s3cret", "seconds"),
            ("keepalives=s3cret", "0 or 1"),
            ("hostaddr=10.0.0.1", "as the host"),
            ("gssencmode=require", "sslmode"),
            ("sslnegotiation=direct", "postgres"),
            ("client_encoding=LATIN1", "UTF8"),
            ("target_session_attrs=standby", "read-write"),
            ("requirepeer=s3cret", "leave it out"),
            ("socket_timeout=5", "timeout, in milliseconds"),
            ("sslaccept=strict", "sslmode=verify-full"),
            ("connections=2&connection_limit=3", "leave one out"),
            ("connection_limit=0", "1 to 64"),
            ("pgbouncer=s3cret", "true or false"),
            ("port=1,2", "one number for each host"),
            ("port=s3cret", "1 to 65535"),
            ("host=a,,b", "host"),
            ("search_path=a", "leave it out"),
            ("application_name=%00", "NUL"),
        ] {
            // These two variables change nothing: a word of the URL counts first, also an empty one.
            let variables = [("PGSSLMODE", "prefer"), ("PGCHANNELBINDING", "prefer")];
            let error =
                read(&format!("postgres://me:s3cret@h/db?{words}"), &variables).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{words}");
            let said = format!("{error} {error:?}");
            assert!(
                said.contains(says) && !said.contains("s3cret"),
                "{words}: {said}"
            );
        }
        let of = |variable, value| {
            read("postgres://h/db", &[(variable, value)])
                .unwrap_err()
                .to_string()
        };
        assert!(of("PGSSLMODE", "no").starts_with("PGSSLMODE: sslmode is disable, "));
        assert!(of("PGHOSTADDR", "::1").starts_with("PGHOSTADDR: hostaddr is not read"));
        assert!(of("PGCLIENTENCODING", "SQL_ASCII").starts_with("PGCLIENTENCODING: "));
        let of_url = |variable, value| {
            read("postgres:///", &[(variable, value)])
                .unwrap_err()
                .to_string()
        };
        assert!(of_url("PGHOST", "a:5432").starts_with("PGHOST: host is malformed"));
        assert!(of_url("PGDATABASE", "a/b").starts_with("PGDATABASE: dbname "));
    }

    #[test]
    fn variables_for_other_connections_change_no_plain_one() {
        let variables = [
            ("PGSSLROOTCERT", "/no/ca.pem"),
            ("PGSSLCERT", "/no/me.pem"),
            ("PGSSLMINPROTOCOLVERSION", "TLSv1.3"),
            ("PGCONNECT_TIMEOUT", "0"),
        ];
        let url = "postgres://me@h/db?sslmode=disable&connect_timeout=";
        read(url, &variables).unwrap();
        let refused = read("postgres://me@h/db?connect_timeout=", &variables).unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("PGSSLCERT: sslcert is half"),
            "{refused}"
        );
    }

    #[test]
    fn a_place_that_the_environment_chose_is_told() {
        for (url, variable, value, says) in [
            (
                "postgres://me@127.0.0.1/db",
                "PGPORT",
                "15999",
                "PGPORT chose the port (127.0.0.1:15999/db)",
            ),
            (
                "postgres://me@/db",
                "PGHOST",
                "a",
                "PGHOST chose the host (a:5432/db)",
            ),
            (
                "postgres://me@h",
                "PGDATABASE",
                "x",
                "PGDATABASE chose the database (h:5432/x)",
            ),
            (
                "postgres://h",
                "PGUSER",
                "x",
                "PGUSER chose the database, which",
            ),
            (
                "postgres://h",
                "PGAPPNAME",
                "x",
                "the system's user chose the database",
            ),
        ] {
            let config = read(url, &[(variable, value)]).unwrap();
            let warned = config.warnings();
            assert!(
                matches!(&warned[..], [one] if one.contains(says)),
                "{url}: {warned:?}"
            );
            let pinned = config.store_id("postgres-1-2".parse().unwrap());
            assert!(pinned.warnings().is_empty(), "{url}");
        }
        for whole in ["postgres://me@h:1/db", "postgres://me@h:1"] {
            let variables = [("PGPORT", "7"), ("PGHOST", "a"), ("PGUSER", "x")];
            let warned = read(whole, &variables).unwrap().warnings();
            assert!(warned.is_empty(), "{whole}: {warned:?}");
        }
    }

    #[test]
    fn a_password_of_the_environment_is_not_silently_sent_to_anybody() {
        let warned = |url: &str| {
            read(url, &[("PGPASSWORD", "s3cret")])
                .unwrap()
                .warnings()
                .join("")
        };
        let told = warned("postgres://me@h/db");
        assert!(
            told.contains("PGPASSWORD has the password for h:5432") && !told.contains("s3cret"),
            "{told}"
        );
        for url in [
            "postgres://me:pw@h/db",
            "postgres://me@localhost/db",
            "postgres://me@127.0.0.2,[::1]/db",
            "postgres://me@/db?host=/run/x",
            "postgres://me@h/db?sslmode=disable",
            "postgres://me@h/db?channel_binding=require",
        ] {
            assert_eq!(warned(url), "", "{url}");
        }
        let given = || read("postgres://me@h/db", &[("PGPASSWORD", "s3cret")]).unwrap();
        let asked = given().credentials(|| async { Ok(("you".to_owned(), "new".to_owned())) });
        assert!(asked.warnings().is_empty(), "{:?}", asked.warnings());
        #[cfg(feature = "tls-no-provider")]
        assert!(given().tls(Tls::new()).warnings().is_empty());
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
        let own = at("postgres://me:secret@pool/db?listen=postgres://:other%40direct/db2");
        assert_eq!(
            own.user().await.unwrap(),
            ("me".into(), Some("other".into()))
        );
        let socket = at("postgres://me@pool/db?listen=/run/x:7");
        assert_eq!(socket.hosts[0], Host::named("/run/x", 7).unwrap());
        let socket = at("postgres://me@pool/db?listen=/cloudsql/a:b:c");
        assert_eq!(socket.hosts[0].name, "/cloudsql/a:b:c");
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
            "postgres:h",
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
            "postgres://h/db?sslmode=secret",
            "postgres://h/db?sslrootcert=/secret",
            "postgres://h/db?target_session_attrs=read-only",
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
        if cfg!(feature = "tls-no-provider") {
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
