//! The holder that was in the way of a claim, for errors.
//!
//! A refusal that names the holder saves its reader a second tool: the label says which machine to
//! look at, the token says which hold to evict.

use std::fmt;
use std::time::Duration;

use crate::backend::token::FencingToken;
use crate::support::setters::setters;

/// The facts known about the holder that was in the way of a claim.
///
/// Each field is `None` if the store could not tell it. It is for people and logs: it may be
/// outdated when it arrives.
///
/// # Examples
///
/// ```
/// use leasehold_core::{Contention, FencingToken};
///
/// let who = Contention::by("web-1/4711").token(FencingToken::new(17)).waiters(2);
/// assert_eq!(who.to_string(), "held by web-1/4711, token 17, 2 waiting");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Contention {
    /// The label of the holder.
    pub label: Option<String>,
    /// The fencing token of the holder.
    pub token: Option<FencingToken>,
    /// The time for which the lock has been held, by the clock of the store if it has one.
    pub held_for: Option<Duration>,
    /// The number of clients that wait in the queue, without this claim.
    pub waiters: Option<usize>,
    /// True if the holder is another tool, not Leasehold.
    pub foreign: bool,
}

impl Contention {
    /// A holder of which nothing is known.
    pub fn unknown() -> Contention {
        Contention::default()
    }

    /// A holder with this label.
    pub fn by(label: impl Into<String>) -> Contention {
        Contention {
            label: Some(label.into()),
            ..Contention::default()
        }
    }

    /// A holder that is another tool.
    pub fn foreign() -> Contention {
        Contention {
            foreign: true,
            ..Contention::default()
        }
    }

    setters! {
        /// Sets the token of the holder.
        token: FencingToken => Some(token);
        /// Sets how long the lock has been held.
        held_for: Duration => Some(held_for);
        /// Sets how many clients wait.
        waiters: usize => Some(waiters);
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.label, self.foreign) {
            (Some(label), _) => write!(f, "held by {label}")?,
            (None, true) => f.write_str("held by another tool")?,
            (None, false) => f.write_str("held by somebody")?,
        }
        if let Some(token) = self.token {
            write!(f, ", token {token}")?;
        }
        if let Some(held) = self.held_for {
            write!(f, ", for {:.1} s", held.as_secs_f64())?;
        }
        match self.waiters {
            Some(n) if n > 0 => write!(f, ", {n} waiting"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_shown() {
        for (who, shown) in [
            (Contention::unknown(), "held by somebody"),
            (Contention::unknown().waiters(0), "held by somebody"),
            (
                Contention::foreign().waiters(1),
                "held by another tool, 1 waiting",
            ),
            (
                Contention::by("web-1").held_for(Duration::from_millis(1250)),
                "held by web-1, for 1.2 s",
            ),
            (
                Contention::by("web-1")
                    .token(FencingToken::new(7))
                    .waiters(2),
                "held by web-1, token 7, 2 waiting",
            ),
        ] {
            assert_eq!(who.to_string(), shown);
        }
    }
}
