//! One small error for everything that can go wrong, honest about what is known.
//!
//! There is one error type for all calls, with few kinds, because callers decide by what is known
//! about the request (executed, not executed, not known) and not by the layer in which something
//! failed. The underlying error is the `source`.

use std::fmt;

use crate::seam::contention::Contention;
use crate::seam::loss::Loss;
use crate::seam::name::Name;

/// `Result` with Leasehold's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What happened. The kinds are few: decide by the kind, and show the message to people.
///
/// The kinds differ in what is known about the request, because that decides what a program may do
/// next:
///
/// | Kind | Was the request executed? | Can a retry help? |
/// |---|---|---|
/// | `Contended`, `TimedOut` | yes, and refused | yes |
/// | `Unavailable` | no | yes |
/// | `Ambiguous` | not known | yes: every call of this crate may be repeated |
/// | `Invalid`, `Unsupported`, `Denied`, `Closed` | no | no |
/// | `Lost` | – | acquire the lock anew |
/// | `Internal` | not known | no |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another client holds the lock or waits for it; from a *try*.
    /// [`Error::contention`](crate::Error::contention) names the holder.
    Contended,
    /// The lock did not become free in the time that the caller gave.
    /// [`Error::contention`](crate::Error::contention) names the holder.
    TimedOut,
    /// The hold had ended before this call: [`Error::loss`](crate::Error::loss) says why. Or a
    /// resource refused its token as [`Stale`](crate::Stale).
    Lost,
    /// A bad name, option or URL. Nothing was sent.
    Invalid,
    /// This store, or this build, cannot do it.
    Unsupported,
    /// The store refused the credentials or the rights; with TLS also, a certificate was refused,
    /// the client's or the store's own.
    Denied,
    /// The store cannot be reached or cannot serve. The request was not executed.
    Unavailable,
    /// The request may or may not have been executed. Leasehold cleans up after it: an acquire that
    /// ends so leaves no lock behind for longer than one TTL.
    Ambiguous,
    /// The store was closed, or no tokio runtime is running here.
    Closed,
    /// The store contains something that cannot be Leasehold's (a key of another type, unreadable
    /// data under our prefix), or Leasehold has a bug.
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

/// An error of Leasehold: a [kind](crate::Error::kind), a message, and what is known about the
/// lock.
///
/// It is one pointer wide, so `Result`s stay small. Neither `Display` nor `Debug` shows the
/// credentials of a URL, or the id of a claim, which on Redis would be enough to release it.
/// `Debug` adds the chain of causes.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) {
/// use leasehold_core::ErrorKind;
///
/// if let Err(e) = store.lock("orders/42").try_acquire().await {
///     match e.kind() {
///         ErrorKind::Contended => println!("busy: {e}"), // lock "orders/42": held by web-1/4711, token 17
///         _ if e.is_retryable() => println!("later: {e}"),
///         _ => println!("a mistake, or not allowed: {e:?}"),
///     }
/// }
/// # }
/// ```
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Inner>);

#[derive(Debug, thiserror::Error)]
#[error("{}{detail}", .name.as_ref().map_or(String::new(), |name| format!("lock {name:?}: ")))]
struct Inner {
    detail: Detail,
    name: Option<Name>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What happened, and what is known of it.
#[derive(Debug, thiserror::Error)]
enum Detail {
    #[error("{0}")]
    Contended(Contention),
    #[error("not acquired in time: {0}")]
    TimedOut(Contention),
    #[error("the lock is no longer held: {0}")]
    Lost(Loss),
    #[error("{1}")]
    Other(ErrorKind, String),
}

impl Error {
    /// An error of this kind. The message is for people, and says what to do about it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::of(Detail::Other(kind, message.into()))
    }

    fn of(detail: Detail) -> Error {
        Error(Box::new(Inner { detail, name: None, source: None }))
    }

    /// Adds the cause. A store makes sure that the cause shows no credentials.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{Error, ErrorKind};
    ///
    /// let e = Error::new(ErrorKind::Unavailable, "db-1 does not answer").with_source("connection refused");
    /// assert_eq!(e.to_string(), "db-1 does not answer");
    /// assert_eq!(format!("{e:?}"), "Error(Unavailable: db-1 does not answer: connection refused)");
    /// ```
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Adds the name of the lock, as the user wrote it.
    #[must_use]
    pub fn with_name(mut self, name: &Name) -> Error {
        self.0.name = Some(name.clone());
        self
    }

    /// Another client holds the lock: the answer to a *try*. For decorators and mocks of a
    /// [`DistributedLock`](crate::DistributedLock).
    pub fn contended(by: Contention) -> Error {
        Error::of(Detail::Contended(by))
    }

    /// The lock did not become free in time. For decorators and mocks of a
    /// [`DistributedLock`](crate::DistributedLock).
    pub fn timed_out(by: Contention) -> Error {
        Error::of(Detail::TimedOut(by))
    }

