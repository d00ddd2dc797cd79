//! Where the token is spent, in memory: a value that refuses a stale writer.

use std::sync::Mutex;

use crate::api::lease::Fenced;
use crate::seam::error::{Error, ErrorKind};
use crate::seam::token::FencingToken;
use crate::support::sync::locked;

/// A value behind a gate that remembers the greatest fencing token it has seen, and lets no smaller one write.
///
/// What a resource outside of this process does in its own way (a `WHERE token <= ?`, a compare in a transaction), for a
/// value that this process serves: a cache, a connection, a file's writer. Comparing and writing are one step: no writer
/// gets between them.
///
/// One gate serves one lock: tokens of different names do not compare. A new gate has seen nothing; if the process can
/// restart while old holders live, keep the token where the value is kept ([`FenceGate::with_token`]).
///
/// ```
/// # use leasehold_core::{Fenced, FenceGate};
/// fn save(rows: &FenceGate<Vec<u64>>, by: &impl Fenced, row: u64) -> leasehold_core::Result<()> {
///     rows.write(by, |rows| rows.push(row))?; // `Stale`, if a later holder wrote already
///     Ok(())
/// }
/// ```
#[derive(Debug, Default)]
pub struct FenceGate<T> {
    inner: Mutex<(Option<FencingToken>, T)>,
}

impl<T> FenceGate<T> {
    /// A gate before this value that has seen no token.
    pub const fn new(value: T) -> FenceGate<T> {
        FenceGate { inner: Mutex::new((None, value)) }
    }

    /// A gate that has seen `token` already: for a value that was loaded together with it.
    pub const fn with_token(value: T, token: FencingToken) -> FenceGate<T> {
        FenceGate { inner: Mutex::new((Some(token), value)) }
    }

    /// Lets `by` write, unless a greater token has been seen. It does not ask whether `by` is still valid: the token alone
    /// decides, so that a pause between the question and the write does no harm.
    ///
    /// Others wait, blocked, while `write` runs; one that uses the gate itself waits for ever. If it panics, the token counts
    /// as seen and the value stays as it was left.
    pub fn write<R>(&self, by: &impl Fenced, write: impl FnOnce(&mut T) -> R) -> Result<R, Stale> {
        self.write_with(by.fencing_token(), write)
    }

    /// The same for a token that came over the network.
    pub fn write_with<R>(&self, token: FencingToken, write: impl FnOnce(&mut T) -> R) -> Result<R, Stale> {
        let (seen, value) = &mut *locked(&self.inner);
        match *seen {
            Some(seen) if token < seen => Err(Stale { token, seen }),
            _ => {
                *seen = Some(token);
                Ok(write(value))
            }
        }
    }

    /// Looks at the value. Reading needs no token.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&locked(&self.inner).1)
    }

    /// The greatest token it has seen.
    pub fn seen(&self) -> Option<FencingToken> {
        locked(&self.inner).0
    }
}

/// A write was refused: a later holder has written already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("token {token} is stale: {seen} has written already")]
#[non_exhaustive]
pub struct Stale {
    /// The writer's token.
    pub token: FencingToken,
    /// The greatest that the gate has seen.
    pub seen: FencingToken,
}

impl From<Stale> for Error {
    fn from(stale: Stale) -> Error {
        Error::new(ErrorKind::Lost, stale.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_token_is_refused_and_writes_nothing() {
        let gate = FenceGate::new(Vec::new());
        let token = FencingToken::new;
        assert_eq!(gate.write_with(token(7), |rows| rows.push("a")), Ok(()));
        assert_eq!(gate.write_with(token(7), |rows| rows.push("b")), Ok(()));
        let stale = gate.write_with(token(6), |rows| rows.push("c"));
        assert_eq!(stale, Err(Stale { token: token(6), seen: token(7) }));
        assert_eq!(gate.read(Vec::clone), ["a", "b"]);
        assert_eq!(gate.seen(), Some(token(7)));
        assert_eq!(Error::from(stale.unwrap_err()).kind(), ErrorKind::Lost);
    }

    #[test]
    fn it_goes_on_where_it_was_loaded() {
        let gate = FenceGate::with_token(0, FencingToken::new(9));
        assert!(gate.write_with(FencingToken::new(8), |n| *n += 1).is_err());
    }
}
