//! The PostgreSQL store of Leasehold.

mod config;
mod scripts;

use std::fmt;

use leasehold_core::seam::{Backend, Claim, Claimed, LeaseRef, Place, Renewal, async_trait};
use leasehold_core::{Error, ErrorKind, FencingToken, Guarantees, LockQueue, Name, Result};

pub use crate::config::Config;
pub use crate::scripts::{HELD, held, migration};
#[cfg(feature = "tls")]
pub use leasehold_tls::Tls;

/// A PostgreSQL database as a store of locks.
pub struct Postgres(Config);

impl Postgres {
    /// Connects to `postgres://user:password@host[:port]/database[?…]`: see [`Config::from_url`].
    ///
    /// # Errors
    ///
    /// Those of [`Config::from_url`] and [`with_config`](Postgres::with_config).
    pub async fn connect(url: &str) -> Result<Postgres> {
        Postgres::with_config(Config::from_url(url)?).await
    }

    /// Connects as the configuration says.
    pub async fn with_config(config: Config) -> Result<Postgres> {
        config.check()?;
        let _ = (config.connections, config.install, config.server.user().await?);
        Ok(Postgres(config))
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({:?})", self.0)
    }
}

fn not_yet<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "this store is not complete yet"))
}

#[async_trait]
impl Backend for Postgres {
    async fn claim(&self, _claim: &Claim) -> Result<Claimed> {
        not_yet()
    }

    async fn renew(&self, _leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        not_yet()
    }

    async fn release(&self, _claim: &Claim, _place: Option<&Place>) -> Result<()> {
        not_yet()
    }

    async fn inspect(&self, _name: &Name) -> Result<LockQueue> {
        not_yet()
    }

    async fn list(&self, _prefix: &str, _after: Option<&Name>, _limit: usize) -> Result<Vec<Name>> {
        not_yet()
    }

    async fn evict(&self, _name: &Name, _token: FencingToken) -> Result<bool> {
        not_yet()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("postgres")
    }
}
