//! The types that core passes to a store in its requests.
//!
//! The id of a claim is made before anything is sent. This makes every request repeatable: the
//! store recognizes the claim, also if the first answer was lost.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::name::Name;
use crate::backend::token::FencingToken;
use crate::support::system::uuid;

/// The least number of turns that a `Fast` claim reserves. It may take this many however long they
/// last.
pub(crate) const TURNS: u32 = 64;

/// The beginning of the text of a place in several stores. No store gives a place such a text.
const SEVERAL: &str = "in several stores: ";

/// One acquisition, as the store sees it.
///
/// Core makes it before anything is sent. Each retry carries the same id, so that the store can
/// recognize it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The full name of the lock, namespace included: any UTF-8 without NUL. The store encodes it
    /// so that two names never interact.
    pub name: Name,
    /// The identity of this acquisition, for ever.
    pub id: ClaimId,
    /// The mode: it decides which other claims conflict with this one.
    pub mode: Mode,
    /// The policy: it decides whether the claim waits, and in which order.
    pub policy: WaitPolicy,
    /// The TTL that is asked for. A store may grant more, and says so; never less.
    pub ttl: Duration,
    /// The label, for people to read.
    pub label: Arc<str>,
    /// The least token that a grant may have, and that a hold is raised to, for a store that
    /// implements [`TokenFloor`](crate::backend::TokenFloor) (S16). Core sets none, and other
    /// stores ignore it.
    pub floor: Option<FencingToken>,
    /// It is one of several claims, each in another store, of which a store over stores makes one
    /// hold. Core makes none.
    pub is_part: bool,
    /// The caller waits for no further answer than the one to this request, and is told the
    /// [`Contention`](crate::Contention) in it. A store that answers waiting claims without a read
    /// of their holder reads it for this one. Nothing else depends on it.
    pub is_last: bool,
    /// It asks for a lock under which work is done once: the number of the *fire*, 0 for work that
    /// is not numbered. A completion counts for it whose fire is not smaller (S19). Core sets it
    /// only for a store that implements [`Completions`](crate::backend::Completions), and other
    /// stores ignore it.
    pub once: Option<u64>,
    pub(crate) turns: u32,
}

impl Claim {
    /// A claim with a new id.
    pub fn new(
        name: impl Into<Name>,
        mode: Mode,
        policy: WaitPolicy,
        ttl: Duration,
        label: &str,
    ) -> Claim {
        Claim {
            name: name.into(),
            id: ClaimId::fresh(),
            mode,
            policy,
            ttl,
            label: label.into(),
            floor: None,
            is_part: false,
            is_last: false,
            once: None,
            turns: TURNS,
        }
    }

    /// Returns the claim as one for work that is done once, of this fire. It asks for one turn.
    #[must_use]
    pub const fn once(mut self, fire: u64) -> Claim {
        self.once = Some(fire);
        self.turns = 1;
        self
    }

    /// The number of tokens that a grant of this claim reserves on a store that draws tokens at the
    /// grant: one, or for `Fast` one for each turn that tasks of one process take under it. Every
    /// attempt of a claim asks for the same number.
    ///
    /// A hold with several tokens is not decided by its store alone, so no condition for a
    /// transaction of that store covers it. For this reason a part of a hold in several stores has
    /// two tokens.
    pub const fn turns(&self) -> u32 {
        match (self.policy, self.is_part) {
            (WaitPolicy::Fast, false) => self.turns,
            (WaitPolicy::Fast, true) if self.turns > 2 => self.turns,
            (_, true) => 2,
            (_, false) => 1,
        }
    }

    /// Returns the claim with another label and an unchanged id. A holder publishes a new value by
    /// claiming again with it.
    #[must_use]
    pub fn with_label(mut self, label: &str) -> Claim {
        self.label = label.into();
        self
    }
}

/// 128 random bits that identify one acquisition. It displays as 32 hexadecimal digits.
///
/// On stores where the id proves the ownership of a lock (Redis), it is a secret between the holder
/// and the store: a client that knows it can release the lock. Therefore `Debug` shows only its
/// first digits.
///
/// # Examples
///
/// ```
/// use leasehold_core::backend::ClaimId;
///
/// let id = ClaimId::fresh();
/// assert_eq!(ClaimId::parse(&id.to_string()), Some(id));
/// assert!(!format!("{id:?}").contains(&id.to_string()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(u128);

impl ClaimId {
    /// A new id from the random source of the operating system.
    pub fn fresh() -> ClaimId {
        ClaimId(uuid().as_u128())
    }

    pub(crate) const fn of_random(word: u128) -> ClaimId {
        ClaimId(word)
    }

    /// The id that `Display` printed; `None` for any other text.
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

/// The mode of a claim: it decides which other claims conflict with it. The enum is exhaustive on
/// purpose: a store that does not know a mode must not compile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Conflicts with every other claim.
    Exclusive,
    /// Conflicts with every other claim that is not `Shared`.
    Shared,
    /// Takes `n` of `of` permits. Conflicts with the other modes, and with other permits if not
    /// enough are left.
    Permits {
        /// The number of permits that this claim takes.
        n: u32,
        /// The number of permits that the semaphore has.
        of: u32,
    },
}

