//! Private PostgreSQL servers: a cluster of Debian's package in a temporary folder, and standbys of it.
//!
//! The package starts a server of its own, which the testbed never uses.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use rustix::process::Signal;

use crate::{
    certificates::TlsPort,
    clock,
    error::{Error, Result},
    find::Program,
    ports,
    postgres_data::{self as data, DATABASE, Origin, PASSWORD, SUPERUSER, USER},
    postgres_wire,
    process::{Manner, User},
    server::{self, Launch, Probe, Server},
};

/// The options of a private PostgreSQL server. The default syncs each commit, as servers do.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    /// Settings of its configuration, such as `("fsync", "off")`.
    pub settings: Vec<(String, String)>,
    /// The TLS port. The port serves plain connections, too.
    pub tls: Option<TlsPort>,
    /// Its wall clock can be stepped: [`Server::step_clock`].
    pub clock: bool,
}

impl PostgresOptions {
    /// Adds a setting.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// A private PostgreSQL server; see [`Server`] for the controls of its processes: all of them are
/// killed, paused and resumed.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    options: PostgresOptions,
    sockets: PathBuf,
    /// The origin of its data when it is started without any.
    origin: Arc<Mutex<Origin>>,
}

impl Postgres {
    /// The role of [`Postgres::url`], which may make schemas, and has no further rights.
    pub const USER: &str = USER;
    /// The role with all rights.
    pub const SUPERUSER: &str = SUPERUSER;
    /// The password of both roles.
    pub const PASSWORD: &str = PASSWORD;
    /// The database.
    pub const DATABASE: &str = DATABASE;

    /// Starts a server and waits until it answers.
    pub async fn start() -> Result<Self> {
        Self::start_with(&PostgresOptions::default()).await
    }

    /// Starts a server and waits until it answers.
    pub async fn start_with(options: &PostgresOptions) -> Result<Self> {
        server::started(|| async {
            let postgres = Self::launched(options, None).await?;
            postgres.until_ready().await.map(|()| postgres)
        })
        .await
    }

    /// Starts a standby that follows this server by streaming, with this server's options, and
    /// waits until it answers questions. It has this name in `pg_stat_replication` and for
    /// `synchronous_standby_names`, which is not set yet: [`Postgres::set`].
    pub async fn standby(&self, name: &str) -> Result<Self> {
        let origin = self.followed_as(name);
        server::started(|| async {
            let mut options = self.options.clone();
            options.tls = options.tls.map(|tls| tls.at_another_port()).transpose()?;
            let postgres = Self::launched(&options, Some(origin.clone())).await?;
            postgres.until_ready().await.map(|()| postgres)
        })
        .await
    }

    /// Kills this server, and starts it anew as a standby of another one, with a copy of its data.
    /// Returns once it answers questions.
    pub async fn follow(self: &Arc<Self>, primary: &Self, name: &str) -> Result<()> {
        *self.origin.lock().unwrap_or_else(PoisonError::into_inner) = primary.followed_as(name);
        let here = tokio::runtime::Handle::current();
        let this = self.clone();
        // To copy data takes a while, and blocks.
        let started = tokio::task::spawn_blocking(move || {
            here.block_on(async { this.restart_without_data().await })
        });
        let started = started.await;
        started.map_err(|e| Error::answer("starting a standby", e.to_string()))?
    }

    /// The origin of a standby of this server with this name.
    fn followed_as(&self, name: &str) -> Origin {
        Origin::Standby {
            of: self.sockets.clone(),
            port: self.port(),
            name: name.into(),
        }
    }

    /// Promotes a standby to a primary. Returns once it takes writes.
    pub async fn promote(&self) -> Result<()> {
        match self.text("SELECT pg_promote(true, 60)").await?.as_str() {
            "t" => Ok(()),
            other => Err(Error::answer("pg_promote", other)),
        }
    }

