//! How far tokens are raised above the numbers of their places, so that they go on behind those of another store.
//!
//! One key of the namespace says it, under no lease and kept for good: a number that is added to create_revisions, and only grows. Each
//! transaction that creates a place compares the mod_revision of that key with what this client knows of it, and the place's value says
//! by how much it is raised (see `entry`). So no place is taken with less than is true when it is taken, none changes later, and nothing has
//! to be asked. A client that knows less is refused by the transaction itself, reads the key there, and tries again.

use std::sync::Mutex;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, ResponseHeader, Txn, TxnOp};
use leasehold_core::seam::{place_of_token, token_of_place};
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, FencingToken, Result};

use crate::claim::shared::Shared;
use crate::error::Failure;

/// The greatest number that tokens can be raised above: far from their end.
pub(crate) const MAX_FLOOR: FencingToken = FencingToken::new(1 << 62);
/// By so many places more than is needed, so that it is rare: a day of a clock whose microseconds are tokens.
const AHEAD: i64 = 86_400_000_000 / 256;
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

    /// By how much places are to be raised so that the tokens of those after this revision exceed `number`; `None`: they do.
    fn raised(self, revision: i64, number: FencingToken) -> Option<i64> {
        let needed = place_of_token(number) - revision;
        (self.by < needed).then(|| needed + AHEAD)
    }
}

/// Refuses a number that tokens cannot be raised above.
pub(crate) fn check_floor(floor: Option<FencingToken>) -> Result<()> {
    match floor {
        Some(floor) if floor > MAX_FLOOR => {
            Err(Error::new(ErrorKind::Invalid, format!("tokens cannot be raised to {floor}, only to {MAX_FLOOR}")))
        }
        _ => Ok(()),
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
        check_floor(Some(number))?;
        for _ in 0..TRIES {
            let (base, revision) = self.read_base().await?;
            let Some(by) = base.raised(revision, number) else { return Ok(()) };
            let key = self.keys.base();
            let put = TxnOp::put(&*key, by.to_string(), None);
            // A late duplicate finds another revision of the key, and changes nothing.
            self.cluster.txn(Txn::new().when([base.is_true(&key)]).and_then([put])).await.outcome?;
        }
        Err(Error::new(ErrorKind::Unavailable, "others raise the tokens again and again; ask again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_later_place_exceeds_the_number_and_nothing_is_lowered() {
        for (by, revision, number) in
            [(0, 1, 0), (0, 1, 512), (0, 1, 511), (0, 7, 1 << 62), (5, 9, 15 << 8), (5, 9, 14 << 8), (1 << 54, 1, 99)]
        {
            let raised = Base { revision: 3, by }.raised(revision, FencingToken::new(number));
            let next = token_of_place(raised.unwrap_or(by) + revision + 1).get();
            assert!(next > number, "{by} {revision} {number}: {next}");
            assert!(raised.is_none_or(|raised| raised > by + AHEAD));
            assert_eq!(raised.is_none(), token_of_place(by + revision + 1).get() > number, "as rarely as can be");
        }
        assert!(check_floor(Some(MAX_FLOOR)).is_ok() && check_floor(None).is_ok());
        let beyond = check_floor(Some(FencingToken::new(MAX_FLOOR.get() + 1))).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::Invalid);
    }
}
