//! Distributed locks for Rust: one API over PostgreSQL, Redis, Redlock, etcd, ZooKeeper, SQLite and memory.
//!
//! ```
//! # #[tokio::main] async fn main() -> leasehold::Result<()> {
//! let store = leasehold::connect("memory://").await?;    // or postgres:// redis:// redlock:// etcd:// zookeeper:// sqlite://
//! let guard = store.lock("orders/42").acquire().await?;  // waits in the queue
//! println!("token {}", guard.fencing_token());           // the resource refuses a smaller token
//! guard.release().await?;                                // drop also releases, in the background
//! store.close(std::time::Duration::from_secs(1)).await   // waits for what the background still does
//! # }
//! ```
//!
//! - Primitives: [`Store::lock`], [`Store::rw_lock`], [`Store::semaphore`], [`Store::election`], [`Store::multi_lock`].
//! - Each guard has a [fencing token](FencingToken), renews itself, and reports its loss *before* another client can hold the
//!   lock ([`Guard::lost`], [`Guard::is_valid`]).
//! - Code without async uses [`blocking`]; a store of your own implements [`backend::Backend`].
//!
//! # What a lock cannot do
//!
//! A holder can be paused at any point, and a packet can be late. No lock can stop what a paused
//! holder has already sent. The token at the resource can: send it with each write, and let the
//! resource refuse smaller ones. The promises of each store under each fault are in [`guarantees`],
//! and as data in [`Store::guarantees`].
//!
//! **A program that returns from `main` with a guard alive leaves the lock taken until its TTL has passed**: the runtime ends
//! before anything in the background is sent. End with [`Guard::release`] or [`Store::close`].
//!
//! # Errors and cancellation
//!
//! There is one small [`Error`] with a [kind](ErrorKind). A bad name, option or URL is [`Invalid`](ErrorKind::Invalid), and is
//! reported by the first request that uses it; builders never fail. Each future can be dropped at any await: the methods say
//! under *Cancel safety* what may have happened then.
//!
//! # Features
//!
//! Each store is a feature: `memory` (default), `redis`, `redlock`, `etcd`, `zookeeper`,
//! `postgres`, `sqlite`. A feature adds a store and its URL scheme, and changes nothing else.
//! `bridge` adds a store over two of them, for a move from one to the other. `tls` adds TLS to the
//! stores that support it (it needs a C compiler to build), with the cryptography of `aws-lc-rs`;
//! `tls-ring` does so with `ring`, and `tls-no-provider` with what the program has installed for
//! rustls. `deadpool`, `bb8` and `sqlx` let `postgres` use a pool that the program has. `sasl` adds
//! accounts of ZooKeeper's servers. `sqlite` builds everywhere and works on Linux: elsewhere [`connect`] returns
//! [`Unsupported`](ErrorKind::Unsupported). `etcd` needs `protoc` to build (Debian:
//! `protobuf-compiler`).

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "bridge")]
mod bridge;
mod connect;
pub mod guarantees;

#[cfg(feature = "bridge")]
pub use bridge::bridge;
pub use connect::{Connect, connect};
pub use leasehold_core::{
    Acquire, Attempt, Begun, Completion, Connections, Contention, DEFAULT_TTL, DistributedLock,
    Election, Error, ErrorKind, Fairness, FenceGate, Fenced, Fencing, FencingToken, Guarantees,
    Guard, Held, Keep, Leader, Leadership, Lease, Lock, LockQueue, Loss, Lost, MAX_KEEP,
    MAX_LABEL_BYTES, MAX_NAME_BYTES, MAX_RESULT_BYTES, MAX_TTL, MAX_VALUE_BYTES, MultiGuard,
    MultiLock, Name, Observer, Once, OnceGuard, OnceOutcome, Options, Owner, Participant, Result,
    RunOutcome, RwLock, Semaphore, Stale, Store, StoreId, TestHold, TryOnceOutcome,
};

/// For code without async: a store behind a thread of its own.
pub use leasehold_core::blocking;

/// For authors of stores: the trait, the types of its calls, and the rules that stores share.
pub use leasehold_core::backend;

/// Locks among the tasks of one process, with virtual time for tests.
#[cfg(feature = "memory")]
pub use leasehold_memory as memory;

/// Locks in a Redis server.
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;

/// Locks on a majority of several independent Redis servers.
#[cfg(feature = "redlock")]
pub use leasehold_redis::redlock;

/// Locks in an etcd cluster.
#[cfg(feature = "etcd")]
pub use leasehold_etcd as etcd;

/// Locks in a ZooKeeper ensemble.
#[cfg(feature = "zookeeper")]
pub use leasehold_zookeeper as zookeeper;

/// Locks in a PostgreSQL database, and [`HELD`](postgres::HELD) for transactions of your own in it.
#[cfg(feature = "postgres")]
pub use leasehold_postgres as postgres;

/// Locks in a file, for the processes of one machine, which must be Linux.
#[cfg(all(feature = "sqlite", target_os = "linux"))]
pub use leasehold_sqlite as sqlite;

/// Two stores as one, for a move from one to the other.
#[cfg(feature = "bridge")]
pub use leasehold_bridge::{Bridge, InStage, Stage};

/// Compiles and runs the code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
