//! What becomes of the claims in a session when something happens to the session.

use leasehold_core::Loss;
use leasehold_core::seam::Moment;

use crate::claim::table::{Claims, Session, grants, lose};
use crate::client::Tenant;
use crate::error::Answer;
use crate::release::clear;
use crate::renew::audit;

impl Tenant for Claims {
    /// What that adds to all that is held is said at once, because the next renewal may fail. What nobody wants any more is
    /// removed, by a connection that is known to work.
    async fn proven(session: &Session) {
        session.tenant().lapse(Moment::now());
        if session.is_shortened() {
            Claims::shortened(session);
        }
        grants(session).into_iter().for_each(|(id, grant)| session.notifier.granted(id, grant));
        let _ = session.limited(clear(session, |_| true)).await;
    }

    async fn rung(session: &Session) -> Answer<()> {
        audit(session, Loss::Evicted).await
    }

    fn shortened(session: &Session) {
        grants(session).into_iter().for_each(|(id, grant)| session.notifier.shortened(id, grant.validity));
    }

    fn is_idle(&self) -> bool {
        self.kept.is_empty() && self.leaving.is_empty()
    }

    fn ended(session: &Session, loss: Loss) {
        let claims = lose(session, loss, |_| true);
        if claims > 0 {
            tracing::warn!(claims, ?loss, "the session with ZooKeeper has ended");
        }
    }
}
