//! One small error for everything that can go wrong, honest about what is known.
//!
//! There is one error type for all calls, with few kinds, because callers decide by what is known
//! about the request (executed, not executed, not known) and not by the layer in which something
//! failed. The underlying error is the `source`.

use std::fmt;

use crate::backend::contention::Contention;
use crate::backend::loss::Loss;
use crate::backend::name::Name;

/// `Result` with Leasehold's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. The kinds are few: decide by the kind, and show the message to people.
///
/// The kinds differ in what is known about the request, because that decides what a program may do
/// next:
///
/// | Kind | Was the request executed? | Can a retry help? |
/// |---|---|---|
/// | `Contended`, `TimedOut` | yes, and refused | yes |
/// | `Unavailable` | no | yes |
/// | `OtherStore` | not by the store | yes, once the address leads to the store again |
/// | `Ambiguous` | not known | yes: every call of this crate may be repeated |
/// | `Invalid`, `Unsupported`, `Denied`, `Closed` | no | no |
/// | `NoRuntime` | no | inside of a tokio runtime |
/// | `Lost` | – | acquire the lock anew |
/// | `Stale` | yes, and refused | acquire the lock anew |
/// | `Corrupt` | not known | after an operator has removed what is in the way |
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
    /// The hold had ended before this call: [`Error::loss`](crate::Error::loss) says why.
    Lost,
    /// A resource refused the fencing token, because a later holder has written already: see
    /// [`Stale`](crate::Stale). Nothing was written.
    Stale,
    /// A bad name, option or URL. Nothing was sent.
    Invalid,
    /// This store, or this build, cannot do it.
    Unsupported,
    /// The store refused the credentials or the rights; with TLS also, a certificate was refused,
    /// the client's or the store's own.
    Denied,
    /// The store cannot be reached or cannot serve. The request was not executed.
    Unavailable,
    /// The server that answered belongs to another store than this client, or than the URL names
    /// with `store`: see [`StoreId`](crate::StoreId). Its answer counts for nothing: it has
    /// granted, renewed and ended no hold of this client. The message names both stores.
    OtherStore,
    /// The request may or may not have been executed. Leasehold cleans up after it: an acquire that
    /// ends so leaves no lock behind for longer than one TTL.
    Ambiguous,
    /// The store was closed.
    Closed,
    /// No tokio runtime is running here. Nothing was sent.
    NoRuntime,
    /// The store contains something that cannot be Leasehold's, such as a key of another type or
    /// unreadable data under our prefix. The message says what to remove.
    Corrupt,
    /// Leasehold has a bug: a task of it panicked, or a server refused or answered a request in a
    /// way that Leasehold does not know.
    Internal,
}

impl ErrorKind {
    /// Returns whether a request that ended with this kind may have had an effect.
    pub(crate) fn may_have_been_executed(self) -> bool {
        use ErrorKind::{Closed, Denied, Invalid, NoRuntime, OtherStore, Unavailable, Unsupported};
        !matches!(
            self,
            Invalid | Unsupported | Denied | Unavailable | OtherStore | Closed | NoRuntime
        )
    }

    /// Returns whether the store gave no answer, so that the same request may get one later.
    pub(crate) fn is_outage(self) -> bool {
        use ErrorKind::{Ambiguous, OtherStore, Unavailable};
        matches!(self, Unavailable | OtherStore | Ambiguous)
    }

    /// Returns whether it is pointless to repeat a release that ended with this kind.
    pub(crate) fn is_final(self) -> bool {
        use ErrorKind::{Closed, Corrupt, Denied, Internal, Invalid, NoRuntime, Unsupported};
        matches!(
            self,
            Invalid | Unsupported | Denied | Closed | NoRuntime | Corrupt | Internal
        )
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
#[error(
    "{}{}",
    .name.as_ref().map_or(String::new(), |name| format!("lock {name:?}: ")),
    .message.as_ref().map_or_else(|| detail.to_string(), String::clone)
)]
struct Inner {
    detail: Detail,
    /// The text in place of that of `detail`.
    message: Option<String>,
    name: Option<Name>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    is_answer: bool,
}

