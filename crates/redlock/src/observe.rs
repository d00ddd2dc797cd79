//! `observe`.

use leasehold_core::Name;
use leasehold_core::seam::Subscription;

use crate::Shared;

impl Shared {
    /// Subscribes on every node: each publishes what it sees.
    pub(crate) fn observe(&self, name: &Name) -> Subscription {
        let each = self.nodes.connections().map(|node| node.observe(name, self.names.channel(name)));
        Subscription::new(each.collect::<Vec<_>>())
    }
}