    /// The URL for clients, with user and password.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_as(USER)
    }

    /// The URL with another role that has this password.
    #[must_use]
    pub fn url_as(&self, user: &str) -> String {
        format!("postgres://{user}:{PASSWORD}@{}/{DATABASE}", self.addr())
    }

    /// The folder of its Unix socket, where no role needs a password.
    #[must_use]
    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// Asks as the superuser, in a connection of its own. Several statements may be joined by `;`:
    /// they then are one transaction.
    ///
    /// # Errors
    ///
    /// A refusal is [`Error::Answer`], with its SQLSTATE first.
    pub async fn query(&self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        self.query_in(DATABASE, sql).await
    }

    /// Asks like [`query`](Self::query), but in another database.
    pub async fn query_in(&self, database: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let socket = self.sockets.join(format!(".s.PGSQL.{}", self.port()));
        postgres_wire::query(&socket, SUPERUSER, database, sql).await
    }

    /// Asks for the first column of the first row.
    pub async fn text(&self, sql: &str) -> Result<String> {
        let first = self
            .query(sql)
            .await?
            .into_iter()
            .flatten()
            .next()
            .flatten();
        first.ok_or_else(|| Error::answer(sql, "nothing"))
    }

    /// Asks for the first column of the first row, as a number.
    pub async fn number(&self, sql: &str) -> Result<u64> {
        let text = self.text(sql).await?;
        text.parse().map_err(|_| Error::answer(sql, text))
    }

    /// Changes a setting from now on, also after a restart. It has to be one that takes effect
    /// without a restart.
    pub async fn set(&self, name: &str, value: &str) -> Result<()> {
        self.query(&format!("ALTER SYSTEM SET {name} = '{value}'"))
            .await?;
        self.query("SELECT pg_reload_conf()").await.map(drop)
    }

    /// The number of bytes that the server has written to its write-ahead log since it was made.
    pub async fn wal(&self) -> Result<u64> {
        self.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
            .await
    }

    /// The number of connected clients, without the asking one.
    pub async fn clients(&self) -> Result<u64> {
        let others = "backend_type = 'client backend' AND pid <> pg_backend_pid()";
        self.number(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE {others}"
        ))
        .await
    }

    /// Launches a server on a blocking thread. Making the data takes seconds of a busy processor,
    /// and other tasks of this runtime renew leases meanwhile.
    async fn launched(options: &PostgresOptions, origin: Option<Origin>) -> Result<Self> {
        let options = options.clone();
        let launched = tokio::task::spawn_blocking(move || Self::launch(&options, origin)).await;
        launched.map_err(|e| Error::answer("starting a server", e.to_string()))?
    }

    fn launch(options: &PostgresOptions, origin: Option<Origin>) -> Result<Self> {
        let mut program = Program::Postgres.find()?;
        let user = data::not_root()?;
        let folder = server::folder("postgres")?;
        data::give(folder.path(), user)?;
        data::remove_segments_of_the_dead(user);
        let port = match &options.tls {
            Some(tls) => tls.port,
            None => ports::free::<1>()?[0],
        };
        let sockets = folder.path().to_owned();
        let data = folder.path().join("data");
        let origin = origin.unwrap_or_else(|| Origin::New(data::new_identifier()));
        let origin = Arc::new(Mutex::new(origin));
        let mut args = vec!["-D".to_owned(), data.display().to_string()];
        let mut settings = settings(port, &sockets.display().to_string());
        settings.extend(options.tls.iter().flat_map(|tls| tls_settings(tls, &data)));
        settings.extend(options.settings.iter().cloned());
        for (name, value) in settings {
            args.extend(["-c".to_owned(), format!("{name}={value}")]);
        }
        if options.clock {
            let files;
            (program, args, files) = clock::start_by(folder.path(), &program, args)?;
            files.iter().try_for_each(|file| data::give(file, user))?;
        }
        let probe = Box::new(Answers {
            sockets: sockets.clone(),
            port,
            origin: origin.clone(),
            tls: options.tls.clone(),
            user,
        });
        // SIGTERM would wait until all clients have left.
        let manner = Manner {
            user,
            end: Signal::INT,
            children: true,
        };
        let launch = Launch {
            name: "postgres",
            program,
            args,
            port,
            folder,
            data,
            seed: Vec::new(),
            probe,
            manner,
        };
        Ok(Self {
            server: Server::launch(launch)?,
            options: options.clone(),
            sockets,
            origin,
        })
    }
}

fn settings(port: u16, sockets: &str) -> Vec<(String, String)> {
    let port = port.to_string();
    let settings = [
        ("listen_addresses", "127.0.0.1"),
        ("port", &port),
        ("unix_socket_directories", sockets),
        // A killed server leaves nothing in the system but one segment of 56 bytes.
        ("dynamic_shared_memory_type", "mmap"),
        ("shared_memory_type", "mmap"),
        ("shared_buffers", "16MB"),
        ("max_connections", "200"),
        ("max_wal_size", "128MB"),
        ("wal_keep_size", "64MB"),
        ("hot_standby_feedback", "off"),
        ("wal_receiver_status_interval", "1s"),
        ("log_min_messages", "log"),
        ("log_checkpoints", "off"),
    ];
    settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn tls_settings(tls: &TlsPort, data: &Path) -> Vec<(String, String)> {
    let mut files = vec![
        ("ssl_cert_file", "server.pem"),
        ("ssl_key_file", "server.key"),
    ];
    if tls.mutual {
        files.extend([("ssl_ca_file", "ca.pem"), ("hba_file", "mutual.conf")]);
    }
    let files = files
        .into_iter()
        .map(|(name, file)| (name.to_owned(), data.join(file).display().to_string()));
    files.chain([("ssl".to_owned(), "on".to_owned())]).collect()
}

/// The rules for clients: they need a password and a certificate. The testbed itself needs neither.
const MUTUAL: &str = "local all all trust\nlocal replication all trust\n\
                      hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n";

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Ready once the server answers at the socket in its own folder, where no other server is, and has
/// read its log of changes to the end.
#[derive(Debug)]
struct Answers {
    sockets: PathBuf,
    port: u16,
    origin: Arc<Mutex<Origin>>,
    tls: Option<TlsPort>,
    user: Option<User>,
}

#[async_trait]
impl Probe for Answers {
    async fn ask(&self, _addr: &str, _pid: u32) -> Result<()> {
        let socket = self.sockets.join(format!(".s.PGSQL.{}", self.port));
        postgres_wire::query(&socket, SUPERUSER, DATABASE, "SELECT 1")
            .await
            .map(drop)
    }

    async fn leads(&self, _addr: &str) -> Result<bool> {
        let socket = self.sockets.join(format!(".s.PGSQL.{}", self.port));
        let rows = postgres_wire::query(&socket, SUPERUSER, DATABASE, "SELECT pg_is_in_recovery()")
            .await?;
        Ok(rows == [[Some("f".to_owned())]])
    }

    fn prepare(&self, data: &Path) -> Result<()> {
        if !data.join("PG_VERSION").exists() {
            let origin = self
                .origin
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            origin.fill(data, self.user)?;
        }
        let Some(tls) = &self.tls else { return Ok(()) };
        data::copy_certificates(tls, data, self.user)?;
        let rules = data.join("mutual.conf");
        fs::write(&rules, MUTUAL).map_err(Error::io("writing the rules of clients"))?;
        data::give(&rules, self.user)
    }

    fn clean_up(&self, data: &Path) {
        data::remove_segment(data);
    }
}
