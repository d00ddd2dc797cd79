//! The words by which a lock is configured, the same on every primitive, and what they mean together.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::seam::claim::WaitPolicy;
use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::guarantees::{Fairness, Guarantees};
use crate::support::system;

/// The lease that is asked for when nothing else is said.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// The longest lease. Guards renew themselves, so a longer one would only make recovery from a crash slower.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest label, in bytes of UTF-8.
pub const MAX_LABEL_BYTES: usize = 256;

/// The longest value of a candidate in an [`Election`](crate::Election), in bytes of UTF-8.
pub const MAX_VALUE_BYTES: usize = 4096;

/// How a lock is taken and kept: a bag of the same words that every primitive has.
///
/// Words that are not said keep what the store's defaults say. A bad word is reported by the first acquire
/// ([`ErrorKind::Invalid`]), never by a panic.
///
/// ```
/// use std::time::Duration;
/// use leasehold_core::Options;
/// let nightly = Options::default().ttl(Duration::from_secs(30)).max_hold(Duration::from_secs(3600)).label("nightly");
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) policy: Option<WaitPolicy>,
    pub(crate) label: Option<Arc<str>>,
}

/// Implements the words on a type, given where its [`Options`] are.
macro_rules! options {
    ($type:ty, $($options:tt)+) => {
        impl $type {
            /// The lease: if this process dies, the lock is free so long after its last renewal. The guard renews it every
            /// third of that. Default 10 s. Shorter recovers faster and suffers less patience with a slow store.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.$($options)+.ttl = Some(ttl);
                self
            }

            /// The longest hold: after it the lock is given back and the guard is lost
            /// ([`Loss::MaxHold`](crate::Loss::MaxHold)). Default: none.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn max_hold(mut self, d: std::time::Duration) -> Self {
                self.$($options)+.max_hold = Some(d);
                self
            }

            /// The shortest hold: a release before it takes effect only then. For jobs that end in a moment and must not run
            /// again on another machine whose clock lags. Once `release` has returned `Ok` the process may end, where
            /// [`Guarantees::min_hold_outlives_process`](crate::Guarantees) says so; elsewhere it must live until then, and
            /// `close` waits for that as long as its limit allows. Default: none.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn min_hold(mut self, d: std::time::Duration) -> Self {
                self.$($options)+.min_hold = Some(d);
                self
            }

            /// Waiters are served strictly in the order in which the store took their places. The default, except on a store
            /// that keeps no order ([`Fairness::None`](crate::Fairness)): there this word is refused
            /// ([`Unsupported`](crate::ErrorKind::Unsupported)), and `fast` is the default.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn fair(mut self) -> Self {
                self.$($options)+.policy = Some(crate::seam::claim::WaitPolicy::Fair);
                self
            }

            /// Least latency and most throughput: tasks of one process hand the lock to each other without the network, for
            /// a bounded number of turns and at most one lease while others wait. A store may let a newcomer take a free
            /// lock before older `fast` waiters, never before a `fair` one; none of ours does.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn fast(mut self) -> Self {
                self.$($options)+.policy = Some(crate::seam::claim::WaitPolicy::Fast);
                self
            }

            /// Who we are, for people who look at the store and for errors of those who wait. At most 256 bytes. Default:
            /// host name and process id.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn label(mut self, label: impl Into<String>) -> Self {
                self.$($options)+.label = Some(label.into().into());
                self
            }

            /// Takes over every word that `options` says.
            #[must_use = "this returns the changed options: use what it returns"]
            pub fn with(mut self, options: &crate::Options) -> Self {
                self.$($options)+.take_over(options);
                self
            }
        }
    };
}
pub(crate) use options;

/// Options with every word said and checked against a store.
#[derive(Clone)]
pub(crate) struct ResolvedOptions {
    pub(crate) ttl: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Option<Duration>,
    pub(crate) policy: WaitPolicy,
    pub(crate) label: Arc<str>,
}

