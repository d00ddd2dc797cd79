//! Makes a store of a URL: one arm per scheme, and clear errors for the rest.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{Backend, Clock};
use leasehold_core::{Error, ErrorKind, Result, Store, patiently};

/// Connects to the store that `url` names.
///
/// It returns a [`Connect`], which is awaited for a [`Store`]. [`Connect::patience`] waits for a store that is away,
/// [`Connect::on_own_thread`] puts the client on a thread of its own, and [`Connect::backend`] connects without making a store.
/// Nothing happens before it is awaited.
///
/// | URL | feature |
/// |---|---|
/// | `memory://` (a store of its own for each call: share it by cloning the [`Store`]) | `memory` |
/// | `redis://[user:password@]host:port[/db]`, or `valkey://…`; `redis+unix:///path/of/the/socket`, or `unix://…` | `redis` |
/// | `redis+sentinel://[user:password@]sentinel:port,sentinel:port/master-name[/db]` | `redis` |
/// | `redis+cluster://[user:password@]host:port,host:port` | `redis` |
/// | `redlock://[user:password@]host:port,host:port,host:port[/db]` | `redlock` |
/// | `etcd://[user:password@]host:port,host:port[/namespace]` | `etcd` |
/// | `zookeeper://[user:password@]host:port,host:port[/path]` | `zookeeper` |
/// | `postgres://user:password@host[:port][,host…]/database`, or `postgresql://…`, by the rules of libpq | `postgres` |
/// | `sqlite:///absolute/path` | `sqlite` |
/// | `bridge+OLD NEW`, for two of the others: holds in both, for a move from the one to the other | `bridge` |
///
/// The scheme may be in any case. With the feature `tls` (or `tls-ring`, or `tls-no-provider`), an `s` behind the scheme asks for TLS: `rediss://`, `valkeys://`,
/// `rediss+cluster://`, `redlocks://`, `etcds://`, `zookeepers://`. There is a TLS connection then, or an error; nothing is sent in
/// plain text. The words `ca=file`, `cert=file` and `key=file`, and `server_name=name` say whom to trust and what to show; each
/// store's `Tls` documents them. PostgreSQL has the words of its own clients: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`. Only
/// `sslmode=verify-full` verifies whom it talks to; a weaker word on any store warns.
///
/// Each store's crate documents the parameters of its URL. For settings that a URL cannot express,
/// make the store by its own type and pass it to [`Store::new`].
///
/// A server that is set up to forget locks, such as Redis with an eviction policy or PostgreSQL without `fsync`, is reported: by
/// events of level `WARN`, and in [`Guarantees::warnings`](crate::Guarantees::warnings).
///
/// # Errors
///
/// - [`Invalid`](ErrorKind::Invalid): the text is no URL of a known scheme.
/// - [`Unsupported`](ErrorKind::Unsupported): the feature of a known scheme is off; the message names it. Or the server is
///   too old, or of a kind that the store does not support; or it is `sqlite://` on a system that is not Linux.
/// - [`NoRuntime`](ErrorKind::NoRuntime): the store needs a tokio runtime, and none is running here.
/// - [`Unavailable`](ErrorKind::Unavailable), [`Denied`](ErrorKind::Denied): the server cannot be reached within a few
///   seconds (or within [`Connect::patience`]), or refuses the credentials; with TLS also, a certificate is refused, here or there.
///
/// No error shows the credentials of the URL.
///
/// # Cancel safety
///
/// If the future is dropped, the connection is closed. No lock is left in the store.
///
/// # Examples
///
/// ```
/// # #[tokio::main] async fn main() -> leasehold::Result<()> {
/// use leasehold::Fencing;
///
/// let url = std::env::var("LOCKS").unwrap_or_else(|_| "memory://".to_owned());
/// let store = leasehold::connect(url).await?;
/// store.guarantees().require_fencing(Fencing::WhileDataLives)?;
/// # Ok(()) }
/// ```
pub fn connect(url: impl AsRef<str>) -> Connect {
    Connect {
        url: url.as_ref().trim().to_owned(),
        on_own_thread: false,
        patience: Duration::ZERO,
    }
}

/// A connection to be made, from [`connect`]: awaited, it is a [`Store`].
///
/// # Errors
///
/// Those of [`connect`], when it is awaited.
///
/// # Cancel safety
///
/// If the future is dropped, the connection is closed. No lock is left in the store.
///
/// # Examples
///
/// ```
/// # #[tokio::main] async fn main() -> leasehold::Result<()> {
/// let here = leasehold::connect("memory://").await?;
/// let there = leasehold::connect("memory://").on_own_thread().await?;
/// let backend = leasehold::connect("memory://").backend().await?;
/// # drop((here, there, backend)); Ok(()) }
/// ```
#[must_use = "nothing is connected unless it is awaited"]
#[derive(Clone)]
pub struct Connect {
    url: String,
    on_own_thread: bool,
    patience: Duration,
}

