//! Retries while a store is unavailable. They last for as long as the command may wait, which includes the time before the store was
//! there for the first time.

use std::time::Duration;

use leasehold::backend::{Clock, Moment};
use leasehold::{Error, ErrorKind, Result};
use leasehold_core::patiently;

use crate::exit::{about, say};
use crate::open::{Opened, open};
use crate::store_url::StoreUrl;

/// The pause before an unavailable store is asked again.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time for which a command that waits without limit waits for its store at the start: for ever. A store in a file is tried
/// once: the file is there or it is not.
pub(crate) fn patience_without_limit(store: &StoreUrl) -> Duration {
    match store.file() {
        Some(_) => Duration::ZERO,
        None => Duration::MAX,
    }
}

/// The time for which a command waits, for its store and for its lock together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// It asks once.
    None,
    /// It waits for this time, from a moment on.
    For(Duration, Moment),
    Unlimited,
}

/// The wait of one request for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Try,
    Within(Duration),
    Forever,
}

impl Patience {
    /// The patience from now on; `wait` is without limit if there is none.
    pub(crate) fn new(wait: Option<Duration>) -> Patience {
        wait.map_or(Patience::Unlimited, |wait| {
            Patience::For(wait, Moment::now())
        })
    }

    /// The time for which the store is tried at the start.
    pub(crate) fn for_store(self, store: &StoreUrl) -> Duration {
        match self {
            Patience::None => Duration::ZERO,
            Patience::For(wait, _) => wait,
            Patience::Unlimited => patience_without_limit(store),
        }
    }

    /// Asks for a lock. A request without a limit is repeated when the store is back.
    pub(crate) async fn acquire<T>(
        self,
        store: &StoreUrl,
        lease: Duration,
        mut ask: impl AsyncFnMut(Limit) -> Result<T>,
    ) -> Result<T> {
        match self {
            Patience::None => ask(Limit::Try).await,
            // This request waits by itself until an unavailable store is back.
            Patience::For(wait, began) => {
                let left = wait.saturating_sub(Moment::now().since(began));
                ask(Limit::Within(left)).await
            }
            Patience::Unlimited => {
                until_answered(store, lease, async || ask(Limit::Forever).await).await
            }
        }
    }
}

/// Opens the store. While it is unavailable, tries again until `patience` is over, and reports that in one line on standard error.
pub(crate) async fn open_patiently(store: &StoreUrl, patience: Duration) -> Result<Opened> {
    let waits = |e: &Error| {
        let how_long = match patience {
            Duration::MAX => "waiting until it is there".to_owned(),
            limit => format!("trying for {}", humantime::format_duration(limit)),
        };
        let why = about(e, store);
        say(format_args!("the store is unavailable; {how_long}: {why}"));
    };
    patiently(patience, &Clock::boot(), || open(store), waits).await
}

/// Tries until the store has answered, with success or refusal. Reports each outage in one line on
/// standard error. An attempt gives up by itself when the store has been unavailable for one lease.
/// An attempt that lasted longer had reached the store, so its error is a new outage.
pub(crate) async fn until_answered<T>(
    store: &StoreUrl,
    lease: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let mut reported = false;
    loop {
        let began = Moment::now();
        let e = match attempt().await {
            Err(e) if is_outage(&e) => e,
            answered => return answered,
        };
        if !reported || Moment::now().since(began) > lease * 3 {
            say(format_args!(
                "the store is unavailable; waiting until it is back: {}",
                about(&e, store)
            ));
        }
        reported = true;
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_outage(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Unavailable | ErrorKind::OtherStore | ErrorKind::Ambiguous
    )
}
