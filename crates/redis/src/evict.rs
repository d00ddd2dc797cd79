//! `evict`.

use crate::link::{Connection, ValueHash, junk, record};
use leasehold_core::{FencingToken, Name, Result};

use crate::Redis;
use crate::scripts::EVICT;

impl Redis {
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        if token.get() == 0 {
            return ValueHash::refuse_if_foreign(&self.inspect(name).await?);
        }
        let call = |_: &Connection| {
            let call = self.on(&EVICT, name).arg(token);
            Ok(ValueHash::by(token)
                .into_iter()
                .fold(call, |call, seen| call.arg(seen)))
        };
        match record(&self.run(name, call).await?)?.as_str() {
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