impl Connect {
    /// Waits this long for a store that is away: a pod may start before its database does, and a serverless one takes 15 s to wake.
    ///
    /// While the store is [`Unavailable`](ErrorKind::Unavailable), connecting is tried again, at first after 20 ms, later once in a
    /// second. A bad URL, wrong credentials, a certificate or another store at the address ends it at once. Some mistakes cannot be told
    /// from a store that is away, and are waited for: a wrong host name or port, TLS to a port in plain text. The default is zero, which is one attempt. [`Duration::MAX`] waits without a limit. The first attempt always has the
    /// time that it has without patience, a few seconds; no later one lasts beyond the end of the patience.
    ///
    /// The wait is told by one event of level `WARN` when it begins, and one when the store is there.
    ///
    /// # Errors
    ///
    /// As [`connect`]. After a wait the message of the latest attempt begins with the time, as in `not available for 30.0 s: …`.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`]: the attempt that is under way is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let store = leasehold::connect("memory://").patience(Duration::from_secs(30)).await?;
    /// # drop(store); Ok(()) }
    /// ```
    pub fn patience(mut self, patience: Duration) -> Connect {
        self.patience = patience;
        self
    }

    /// Puts the client on a thread and a runtime of its own.
    ///
    /// For programs whose runtime may be blocked for longer than a lease: renewals go on there. See [`Store::on_own_thread`] for
    /// what it costs.
    ///
    /// # Errors
    ///
    /// As [`connect`]; [`Unavailable`](ErrorKind::Unavailable) if the thread cannot be started.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`]: the thread ends.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// use std::time::Duration;
    ///
    /// let store = leasehold::connect("memory://").on_own_thread().await?.ttl(Duration::from_secs(2));
    /// let guard = store.lock("report").acquire().await?;
    /// std::thread::sleep(Duration::from_secs(10)); // blocks this runtime for longer than the lease
    /// assert!(guard.is_valid());
    /// # Ok(()) }
    /// ```
    pub fn on_own_thread(mut self) -> Connect {
        self.on_own_thread = true;
        self
    }

    /// Connects, and returns the store's [`Backend`] instead of a [`Store`].
    ///
    /// For programs that wrap the backend, for example to count or to delay requests, before they pass it to [`Store::new`].
    ///
    /// # Errors
    ///
    /// As [`connect`]. [`Invalid`](ErrorKind::Invalid) after [`on_own_thread`](Connect::on_own_thread): the thread is the store's,
    /// so pass this future to [`Store::on_own_thread`] instead.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> leasehold::Result<()> {
    /// let backend = leasehold::connect("memory://").backend().await?;
    /// let store = leasehold::Store::new(backend);
    /// # drop(store); Ok(()) }
    /// ```
    pub async fn backend(self) -> Result<Arc<dyn Backend>> {
        if self.on_own_thread {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a backend has no thread of its own: pass it to Store::on_own_thread",
            ));
        }
        self.patiently().await
    }

    /// Connects, as often as patience asks for it.
    async fn patiently(&self) -> Result<Arc<dyn Backend>> {
        let attempt = || Box::pin(backend(&self.url));
        patiently(self.patience, &Clock::boot(), attempt, |_| ()).await
    }
}

impl IntoFuture for Connect {
    type Output = Result<Store>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Store>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if self.on_own_thread {
                Store::on_own_thread(Box::pin(async move { self.patiently().await })).await
            } else {
                self.patiently().await.map(Store::new)
            }
        })
    }
}

/// It shows no part of the URL, which may contain credentials.
impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect")
            .field("on_own_thread", &self.on_own_thread)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// Connects to the store that `url` names.
