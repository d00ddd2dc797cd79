//! Who stood in the way of a claim, for errors.

use std::fmt;
use std::time::Duration;

use crate::seam::token::FencingToken;

/// Who stood in the way of a claim, as far as the store could tell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Contention {
    /// The holder's label.
    pub label: Option<String>,
    /// The holder's token.
    pub token: Option<FencingToken>,
    /// For how long it has been held, by the store's clock where it has one.
    pub held_for: Option<Duration>,
    /// How many stand in line, this claim not counted.
    pub waiters: Option<usize>,
    /// The holder is another tool's entry, not Leasehold's.
    pub foreign: bool,
}

impl Contention {
    /// Somebody; nothing more is known.
    pub fn unknown() -> Contention {
        Contention::default()
    }

    /// A holder with this label.
    pub fn by(label: impl Into<String>) -> Contention {
        Contention { label: Some(label.into()), ..Contention::default() }
    }

    /// Another tool's entry.
    pub fn foreign() -> Contention {
        Contention { foreign: true, ..Contention::default() }
    }

    /// Adds the holder's token.
    #[must_use]
    pub fn token(mut self, token: FencingToken) -> Contention {
        self.token = Some(token);
        self
    }

    /// Adds for how long it has been held.
    #[must_use]
    pub fn held_for(mut self, d: Duration) -> Contention {
        self.held_for = Some(d);
        self
    }

    /// Adds how many wait.
    #[must_use]
    pub fn waiters(mut self, n: usize) -> Contention {
        self.waiters = Some(n);
        self
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
