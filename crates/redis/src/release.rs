//! `release` and `release_after`.

use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId};
use leasehold_core::{Name, Result};
use leasehold_redis_client::{Call, granted_ttl};

use crate::Redis;
use crate::scripts::{RELEASE, RELEASE_AFTER};

impl Redis {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.run(&RELEASE, &self.call(claim)).await.map(drop)
    }

    /// Goes on admitting the waiters, as the release of an unknown claim does. The next request for the name would do it too.
    pub(crate) async fn admit(&self, name: &Name) {
        let _ = self.run(&RELEASE, &Call::on(self.keys(name)).arg(ClaimId::fresh())).await;
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let rest = granted_ttl(rest, Duration::from_millis(1));
        self.run(&RELEASE_AFTER, &self.call(claim).arg(rest.as_millis())).await.map(drop)
    }
}
