//! Redis: the commands that every lock on one server sends.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Client, Script};

use crate::servers::Server;
use crate::subject::{Result, Subject, TAKEN, TTL, Tries};

/// What it sends, and what is inside of its script is not a request.
pub const SENDS: &[&str] = &["set", "evalsha", "ping"];

static COMPARE_AND_DELETE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
    )
});
static EMPTY: LazyLock<Script> = LazyLock::new(|| Script::new("return 1"));
const VALUE: &str = "0123456789abcdef0123456789abcdef";

async fn connections(server: &Server) -> Result<Vec<MultiplexedConnection>> {
    let Server::Redis(nodes) = server else {
        return Err("this talks to Redis".into());
    };
    let mut connections = Vec::new();
    for node in nodes {
        let mut connection = Client::open(node.url())?
            .get_multiplexed_async_connection()
            .await?;
        for script in [&COMPARE_AND_DELETE, &EMPTY] {
            script.prepare_invoke().load_async(&mut connection).await?;
        }
        connections.push(connection);
    }
    Ok(connections)
}

/// `SET NX PX`, and a script that compares and deletes: on every node at once, and all must agree.
#[derive(Clone)]
pub struct SetAndDelete(Vec<MultiplexedConnection>);

impl SetAndDelete {
    pub async fn connect(server: &Server) -> Result<SetAndDelete> {
        Ok(SetAndDelete(connections(server).await?))
    }

    /// Asks each node the same at once, and says whether all agree.
    async fn each<F>(&self, ask: impl Fn(MultiplexedConnection) -> F) -> Result<bool>
    where
        F: Future<Output = redis::RedisResult<bool>>,
    {
        // One needs no list of answers.
        Ok(match &self.0[..] {
            [one] => ask(one.clone()).await?,
            nodes => {
                let answers =
                    futures_util::future::try_join_all(nodes.iter().cloned().map(ask)).await?;
                answers.into_iter().all(|agreed| agreed)
            }
        })
    }
}

impl Subject for SetAndDelete {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        Ok(self.try_acquire(name).await?.ok_or(TAKEN)?)
    }

    async fn release(&self, key: String) -> Result<()> {
        let mut delete = COMPARE_AND_DELETE.key(&key);
        let delete = &*delete.arg(VALUE);
        match self
            .each(|mut node| async move { delete.invoke_async::<bool>(&mut node).await })
            .await?
        {
            true => Ok(()),
            false => Err("it was gone".into()),
        }
    }
}

impl Tries for SetAndDelete {
    async fn try_acquire(&self, name: &str) -> Result<Option<String>> {
        let key = format!("raw {name}");
        let millis = TTL.as_millis() as u64;
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(VALUE).arg("NX").arg("PX").arg(millis);
        let set = &set;
        let ask = |mut node| async move {
            set.query_async::<Option<String>>(&mut node)
                .await
                .map(|answer| answer.is_some())
        };
        Ok(self.each(ask).await?.then_some(key))
    }
}

/// Two scripts that do nothing, with as many keys and arguments as a lock has: the floor of whatever needs scripts.
#[derive(Clone)]
pub struct EmptyScripts(MultiplexedConnection);

impl EmptyScripts {
    pub async fn connect(server: &Server) -> Result<EmptyScripts> {
        Ok(EmptyScripts(connections(server).await?.swap_remove(0)))
    }

    async fn call(&self, name: &str) -> Result<()> {
        let mut call = EMPTY.key(format!("empty {name}"));
        call.key(format!("empty {name}:w"))
            .key("fence")
            .arg(VALUE)
            .arg(TTL.as_millis() as u64)
            .arg(1)
            .arg("label");
        let _: i64 = call.invoke_async(&mut self.0.clone()).await?;
        Ok(())
    }
}

impl Subject for EmptyScripts {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        self.call(name).await?;
        Ok(name.into())
    }

    async fn release(&self, name: String) -> Result<()> {
        self.call(&name).await
    }
}

/// Asks whether the server is there, in place of giving back.
#[derive(Clone)]
pub struct Ping(MultiplexedConnection);

impl Ping {
    pub async fn connect(server: &Server) -> Result<Ping> {
        Ok(Ping(connections(server).await?.swap_remove(0)))
    }
}

impl Subject for Ping {
    type Held = ();

    async fn acquire(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn release(&self, (): ()) -> Result<()> {
        Ok(redis::cmd("PING").query_async(&mut self.0.clone()).await?)
    }
}