impl Options {
    pub(crate) fn take_over(&mut self, other: &Options) {
        let Options { ttl, max_hold, min_hold, policy, label } = other.clone();
        *self = Options {
            ttl: ttl.or(self.ttl),
            max_hold: max_hold.or(self.max_hold),
            min_hold: min_hold.or(self.min_hold),
            policy: policy.or(self.policy),
            label: label.or_else(|| self.label.take()),
        };
    }

    pub(crate) fn resolve(&self, store: &Guarantees) -> Result<ResolvedOptions> {
        let policy = match (self.policy, store.fairness) {
            (Some(WaitPolicy::Fair), Fairness::None) => {
                let text = format!("{} keeps no order among those who wait, so nothing is fair on it", store.store);
                return Err(Error::new(ErrorKind::Unsupported, text));
            }
            (Some(policy), _) => policy,
            (None, Fairness::None) => WaitPolicy::Fast,
            (None, _) => WaitPolicy::Fair,
        };
        let ttl = self.ttl.unwrap_or(DEFAULT_TTL.max(store.min_ttl));
        let resolved = ResolvedOptions {
            ttl,
            max_hold: self.max_hold,
            min_hold: self.min_hold,
            policy,
            label: self.label.clone().unwrap_or_else(|| HOST_AND_PID.clone()),
        };
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if ttl < store.min_ttl {
            return invalid(format!(
                "a ttl of {ttl:?} is below the shortest that {} keeps, {:?}",
                store.store, store.min_ttl
            ));
        }
        if ttl > MAX_TTL {
            return invalid(format!("a ttl of {ttl:?} is above the longest, {MAX_TTL:?}; guards renew themselves"));
        }
        if resolved.max_hold.is_some_and(|max| max.is_zero() || resolved.min_hold.is_some_and(|min| min > max)) {
            return invalid("max_hold may neither be zero nor below min_hold".into());
        }
        if resolved.label.len() > MAX_LABEL_BYTES {
            return invalid(format!("a label may have at most {MAX_LABEL_BYTES} bytes"));
        }
        Ok(resolved)
    }
}

options!(Options, self_mut());

impl Options {
    /// Lets the words be implemented on `Options` itself by the same macro.
    fn self_mut(&mut self) -> &mut Options {
        self
    }
}

static HOST_AND_PID: LazyLock<Arc<str>> = LazyLock::new(|| {
    let host: String = system::host().chars().take(200).collect();
    format!("{host}/{}", std::process::id()).into()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn said_words_win_over_defaults() {
        let defaults = Options::default().ttl(Duration::from_secs(5)).fast().label("a");
        let recipe = defaults.with(&Options::default().label("b"));
        let resolved = recipe.resolve(&Guarantees::none("x")).unwrap();
        assert_eq!((resolved.ttl, resolved.policy, &*resolved.label), (Duration::from_secs(5), WaitPolicy::Fast, "b"));
    }

    #[test]
    fn a_store_without_order_is_fast_and_refuses_fair() {
        let (orderless, strict) = (Guarantees::none("x"), Guarantees::none("x").fairness(Fairness::Strict));
        let policy =
            |options: Options, store| options.resolve(store).map(|options| options.policy).map_err(|e| e.kind());
        assert_eq!(policy(Options::default(), &orderless), Ok(WaitPolicy::Fast));
        assert_eq!(policy(Options::default().fair(), &orderless), Err(ErrorKind::Unsupported));
        assert_eq!(policy(Options::default(), &strict), Ok(WaitPolicy::Fair));
        assert_eq!(policy(Options::default().fair(), &strict), Ok(WaitPolicy::Fair));
    }

    #[test]
    fn bad_words_are_invalid() {
        let store = Guarantees::none("x");
        for bad in [
            Options::default().ttl(Duration::ZERO),
            Options::default().ttl(Duration::from_nanos(1)),
            Options::default().ttl(Duration::MAX),
            Options::default().max_hold(Duration::ZERO),
            Options::default().max_hold(Duration::from_secs(1)).min_hold(Duration::from_secs(2)),
            Options::default().label("x".repeat(257)),
        ] {
            assert_eq!(bad.resolve(&store).err().map(|e| e.kind()), Some(ErrorKind::Invalid), "{bad:?}");
        }
    }
}
