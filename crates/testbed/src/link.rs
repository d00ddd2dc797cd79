//! The fault proxy as the conformance suite's link between one client and its server.

use async_trait::async_trait;
use leasehold_conformance::Link;

use crate::Proxy;

#[async_trait]
impl Link for Proxy {
    async fn black_hole(&self) {
        self.hold();
    }
    async fn lose_replies(&self) {
        self.drop_replies();
    }
    async fn cut(&self) {
        Proxy::cut(self).await;
    }
    async fn heal(&self) {
        Proxy::heal(self).await;
    }
}