async fn backend(url: &str) -> Result<Arc<dyn Backend>> {
    if let Some(_urls) = url.strip_prefix("bridge+") {
        #[cfg(feature = "bridge")]
        return Ok(Arc::new(crate::bridge::connect(_urls).await?));
        #[cfg(not(feature = "bridge"))]
        return Err(Error::new(
            ErrorKind::Unsupported,
            "bridge+ needs the feature \"bridge\" of the crate leasehold, which is off in this build",
        ));
    }
    // Credentials before the scheme are not shown.
    let is_scheme = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-".contains(&byte))
    };
    let named = url.split_once("://");
    // Java's URLs of PostgreSQL are explained by its store.
    let named =
        named.filter(|(scheme, _)| is_scheme(scheme.strip_prefix("jdbc:").unwrap_or(scheme)));
    let Some((scheme, rest)) = named else {
        return Err(Error::new(
            ErrorKind::Invalid,
            "a store's URL begins with its scheme, as in redis://localhost:6379",
        ));
    };
    let scheme = scheme.to_ascii_lowercase();
    let url = &*format!("{scheme}://{rest}");
    macro_rules! connect {
        ($feature:literal, $store:path) => {{
            #[cfg(feature = $feature)]
            return Ok(Arc::new(<$store>::connect(url).await?));
            #[cfg(not(feature = $feature))]
            return Err(Error::new(
                ErrorKind::Unsupported,
                concat!(
                    $feature,
                    ":// needs the feature \"",
                    $feature,
                    "\" of the crate leasehold, which is off in this build"
                ),
            ));
        }};
    }
    match store_of(&scheme) {
        Some("memory") => connect!("memory", leasehold_memory::Memory),
        Some("redis") => connect!("redis", leasehold_redis::Redis),
        Some("redlock") => connect!("redlock", leasehold_redis::redlock::Redlock),
        Some("etcd") => connect!("etcd", leasehold_etcd::Etcd),
        Some("zookeeper") => connect!("zookeeper", leasehold_zookeeper::ZooKeeper),
        Some("postgres") => connect!("postgres", leasehold_postgres::Postgres),
        #[cfg(any(not(feature = "sqlite"), target_os = "linux"))]
        Some("sqlite") => connect!("sqlite", leasehold_sqlite::Sqlite),
        #[cfg(all(feature = "sqlite", not(target_os = "linux")))]
        Some("sqlite") => Err(Error::new(
            ErrorKind::Unsupported,
            "sqlite:// needs Linux: CLOCK_BOOTTIME, boot ids and /proc",
        )),
        _ => Err(Error::new(ErrorKind::Invalid, unknown(&scheme))),
    }
}

/// The stores with their features, and the schemes of their URLs: in plain text, and over TLS.
const STORES: [Known; 7] = [
    ("memory", cfg!(feature = "memory"), &["memory"], &[]),
    ("sqlite", cfg!(feature = "sqlite"), &["sqlite"], &[]),
    (
        "postgres",
        cfg!(feature = "postgres"),
        &["postgres", "postgresql"],
        &[],
    ),
    (
        "redis",
        cfg!(feature = "redis"),
        &[
            "redis",
            "redis+sentinel",
            "redis-sentinel",
            "redis+cluster",
            "redis+unix",
            "redis+socket",
            "unix",
            "valkey",
            "valkey+sentinel",
            "valkey+cluster",
        ],
        &[
            "rediss",
            "rediss+sentinel",
            "rediss-sentinel",
            "rediss+cluster",
            "valkeys",
            "valkeys+sentinel",
            "valkeys+cluster",
        ],
    ),
    (
        "redlock",
        cfg!(feature = "redlock"),
        &["redlock"],
        &["redlocks"],
    ),
    ("etcd", cfg!(feature = "etcd"), &["etcd"], &["etcds"]),
    (
        "zookeeper",
        cfg!(feature = "zookeeper"),
        &["zookeeper"],
        &["zookeepers"],
    ),
];

/// A feature, whether it is on, and its schemes.
type Known = (
    &'static str,
    bool,
    &'static [&'static str],
    &'static [&'static str],
);

/// The store with this scheme. PostgreSQL's may have the name of a Python driver behind it.
fn store_of(scheme: &str) -> Option<&'static str> {
    let scheme = match scheme.split_once('+') {
        Some((kind @ ("postgres" | "postgresql"), _)) => kind,
        _ => scheme.strip_prefix("jdbc:").unwrap_or(scheme),
    };
    let has = |(_, _, plain, tls): &&Known| plain.contains(&scheme) || tls.contains(&scheme);
    STORES.iter().find(has).map(|(name, ..)| *name)
}

/// Lists the schemes that this build has, and those that it lacks.
fn unknown(scheme: &str) -> String {
    let (mut has, mut lacks) = (Vec::new(), Vec::new());
    for (feature, is_on, plain, tls) in STORES {
        let mut add = |schemes: &[&str], is_there, needs: &str| match is_there {
            _ if schemes.is_empty() => {}
            true => has.extend(schemes.iter().map(ToString::to_string)),
            false => lacks.push(format!("{} (feature {needs})", schemes.join(", "))),
        };
        add(plain, is_on, feature);
        let both = match is_on {
            true => "tls".to_owned(),
            false => format!("{feature} and tls"),
        };
        add(tls, is_on && cfg!(feature = "tls-no-provider"), &both);
    }
    match cfg!(feature = "bridge") {
        true => has.push("bridge+URL URL".to_owned()),
        false => lacks.push("bridge+URL URL (feature bridge)".to_owned()),
    }
    let has = has.join(", ");
    let lacks = match &lacks[..] {
        [] => String::new(),
        lacks => format!("; it lacks {}", lacks.join(", ")),
    };
    format!("unknown scheme {scheme:?}: this build has {has}{lacks}")
}
