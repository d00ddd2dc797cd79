//! The check of the token for a resource in memory: a value that refuses a stale writer.
//!
//! A token protects only if the resource compares it. Most resources do that in their own language,
//! such as a `WHERE` clause. For a value in memory, this is the comparison.

use crate::api::lease::Fenced;
use crate::backend::error::{Error, ErrorKind};
use crate::backend::token::FencingToken;
use crate::support::locked;
use crate::support::sync::Mutex;

/// A value that refuses writers with a stale fencing token.
///
/// It does in memory what a resource outside of this process does in its own way, such as `WHERE
/// token <= ?` in SQL: it remembers the greatest token that it has seen, and refuses smaller ones.
/// Use it for a value that this process serves to several holders: a cache, a connection, the
/// writer of a file. Comparing and writing are one step, so no other writer gets between them.
///
/// One gate serves one lock, because tokens of different names cannot be compared. A new gate has
/// seen no token. If the process can restart while old holders live, store the token together with
/// the value, and use [`FenceGate::with_token`](crate::FenceGate::with_token).
///
/// # Examples
///
/// ```
/// # use leasehold_core::{Fenced, FenceGate};
/// fn save(rows: &FenceGate<Vec<u64>>, by: &impl Fenced, row: u64) -> leasehold_core::Result<()> {
///     rows.write(by, |rows| rows.push(row))?; // `Stale` if a later holder has written already
///     Ok(())
/// }
/// ```
#[derive(Debug, Default)]
pub struct FenceGate<T> {
    inner: Mutex<(Option<FencingToken>, T)>,
}

impl<T> FenceGate<T> {
    /// Makes a gate that has seen no token: it accepts any first writer.
    pub const fn new(value: T) -> FenceGate<T> {
        FenceGate {
            inner: Mutex::new((None, value)),
        }
    }

    /// Makes a gate that has seen `token` already: for a value that was loaded together with its
    /// token.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{FenceGate, FencingToken};
    ///
    /// let gate = FenceGate::with_token("loaded", FencingToken::new(7));
    /// assert!(gate.write_with(FencingToken::new(6), |value| *value = "stale").is_err());
    /// ```
    pub const fn with_token(value: T, token: FencingToken) -> FenceGate<T> {
        FenceGate {
            inner: Mutex::new((Some(token), value)),
        }
    }

    /// Lets `by` write, unless a greater token has been seen.
    ///
    /// It does not ask whether `by` is still valid: the token alone decides. A check of validity
    /// before the write could be outdated when the write happens; the comparison of tokens cannot.
    ///
    /// Other writers wait, blocked, while `write` runs. A `write` that uses the gate itself waits
    /// for ever. If it panics, the token counts as seen, and the value stays as `write` left it.
    ///
    /// # Errors
    ///
    /// [`Stale`](crate::Stale) if a greater token has been seen. Nothing was written.
    pub fn write<R>(&self, by: &impl Fenced, write: impl FnOnce(&mut T) -> R) -> Result<R, Stale> {
        self.write_with(by.fencing_token(), write)
    }

    /// Lets the holder of this token write: for a token that came over the network. See
    /// [`write`](crate::FenceGate::write).
    ///
    /// # Errors
    ///
    /// [`Stale`](crate::Stale) if a greater token has been seen. Nothing was written.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{FenceGate, FencingToken};
    ///
    /// let gate = FenceGate::new(0);
    /// assert!(gate.write_with(FencingToken::new(2), |n| *n = 20).is_ok());
    /// let stale = gate.write_with(FencingToken::new(1), |n| *n = 10).unwrap_err();
    /// assert_eq!(stale.seen, FencingToken::new(2));
    /// assert_eq!(gate.read(|n| *n), 20);
    /// ```
    pub fn write_with<R>(
        &self,
        token: FencingToken,
        write: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Stale> {
        let (seen, value) = &mut *locked(&self.inner);
        match *seen {
            Some(seen) if token < seen => Err(Stale { token, seen }),
            _ => {
                *seen = Some(token);
                Ok(write(value))
            }
        }
    }

    /// Reads the value. Reading needs no token. Writers wait, blocked, while `read` runs.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&locked(&self.inner).1)
    }

    /// The greatest token that has been seen; store it with the value if the process may restart.
    pub fn seen(&self) -> Option<FencingToken> {
        locked(&self.inner).0
    }
}

/// A write was refused, because a later holder has written already.
///
/// It converts into an [`Error`](crate::Error) of kind [`Stale`](crate::ErrorKind::Stale), so
/// `?` works in functions that return that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("token {token} is stale: {seen} has written already")]
#[non_exhaustive]
pub struct Stale {
    /// The token of the refused writer.
    pub token: FencingToken,
    /// The greatest token that the gate has seen.
    pub seen: FencingToken,
}

impl From<Stale> for Error {
    fn from(stale: Stale) -> Error {
        Error::new(ErrorKind::Stale, stale.to_string())
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
        assert_eq!(
            stale,
            Err(Stale {
                token: token(6),
                seen: token(7)
            })
        );
        assert_eq!(gate.read(Vec::clone), ["a", "b"]);
        assert_eq!(gate.seen(), Some(token(7)));
        assert_eq!(Error::from(stale.unwrap_err()).kind(), ErrorKind::Stale);
    }

    #[test]
    fn it_goes_on_where_it_was_loaded() {
        let gate = FenceGate::with_token(0, FencingToken::new(9));
        assert!(gate.write_with(FencingToken::new(8), |n| *n += 1).is_err());
    }
}
