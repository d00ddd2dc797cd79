//! `observe`.

use leasehold_core::Name;
use leasehold_core::backend::Subscription;

use crate::redlock::Shared;

impl Shared {
    /// Subscribes on every node: each publishes the changes on it.
    pub(crate) fn observe(&self, name: &Name) -> Subscription {
        let each = self
            .nodes
            .connections()
            .map(|node| node.observe(name, self.names.channel(name)));
        Subscription::new(each.collect::<Vec<_>>())
    }
}