/// The kind of the error with its details.
#[derive(Debug, thiserror::Error)]
enum Detail {
    #[error("{0}")]
    Contended(Contention),
    #[error("not acquired in time: {0}")]
    TimedOut(Contention),
    #[error("the lock is no longer held: {0}")]
    Lost(Loss),
    #[error("{0:?}")]
    Other(ErrorKind),
}

impl Detail {
    /// The kind, and of its details as much as a kind says: so each `Lost` has a loss.
    fn of(kind: ErrorKind) -> Detail {
        match kind {
            ErrorKind::Contended => Detail::Contended(Contention::unknown()),
            ErrorKind::TimedOut => Detail::TimedOut(Contention::unknown()),
            ErrorKind::Lost => Detail::Lost(Loss::Gone),
            other => Detail::Other(other),
        }
    }
}

impl Error {
    /// An error of this kind. The message is for people, and says what to do about it.
    ///
    /// [`contended`](Error::contended), [`timed_out`](Error::timed_out) and [`lost`](Error::lost)
    /// make the errors that have details. Without them the holder is unknown, and the loss is
    /// [`Gone`](Loss::Gone).
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        let mut error = Error::of(Detail::of(kind));
        error.0.message = Some(message.into());
        error
    }

    fn of(detail: Detail) -> Error {
        Error(Box::new(Inner {
            detail,
            message: None,
            name: None,
            source: None,
            is_answer: false,
        }))
    }

    /// Marks the error as the server's own refusal, rather than a connection that was not made or
    /// that broke. A *try* ends with such an error at once. A refusal that the same request sent
    /// once more would get past, for example of a script that the server has just forgotten, is not
    /// marked.
    #[must_use]
    pub fn answered(mut self) -> Error {
        self.0.is_answer = true;
        self
    }

    /// Returns whether it was marked as [`answered`](Error::answered) by the server.
    pub fn is_answer(&self) -> bool {
        self.0.is_answer
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
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Puts these words before the message, as `words: message`, to name the part of a store that
    /// the error came from. Everything else stays.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::{Error, ErrorKind};
    ///
    /// let e = Error::new(ErrorKind::Unavailable, "db-1 does not answer").with_source("connection refused");
    /// let e = e.in_context("the old store");
    /// assert_eq!(format!("{e:?}"), "Error(Unavailable: the old store: db-1 does not answer: connection refused)");
    /// ```
    #[must_use]
    pub fn in_context(mut self, words: impl fmt::Display) -> Error {
        self.0.message = Some(format!("{words}: {}", self.text()));
        self
    }

    /// Gives the error another kind. More may be known about a request of several steps than the
    /// error of one step says. Message and cause stay.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        if kind != self.kind() {
            self.0.message = Some(self.text());
            self.0.detail = Detail::of(kind);
        }
        self
    }

    /// The message without the name.
    fn text(&self) -> String {
        let message = self.0.message.clone();
        message.unwrap_or_else(|| self.0.detail.to_string())
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

    /// Corrects the description of the holder that was in the way.
    pub(crate) fn with_contention(mut self, better: impl FnOnce(&mut Contention)) -> Error {
        if let Detail::Contended(by) | Detail::TimedOut(by) = &mut self.0.detail {
            better(by);
        }
        self
    }

    /// The error of each request to a store that was closed.
    pub fn closed() -> Error {
        Error::new(ErrorKind::Closed, "the store was closed")
    }

    /// What happened.
    pub fn kind(&self) -> ErrorKind {
        match self.0.detail {
            Detail::Contended(_) => ErrorKind::Contended,
            Detail::TimedOut(_) => ErrorKind::TimedOut,
            Detail::Lost(_) => ErrorKind::Lost,
            Detail::Other(kind) => kind,
        }
    }

    /// Returns whether another client holds the lock, and this was a *try*.
    pub fn is_contended(&self) -> bool {
        self.kind() == ErrorKind::Contended
    }

    /// Returns whether the same call can succeed later without a change by the caller.
    ///
    /// It does not say how long to wait. [`Lock::acquire`](crate::Lock::acquire) retries by itself,
    /// so a retryable error of it has been retried, as a rule for a whole lease.
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
        let kind = self.kind();
        matches!(kind, ErrorKind::Contended | ErrorKind::TimedOut) || kind.is_outage()
    }

    /// The name of the lock, without the namespace of the store; `None` if the error is not about
    /// one lock.
    pub fn name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// Why the hold ended, for [`ErrorKind::Lost`](crate::ErrorKind::Lost), and for no other kind.
    pub fn loss(&self) -> Option<Loss> {
        if let Detail::Lost(loss) = self.0.detail {
            Some(loss)
        } else {
            None
        }
    }

    /// The holder that was in the way, for [`ErrorKind::Contended`](crate::ErrorKind::Contended)
    /// and [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut).
    pub fn contention(&self) -> Option<&Contention> {
        if let Detail::Contended(by) | Detail::TimedOut(by) = &self.0.detail {
            Some(by)
        } else {
            None
        }
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
        assert_eq!(
            held.into_contention().unwrap().label.as_deref(),
            Some("web-1")
        );
        let late = Error::timed_out(Contention::unknown());
        assert_eq!(
            (late.kind(), late.into_contention().unwrap()),
            (ErrorKind::TimedOut, Contention::unknown())
        );
        let lost = Error::lost(Loss::Evicted);
        assert_eq!(
            (lost.kind(), lost.loss()),
            (ErrorKind::Lost, Some(Loss::Evicted))
        );
        let other = Error::new(ErrorKind::Denied, "no");
        assert_eq!(
            other.into_contention().unwrap_err().kind(),
            ErrorKind::Denied
        );
    }

    #[test]
    fn one_word_wide_and_debug_shows_the_causes() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        let e = Error::new(ErrorKind::Unavailable, "no route").with_source("refused");
        assert_eq!(format!("{e:?}"), "Error(Unavailable: no route: refused)");
    }

    /// Checks the table of [`ErrorKind`], and core's decisions by kind.
    #[test]
    fn a_kind_says_what_is_known_of_the_request() {
        use ErrorKind::{
            Ambiguous, Closed, Contended, Corrupt, Denied, Internal, Invalid, Lost, NoRuntime,
            OtherStore, Stale, TimedOut, Unavailable, Unsupported,
        };

        let all = [
            Contended,
            TimedOut,
            Lost,
            Stale,
            Invalid,
            Unsupported,
            Denied,
            Unavailable,
            OtherStore,
            Ambiguous,
            Closed,
            NoRuntime,
            Corrupt,
            Internal,
        ];
        let of = |kind| match kind {
            Contended => Error::contended(Contention::unknown()),
            TimedOut => Error::timed_out(Contention::unknown()),
            Lost => Error::lost(Loss::Gone),
            other => Error::new(other, "x"),
        };
        for kind in all {
            for e in [
                of(kind),
                Error::new(kind, "x"),
                Error::new(Denied, "x").with_kind(kind),
                of(kind).in_context("there"),
            ] {
                assert_eq!(
                    (e.kind(), e.loss().is_some(), e.contention().is_some()),
                    (kind, kind == Lost, [Contended, TimedOut].contains(&kind)),
                    "{e:?}"
                );
            }
            let e = of(kind).with_name(&"a".into());
            assert_eq!((e.kind(), e.name()), (kind, Some(&"a".into())));
            assert_eq!(
                e.is_retryable(),
                [Contended, TimedOut, Unavailable, OtherStore, Ambiguous].contains(&kind),
                "{kind:?}"
            );
            assert_eq!(e.is_contended(), kind == Contended);
            assert_eq!(
                e.contention().is_some(),
                [Contended, TimedOut].contains(&kind),
                "{kind:?}"
            );
            let executed = [
                Contended, TimedOut, Lost, Stale, Ambiguous, Corrupt, Internal,
            ]
            .contains(&kind);
            assert_eq!(kind.may_have_been_executed(), executed, "{kind:?}");
            assert_eq!(
                kind.is_final(),
                [
                    Invalid,
                    Unsupported,
                    Denied,
                    Closed,
                    NoRuntime,
                    Corrupt,
                    Internal
                ]
                .contains(&kind),
                "{kind:?}"
            );
        }
        let by = Contention::by("web-1");
        assert_eq!(Error::contended(by.clone()).contention(), Some(&by));
    }
}
