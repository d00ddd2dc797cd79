//! Retries while a store is unavailable: a command that waits without limit, and has reached the store once, keeps waiting.

use std::time::Duration;

use leasehold::seam::Moment;
use leasehold::{Error, ErrorKind, Result};

use crate::exit::{of_store, say};
use crate::store_url::StoreUrl;

/// How long to wait before a store that could not be used is asked again.
const INTERVAL: Duration = Duration::from_secs(1);

/// Tries until the store has answered, whatever it says. One line on standard error for each outage.
/// An attempt gives up by itself when the store has been unavailable for a lease: one that lasted longer had reached the store.
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
            say(format_args!("the store is unavailable; waiting until it is back: {}", of_store(&e, &store.named())));
        }
        reported = true;
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_outage(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous)
}
