//! `evict`.

use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::{FencingToken, Name, Result};

use crate::claim::PINNED;
use crate::claim::shared::Shared;
use crate::client::request::Request;
use crate::entry::get;
use crate::error::{Failure, junk};
use crate::scripts::ENDED;

impl Shared {
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let request = Request::new(&self.statements.evict)
            .fields(&ENDED)
            .text(name.as_str())
            .number(token.as_i64());
        let rows = self.call(request.int(self.patience())).await?;
        let row = rows
            .first()
            .ok_or_else(|| junk("the answer to an eviction"))?;
        self.notify(row)?;
        match get::<&str>(row, "what")? {
            "done" => Ok(true),
            "none" => Ok(false),
            pinned => {
                let kept = pinned.strip_prefix("pinned").unwrap_or_default();
                Err(Failure::new(Unavailable, format!("{PINNED}{kept}")).into())
            }
        }
    }
}
