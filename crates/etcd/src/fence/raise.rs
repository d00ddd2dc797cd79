//! Raised tokens: a number that is added to create_revisions, so that tokens continue behind those
//! of another store.
//!
//! One key of the namespace, under no lease and kept for good, has that number, which only grows.
//! Each transaction that creates a place compares the mod_revision of the key with the one that
//! this client knows, and the place's value states by how much the place is raised (see `entry`). A
//! place is therefore never taken with less than the current number, its number never changes
//! later, and no extra request is needed. If a client knows an older number, the transaction itself
//! refuses, reads the key, and the client tries again.

use std::sync::Mutex;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, ResponseHeader, Txn, TxnOp,
};
use leasehold_core::backend::Raises;
use leasehold_core::backend::{raised_places, token_of_place};
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, FencingToken, Result};

use crate::claim::shared::Shared;
use crate::error::Failure;

/// The limit of raises, far from the end of tokens.
pub(crate) const RAISES: Raises = Raises::Places(FencingToken::new(1 << 62));
/// The number of times that one call begins anew after another client has raised tokens.
const TRIES: usize = 12;

/// The state of the key as this client knows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Base {
    /// Its mod_revision, 0 if it is not there.
    revision: i64,
    /// The number that is added to create_revisions.
    pub(crate) by: i64,
}

impl Base {
    /// The condition that the known state is still true.
    pub(crate) fn is_true(self, key: &str) -> Compare {
        Compare::mod_revision(key, CompareOp::Equal, self.revision)
    }

    /// Reads the key's value. Without the key, nothing is raised.
    fn read(read: &GetResponse) -> Result<Base, Failure> {
        let by = |kv: &KeyValue| kv.value_str().ok()?.parse().ok().filter(|by| *by >= 0);
        let junk = || {
            Failure::new(
                ErrorKind::Corrupt,
                "the key that says how far tokens are raised was written by others",
            )
        };
        read.kvs().first().map_or(Ok(Base::default()), |kv| {
            Ok(Base {
                revision: kv.mod_revision(),
                by: by(kv).ok_or_else(junk)?,
            })
        })
    }
}

/// The latest known state of the key, shared by all calls of a client.
#[derive(Default, Debug)]
pub(crate) struct KnownBase(Mutex<Base>);

impl KnownBase {
    pub(crate) fn get(&self) -> Base {
        *locked(&self.0)
    }

    /// Learns from a read of the key. An old answer, or one that overtakes another, does no harm:
    /// the next transaction refuses.
    pub(crate) fn learn(&self, read: &GetResponse) -> Result<Base, Failure> {
        let base = Base::read(read)?;
        *locked(&self.0) = base;
        Ok(base)
    }
}

impl Shared {
    /// Reads the key, and returns it with the current revision.
    async fn read_base(&self) -> Result<(Base, i64), Failure> {
        let read = self
            .cluster
            .get(self.keys.base(), GetOptions::new())
            .await?;
        Ok((
            self.base.learn(&read)?,
            read.header().map_or(0, ResponseHeader::revision),
        ))
    }

    /// Returns a number that no token exceeds that was granted before this call.
    pub(crate) async fn mark(&self) -> Result<FencingToken> {
        let (base, revision) = self.read_base().await?;
        let next = token_of_place(base.by.saturating_add(revision).saturating_add(1));
        Ok(FencingToken::new(next.get() - 1))
    }

    /// Gives places that are taken from now on greater tokens than this number.
    pub(crate) async fn raise(&self, number: FencingToken) -> Result<()> {
        RAISES.check(Some(number))?;
        for _ in 0..TRIES {
            let (base, revision) = self.read_base().await?;
            let Some(by) = raised_places(base.by, revision, number) else {
                return Ok(());
            };
            let key = self.keys.base();
            let put = TxnOp::put(&*key, by.to_string(), None);
            // A late duplicate finds another revision of the key, and changes nothing.
            self.cluster
                .txn(Txn::new().when([base.is_true(&key)]).and_then([put]))
                .await
                .outcome?;
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "others raise the tokens again and again; ask again",
        ))
    }
}
