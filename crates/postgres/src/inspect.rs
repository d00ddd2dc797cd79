//! `inspect` and `list`.

use leasehold_core::{LockQueue, Name, Result};

use crate::claim::shared::Shared;
use crate::client::request::Request;
use crate::entry::{get, participant};

impl Shared {
    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let rows = self
            .read(Request::new(&self.statements.inspect).text(name.as_str()))
            .await?;
        let entries = rows.iter().map(participant).collect::<Result<Vec<_>>>()?;
        let (holders, waiters) = entries.into_iter().partition(|entry| entry.token.is_some());
        Ok(LockQueue::new(holders, waiters))
    }

    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        if prefix.contains('\0') {
            return Ok(Vec::new());
        }
        let limit = i64::from(i32::try_from(limit).unwrap_or(i32::MAX));
        let request = Request::new(&self.statements.list)
            .text(prefix)
            .maybe_text(after.map(Name::as_str))
            .number(limit);
        let rows = self.read(request).await?;
        rows.iter()
            .map(|row| get::<&str>(row, "list_1").map(Name::from))
            .collect()
    }
}
