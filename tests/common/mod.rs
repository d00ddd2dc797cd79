//! What the servers' harnesses share: a link through the fault proxy.

use leasehold::seam::async_trait;
use leasehold_conformance::Link;
use leasehold_testbed::Proxy;

/// The fault proxy between one client and its server.
pub(crate) struct Cable(pub(crate) Proxy);

#[async_trait]
impl Link for Cable {
    async fn black_hole(&self) {
        self.0.hold();
    }
    async fn lose_replies(&self) {
        self.0.drop_replies();
    }
    async fn cut(&self) {
        self.0.cut().await;
    }
    async fn heal(&self) {
        self.0.heal().await;
    }
}
