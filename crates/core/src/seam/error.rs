//! One small error for everything that can go wrong, honest about what is known.

use std::fmt;

use crate::seam::contention::Contention;
use crate::seam::loss::Loss;
use crate::seam::name::Name;

/// `Result` with Leasehold's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What happened. Kinds are few: act on the kind, read the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Somebody else holds it; from a *try*. [`Error::contention`] says who.
    Contended,
    /// It did not come free in the time that the caller gave. [`Error::contention`] says who was before us.
    TimedOut,
    /// The hold ended before this call: [`Error::loss`] says why. Or its token was refused as [`Stale`](crate::Stale).
    Lost,
    /// A bad name, option or URL. Nothing was sent.
    Invalid,
    /// This store, or this build, cannot do it.
    Unsupported,
    /// The store refused our credentials or rights.
    Denied,
    /// The store cannot be reached or cannot serve. The request was not executed.
    Unavailable,
    /// The request may or may not have been executed. Leasehold cleans up after it by itself.
    Ambiguous,
    /// The store was closed, or no tokio runtime is running here.
    Closed,
    /// The store holds something that cannot be ours (a wrong-typed key, junk in our prefix), or a bug.
    Internal,
}

impl ErrorKind {
    /// Whether a request that ended so may have had an effect.
    pub(crate) fn may_have_been_executed(self) -> bool {
        use ErrorKind::{Closed, Denied, Invalid, Unavailable, Unsupported};
        !matches!(self, Invalid | Unsupported | Denied | Unavailable | Closed)
    }

    /// Whether repeating a release that ended so is pointless.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Denied | ErrorKind::Closed)
    }
}

/// An error of Leasehold. Neither `Display` nor `Debug` ever shows a URL's credentials or a claim's id.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    name: Option<Name>,
    loss: Option<Loss>,
    contention: Option<Contention>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind. The message says what to do about it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let message = message.into();
        Error(Box::new(Inner { kind, message, name: None, loss: None, contention: None, source: None }))
    }

    /// Adds the cause. Stores see to it that the cause shows no credentials.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Adds the lock's name, as the user wrote it.
    #[must_use]
    pub fn with_name(mut self, name: &Name) -> Error {
        self.0.name = Some(name.clone());
        self
    }

    /// Somebody else holds it: what a *try* answers. For decorators and mocks of a [`DistributedLock`](crate::DistributedLock).
    pub fn contended(who: Contention) -> Error {
        Error::refused(ErrorKind::Contended, who)
    }

    /// It did not come free in the time that the caller gave. For decorators and mocks.
    pub fn timed_out(who: Contention) -> Error {
        Error::refused(ErrorKind::TimedOut, who)
    }

    /// The hold ended, for this reason. For decorators and mocks.
    pub fn lost(loss: Loss) -> Error {
        let mut e = Error::new(ErrorKind::Lost, "");
        e.0.loss = Some(loss);
        e
    }

    pub(crate) fn refused(kind: ErrorKind, who: Contention) -> Error {
        let mut e = Error::new(kind, "");
        e.0.contention = Some(who);
        e
    }

    /// Says better who stood in the way.
    pub(crate) fn with_contention(mut self, better: impl FnOnce(&mut Contention)) -> Error {
        self.0.contention.as_mut().map(better);
        self
    }

    pub(crate) fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the store was closed")
    }

    /// What happened.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Somebody else holds it, and this was a *try*.
    pub fn is_contended(&self) -> bool {
        self.0.kind == ErrorKind::Contended
    }

    /// Trying the same again later can help.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::{Ambiguous, Contended, TimedOut, Unavailable};
        matches!(self.0.kind, Contended | TimedOut | Unavailable | Ambiguous)
    }

    /// The lock's name, without the store's namespace.
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// Why the hold ended ([`ErrorKind::Lost`]). `None` if a gate refused its token.
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss
    }

    /// Who stood in the way ([`ErrorKind::Contended`], [`ErrorKind::TimedOut`]).
    pub fn contention(&self) -> Option<&Contention> {
        self.0.contention.as_ref()
    }

    /// Makes *somebody else holds it* a value: `Contended` and `TimedOut` become `Ok`, the rest stays an error.
    pub fn into_contention(mut self) -> Result<Contention> {
        self.0.contention.take().ok_or(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        if let Some(name) = &e.name {
            write!(f, "lock {name:?}: ")?;
        }
        match (e.kind, &e.contention, e.loss) {
            (ErrorKind::Contended, Some(who), _) => write!(f, "{who}"),
            (ErrorKind::TimedOut, Some(who), _) => write!(f, "not acquired in time: {who}"),
            (ErrorKind::Lost, _, Some(loss)) => write!(f, "the lock is no longer held: {loss}"),
            _ => f.write_str(&e.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self}", self.0.kind)?;
        let mut cause = std::error::Error::source(self);
        while let Some(e) = cause {
            write!(f, ": {e}")?;
            cause = e.source();
        }
        f.write_str(")")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_is_a_value_on_request() {
        let held = Error::contended(Contention::by("web-1").waiters(2)).with_name(&"a".into());
        assert_eq!(held.to_string(), "lock \"a\": held by web-1, 2 waiting");
        assert_eq!(held.into_contention().unwrap().label.as_deref(), Some("web-1"));
        let late = Error::timed_out(Contention::unknown());
        assert_eq!((late.kind(), late.into_contention().unwrap()), (ErrorKind::TimedOut, Contention::unknown()));
        let lost = Error::lost(Loss::Evicted);
        assert_eq!((lost.kind(), lost.loss()), (ErrorKind::Lost, Some(Loss::Evicted)));
        let other = Error::new(ErrorKind::Denied, "no");
        assert_eq!(other.into_contention().unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn one_word_wide_and_debug_shows_the_causes() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        let e = Error::new(ErrorKind::Unavailable, "no route").with_source("refused");
        assert_eq!(format!("{e:?}"), "Error(Unavailable: no route: refused)");
    }
}
