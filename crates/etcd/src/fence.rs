//! The check of a token: a condition for a user's own etcd transactions.

pub(crate) mod raise;

use etcd_client::Compare;
use leasehold_core::backend::place_of_token;
use leasehold_core::{Error, Fenced, Loss, Result};

use crate::Etcd;
use crate::claim::own::OwnClaim;

impl Etcd {
    /// A condition for an etcd transaction of your own on the same cluster: *`by` still holds*.
    /// etcd checks it together with the write, so a holder that was paused, evicted or cut off past
    /// its lease writes nothing, without a token in your data.
    ///
    /// It compares that the lock's key exists and is still the one that was created for this hold
    /// (by its create_revision, which is the token without the turn and without the number by which
    /// tokens are raised). A hold of a `fast` lock is refused: a transaction that arrives late would
    /// be executed in the turn of the next task.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use etcd_client::{Client, Txn, TxnOp};
    /// use leasehold_core::Store;
    /// use leasehold_etcd::Etcd;
    ///
    /// # async fn example(mut etcd: Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Arc::new(Etcd::connect("etcd://10.0.0.1/prod").await?);
    /// let store = Store::new(locks.clone());
    /// let guard = store.lock("orders/42").acquire().await?;
    /// let write = TxnOp::put("orders/42/state", "paid", None);
    /// let written = etcd.txn(Txn::new().when([locks.still_holds(&guard)?]).and_then([write])).await?;
    /// if !written.succeeded() {
    ///     // It was not ours any more, and nothing was written.
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](leasehold_core::ErrorKind::Lost) if this client does not know the hold: it has ended, or is another client's.
    /// [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a `fast` lock and over a bridge. No request is sent.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<Compare> {
        by.check_condition()?;
        let name = by.full_name();
        let number = place_of_token(by.fencing_token());
        // A turn that is over has the key of the next turn: only `is_valid` tells them apart.
        let place = by.place().filter(|_| by.is_valid());
        let mut claims = self.0.claims();
        // All names of one step have one create_revision: the name and the place tell them apart.
        let same = |own: &&mut OwnClaim| {
            own.granted && !own.releasing && own.number() == number && place == Some(own.place())
        };
        let unknown = || {
            Error::lost(by.loss().unwrap_or(Loss::Gone))
                .in_context("this client knows no such hold")
                .with_name(by.name())
        };
        claims
            .of(name)
            .find(same)
            .map(|hold| hold.key.was_created(hold.created))
            .ok_or_else(unknown)
    }
}