    /// The hold has ended, for this reason. For decorators and mocks.
    pub fn lost(loss: Loss) -> Error {
        Error::of(Detail::Lost(loss))
    }

    /// Corrects which holder was in the way.
    pub(crate) fn with_contention(mut self, better: impl FnOnce(&mut Contention)) -> Error {
        if let Detail::Contended(by) | Detail::TimedOut(by) = &mut self.0.detail {
            better(by);
        }
        self
    }

    /// The store was closed: what its requests answer from then on.
    pub fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the store was closed")
    }

    /// What happened.
    pub fn kind(&self) -> ErrorKind {
        match self.0.detail {
            Detail::Contended(_) => ErrorKind::Contended,
            Detail::TimedOut(_) => ErrorKind::TimedOut,
            Detail::Lost(_) => ErrorKind::Lost,
            Detail::Other(kind, _) => kind,
        }
    }

    /// Whether another client holds the lock, and this was a *try*.
    pub fn is_contended(&self) -> bool {
        self.kind() == ErrorKind::Contended
    }

    /// Whether the same call can succeed later without a change by the caller.
    ///
    /// It says nothing about how long to wait. [`Lock::acquire`](crate::Lock::acquire) retries by
    /// itself; so a retryable error of it has been retried, as a rule for a whole lease.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{Error, ErrorKind};
    ///
    /// assert!(Error::new(ErrorKind::Unavailable, "no route to the host").is_retryable());
    /// assert!(!Error::new(ErrorKind::Denied, "wrong password").is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::{Ambiguous, Contended, TimedOut, Unavailable};
        matches!(self.kind(), Contended | TimedOut | Unavailable | Ambiguous)
    }

    /// The name of the lock, without the namespace of the store; `None` if the error is not about
    /// one lock.
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// Why the hold ended, for [`ErrorKind::Lost`](crate::ErrorKind::Lost). `None` if a
    /// [`FenceGate`](crate::FenceGate) refused its token.
    pub fn loss(&self) -> Option<Loss> {
        if let Detail::Lost(loss) = self.0.detail { Some(loss) } else { None }
    }

    /// The holder that was in the way, for [`ErrorKind::Contended`](crate::ErrorKind::Contended)
    /// and [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut).
    pub fn contention(&self) -> Option<&Contention> {
        if let Detail::Contended(by) | Detail::TimedOut(by) = &self.0.detail { Some(by) } else { None }
    }

    /// Turns *another client holds it* into a value: `Contended` and `TimedOut` become `Ok`.
    ///
    /// # Errors
    ///
    /// Every other error stays as it is.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{Contention, Error, ErrorKind};
    ///
    /// let busy = Error::contended(Contention::by("web-1"));
    /// assert_eq!(busy.into_contention().unwrap().label.as_deref(), Some("web-1"));
    /// let denied = Error::new(ErrorKind::Denied, "no such user");
    /// assert!(denied.into_contention().is_err());
    /// ```
    pub fn into_contention(self) -> Result<Contention> {
        match self.0.detail {
            Detail::Contended(by) | Detail::TimedOut(by) => Ok(by),
            _ => Err(self),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self}", self.kind())?;
        let mut cause = std::error::Error::source(self);
        while let Some(e) = cause {
            write!(f, ": {e}")?;
            cause = e.source();
        }
        f.write_str(")")
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

    /// The table of [`ErrorKind`], and what core makes of it.
    #[test]
    fn a_kind_says_what_is_known_of_the_request() {
        use ErrorKind::{
            Ambiguous, Closed, Contended, Denied, Internal, Invalid, Lost, TimedOut, Unavailable, Unsupported,
        };

        let all = [Contended, TimedOut, Lost, Invalid, Unsupported, Denied, Unavailable, Ambiguous, Closed, Internal];
        let of = |kind| match kind {
            Contended => Error::contended(Contention::unknown()),
            TimedOut => Error::timed_out(Contention::unknown()),
            Lost => Error::lost(Loss::Gone),
            other => Error::new(other, "x"),
        };
        for kind in all {
            let e = of(kind).with_name(&"a".into());
            assert_eq!((e.kind(), e.name()), (kind, Some(&"a".into())));
            assert_eq!(e.is_retryable(), [Contended, TimedOut, Unavailable, Ambiguous].contains(&kind), "{kind:?}");
            assert_eq!(e.is_contended(), kind == Contended);
            assert_eq!(e.contention().is_some(), [Contended, TimedOut].contains(&kind), "{kind:?}");
            let executed = [Contended, TimedOut, Lost, Ambiguous, Internal].contains(&kind);
            assert_eq!(kind.may_have_been_executed(), executed, "{kind:?}");
            assert_eq!(kind.is_final(), [Invalid, Unsupported, Denied, Closed].contains(&kind), "{kind:?}");
        }
        let by = Contention::by("web-1");
        assert_eq!(Error::contended(by.clone()).contention(), Some(&by));
    }
}
