//! The effects of a session's events on the claims in it.

use leasehold_core::Loss;
use leasehold_core::backend::Moment;

use crate::claim::table::{Claims, Session, grants, lose};
use crate::claim::unread::Unread;
use crate::client::{Closed, SessionHandler};
use crate::error::Answer;
use crate::release::remove_abandoned;
use crate::renew::verify_entries;

impl SessionHandler for Claims {
    /// Notifies each hold of its longer validity, because the next renewal may fail.
    fn extended(session: &Session) {
        if session.state().liveness.is_shortened() {
            Claims::shortened(session);
        }
        grants(session)
            .into_iter()
            .for_each(|(id, grant)| session.notifier.granted(id, grant));
    }

    /// Removes the entries that are no longer wanted.
    async fn tend(session: &Session) {
        session.handler().abandon_unused(Moment::now());
        let _ = session.limited(remove_abandoned(session)).await;
    }

    fn reconnected(&mut self, over: &Closed) {
        if let Some(before) = self.unread.replace(Unread::over(over)) {
            before.turns.look_again();
        }
    }

    async fn notified(session: &Session) -> Answer<()> {
        verify_entries(session, Loss::Evicted).await
    }

    fn shortened(session: &Session) {
        grants(session)
            .into_iter()
            .for_each(|(id, grant)| session.notifier.shortened(id, grant.validity));
    }

    fn ended(session: &Session, loss: Loss) {
        let claims = lose(session, loss, |_, _| true);
        if claims > 0 {
            tracing::warn!(claims, ?loss, "the session with ZooKeeper has ended");
        }
    }

    fn is_holding(&self) -> bool {
        self.tracked.values().any(|tracked| tracked.held.is_some())
    }

    fn is_idle(&self) -> bool {
        self.tracked.is_empty() && self.abandoned.is_empty()
    }
}
