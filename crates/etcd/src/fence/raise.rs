//! How far tokens are raised above the numbers of their places, so that they go on behind those of another store.
//!
//! One key of the namespace says it, under no lease and kept for good: a number that is added to create_revisions, and only grows. Each
//! transaction that creates a place compares the mod_revision of that key with what this client knows of it, and the place's value says
//! by how much it is raised (see `entry`). So no place is taken with less than is true when it is taken, none changes later, and nothing has
//! to be asked. A client that knows less is refused by the transaction itself, reads the key there, and tries again.

use std::sync::Mutex;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, ResponseHeader, Txn, TxnOp};
use leasehold_core::seam::{raised_places, token_of_place};
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, FencingToken, Raises, Result};

use crate::claim::shared::Shared;
use crate::error::Failure;

/// How tokens are raised, at most above what is far from their end.
pub(crate) const RAISES: Raises = Raises::Places(FencingToken::new(1 << 62));
/// How often one call begins anew after another client has raised them.
const TRIES: usize = 12;

/// What this client knows of the key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Base {
    /// Its mod_revision, 0 if it is not there.
    revision: i64,
    /// By how much places are raised.
    pub(crate) by: i64,
}

impl Base {
    /// Whether what is known is still true.
    pub(crate) fn is_true(self, key: &str) -> Compare {
        Compare::mod_revision(key, CompareOp::Equal, self.revision)
    }

    /// Without a key, nothing is raised.
    fn read(read: &GetResponse) -> Result<Base, Failure> {
        let by = |kv: &KeyValue| kv.value_str().ok()?.parse().ok().filter(|by| *by >= 0);
        let junk =
            || Failure::new(ErrorKind::Internal, "the key that says how far tokens are raised was written by others");
        read.kvs()
            .first()
            .map_or(Ok(Base::default()), |kv| Ok(Base { revision: kv.mod_revision(), by: by(kv).ok_or_else(junk)? }))
    }
}

/// What a client knows of it, and learns.
#[derive(Default, Debug)]
pub(crate) struct KnownBase(Mutex<Base>);

impl KnownBase {
    pub(crate) fn get(&self) -> Base {
        *locked(&self.0)
    }

    /// What was read may be old, or of before another answer: then the next transaction says so.
    pub(crate) fn learn(&self, read: &GetResponse) -> Result<Base, Failure> {
        let base = Base::read(read)?;
        *locked(&self.0) = base;
        Ok(base)
    }
}

impl Shared {
    /// The key as it is now, and the revision of now.
    async fn read_base(&self) -> Result<(Base, i64), Failure> {
        let read = self.cluster.get(self.keys.base(), GetOptions::new()).await?;
        Ok((self.base.learn(&read)?, read.header().map_or(0, ResponseHeader::revision)))
    }

    /// A number that no token exceeds which was granted before this was asked for.
    pub(crate) async fn mark(&self) -> Result<FencingToken> {
        let (base, revision) = self.read_base().await?;
        let next = token_of_place(base.by.saturating_add(revision).saturating_add(1));
        Ok(FencingToken::new(next.get() - 1))
    }

    /// Places that are taken from now on have greater tokens than this number.
    pub(crate) async fn raise(&self, number: FencingToken) -> Result<()> {
        RAISES.check(Some(number))?;
        for _ in 0..TRIES {
            let (base, revision) = self.read_base().await?;
            let Some(by) = raised_places(base.by, revision, number) else { return Ok(()) };
            let key = self.keys.base();
            let put = TxnOp::put(&*key, by.to_string(), None);
            // A late duplicate finds another revision of the key, and changes nothing.
            self.cluster.txn(Txn::new().when([base.is_true(&key)]).and_then([put])).await.outcome?;
        }
        Err(Error::new(ErrorKind::Unavailable, "others raise the tokens again and again; ask again"))
    }
}
