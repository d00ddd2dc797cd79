//! leasehold.

use leasehold::{Guard, Options, Store};

use crate::servers::Server;
use crate::subject::{Result, Subject, TTL, Tries};

/// What its requests are on Redis.
pub const SENDS: &[&str] = &[
    "evalsha",
    "eval",
    "ping",
    "subscribe",
    "hello",
    "script|load",
];

#[derive(Clone)]
pub struct Ours {
    store: Store,
    options: Options,
}

impl Ours {
    pub async fn at(url: &str, options: Options) -> Result<Ours> {
        Ok(Ours {
            store: leasehold::connect(url).await?,
            options: options.ttl(TTL),
        })
    }

    /// As it is without options, which every store offers.
    pub async fn plain(server: &Server) -> Result<Ours> {
        Ours::at(&server.url(), Options::default()).await
    }

    pub async fn fair(server: &Server) -> Result<Ours> {
        Ours::at(&server.url(), Options::default().fair()).await
    }

    pub async fn fast(server: &Server) -> Result<Ours> {
        Ours::at(&server.url(), Options::default().fast()).await
    }
}

impl Subject for Ours {
    type Held = Guard;

    async fn acquire(&self, name: &str) -> Result<Guard> {
        Ok(self.store.lock(name).with(&self.options).acquire().await?)
    }

    async fn release(&self, held: Guard) -> Result<()> {
        Ok(held.release().await?)
    }
}

impl Tries for Ours {
    async fn try_acquire(&self, name: &str) -> Result<Option<Guard>> {
        match self
            .store
            .lock(name)
            .with(&self.options)
            .try_acquire()
            .await
        {
            Ok(guard) => Ok(Some(guard)),
            // Other errors stay errors.
            Err(refused) => refused.into_contention().map(|_| None).map_err(Into::into),
        }
    }
}
