//! Tokens that continue above those of another store: for bridges, and for no other user.

use async_trait::async_trait;

use crate::backend::contract::Backend;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::token::FencingToken;

/// A store that can raise its tokens above a number that it did not give out itself. A fleet moves
/// to such a store, or from it, and its tokens keep rising.
///
/// Core calls none of it. A bridge does, and the command `leasehold bridge-seal`. A store that
/// implements it returns itself from [`Backend::token_floor`].
///
/// # Contract
///
/// - **S16**: A grant to a claim with a [`floor`](crate::backend::Claim) has at least that token,
///   and each later conflicting one is greater than all of its turns. A hold that has a smaller one
///   is **raised**, never lowered, and the answer says what it is now; a hold that excludes all
///   others is raised to the floor itself. Until the hold ends, `evict` and a fence know it by that
///   token. A waiter keeps the greatest floor of its requests. Where [`raises`](TokenFloor::raises)
///   is [`Places`](Raises::Places), the token of a place stays as it is, and a smaller one is
///   answered. A store without this trait ignores a floor. One beyond the store's limit is
///   [`Invalid`](ErrorKind::Invalid), and changes nothing.
/// - **S17**: After [`raise(number)`](TokenFloor::raise) was answered, each place of any name that
///   is taken from then on is granted with a token greater than `number`; where `raises` is
///   [`Holds`](Raises::Holds), so is each waiter that is granted from then on. It lowers nothing,
///   also if it comes late or again, and lives as long as the order of tokens does.
///   [`mark`](TokenFloor::mark) is at least as great as every token, of all turns of all names,
///   that was granted before it was asked for.
#[async_trait]
pub trait TokenFloor: Backend {
    /// The tokens that this store can raise, and up to which number.
    fn raises(&self) -> Raises;

    /// Returns a number that is at least as great as each token granted so far by this store, for
    /// any name (S17).
    async fn mark(&self) -> Result<FencingToken>;

    /// Makes the tokens of all names greater than `number` from now on (S17). The number is the
    /// [`mark`](TokenFloor::mark) of another store.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a number above the limit of
    /// [`raises`](TokenFloor::raises).
    async fn raise(&self, number: FencingToken) -> Result<()>;
}

/// The tokens that a store can raise above a number that it did not give out itself (S16, S17 of
/// [`TokenFloor`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Raises {
    /// It can raise the tokens of places that are taken afterwards, up to this number: the store
    /// numbers a place when it is *taken*.
    Places(FencingToken),
    /// It can also raise the token of a hold, up to this number: the store numbers a hold when it
    /// is *granted*.
    Holds(FencingToken),
}

impl Raises {
    /// The greatest number that tokens can be raised to.
    pub const fn limit(&self) -> FencingToken {
        match self {
            Raises::Places(limit) | Raises::Holds(limit) => *limit,
        }
    }

    /// Checks that this [`floor`](crate::backend::Claim) of a claim, or the number of a
    /// [`raise`](TokenFloor::raise), is not beyond the limit (S16, S17). A store calls it before it
    /// does anything for the request. The limit itself is allowed. Without a floor there is nothing
    /// to refuse.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a number beyond the limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::FencingToken;
    /// use leasehold_core::backend::Raises;
    ///
    /// const RAISES: Raises = Raises::Holds(FencingToken::new(1_000));
    /// assert!(RAISES.check(Some(FencingToken::new(1_000))).is_ok());
    /// assert!(RAISES.check(Some(FencingToken::new(1_001))).is_err());
    /// ```
    pub fn check(&self, floor: Option<FencingToken>) -> Result<()> {
        match (self.limit(), floor) {
            (limit, Some(floor)) if floor > limit => Err(Error::new(
                ErrorKind::Invalid,
                format!("tokens cannot be raised to {floor}, only to {limit}"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_floor_beyond_the_limit_is_refused() {
        let limit = FencingToken::new(1 << 62);
        let beyond = FencingToken::new((1 << 62) + 1);
        for raises in [Raises::Places(limit), Raises::Holds(limit)] {
            assert!(
                [None, Some(FencingToken::new(0)), Some(limit)]
                    .into_iter()
                    .all(|floor| raises.check(floor).is_ok())
            );
            let refused = raises.check(Some(beyond)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert_eq!(
                refused.to_string(),
                format!("tokens cannot be raised to {beyond}, only to {limit}")
            );
        }
    }
}
