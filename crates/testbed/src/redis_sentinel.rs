//! A Redis master with replicas, and the sentinels that watch it.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    redis::{Redis, RedisOptions},
    resp::Reply,
    server,
};

const GLANCE: Duration = Duration::from_millis(20);
/// The time limit for all to be ready. Sentinels learn of each other every two seconds.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The options of the group. The default has two replicas, three sentinels, nothing on disk and no
/// password.
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    /// The options of each server.
    pub servers: RedisOptions,
    /// The number of the master's replicas.
    pub replicas: usize,
    /// The number of sentinels that watch it; a majority of them decides.
    pub sentinels: usize,
    /// The password that sentinels want from clients and from each other.
    pub password: Option<String>,
    /// The time without an answer after which a server counts as down. The default is long, so that
    /// a failover happens only on demand.
    pub down_after: Duration,
}

impl Default for SentinelOptions {
    fn default() -> Self {
        let down_after = Duration::from_secs(600);
        Self {
            servers: RedisOptions::default(),
            replicas: 2,
            sentinels: 3,
            password: None,
            down_after,
        }
    }
}

/// A master, its replicas and their sentinels. Kill, pause or restart any of them.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    options: SentinelOptions,
}

impl RedisSentinel {
    /// The name by which the sentinels know the master.
    pub const MASTER: &str = "locks";

    /// Starts all servers and sentinels, and waits until the replicas follow and all sentinels know
    /// each other.
    pub async fn start() -> Result<Self> {
        Self::start_with(&SentinelOptions::default()).await
    }

    /// Starts all servers and sentinels with these options, and waits until they are ready.
    pub async fn start_with(options: &SentinelOptions) -> Result<Self> {
        server::started(|| Self::launch(options)).await
    }

    async fn launch(options: &SentinelOptions) -> Result<Self> {
        let master = Redis::start_with(&with(&options.servers, &[])).await?;
        let mut this = Self {
            servers: vec![master],
            sentinels: Vec::new(),
            options: options.clone(),
        };
        let port = this.servers[0].port().to_string();
        for _ in 0..options.replicas {
            this.servers.push(
                Redis::start_with(&with(
                    &options.servers,
                    &["--replicaof", "127.0.0.1", &port],
                ))
                .await?,
            );
        }
        let configuration = this.configuration(Self::MASTER, &port);
        for _ in 0..options.sentinels {
            this.sentinels.push(Redis::launch_sentinel(
                &configuration,
                options.password.clone(),
            )?);
        }
        for sentinel in &this.sentinels {
            sentinel.until_ready().await?;
        }
        let ready = async {
            while !this.is_ready().await {
                tokio::time::sleep(GLANCE).await;
            }
        };
        let late = |_| {
            Error::answer(
                "redis-sentinel",
                "the sentinels do not know each other and all replicas",
            )
        };
        tokio::time::timeout(READY_WITHIN, ready)
            .await
            .map_err(late)?;
        Ok(this)
    }

    fn configuration(&self, name: &str, port: &str) -> String {
        let SentinelOptions {
            servers,
            sentinels,
            password,
            down_after,
            ..
        } = &self.options;
        let mut text = format!(
            "sentinel monitor {name} 127.0.0.1 {port} {}\nsentinel down-after-milliseconds {name} {}\n\
            sentinel failover-timeout {name} 5000\n",
            sentinels / 2 + 1,
            down_after.as_millis(),
        );
        if let Some(password) = &servers.password {
            text += &format!("sentinel auth-pass {name} {password}\n");
        }
        if let Some(password) = password {
            text += &format!("sentinel sentinel-pass {password}\n");
        }
        text
    }

