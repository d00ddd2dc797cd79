//! Private Redis servers.

use std::{collections::BTreeMap, ops::Deref};

use async_trait::async_trait;

use crate::{
    clock,
    error::{Error, Result},
    find::Program,
    ports,
    process::Manner,
    resp::{Connection, Reply},
    server::{self, Launch, Probe, Server},
};

/// The options of a private Redis. The default keeps nothing on disk and asks for no password.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    /// Every write reaches the disk before it is answered, so a restart with data forgets nothing
    /// acknowledged.
    pub persistent: bool,
    /// The password that clients have to give.
    pub password: Option<String>,
    /// More arguments for `redis-server`, such as `["--maxmemory", "3mb"]`.
    pub extra: Vec<String>,
    /// Its wall clock can be stepped: [`Server::step_clock`].
    pub clock: bool,
}

/// A private Redis server; see [`Server`] for the controls of its process.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    password: Option<String>,
}

impl Redis {
    /// Starts a server that keeps nothing on disk and waits until it answers.
    pub async fn start() -> Result<Self> {
        Self::start_with(&RedisOptions::default()).await
    }

    /// Starts a server and waits until it answers.
    pub async fn start_with(options: &RedisOptions) -> Result<Self> {
        server::started(|| async {
            let redis = Self::launch(options)?;
            redis.until_ready().await.map(|()| redis)
        })
        .await
    }

    /// Starts several servers that do not know each other, as Redlock needs them.
    pub async fn start_many(count: usize) -> Result<Vec<Self>> {
        Self::start_many_with(count, &RedisOptions::default()).await
    }

    /// Starts several servers that share the options.
    pub async fn start_many_with(count: usize, options: &RedisOptions) -> Result<Vec<Self>> {
        let mut servers = Vec::with_capacity(count);
        for _ in 0..count {
            servers.push(Self::start_with(options).await?);
        }
        Ok(servers)
    }

