//! The promises of each store, their limits and their duration: the pages of `docs/`, in the
//! version of this crate.
//!
//! [memory]: self::memory
//! [SQLite]: self::sqlite
//! [PostgreSQL]: self::postgres
//! [Redis]: self::redis
//! [Redlock]: self::redlock
//! [etcd]: self::etcd
//! [ZooKeeper]: self::zookeeper
//! [measured]: self::measured
//! [transactions]: self::transactions
//!
#![doc = include_str!("../docs/guarantees.md")]
// The links above come first, so they replace those of the page, which lead to files.

macro_rules! pages {
    ($($page:ident: $file:literal;)*) => {$(
        #[doc = "[guarantees]: crate::guarantees\n[Redis]: crate::guarantees::redis\n[the cost on Redis]: crate::guarantees::redis#servers\n"]
        #[doc = "[TLS]: crate::guarantees::tls\n[transactions]: crate::guarantees::transactions\n[measured]: crate::guarantees::measured\n"]
        #[doc = "[fencing]: crate::guarantees#p2-fencing\n[faults]: crate::guarantees::postgres#what-survives-which-fault\n"]
        #[doc = "[rights]: crate::guarantees::postgres#rights-and-set-up\n"]
        #[doc = "[picture]: https://raw.githubusercontent.com/leasehold-rs/leasehold/main/docs/transactions.svg\n"]
        #[doc = include_str!($file)]
        pub mod $page {}
    )*};
}

pages! {
    memory: "../docs/stores/memory.md";
    sqlite: "../docs/stores/sqlite.md";
    postgres: "../docs/stores/postgres.md";
    redis: "../docs/stores/redis.md";
    redlock: "../docs/stores/redlock.md";
    etcd: "../docs/stores/etcd.md";
    zookeeper: "../docs/stores/zookeeper.md";
    measured: "../docs/measured.md";
    tls: "../docs/tls.md";
    transactions: "../docs/transactions.md";
}
