//! Ending a hold from outside: `evict`.

use futures_util::future::join;
use leasehold_core::seam::{Mode, holding, place_of_token};
use leasehold_core::{FencingToken, Name};

use crate::claim::table::Session;
use crate::client::found;
use crate::error::Answer;
use crate::inspect::look;
use crate::names;

/// See [`Backend::evict`](leasehold_core::seam::Backend::evict). The entry's session hears of it by the one watch that it has.
pub(crate) async fn evict(session: &Session, name: &Name, token: FencingToken) -> Answer<bool> {
    let Some((path, owner)) = holder(session, name, token).await? else { return Ok(false) };
    let client = session.connected().await?;
    // Another tool's session has no bell.
    let (deleted, _rung) = join(client.delete(&path, None), session.ring(owner)).await;
    Ok(found(deleted)?.is_some())
}

/// The node of the hold with this token, any of its turns, and the session that it belongs to.
async fn holder(session: &Session, name: &Name, token: FencingToken) -> Answer<Option<(String, i64)>> {
    let parent = names::node(session.root(), name);
    let line = look(session, &parent).await?;
    let modes: Vec<Mode> = line.iter().map(|(child, ..)| child.mode).collect();
    let held = line.iter().take(holding(&modes)).find(|(.., stat)| stat.czxid == place_of_token(token));
    Ok(held.map(|(child, _, stat)| (format!("{parent}/{}", child.node), stat.ephemeral_owner)))
}
