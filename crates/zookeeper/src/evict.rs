//! `evict`: ends a hold from outside.

use futures_util::future::join;
use leasehold_core::backend::{Mode, holding, place_of_token, token_of_place};
use leasehold_core::{FencingToken, Name};

use crate::claim::table::Session;
use crate::client::found;
use crate::error::Answer;
use crate::inspect::read_queue;
use crate::names;

/// See [`Backend::evict`](leasehold_core::backend::Backend::evict). The entry's session is notified
/// by the one watch that it has.
pub(crate) async fn evict(session: &Session, name: &Name, token: FencingToken) -> Answer<bool> {
    let parent = names::node(&session.config.root, name);
    let queue = read_queue(session, &parent).await?;
    let modes: Vec<Mode> = queue.iter().map(|(_, child, _)| child.mode).collect();
    let mut holders = queue.iter().take(holding(&modes));
    // The place of any of the hold's turns.
    let first = token_of_place(place_of_token(token));
    let Some((_, child, stat)) = holders.find(|(holder, ..)| holder.token == Some(first)) else {
        return Ok(false);
    };
    let client = session.connected().await?;
    let path = format!("{parent}/{}", child.node);
    // Another tool's session cannot be notified.
    let (deleted, _notified) = join(
        client.delete(&path, None),
        session.notify(stat.ephemeral_owner),
    )
    .await;
    Ok(found(deleted)?.is_some())
}
