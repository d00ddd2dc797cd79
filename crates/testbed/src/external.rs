//! Servers of the developer, used in place of private ones.

use std::env;

/// A kind of server the testbed knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// Redis.
    Redis,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

impl StoreKind {
    /// The environment variable that names an external server of this kind.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Redis => "LEASEHOLD_REDIS_URL",
            Self::Etcd => "LEASEHOLD_ETCD_URL",
            Self::ZooKeeper => "LEASEHOLD_ZOOKEEPER_URL",
        }
    }

    /// The address of the external server to test against, when [`StoreKind::variable`] names one.
    ///
    /// Such a server can be used but not controlled: a test that kills, pauses or empties it is not available there.
    #[must_use]
    pub fn external_url(self) -> Option<String> {
        env::var(self.variable()).ok().filter(|url| !url.trim().is_empty())
    }
}
