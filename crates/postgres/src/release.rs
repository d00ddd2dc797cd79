//! `release` and `release_after`.

use std::time::Duration;

use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::Result;
use leasehold_core::backend::Claim;

use crate::claim::PINNED;
use crate::claim::shared::Shared;
use crate::client::request::Request;
use crate::entry::{get, millis};
use crate::error::{Failure, junk};
use crate::scripts::ENDED;

impl Shared {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.pool.leaves(claim.id);
        let request = Request::new(&self.statements.release)
            .fields(&ENDED)
            .text(claim.name.as_str())
            .id(claim.id);
        self.withdraw(request.int(self.patience())).await
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        self.pool.leaves(claim.id);
        let request = Request::new(&self.statements.release_after)
            .fields(&ENDED)
            .text(claim.name.as_str())
            .id(claim.id);
        self.withdraw(request.number(millis(rest)).int(self.patience()))
            .await
    }

    async fn withdraw(&self, request: Request) -> Result<()> {
        let rows = self.call(request).await?;
        let row = rows
            .first()
            .ok_or_else(|| junk("the answer to a release"))?;
        self.notify(row)?;
        self.released();
        match get(row, "what")? {
            "done" | "none" => Ok(()),
            "pinned" => Err(Failure::new(Unavailable, PINNED).into()),
            _ => Err(junk("the answer to a release")),
        }
    }
}
