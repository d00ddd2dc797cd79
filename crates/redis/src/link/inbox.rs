//! A client's inbox for pushes: one channel, on every server. Messages that scripts publish there
//! become notifications.

use std::sync::Arc;

use leasehold_core::backend::{ClaimId, Grant, Moment, Notifier, Place, Validity};
use leasehold_core::support::{Signal, fault};
use leasehold_core::{Loss, Result};

use crate::link::error::junk;
use crate::link::record::Fields;

/// A client's channel, and the registry that its pushes notify.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    /// A channel that no other client has.
    pub(crate) channel: String,
    /// The registry that pushes notify.
    pub(crate) notifier: Notifier,
    /// Notified when another server may have taken the place of one. It may lack changes that the
    /// old one confirmed.
    pub(crate) replaced: Arc<Signal>,
    asks: bool,
}

impl Inbox {
    /// An inbox with a channel of its own. With `asks`, a *granted* push makes its waiter claim
    /// again.
    pub(crate) fn new(asks: bool) -> Inbox {
        // The name has no blank, since records carry it.
        Inbox {
            channel: format!("leasehold:{}", ClaimId::fresh()),
            notifier: Notifier::new(),
            replaced: Arc::default(),
            asks,
        }
    }

    /// The place of a claim: its id, this client, and the lock's key.
    pub(crate) fn place(&self, id: ClaimId, lock: &str) -> Place {
        Place::new(format!("{id} {} {lock}", self.channel))
    }

    /// The claim that has this place, if this client was given it for this lock.
    pub(crate) fn id_at(&self, place: &Place, lock: &str) -> Option<ClaimId> {
        let mut fields = Fields::of(place.as_str());
        let id = ClaimId::parse(fields.word())?;
        (fields.word() == self.channel && fields.text() == lock).then_some(id)
    }

    /// Turns a push into a notification. A push that cannot be read is ignored.
    pub(crate) fn receive(&self, record: &[u8]) {
        let _ = str::from_utf8(record).map(|record| self.notify(record));
    }

    /// Reads `granted id token turns attempt ttl lock`, `evicted id` or `again id`.
    fn notify(&self, record: &str) -> Result<()> {
        let mut fields = Fields::of(record);
        let verb = fields.word();
        let id = ClaimId::parse(fields.word()).ok_or_else(|| junk("a push"))?;
        match verb {
            "granted" if !self.asks => {
                let token = fields.token()?;
                let turns = fields.value()?;
                // The place's lease began when the server saw this attempt, and the grant ends with
                // it. A lease that counts from the moment when the attempt was sent ends early,
                // however late this push is.
                let attempt = fields.value()?;
                let sent = if fault("late-push") {
                    Moment::now()
                } else {
                    moment(attempt)
                };
                let validity = Validity::since(sent, fields.millis()?);
                self.notifier.granted(
                    id,
                    Grant::new(self.place(id, fields.text()), token, validity).turns(turns),
                );
            }
            "evicted" => self.notifier.lost(id, Loss::Evicted),
            "again" | "granted" => self.notifier.claim_again(id),
            _ => return Err(junk("a push")),
        }
        Ok(())
    }
}

/// The number by which the server knows an attempt: the microsecond in which it was sent, exact in
/// Lua.
pub(crate) fn attempt(sent: Moment) -> u64 {
    sent.as_nanos() / 1000
}

/// The start of the microsecond in which an attempt was sent.
fn moment(attempt: u64) -> Moment {
    Moment::from_nanos(attempt.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::backend::Notification;

    use super::*;

    #[test]
    fn an_attempt_comes_back_no_later_than_it_was_sent() {
        let sent = Moment::now();
        let back = moment(attempt(sent));
        assert!(back <= sent && sent.since(back) < Duration::from_micros(1));
    }

    #[test]
    fn junk_notifies_of_nothing() {
        let inbox = Inbox::new(false);
        let id = ClaimId::fresh();
        for junk in [
            "",
            "granted",
            "granted x",
            &format!("granted {id} 1 1 x 1 k"),
            &format!("fired {id}"),
            "evicted me",
        ] {
            assert!(inbox.notify(junk).is_err(), "{junk}");
        }
        assert!(
            inbox
                .notify(&format!("granted {id} 1 1 5 1000 a key"))
                .is_ok()
        );
        assert!(inbox.notify(&format!("evicted {id}")).is_ok());
        assert!(inbox.notify(&format!("again {id}")).is_ok());
    }

    /// A grant counts from the attempt that it names. With `asks`, it is only a reason to claim
    /// again.
    #[test]
    fn each_push_reaches_the_claim_that_it_names() {
        for asks in [false, true] {
            let inbox = Inbox::new(asks);
            let id = ClaimId::fresh();
            let (heard, told) = std::sync::mpsc::channel();
            let _listens = inbox
                .notifier
                .subscribe(id, move |what| heard.send(what).unwrap());
            inbox.receive(format!("granted {id} 17 64 5000000 1000 a key").as_bytes());
            match told.try_recv() {
                Ok(Notification::Granted(grant)) if !asks => {
                    assert_eq!(
                        (grant.token.get(), grant.turns, grant.place),
                        (17, 64, inbox.place(id, "a key"))
                    );
                    let sent = Moment::from_nanos(5_000_000_000);
                    assert_eq!(
                        grant.validity.until(Moment::from_nanos(9_000_000_000)),
                        sent + Duration::from_millis(988)
                    );
                }
                told => assert!(
                    asks && matches!(told, Ok(Notification::ClaimAgain)),
                    "{told:?}"
                ),
            }
            inbox.receive(format!("evicted {id}").as_bytes());
            assert!(matches!(
                told.try_recv(),
                Ok(Notification::Lost(Loss::Evicted))
            ));
            inbox.receive(format!("again {id}").as_bytes());
            assert!(matches!(told.try_recv(), Ok(Notification::ClaimAgain)));
            inbox.receive(b"\xff");
            assert!(told.try_recv().is_err());
        }
    }

    #[test]
    fn a_place_is_of_this_client_and_this_lock() {
        let inbox = Inbox::new(false);
        let other = Inbox::new(false);
        let id = ClaimId::fresh();
        let place = inbox.place(id, "a key");
        assert_eq!(inbox.id_at(&place, "a key"), Some(id));
        assert_eq!(
            (inbox.id_at(&place, "a"), other.id_at(&place, "a key")),
            (None, None)
        );
        assert_eq!(inbox.id_at(&Place::new("junk"), "a key"), None);
    }
}
