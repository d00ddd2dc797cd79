//! The nouns that go down through the seam: what core asks of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::seam::name::Name;
use crate::seam::token::FencingToken;

/// One acquisition, as the store sees it. Made by core before anything is sent; every retry of it carries the same id.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The lock's full name, namespace included. Any UTF-8 without NUL; the store encodes it injectively.
    pub name: Name,
    /// Identifies this acquisition for ever.
    pub id: ClaimId,
    /// What it conflicts with.
    pub mode: Mode,
    /// Whether it waits, and how.
    pub policy: WaitPolicy,
    /// The lease that is asked for. A store may grant more (and says so), never less.
    pub ttl: Duration,
    /// Who asks, for people to read.
    pub label: Arc<str>,
}

impl Claim {
    /// A claim with a fresh id.
    pub fn new(name: impl Into<Name>, mode: Mode, policy: WaitPolicy, ttl: Duration, label: &str) -> Claim {
        Claim { name: name.into(), id: ClaimId::fresh(), mode, policy, ttl, label: label.into() }
    }

    /// The same claim with another label: claiming again with it is how a holder proclaims a new value.
    #[must_use]
    pub fn with_label(mut self, label: &str) -> Claim {
        self.label = label.into();
        self
    }
}

/// 128 random bits that identify one acquisition. Displays as 32 hexadecimal digits.
///
/// On stores where the id is what proves ownership (Redis) it is a secret between the holder and the store, so `Debug`
/// shows only its first digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(u128);

impl ClaimId {
    /// An id from the operating system's random source.
    pub fn fresh() -> ClaimId {
        ClaimId(uuid::Uuid::new_v4().as_u128())
    }

    /// The id that [`Display`](fmt::Display) printed; `None` for anything else.
    pub fn parse(hex: &str) -> Option<ClaimId> {
        (hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .then(|| u128::from_str_radix(hex, 16).ok())
            .flatten()
            .map(ClaimId)
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({:08x}…)", self.0 >> 96)
    }
}

/// What a claim conflicts with. Exhaustive on purpose: a store that does not know a mode must not compile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Conflicts with everything.
    Exclusive,
    /// Conflicts with everything but other `Shared`.
    Shared,
    /// Takes `n` of `of` permits; conflicts with other modes, and with other permits once there is no room.
    Permits {
        /// How many permits this claim takes.
        n: u32,
        /// How many there are.
        of: u32,
    },
}

/// Whether a claim waits, and how. Exhaustive on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitPolicy {
    /// Now or not at all; leaves no place behind.
    Try,
    /// May take a free lock before older waiters that are `Fast` too, never before a live `Fair` one.
    Fast,
    /// Strictly in the order in which places were taken.
    Fair,
}

/// Where a claim stands in the store: a key, a node's path. Opaque to core, and to `Debug`: it may name the claim.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Place(Arc<str>);

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place(…)")
    }
}

impl Place {
    /// A place with this text.
    pub fn new(place: impl Into<Arc<str>>) -> Place {
        Place(place.into())
    }

    /// The text that the store gave.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A place that core keeps: what [`Backend::renew`](crate::seam::Backend::renew) is asked about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseRef {
    /// The claim that took the place, as it is now: after a downgrade with that mode, after a proclamation with that label.
    pub claim: Arc<Claim>,
    /// The place.
    pub place: Place,
    /// The token of the grant; `None` while the claim waits in line.
    pub token: Option<FencingToken>,
}

impl LeaseRef {
    /// A lease of this claim at this place.
    pub fn new(claim: Arc<Claim>, place: Place, token: Option<FencingToken>) -> LeaseRef {
        LeaseRef { claim, place, token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_parses_back_and_hides_in_debug() {
        let id = ClaimId::fresh();
        assert_eq!(ClaimId::parse(&id.to_string()), Some(id));
        assert_eq!(ClaimId::parse("xyz"), None);
        assert!(!format!("{id:?}").contains(&id.to_string()));
    }
}
