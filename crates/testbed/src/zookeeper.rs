//! Private ZooKeeper servers.

use std::{
    collections::BTreeMap,
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    certificates::TlsPort,
    error::{Error, Result},
    ports,
    process::Manner,
    server::{self, Launch, Probe, Server},
    zookeeper_java::Java,
};

/// The options of a private ZooKeeper.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    /// The server's unit of time. Sessions are expired at multiples of it.
    pub tick: Duration,
    /// The shortest session timeout a client can get.
    pub min_session: Duration,
    /// The longest session timeout a client can get.
    pub max_session: Duration,
    /// The number of ticks that a follower may take to join its leader.
    pub init_limit: u32,
    /// The number of ticks that a follower may go without its leader before it gives up: until then
    /// it goes on answering reads.
    pub sync_limit: u32,
    /// More lines for `zoo.cfg`.
    pub extra: Vec<String>,
    /// The TLS port, beside the plain one. The members of an ensemble show copies of this
    /// certificate, each at a port of its own: [`ZooKeeper::tls_addr`].
    pub tls: Option<TlsPort>,
    /// Accounts for SASL with DIGEST-MD5, each a user and a password. Changing them takes a restart
    /// of the server.
    pub accounts: Vec<(String, String)>,
    /// The members of an ensemble talk to each other through proxies, so that one can be isolated:
    /// [`ZooKeeperEnsemble::isolate`](crate::ZooKeeperEnsemble::isolate). A single server ignores
    /// this.
    pub peer_proxies: bool,
    /// A member without a quorum goes on serving clients that only read (`readonlymode.enabled`).
    pub read_only_mode: bool,
}

impl Default for ZooKeeperOptions {
    /// Ticks of 200 ms, so that a session of 400 ms is possible and an expiry does not take seconds.
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(200),
            min_session: Duration::from_millis(400),
            max_session: Duration::from_secs(60),
            init_limit: 50,
            sync_limit: 25,
            extra: Vec::new(),
            tls: None,
            accounts: Vec::new(),
            peer_proxies: false,
            read_only_mode: false,
        }
    }
}

/// A private ZooKeeper server; see [`Server`] for the controls of its process.
#[derive(Debug)]
pub struct ZooKeeper {
    server: Server,
    tls: Option<String>,
}

impl ZooKeeper {
    /// Starts a standalone server and waits until it serves.
    pub async fn start() -> Result<Self> {
        Self::start_with(&ZooKeeperOptions::default()).await
    }

    /// Starts a standalone server and waits until it serves.
    pub async fn start_with(options: &ZooKeeperOptions) -> Result<Self> {
        let java = Java::of_tests().await?;
        server::started(|| async {
            let [port] = ports::free()?;
            let zookeeper = Self::launch(&java, options, port, None)?;
            zookeeper.until_ready().await.map(|()| zookeeper)
        })
        .await
    }

    /// The address to which clients connect over TLS, if the server has TLS: `host:port`.
    #[must_use]
    pub fn tls_addr(&self) -> Option<&str> {
        self.tls.as_deref()
    }

    /// Replaces the accounts for SASL. The server reads them at its next start.
    pub fn set_accounts(&self, accounts: &[(String, String)]) -> Result<()> {
        let folder = self.data().parent().unwrap_or(Path::new("/"));
        fs::write(folder.join(JAAS), jaas(accounts)).map_err(Error::io("writing the accounts"))
    }

    /// Changes the limits of session timeouts. The server reads them at its next start.
    pub fn set_sessions(&self, min: Duration, max: Duration) -> Result<()> {
        let config = self.data().parent().unwrap_or(Path::new("/")).join(CONFIG);
        let text = fs::read_to_string(&config).map_err(Error::io("reading zoo.cfg"))?;
        let is_limit = |line: &&str| {
            line.starts_with("minSessionTimeout=") || line.starts_with("maxSessionTimeout=")
        };
        let others = text
            .lines()
            .filter(|line| !is_limit(line))
            .map(str::to_owned);
        let lines: Vec<String> = others.chain(sessions(min, max)).collect();
        fs::write(&config, lines.join("\n")).map_err(Error::io("writing zoo.cfg"))
    }

    /// Sends a four-letter word, such as `srvr` or `cons`, and returns the answer.
    pub async fn four_letter_word(&self, word: &str) -> Result<String> {
        four_letter_word(self.addr(), word).await
    }

    /// The server's own counters, by name (`zk_…`).
    pub async fn mntr(&self) -> Result<BTreeMap<String, String>> {
        let answer = self.four_letter_word("mntr").await?;
        let parsed = answer.lines().filter_map(|line| line.split_once('\t'));
        Ok(parsed
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect())
    }

    /// The number of packets that the server received from clients.
    ///
    /// Everything counts: connect requests, each session's pings, and every four-letter word, this
    /// one included. Two calls in a row over an idle server therefore differ by one, and a test
    /// that counts requests subtracts that and keeps its session's pings out by being quicker than
    /// a third of the session timeout.
    pub async fn packets_received(&self) -> Result<u64> {
        self.mntr_number("zk_packets_received").await
    }

    /// The number of ephemeral nodes.
    pub async fn ephemerals_count(&self) -> Result<u64> {
        self.mntr_number("zk_ephemerals_count").await
    }

    /// The number of nodes, the server's own included.
    pub async fn znode_count(&self) -> Result<u64> {
        self.mntr_number("zk_znode_count").await
    }

