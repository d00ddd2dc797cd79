//! A store over two stores, for a move from one to the other: of two backends, and of two URLs.

use leasehold_bridge::Bridge;
use leasehold_core::backend::Backend;
use leasehold_core::{Error, ErrorKind, Result};

use crate::connect::connect as connect_to;

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
/// let old = leasehold::connect("memory://").backend().await?;
/// let new = leasehold::connect("memory://").backend().await?;
/// let store = leasehold::Store::new(leasehold::bridge(old, new).await?);
/// store.lock("orders/42").acquire().await?.release().await
/// # }
/// ```
pub async fn bridge(old: impl Backend, new: impl Backend) -> Result<Bridge> {
    let bridge = Bridge::new(old, new)?;
    bridge.check().await?;
    Ok(bridge)
}

/// Connects to the two stores whose URLs follow `bridge+`, and makes a bridge of them.
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
    let old = Box::pin(connect_to(old).backend()).await;
    let new = Box::pin(connect_to(new).backend()).await;
    bridge(
        old.map_err(|e| e.in_context("the old store"))?,
        new.map_err(|e| e.in_context("the new store"))?,
    )
    .await
}

/// The prefix of the URLs of two stores.
pub(crate) const PREFIX: &str = "bridge+";
