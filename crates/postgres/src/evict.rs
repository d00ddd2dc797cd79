//! `evict`.

use leasehold_core::{FencingToken, Name, Result};

use crate::claim::shared::Shared;
use crate::client::request::Request;
use crate::entry::get;
use crate::error::junk;

impl Shared {
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let request = Request::new(&self.statements.evict).text(name.as_str()).number(token.as_i64());
        let rows = self.call(request.int(self.patience())).await?;
        let row = rows.first().ok_or_else(|| junk("the answer to an eviction"))?;
        self.ring(row)?;
        Ok(get::<&str>(row, "what")? == "done")
    }
}