    /// The number of watches.
    pub async fn watch_count(&self) -> Result<u64> {
        self.mntr_number("zk_watch_count").await
    }

    /// The number of connected clients, without the asking connection.
    pub async fn connection_count(&self) -> Result<u64> {
        self.mntr_number("zk_num_alive_connections")
            .await
            .map(|count| count.saturating_sub(1))
    }

    /// The mode: `standalone`, `leader` or `follower`.
    pub async fn mode(&self) -> Result<String> {
        mode(self.addr()).await
    }

    async fn mntr_number(&self, name: &str) -> Result<u64> {
        let mntr = self.mntr().await?;
        let value = mntr.get(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| Error::answer(format!("mntr {name}"), format!("{mntr:?}")))
    }

    /// Starts a server without waiting for it. A member of an ensemble is given its number and its
    /// view of the members.
    pub(crate) fn launch(
        java: &Java,
        options: &ZooKeeperOptions,
        port: u16,
        member: Option<(usize, &[String])>,
    ) -> Result<Self> {
        let folder = server::folder("zookeeper")?;
        let data = folder.path().join("data");
        let config = folder.path().join(CONFIG);
        let mut lines = vec![
            format!("dataDir={}", data.display()),
            format!("clientPort={port}"),
            "clientPortAddress=127.0.0.1".into(),
            format!("tickTime={}", options.tick.as_millis()),
            format!("initLimit={}", options.init_limit),
            format!("syncLimit={}", options.sync_limit),
            "maxClientCnxns=0".into(),
            "admin.enableServer=false".into(),
            "4lw.commands.whitelist=*".into(),
            "extendedTypesEnabled=true".into(),
        ];
        lines.extend(sessions(options.min_session, options.max_session));
        let mut seed = Vec::new();
        if let Some((id, view)) = member {
            lines.extend(view.iter().cloned());
            seed.push(("myid", id.to_string()));
        }
        if let Some(tls) = &options.tls {
            lines.extend(tls.zookeeper()?);
        }
        let mut args = java.args.clone();
        if options.read_only_mode {
            args.push("-Dreadonlymode.enabled=true".into());
        }
        if !options.accounts.is_empty() {
            let accounts = folder.path().join(JAAS);
            fs::write(&accounts, jaas(&options.accounts))
                .map_err(Error::io("writing the accounts"))?;
            args.push(format!(
                "-Djava.security.auth.login.config={}",
                accounts.display()
            ));
            lines.push(
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
                    .into(),
            );
        }
        lines.extend(options.extra.iter().cloned());
        fs::write(&config, lines.join("\n")).map_err(Error::io("writing zoo.cfg"))?;
        args.extend([
            "org.apache.zookeeper.server.quorum.QuorumPeerMain".into(),
            config.display().to_string(),
        ]);
        let tls = options.tls.as_ref().map(TlsPort::addr);
        let probe = Box::new(Serves {
            data: data.clone(),
            tls: tls.clone(),
        });
        let launch = Launch {
            name: "zookeeper",
            program: java.program.clone(),
            args,
            port,
            folder,
            data,
            seed,
            probe,
            manner: Manner::default(),
        };
        Ok(Self {
            server: Server::launch(launch)?,
            tls,
        })
    }
}

/// The name of the configuration file.
const CONFIG: &str = "zoo.cfg";

fn sessions(min: Duration, max: Duration) -> [String; 2] {
    [("min", min), ("max", max)]
        .map(|(which, limit)| format!("{which}SessionTimeout={}", limit.as_millis()))
}

/// The file with the accounts for SASL.
const JAAS: &str = "jaas.conf";

fn jaas(accounts: &[(String, String)]) -> String {
    let users: Vec<String> = accounts
        .iter()
        .map(|(user, password)| format!("user_{user}=\"{password}\""))
        .collect();
    format!(
        "Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required {}; }};",
        users.join(" ")
    )
}

impl Deref for ZooKeeper {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Ready once it serves, with its data in this server's folder.
#[derive(Debug)]
struct Serves {
    data: PathBuf,
    /// The TLS address, which the server begins to serve last.
    tls: Option<String>,
}

#[async_trait]
impl Probe for Serves {
    async fn ask(&self, addr: &str, _pid: u32) -> Result<()> {
        mode(addr).await?;
        let conf = four_letter_word(addr, "conf").await?;
        let ours = conf.lines().any(|line| {
            line.starts_with("dataDir=") && line.contains(&*self.data.to_string_lossy())
        });
        if !ours {
            return Err(Error::answer("conf", conf));
        }
        match &self.tls {
            Some(tls) => TcpStream::connect(tls)
                .await
                .map(drop)
                .map_err(Error::io("connecting to the TLS port")),
            None => Ok(()),
        }
    }

    async fn leads(&self, addr: &str) -> Result<bool> {
        Ok(mode(addr).await? == "leader")
    }
}

async fn mode(addr: &str) -> Result<String> {
    let answer = four_letter_word(addr, "srvr").await?;
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    mode.map(str::to_owned)
        .ok_or_else(|| Error::answer("srvr", answer.clone()))
}

async fn four_letter_word(addr: &str, word: &str) -> Result<String> {
    let what = || Error::io(format!("asking zookeeper at {addr} for {word}"));
    let mut stream = TcpStream::connect(addr).await.map_err(what())?;
    stream.write_all(word.as_bytes()).await.map_err(what())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(what())?;
    Ok(answer)
}
