//! Retries while a store is unavailable. At the start, they last for as long as the command may
//! wait, or for one lease. A command that waits without limit, and has reached the store once,
//! keeps waiting.

use std::time::Duration;

use leasehold::backend::Moment;
use leasehold::{Error, ErrorKind, Result};

use crate::exit::{about, say};
use crate::open::{Opened, open};
use crate::store_url::StoreUrl;

/// The pause before an unavailable store is asked again.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time for which a command that waits without limit tries to open its store: one lease, as
/// long as an acquire tries. A store in a file is tried once: the file is there or it is not.
pub(crate) fn outage_at_the_start(store: &StoreUrl, lease: Duration) -> Duration {
    if store.file().is_some() {
        Duration::ZERO
    } else {
        lease
    }
}

/// Opens the store. While it is unavailable, tries again until `limit` is over, and reports that in
/// one line on standard error.
pub(crate) async fn open_within(store: &StoreUrl, limit: Duration) -> Result<Opened> {
    let until = Moment::now() + limit;
    let mut reported = false;
    loop {
        let e = match open(store).await {
            Err(e) if is_outage(&e) => e,
            opened => return opened,
        };
        let left = until.since(Moment::now());
        if left.is_zero() {
            return Err(e);
        }
        if !reported {
            say(format_args!(
                "the store is unavailable; trying for {}: {}",
                humantime::format_duration(Duration::from_millis(
                    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
                )),
                about(&e, store)
            ));
        }
        reported = true;
        tokio::time::sleep(left.min(INTERVAL)).await;
    }
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
