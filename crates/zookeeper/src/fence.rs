//! Fencing in ZooKeeper itself: a condition for a user's own transactions.

pub(crate) mod raise;

use leasehold_core::backend::place_of_token;
use leasehold_core::{Error, Fenced, Loss, Result};

use crate::{ZooKeeper, names};

impl ZooKeeper {
    /// A condition for a ZooKeeper transaction of your own on the same ensemble: *`by` still
    /// holds*. It is the path of the node of this hold, which exists exactly as long as the hold
    /// does, and never again. ZooKeeper checks it together with the write, so a holder that was
    /// paused, evicted or cut off past its lease writes nothing, without a token in your data.
    ///
    /// The path is absolute, for a client without a chroot, and any version of the node will do
    /// (−1). A hold of a `fast` lock is refused: a transaction that arrives late would be executed
    /// in the turn of the next task.
    ///
    /// ```no_run
    /// # async fn example(zk: leasehold_zookeeper::ZooKeeper, client: zookeeper_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let store = leasehold_core::Store::new(zk.clone());
    /// let guard = store.lock("orders/42").acquire().await?;
    ///
    /// let mut write = client.new_multi_writer();
    /// write.add_check_version(&zk.still_holds(&guard)?, -1)?;
    /// write.add_set_data("/orders/42", b"paid", None)?;
    /// write.commit().await?; // an error, and nothing is written, if the hold has ended
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](leasehold_core::ErrorKind::Lost) if this client does not know the hold: it has
    /// ended, or is another client's. [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a
    /// `fast` lock and over a bridge. No request is sent.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<String> {
        by.check_condition()?;
        let place = by.place();
        let number = place_of_token(by.fencing_token());
        let ours = place.filter(|place| {
            by.is_valid()
                && names::is_of(place.as_str(), by.full_name())
                && self
                    .sessions
                    .all()
                    .iter()
                    .any(|session| session.handler().holds(place, number))
        });
        ours.map(|place| place.as_str().to_owned()).ok_or_else(|| {
            Error::lost(by.loss().unwrap_or(Loss::Gone))
                .in_context("this ZooKeeper client holds nothing with this token")
                .with_name(by.name())
        })
    }
}
