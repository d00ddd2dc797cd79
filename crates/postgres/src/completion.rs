//! The verbs for work that is done once: `complete`, `recorded`, `completion`, `forget` and
//! `list_completions`.

use leasehold_core::ErrorKind::{Ambiguous, Unavailable};
use leasehold_core::backend::{Claim, Complete, Completed};
use leasehold_core::{Completion, Error, FencingToken, Name, Result};

use crate::claim::PINNED;
use crate::claim::shared::Shared;
use crate::client::answer::Row;
use crate::client::request::Request;
use crate::entry::{self, get};
use crate::error::{Failure, junk};
use crate::scripts::COMPLETED;

/// The number of requests that tell the waiters of one name at most. Each tells a thousand. Those
/// beyond are told by the next one that asks.
const TELLS: usize = 10;

impl Shared {
    pub(crate) async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let ask = || {
            Request::new(&self.statements.complete)
                .fields(&COMPLETED)
                .text(claim.name.as_str())
                .id(claim.id)
                .number(request.token.as_i64())
                .text(&entry::fire(claim))
                .maybe_number(entry::keep(request.keep))
                .maybe_text(request.result.as_deref())
                .flag(request.is_cut)
                .int(self.patience())
        };
        match self.ended(claim, ask).await? {
            Ended::Done(completion) => Ok(Completed::Done(completion)),
            Ended::None => Ok(Completed::NotHeld),
            Ended::Kept => Err(Failure::new(Unavailable, PINNED).into()),
        }
    }

    pub(crate) async fn recorded(
        &self,
        claim: &Claim,
        token: FencingToken,
    ) -> Result<Option<Completion>> {
        let ask = || {
            Request::new(&self.statements.recorded)
                .fields(&COMPLETED)
                .text(claim.name.as_str())
                .id(claim.id)
                .number(token.as_i64())
                .int(self.patience())
        };
        match self.ended(claim, ask).await? {
            Ended::Done(completion) => Ok(Some(completion)),
            Ended::None => Ok(None),
            Ended::Kept => Err(Error::new(Ambiguous, OPEN)),
        }
    }

    /// Asks for the end of a hold whose work is done, and tells those who wait for it.
    async fn ended(&self, claim: &Claim, ask: impl Fn() -> Request) -> Result<Ended> {
        let rows = self.call(ask()).await?;
        let row = answer(&rows)?;
        self.notify(row)?;
        let ended = match get(row, "what")? {
            "done" => Ended::Done(entry::completion(row)?),
            "none" => Ended::None,
            "pinned" | "open" => return Ok(Ended::Kept),
            _ => return Err(junk("the answer to a completion")),
        };
        self.pool.leaves(claim.id);
        self.released();
        let mut more: bool = get(row, "more")?;
        for _ in 1..TELLS {
            if !more {
                break;
            }
            // Those who are not told now find out when they ask.
            let Ok(rows) = self.call(ask()).await else {
                break;
            };
            let row = answer(&rows)?;
            self.notify(row)?;
            more = get(row, "more")?;
        }
        Ok(ended)
    }

    pub(crate) async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let request = Request::new(&self.statements.completion).text(name.as_str());
        let rows = self.read(request).await?;
        rows.first().map(entry::completion).transpose()
    }

    pub(crate) async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        if prefix.contains('\0') {
            return Ok(Vec::new());
        }
        let limit = i64::from(i32::try_from(limit).unwrap_or(i32::MAX));
        let request = Request::new(&self.statements.completions)
            .text(prefix)
            .maybe_text(after.map(Name::as_str))
            .number(limit);
        let rows = self.read(request).await?;
        let named = |row| {
            Ok((
                Name::from(get::<&str>(row, "name")?),
                entry::completion(row)?,
            ))
        };
        rows.iter().map(named).collect()
    }

    pub(crate) async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let request = Request::new(&self.statements.forget)
            .text(name.as_str())
            .number(token.as_i64())
            .int(self.patience());
        let rows = self.call(request).await?;
        let row = answer(&rows)?;
        get(row, "forget_1")
    }
}

/// The end of a hold whose work is done.
enum Ended {
    /// It has ended, and the completion is there.
    Done(Completion),
    /// It has ended, and there is no completion of it.
    None,
    /// A transaction of the program keeps it.
    Kept,
}

/// The message about a transaction that may record a completion yet.
const OPEN: &str =
    "a transaction under this hold is open or prepared, and may record that the work is done";

fn answer(rows: &[Row]) -> Result<&Row> {
    rows.first()
        .ok_or_else(|| junk("the answer about a completion"))
}
