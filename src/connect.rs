//! From a URL to a store: one arm per scheme, and honest words for the rest.

use leasehold_core::seam::Backend;
use leasehold_core::{Error, ErrorKind, Result, Store};

/// Connects to the store that `url` names.
///
/// | URL | feature |
/// |---|---|
/// | `memory://` (a world of its own each time: share it by cloning the store) | `memory` |
/// | `redis://[user:password@]host:port[/db]` | `redis` |
/// | `redlock://[user:password@]host:port,host:port,host:port[/db]` | `redlock` |
/// | `etcd://[user:password@]host:port,host:port[/namespace]` | `etcd` |
/// | `zookeeper://[user:password@]host:port,host:port[/path]` | `zookeeper` |
/// | `sqlite:///absolute/path` | `sqlite` |
///
/// Each store's crate documents its parameters. A server that is set up to forget locks (Redis with an eviction policy, or
/// without persistence) is warned of, by `tracing` and in [`Guarantees::warnings`](crate::Guarantees::warnings).
///
/// # Errors
///
/// [`Invalid`](ErrorKind::Invalid) for text that is no URL of a known scheme; [`Unsupported`](ErrorKind::Unsupported) for a
/// known scheme whose feature is off, which it names, and for `sqlite://` on anything but Linux; otherwise what the store says, in bounded time:
/// [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied). No error shows the URL's credentials.
pub async fn connect(url: impl AsRef<str>) -> Result<Store> {
    Ok(Store::new(backend(url.as_ref().trim()).await?))
}

/// The same, with the store's client and its keeper on a thread of their own ([`Store::on_own_thread`]): for programs whose
/// runtime may be blocked for longer than a lease.
pub async fn connect_on_own_thread(url: impl AsRef<str>) -> Result<Store> {
    let url = url.as_ref().trim().to_owned();
    Store::on_own_thread(Box::pin(async move { backend(&url).await })).await
}

/// The same, one floor below: the store's side of the seam, for those who wrap it or drive it themselves.
pub async fn connect_backend(url: impl AsRef<str>) -> Result<Box<dyn Backend>> {
    backend(url.as_ref().trim()).await
}

async fn backend(url: &str) -> Result<Box<dyn Backend>> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(Error::new(
            ErrorKind::Invalid,
            "a store's URL begins with its scheme, as in redis://localhost:6379",
        ));
    };
    match scheme {
        "memory" => memory(rest),
        "redis" | "rediss" => redis(url).await,
        "redlock" => redlock(url).await,
        "etcd" | "etcds" => etcd(url).await,
        "zookeeper" => zookeeper(url).await,
        "sqlite" => sqlite(url).await,
        _ => {
            let known = "memory, sqlite, redis, redlock, etcd, zookeeper";
            Err(Error::new(ErrorKind::Invalid, format!("unknown scheme {scheme:?}; the known ones are {known}")))
        }
    }
}

#[allow(dead_code, reason = "used by whichever stores are off")]
fn feature_is_off(scheme: &str) -> Error {
    let text = format!("{scheme}:// needs the feature {scheme:?} of the crate leasehold, which is off in this build");
    Error::new(ErrorKind::Unsupported, text)
}

#[cfg(feature = "memory")]
fn memory(rest: &str) -> Result<Box<dyn Backend>> {
    if !rest.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "memory:// takes neither host nor path"));
    }
    Ok(Box::new(leasehold_memory::Memory::new()))
}

#[cfg(feature = "redis")]
async fn redis(url: &str) -> Result<Box<dyn Backend>> {
    Ok(Box::new(leasehold_redis::Redis::connect(url).await?))
}

#[cfg(feature = "redlock")]
async fn redlock(url: &str) -> Result<Box<dyn Backend>> {
    Ok(Box::new(leasehold_redlock::Redlock::connect(url).await?))
}

#[cfg(feature = "etcd")]
async fn etcd(url: &str) -> Result<Box<dyn Backend>> {
    Ok(Box::new(leasehold_etcd::Etcd::connect(url).await?))
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: &str) -> Result<Box<dyn Backend>> {
    Ok(Box::new(leasehold_zookeeper::ZooKeeper::connect(url).await?))
}

#[cfg(all(feature = "sqlite", target_os = "linux"))]
async fn sqlite(url: &str) -> Result<Box<dyn Backend>> {
    Ok(Box::new(leasehold_sqlite::Sqlite::connect(url).await?))
}

#[cfg(not(feature = "memory"))]
fn memory(_rest: &str) -> Result<Box<dyn Backend>> {
    Err(feature_is_off("memory"))
}

#[cfg(not(feature = "redis"))]
async fn redis(_url: &str) -> Result<Box<dyn Backend>> {
    Err(feature_is_off("redis"))
}

#[cfg(not(feature = "redlock"))]
async fn redlock(_url: &str) -> Result<Box<dyn Backend>> {
    Err(feature_is_off("redlock"))
}

#[cfg(not(feature = "etcd"))]
async fn etcd(_url: &str) -> Result<Box<dyn Backend>> {
    Err(feature_is_off("etcd"))
}

#[cfg(not(feature = "zookeeper"))]
async fn zookeeper(_url: &str) -> Result<Box<dyn Backend>> {
    Err(feature_is_off("zookeeper"))
}

#[cfg(all(feature = "sqlite", not(target_os = "linux")))]
async fn sqlite(_url: &str) -> Result<Box<dyn Backend>> {
    Err(Error::new(ErrorKind::Unsupported, "sqlite:// needs Linux: CLOCK_BOOTTIME, boot ids and /proc"))
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(_url: &str) -> Result<Box<dyn Backend>> {
    Err(feature_is_off("sqlite"))
}
