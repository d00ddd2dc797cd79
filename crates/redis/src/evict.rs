//! `evict`.

use leasehold_core::seam::ClaimId;
use leasehold_core::{FencingToken, Name, Result};
use leasehold_redis_client::{Call, junk, record};

use crate::Redis;
use crate::scripts::{EVICT, RELEASE};

impl Redis {
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        match record(&self.run(&EVICT, &Call::on(self.names.keys(name)).arg(token)).await?)?.as_str() {
            "evicted" => Ok(true),
            "evicted more" => {
                // The hold is gone. A release of an unknown claim goes on admitting the waiters.
                let _ = self.run(&RELEASE, &Call::on(self.names.keys(name)).arg(ClaimId::fresh())).await;
                Ok(true)
            }
            "none" => Ok(false),
            _ => Err(junk("the answer to an eviction")),
        }
    }
}
