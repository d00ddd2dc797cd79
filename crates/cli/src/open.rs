//! From a URL to a store, and its end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold::{Result, Store};

use crate::store_url::StoreUrl;
use crate::waiting;

/// How long the requests that are still under way may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A store, and where the store has one, its life line: as long as a process has it, the store takes this client for alive. Else empty.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) life_line: Vec<OwnedFd>,
}

pub(crate) async fn open(url: &StoreUrl) -> Result<Opened> {
    url.check()?;
    url.make_folder()?;
    tracing::debug!(store = %url, "connecting");
    waiting::during(Box::pin(connect(url)), "connecting", &format!("to {url}")).await
}

async fn connect(url: &StoreUrl) -> Result<Opened> {
    #[cfg(feature = "sqlite")]
    if url.secret().starts_with("sqlite://") {
        let config = leasehold::sqlite::Config::from_url(url.secret())?.at_once();
        let backend = leasehold::sqlite::Sqlite::with_config(config).await?;
        let life_line = backend.life_line().await?.into();
        return Ok(Opened { store: Store::new(backend), life_line });
    }
    let store = Box::pin(leasehold::connect(url.secret())).await?;
    Ok(Opened { store, life_line: Vec::new() })
}

/// Lets the background releases be answered, and ends the client.
pub(crate) async fn close(store: &Store) {
    if let Err(e) = store.close(CLOSE_TIMEOUT).await {
        tracing::debug!(error = %e, "closing the store");
    }
}
