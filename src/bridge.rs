//! A store over two stores, for a move from one to the other: of two backends, and of two URLs.

use leasehold_bridge::Bridge;
use leasehold_core::seam::Backend;
use leasehold_core::{Error, ErrorKind, Result};

use crate::connect_backend;

/// Makes one store of two: it holds in both, so that a fleet moves from `old` to `new` by two rolling deploys.
///
/// Each of them is a client that nothing else uses. They are asked whether they are fit for each other ([`Bridge::check`]). For
/// [`connect`](crate::connect), it is `bridge+OLD NEW`: two URLs with a space between them.
///
/// # Errors
///
/// - [`Invalid`](ErrorKind::Invalid): both are the same store.
/// - [`Unsupported`](ErrorKind::Unsupported), with the reason: the promises cannot be kept for this pair ([`Bridge::new`]).
/// - What a store fails with; the message says which of them.
///
/// # Cancel safety
///
/// If the future is dropped, both clients are, and a lock that was taken in the old store for the check is gone after a few
/// seconds.
///
/// # Examples
///
/// ```
/// # #[tokio::main] async fn main() -> leasehold::Result<()> {
/// let old = leasehold::connect_backend("memory://").await?;
/// let new = leasehold::connect_backend("memory://").await?;
/// let store = leasehold::Store::new(leasehold::bridge(old, new).await?);
/// store.lock("orders/42").acquire().await?.release().await
/// # }
/// ```
pub async fn bridge(old: impl Backend, new: impl Backend) -> Result<Bridge> {
    let bridge = Bridge::new(old, new)?;
    bridge.check().await?;
    Ok(bridge)
}

/// What `bridge+` stands before.
pub(crate) async fn connect(urls: &str) -> Result<Bridge> {
    let urls: Vec<&str> = urls.split_whitespace().collect();
    let invalid = |text| Err(Error::new(ErrorKind::Invalid, text));
    let [old, new] = urls[..] else {
        return invalid(
            "a bridge is between two stores, with one space between their URLs: bridge+redis://old etcd://new",
        );
    };
    if old == new {
        return invalid("a bridge is between two stores, and both URLs are the same");
    }
    if [old, new].iter().any(|url| url.starts_with(PREFIX)) {
        return invalid("a bridge is between two stores, neither of which is a bridge");
    }
    let (old, new) = (Box::pin(connect_backend(old)).await, Box::pin(connect_backend(new)).await);
    let names = |which: &str, e: Error| Error::new(e.kind(), format!("the {which} store: {e}")).with_source(e);
    bridge(old.map_err(|e| names("old", e))?, new.map_err(|e| names("new", e))?).await
}

/// What stands before the URLs of two stores.
pub(crate) const PREFIX: &str = "bridge+";
