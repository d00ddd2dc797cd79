//! `evict`.

use leasehold_core::{FencingToken, Name, Result};
use leasehold_redis_client::{junk, record};

use crate::Redis;
use crate::scripts::EVICT;

impl Redis {
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        match record(&self.run(name, |_| Ok(self.on(&EVICT, name).arg(token))).await?)?.as_str() {
            "evicted" => Ok(true),
            "evicted more" => {
                self.admit(name).await;
                Ok(true)
            }
            "none" => Ok(false),
            _ => Err(junk("the answer to an eviction")),
        }
    }
}
