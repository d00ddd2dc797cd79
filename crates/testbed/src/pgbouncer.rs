//! Private PgBouncers in front of a PostgreSQL server.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
};

use async_trait::async_trait;

use crate::{
    error::{Error, Result},
    find::Program,
    ports,
    postgres::Postgres,
    postgres_data::{self as data, PASSWORD, SUPERUSER, USER},
    postgres_wire,
    process::{Manner, User},
    server::{self, Launch, Probe, Server},
};

/// The options of a private PgBouncer. The default assigns a server's connection for each
/// transaction, as most do.
#[derive(Clone, Debug)]
pub struct PgBouncerOptions {
    /// The time for which a server's connection is assigned: `session`, `transaction` or
    /// `statement`.
    pub pool_mode: &'static str,
    /// The number of connections to the server for each role.
    pub pool_size: u32,
    /// More lines of its configuration.
    pub extra: Vec<String>,
}

impl Default for PgBouncerOptions {
    fn default() -> Self {
        Self {
            pool_mode: "transaction",
            pool_size: 8,
            extra: Vec::new(),
        }
    }
}

/// A private PgBouncer; see [`Server`] for the controls of its process. It may start before its
/// server, and outlive it.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
    socket: PathBuf,
}

impl PgBouncer {
    /// Starts a PgBouncer in front of this server, and waits until it answers.
    pub async fn start(postgres: &Postgres) -> Result<Self> {
        Self::start_with(postgres.addr(), &PgBouncerOptions::default()).await
    }

    /// Starts a PgBouncer in front of a server at this address, which may be a
    /// [`Proxy`](crate::Proxy) to it.
    pub async fn start_with(server: &str, options: &PgBouncerOptions) -> Result<Self> {
        server::started(|| async {
            let pooler = Self::launch(server, options)?;
            pooler.until_ready().await.map(|()| pooler)
        })
        .await
    }

    /// The URL for clients, with the roles of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!(
            "postgres://{USER}:{PASSWORD}@{}/{}",
            self.addr(),
            Postgres::DATABASE
        )
    }

    /// Sends a command to its console, such as `SHOW POOLS`, `RECONNECT` or `RELOAD`.
    pub async fn console(&self, words: &str) -> Result<Vec<Vec<Option<String>>>> {
        postgres_wire::query(&self.socket, SUPERUSER, "pgbouncer", words).await
    }

    fn launch(server: &str, options: &PgBouncerOptions) -> Result<Self> {
        let program = Program::PgBouncer.find()?;
        let user = data::not_root()?;
        let folder = server::folder("pgbouncer")?;
        data::give(folder.path(), user)?;
        let [port] = ports::free()?;
        let sockets = folder.path().to_owned();
        let (host, server_port) = server
            .rsplit_once(':')
            .ok_or_else(|| Error::answer("the server of a PgBouncer", server))?;
        let data = folder.path().join("data");
        let mut text = format!(
            "[databases]\n* = host={host} port={server_port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir = {sockets}\nauth_type = hba\nauth_hba_file = {data}/hba.conf\n\
             auth_file = {data}/users.txt\nadmin_users = {SUPERUSER}\npool_mode = {}\ndefault_pool_size = {}\n\
             max_client_conn = 500\nserver_login_retry = 1\n",
            options.pool_mode,
            options.pool_size,
            sockets = sockets.display(),
            data = data.display(),
        );
        for line in &options.extra {
            text += &format!("{line}\n");
        }
        let users = [USER, SUPERUSER]
            .map(|user| format!("\"{user}\" \"{PASSWORD}\"\n"))
            .concat();
        let rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n".to_owned();
        let seed = vec![
            ("pgbouncer.ini", text),
            ("users.txt", users),
            ("hba.conf", rules),
        ];
        let args = vec![data.join("pgbouncer.ini").display().to_string()];
        let socket = sockets.join(format!(".s.PGSQL.{port}"));
        let probe = Box::new(Answers {
            socket: socket.clone(),
            user,
        });
        let manner = Manner {
            user,
            ..Manner::default()
        };
        let launch = Launch {
            name: "pgbouncer",
            program,
            args,
            port,
            folder,
            data,
            seed,
            probe,
            manner,
        };
        Ok(Self {
            server: Server::launch(launch)?,
            socket,
        })
    }
}

impl Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Ready once it answers at the socket in its own folder, where no other one is.
#[derive(Debug)]
struct Answers {
    socket: PathBuf,
    user: Option<User>,
}

#[async_trait]
impl Probe for Answers {
    async fn ask(&self, _addr: &str, _pid: u32) -> Result<()> {
        postgres_wire::query(&self.socket, SUPERUSER, "pgbouncer", "SHOW VERSION")
            .await
            .map(drop)
    }

    fn prepare(&self, data: &Path) -> Result<()> {
        data::give(data, self.user)?;
        let files = fs::read_dir(data).map_err(Error::io("reading the folder of a PgBouncer"))?;
        files
            .flatten()
            .try_for_each(|file| data::give(&file.path(), self.user))
    }
}
