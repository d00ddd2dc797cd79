//! `release` and `release_after`.

use std::time::Duration;

use leasehold_core::Result;
use leasehold_core::seam::Claim;
use leasehold_redis_client::granted_ttl;

use crate::Redis;
use crate::scripts::{RELEASE, RELEASE_AFTER};

impl Redis {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.run(&RELEASE, &self.call(claim)).await.map(drop)
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let rest = granted_ttl(rest, Duration::from_millis(1));
        self.run(&RELEASE_AFTER, &self.call(claim).arg(rest.as_millis())).await.map(drop)
    }
}
