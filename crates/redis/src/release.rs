//! `release` and `release_after`.

use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId};
use leasehold_core::{Name, Result};
use leasehold_redis_client::{Call, Connection, granted_ttl};

use crate::Redis;
use crate::scripts::{RELEASE, RELEASE_AFTER};

impl Redis {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.run(&claim.name, |_| Ok(self.release_call(&claim.name, claim.id))).await.map(drop)
    }

    /// Goes on admitting the waiters, as the release of an unknown claim does. The next request for the name would do it too.
    pub(crate) async fn admit(&self, name: &Name) {
        let nobody = ClaimId::fresh();
        let _ = self.run(name, |_| Ok(self.release_call(name, nobody))).await;
    }

    /// It is told what the record begins with where it is all that there is.
    fn release_call(&self, name: &Name, id: ClaimId) -> Call {
        self.on(&RELEASE, name).arg(format_args!("-{id}"))
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let rest = granted_ttl(rest, Duration::from_millis(1));
        let call = |_: &Connection| Ok(self.call(&RELEASE_AFTER, claim).arg(rest.as_millis()));
        self.run(&claim.name, call).await.map(drop)
    }
}
