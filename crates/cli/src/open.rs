//! Opens the store of a URL, and closes it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{Backend, Clock};
use leasehold::{Result, Store};

use crate::store_url::StoreUrl;
use crate::waiting;

/// The time limit for requests that are still under way, and for the end of the client. The
/// process ends then, and what a server that is silent has not heard ends with its lease.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A store and its life line. While any process has the life line open, the store does not take
/// this client for dead before its leases end. It is empty if the store has none.
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

/// Opens a store for a command that only looks, or ends a hold. The command takes no lock, and
/// begins no file anew before it has to write.
pub(crate) async fn open_to_look(url: &StoreUrl) -> Result<Store> {
    url.check()?;
    url.make_folder()?;
    tracing::debug!(store = %url, "connecting");
    let connecting = Box::pin(connect_backend(url, true));
    let backend = waiting::during(connecting, "connecting", &format!("to {url}")).await?;
    Ok(Store::new(backend))
}

/// `looks`: the command only reads, as a rule.
pub(crate) async fn connect_backend(url: &StoreUrl, looks: bool) -> Result<Arc<dyn Backend>> {
    #[cfg(feature = "sqlite")]
    if looks && url.secret().starts_with("sqlite://") {
        let config = leasehold::sqlite::Config::from_url(url.secret())?;
        let config = config.at_once().to_look();
        return Ok(Arc::new(
            leasehold::sqlite::Sqlite::with_config(config).await?,
        ));
    }
    #[cfg(not(feature = "sqlite"))]
    let _ = looks;
    Box::pin(leasehold::connect(url.secret()).backend()).await
}

async fn connect(url: &StoreUrl) -> Result<Opened> {
    #[cfg(feature = "sqlite")]
    if url.secret().starts_with("sqlite://") {
        let config = leasehold::sqlite::Config::from_url(url.secret())?.at_once();
        let backend = leasehold::sqlite::Sqlite::with_config(config).await?;
        let life_line = backend.life_line().await?.into();
        return Ok(Opened {
            store: Store::new(backend),
            life_line,
        });
    }
    let store = leasehold::connect(url.secret()).await?;
    Ok(Opened {
        store,
        life_line: Vec::new(),
    })
}

/// Waits until the background releases are answered, and ends the client.
pub(crate) async fn close(store: &Store) {
    let clock = Clock::boot();
    tokio::select! {
        closed = store.close(CLOSE_TIMEOUT) => {
            if let Err(e) = closed {
                tracing::debug!(error = %e, "closing the store");
            }
        }
        () = clock.sleep(CLOSE_TIMEOUT) => tracing::debug!("the store did not answer while it was closed"),
    }
}
