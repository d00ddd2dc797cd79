//! A write in one step with the check that a hold still stands.

use leasehold_core::Fenced;

use crate::Memory;

impl Memory {
    /// Runs `write` in one step with the check that `by` still holds its lock in this store; `None` if it does not, and for a hold of a
    /// `fast` lock, which may go to the next task between the two without this store's knowledge. Other
    /// stores do this by a condition in the resource's own transaction: no other holder gets between the check and the write.
    ///
    /// The store decides, not what `by` believes: a hold that is over here is refused although its guard has not
    /// heard of it. All other users of the store wait, blocked, while `write` runs; one that uses the store waits for ever.
    pub fn while_held<R>(
        &self,
        by: &(impl Fenced + ?Sized),
        write: impl FnOnce() -> R,
    ) -> Option<R> {
        by.check_condition().ok()?;
        let place = by.place().filter(|_| by.is_valid())?;
        let token = by.fencing_token();
        self.with_queue(by.full_name(), |queue, _, _| {
            queue
                .entries
                .iter()
                .any(|entry| entry.owns(token) && *entry.link.place() == place)
                .then(write)
        })
    }
}