impl Mode {
    /// The mode as permits, for stores to keep: its kind, and how many of how many it takes.
    ///
    /// Claims of one kind share the permits, and kinds exclude each other. An exclusive claim takes
    /// the only one of its kind, a shared one takes one of very many.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::backend::Mode;
    ///
    /// assert_eq!(Mode::Permits { n: 2, of: 5 }.parts(), ("permits", 2, 5));
    /// assert_eq!(Mode::from_parts("shared", 1, u32::MAX), Some(Mode::Shared));
    /// assert_eq!(Mode::from_parts("permits", 6, 5), None);
    /// ```
    pub const fn parts(self) -> (&'static str, u32, u32) {
        match self {
            Mode::Exclusive => ("exclusive", 1, 1),
            Mode::Shared => ("shared", 1, u32::MAX),
            Mode::Permits { n, of } => ("permits", n, of),
        }
    }

    /// The mode of these [`parts`](crate::backend::Mode::parts); `None` if there is no such mode.
    /// The numbers count for permits only.
    pub fn from_parts(kind: &str, n: u32, of: u32) -> Option<Mode> {
        match (kind, n) {
            ("exclusive", _) => Some(Mode::Exclusive),
            ("shared", _) => Some(Mode::Shared),
            ("permits", 1..) if n <= of => Some(Mode::Permits { n, of }),
            _ => None,
        }
    }
}

/// The policy of a claim: it decides whether the claim waits, and in which order. The enum is
/// exhaustive on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WaitPolicy {
    /// Now, or not at all. Leaves no place in the queue.
    Try,
    /// Waits. May take a free lock before older waiters that are `Fast` too, but never before a
    /// live `Fair` one.
    Fast,
    /// Waits, strictly in the order in which the places were taken.
    Fair,
}

/// The place of a claim in the store: a key, the path of a node, a row. Core only hands it back.
/// `Debug` does not show it, because it may contain the id of the claim.
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

    /// The place of a hold that a store over other stores has in several of them. A statement about
    /// a hold in one of those stores does not cover such a hold.
    pub fn in_several_stores(id: ClaimId) -> Place {
        Place(format!("{SEVERAL}{id}").into())
    }

    /// Returns whether it was made by [`in_several_stores`](Place::in_several_stores).
    pub(crate) fn is_in_several_stores(&self) -> bool {
        self.0.starts_with(SEVERAL)
    }

    /// The text that the store gave.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One place that core renews with [`Backend::renew`](crate::backend::Backend::renew).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseRef {
    /// The claim that took the place, as it is now: with the mode after a downgrade, with the label
    /// after a proclamation.
    pub claim: ClaimRef,
    /// The place.
    pub place: Place,
    /// The token of the grant; `None` while the claim waits.
    pub token: Option<FencingToken>,
}

impl LeaseRef {
    /// The lease of this claim at this place.
    pub fn new(claim: Arc<Claim>, place: Place, token: Option<FencingToken>) -> LeaseRef {
        LeaseRef {
            claim: ClaimRef(claim),
            place,
            token,
        }
    }
}

/// A shared reference to a claim. It dereferences to the claim; a clone of it refers to the same
/// claim and does not copy it.
#[derive(Clone)]
pub struct ClaimRef(pub(crate) Arc<dyn HasClaim>);

/// A value that contains a claim. Through it a renewal refers to the claim without a copy.
pub(crate) trait HasClaim: Send + Sync {
    fn claim(&self) -> &Claim;
}

impl HasClaim for Claim {
    fn claim(&self) -> &Claim {
        self
    }
}

impl Deref for ClaimRef {
    type Target = Claim;

    fn deref(&self) -> &Claim {
        self.0.claim()
    }
}

impl fmt::Debug for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_come_back_from_their_parts_and_junk_does_not() {
        for mode in [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Permits { n: 2, of: u32::MAX },
        ] {
            let (kind, n, of) = mode.parts();
            assert_eq!(Mode::from_parts(kind, n, of), Some(mode));
        }
        for (kind, n, of) in [("", 1, 1), ("permits", 0, 1), ("permits", 6, 5)] {
            assert_eq!(Mode::from_parts(kind, n, of), None, "{kind} {n} {of}");
        }
    }

    #[test]
    fn an_id_parses_back_and_hides_in_debug() {
        let id = ClaimId::fresh();
        assert_eq!(ClaimId::parse(&id.to_string()), Some(id));
        let hex = id.to_string();
        let digits = "0".repeat(31);
        for other in [
            "xyz",
            &digits,
            &format!("{digits}00"),
            &format!("+{digits}"),
            &format!("{digits}x"),
        ] {
            assert_eq!(ClaimId::parse(other), None, "{other}");
        }
        let shown = format!("{id:?}");
        assert!(
            shown.contains(&hex[..8]) && !shown.contains(&hex[..9]),
            "{shown} of {hex}"
        );
    }

    #[test]
    fn a_lease_shows_its_claim_and_hides_its_place() {
        let claim = Claim::new(
            "orders",
            Mode::Exclusive,
            WaitPolicy::Fair,
            Duration::from_secs(1),
            "me",
        );
        let lease = LeaseRef::new(Arc::new(claim), Place::new("at s3cret"), None);
        let shown = format!("{lease:?}");
        assert!(
            shown.contains("orders") && shown.contains("Place(…)") && !shown.contains("s3cret"),
            "{shown}"
        );
        assert_eq!(lease.place.as_str(), "at s3cret");
    }
}