    /// The URL for clients, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@{}", self.addr()),
            None => format!("redis://{}", self.addr()),
        }
    }

    /// Sends one command over a connection of its own, after authenticating if a password is set.
    ///
    /// # Errors
    ///
    /// A refusal (`-ERR …`) is [`Error::Answer`].
    pub async fn command(&self, words: &[&str]) -> Result<Reply> {
        Connection::open(self.addr(), self.password.as_deref())
            .await?
            .command(words)
            .await
    }

    /// The number of calls of each command since the start or the last
    /// [`Redis::reset_commandstats`], by lower-case name.
    ///
    /// The testbed's own questions (`info`, `auth`, `ping`, `config|resetstat`) are counted, too.
    /// The calls of a script are counted beside the `eval` or `evalsha` that made them.
    pub async fn commandstats(&self) -> Result<BTreeMap<String, u64>> {
        let stats = self.info("commandstats").await?;
        let parsed = stats.lines().filter_map(|line| {
            let (command, facts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let calls = facts
                .strip_prefix("calls=")?
                .split(',')
                .next()?
                .parse()
                .ok()?;
            Some((command.to_owned(), calls))
        });
        Ok(parsed.collect())
    }

    /// Resets the counters of calls to zero.
    pub async fn reset_commandstats(&self) -> Result<()> {
        self.command(&["CONFIG", "RESETSTAT"]).await.map(drop)
    }

    /// Asks for one section of `INFO`.
    pub async fn info(&self, section: &str) -> Result<String> {
        let reply = self.command(&["INFO", section]).await?;
        Ok(reply.text().unwrap_or_default())
    }

    /// The number of keys. Keys that expired but were not yet removed are among them.
    pub async fn dbsize(&self) -> Result<u64> {
        let reply = self.command(&["DBSIZE"]).await?;
        let count = reply.integer().and_then(|count| u64::try_from(count).ok());
        count.ok_or_else(|| Error::answer("redis DBSIZE", format!("{reply:?}")))
    }

    /// The keys that match a pattern (`*` for all), sorted.
    pub async fn keys(&self, pattern: &str) -> Result<Vec<String>> {
        match self.command(&["KEYS", pattern]).await? {
            Reply::Array(keys) => {
                let mut keys: Vec<String> = keys.iter().filter_map(Reply::text).collect();
                keys.sort();
                Ok(keys)
            }
            other => Err(Error::answer("redis KEYS", format!("{other:?}"))),
        }
    }

    fn launch(options: &RedisOptions) -> Result<Self> {
        let folder = server::folder("redis")?;
        let [port] = ports::free()?;
        let data = folder.path().join("data");
        let mut args: Vec<String> = [
            "--bind",
            "127.0.0.1",
            "--protected-mode",
            "no",
            "--daemonize",
            "no",
            "--save",
            "",
        ]
        .map(String::from)
        .into();
        args.extend([
            "--port".into(),
            port.to_string(),
            "--dir".into(),
            data.display().to_string(),
        ]);
        let persistence: &[&str] = match options.persistent {
            true => &["--appendonly", "yes", "--appendfsync", "always"],
            false => &["--appendonly", "no"],
        };
        args.extend(persistence.iter().map(|&word| word.to_owned()));
        if let Some(password) = &options.password {
            args.extend(["--requirepass".into(), password.clone()]);
        }
        args.extend(options.extra.iter().cloned());
        let probe = Box::new(Answers {
            password: options.password.clone(),
        });
        let mut program = Program::RedisServer.find()?;
        if options.clock {
            (program, args, _) = clock::start_by(folder.path(), &program, args)?;
        }
        let launch = Launch {
            name: "redis-server",
            program,
            args,
            port,
            folder,
            data,
            seed: Vec::new(),
            probe,
            manner: Manner::default(),
        };
        Ok(Self {
            server: Server::launch(launch)?,
            password: options.password.clone(),
        })
    }

    /// Starts a Sentinel with these lines of configuration, beside the lines that every Sentinel
    /// needs, and waits until it answers, as a server does. [`RedisSentinel`](crate::RedisSentinel)
    /// is a whole group of them.
    pub async fn start_sentinel(configuration: &str) -> Result<Self> {
        server::started(|| async {
            let sentinel = Self::launch_sentinel(configuration, None)?;
            sentinel.until_ready().await.map(|()| sentinel)
        })
        .await
    }

    pub(crate) fn launch_sentinel(configuration: &str, password: Option<String>) -> Result<Self> {
        let folder = server::folder("sentinel")?;
        let [port] = ports::free()?;
        let data = folder.path().join("data");
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\ndaemonize no\ndir {}\n{configuration}",
            data.display()
        );
        if let Some(password) = &password {
            text += &format!("requirepass {password}\n");
        }
        let args = vec![data.join("sentinel.conf").display().to_string()];
        let probe = Box::new(Answers {
            password: password.clone(),
        });
        let name = "redis-sentinel";
        let program = Program::RedisSentinel.find()?;
        let seed = vec![("sentinel.conf", text)];
        let launch = Launch {
            name,
            program,
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
            password,
        })
    }
}

impl Deref for Redis {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Ready once it answers, is the process that was started, and has loaded its data.
#[derive(Debug)]
struct Answers {
    password: Option<String>,
}

#[async_trait]
impl Probe for Answers {
    async fn ask(&self, addr: &str, pid: u32) -> Result<()> {
        let mut connection = Connection::open(addr, self.password.as_deref()).await?;
        connection.command(&["PING"]).await?;
        let info = connection
            .command(&["INFO", "server"])
            .await?
            .text()
            .unwrap_or_default();
        match info
            .lines()
            .find_map(|line| line.strip_prefix("process_id:"))
        {
            Some(id) if id.trim() == pid.to_string() => Ok(()),
            other => Err(Error::answer(
                "redis INFO server",
                format!("process {other:?}, not {pid}"),
            )),
        }
    }
}
