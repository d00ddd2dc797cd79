//! Other crates that lock on Redis, as their documentation says to use them.

use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use rslock::{LockGuard, LockManager};

use crate::servers::Server;
use crate::subject::{Result, Subject, TAKEN, TTL, Tries};

/// What they send.
pub const SENDS: &[&str] = &["set", "evalsha", "eval", "hello", "script|load"];

fn urls(server: &Server) -> Result<Vec<String>> {
    let Server::Redis(nodes) = server else {
        return Err("these talk to Redis".into());
    };
    Ok(nodes.iter().map(|node| node.url()).collect())
}

/// `rslock`, with its defaults: a waiter asks again after up to 200 ms.
#[derive(Clone)]
pub struct Rslock(LockManager);

impl Rslock {
    pub fn new(server: &Server) -> Result<Rslock> {
        Ok(Rslock::at(urls(server)?))
    }

    pub fn at(urls: Vec<String>) -> Rslock {
        Rslock(LockManager::new(urls))
    }
}

impl Subject for Rslock {
    type Held = LockGuard;

    async fn acquire(&self, name: &str) -> Result<LockGuard> {
        Ok(self
            .0
            .acquire(format!("rslock {name}").as_str(), TTL)
            .await?)
    }

    async fn release(&self, held: LockGuard) -> Result<()> {
        held.release().await;
        Ok(())
    }
}

/// `distributed-lock-redis`, which does not wait.
#[derive(Clone)]
pub struct DistributedLockRedis(std::sync::Arc<RedisLockProvider>);

impl DistributedLockRedis {
    pub async fn connect(server: &Server) -> Result<DistributedLockRedis> {
        let provider = RedisLockProvider::builder()
            .urls(&urls(server)?)
            .expiry(TTL)
            .build()
            .await?;
        Ok(DistributedLockRedis(std::sync::Arc::new(provider)))
    }
}

impl Subject for DistributedLockRedis {
    type Held = RedisLockHandle;

    async fn acquire(&self, name: &str) -> Result<RedisLockHandle> {
        Ok(self.try_acquire(name).await?.ok_or(TAKEN)?)
    }

    async fn release(&self, held: RedisLockHandle) -> Result<()> {
        Ok(held.release().await?)
    }
}

impl Tries for DistributedLockRedis {
    async fn try_acquire(&self, name: &str) -> Result<Option<RedisLockHandle>> {
        Ok(self
            .0
            .create_lock(&format!("distributed {name}"))
            .try_acquire()
            .await?)
    }
}