    /// Returns whether all sentinels see all servers up and each other, and the replicas have the
    /// master's data.
    pub async fn is_ready(&self) -> bool {
        let SentinelOptions {
            replicas,
            sentinels,
            ..
        } = self.options;
        for sentinel in &self.sentinels {
            let Ok(reply) = sentinel
                .command(&["SENTINEL", "MASTER", Self::MASTER])
                .await
            else {
                return false;
            };
            let facts = pairs(&reply);
            let fact = |name: &str| {
                facts
                    .iter()
                    .find(|(key, _)| key == name)
                    .map(|(_, value)| value.as_str())
            };
            let known = (
                fact("num-slaves"),
                fact("num-other-sentinels"),
                fact("flags"),
            );
            let slaves = replicas.to_string();
            let others = (sentinels - 1).to_string();
            if known != (Some(&*slaves), Some(&*others), Some("master")) {
                return false;
            }
        }
        let Some(master) = self.master().await else {
            return false;
        };
        let info = self.servers[master]
            .info("replication")
            .await
            .unwrap_or_default();
        info.matches("state=online").count() == replicas
    }

    /// The index of the server that the first sentinel with an answer names as the master.
    pub async fn master(&self) -> Option<usize> {
        for sentinel in &self.sentinels {
            if let Ok(Reply::Array(words)) = sentinel
                .command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::MASTER])
                .await
            {
                let port = words.get(1).and_then(Reply::text)?;
                return self
                    .servers
                    .iter()
                    .position(|server| server.port().to_string() == port);
            }
        }
        None
    }

    /// Orders a failover, as an operator does: the master stays alive, and becomes a replica some
    /// seconds later.
    ///
    /// # Errors
    ///
    /// [`Error::Answer`] if the sentinels cannot do it now.
    pub async fn fail_over(&self) -> Result<()> {
        let sentinel = self
            .sentinels
            .first()
            .ok_or_else(|| Error::answer("redis-sentinel", "there is none"))?;
        sentinel
            .command(&["SENTINEL", "FAILOVER", Self::MASTER])
            .await
            .map(drop)
    }

    /// Has all sentinels also watch the server at this address by another name: a proxy of the
    /// master.
    pub async fn watch_too(&self, name: &str, port: u16) -> Result<()> {
        let port = port.to_string();
        let down = self.options.down_after.as_millis().to_string();
        for sentinel in &self.sentinels {
            sentinel
                .command(&["SENTINEL", "MONITOR", name, "127.0.0.1", &port, "2"])
                .await?;
            sentinel
                .command(&["SENTINEL", "SET", name, "down-after-milliseconds", &down])
                .await?;
            if let Some(password) = &self.options.servers.password {
                sentinel
                    .command(&["SENTINEL", "SET", name, "auth-pass", password])
                    .await?;
            }
        }
        Ok(())
    }

    /// The servers: the initial master first, then its replicas.
    #[must_use]
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The URL for clients, with the passwords that are set.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(Self::MASTER)
    }

    /// The URL for the master that the sentinels know by this name.
    #[must_use]
    pub fn url_of(&self, name: &str) -> String {
        let hosts: Vec<&str> = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.addr())
            .collect();
        let password = self
            .options
            .servers
            .password
            .as_ref()
            .map(|it| format!(":{it}@"))
            .unwrap_or_default();
        let own = self
            .options
            .password
            .as_ref()
            .map(|it| format!("?sentinel_password={it}"))
            .unwrap_or_default();
        format!("redis+sentinel://{password}{}/{name}{own}", hosts.join(","))
    }
}

/// The options of each server: replicas copy at once, with the password that all have.
fn with(options: &RedisOptions, more: &[&str]) -> RedisOptions {
    let mut extra = options.extra.clone();
    extra.extend(
        ["--repl-diskless-sync-delay", "0"]
            .iter()
            .chain(more)
            .map(|&word| word.to_owned()),
    );
    if let Some(password) = &options.password {
        extra.extend(["--masterauth".to_owned(), password.clone()]);
    }
    RedisOptions {
        extra,
        ..options.clone()
    }
}

fn pairs(reply: &Reply) -> Vec<(String, String)> {
    let Reply::Array(words) = reply else {
        return Vec::new();
    };
    let text = |reply: &Reply| reply.text().unwrap_or_default();
    words
        .chunks_exact(2)
        .map(|pair| (text(&pair[0]), text(&pair[1])))
        .collect()
}
