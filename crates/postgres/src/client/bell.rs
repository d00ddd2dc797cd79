//! Notifications: one connection that listens, and is made again for as long as the store lives.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{ClaimId, Moment, Notifier};
use leasehold_core::{Loss, Name, Result};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};
use tokio_postgres::Notification;

use crate::client::link::Link;
use crate::client::pool::Pool;
use crate::client::request::Request;
use crate::config::Server;
use crate::entry::Granted;
use crate::error::Failure;

/// How often an idle bell is asked whether it is there.
const PROBE: Duration = Duration::from_secs(5);
/// How long to wait before it is connected to again, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// What the first notification says.
const HELLO: &str = "hello";

/// Where this client is rung.
#[derive(Clone)]
pub(crate) struct Bell {
    server: Server,
    channel: Arc<str>,
    limit: Duration,
    runtime: Handle,
    notifier: Notifier,
}

/// A connection that listens.
pub(crate) struct Listening {
    link: Link,
    rings: UnboundedReceiver<Notification>,
}

impl Bell {
    pub(crate) fn new(server: &Server, channel: &str, limit: Duration, runtime: &Handle, notifier: &Notifier) -> Bell {
        let (server, channel) = (server.clone(), channel.into());
        Bell { server, channel, limit, runtime: runtime.clone(), notifier: notifier.clone() }
    }

    /// Connects, and listens to the channel of this client.
    async fn listen(&self) -> Result<Listening> {
        let (link, rings) = Link::open(&self.server, self.limit, &self.runtime).await?;
        let listen = Request::new(&format!("LISTEN {}", self.channel).into());
        link.ask(&listen, self.limit).await.map_err(Failure::of_a_read)?;
        Ok(Listening { link, rings })
    }

    /// The same, and whether what is notified by this pool arrives there. A pooler in transaction mode lets nothing through, and does not
    /// say so.
    pub(crate) async fn hung(&self, by: &Arc<Pool>) -> Result<Option<Listening>> {
        let mut listening = self.listen().await?;
        let ring = Request::new(&"SELECT pg_notify($1, $2)".into()).text(&self.channel).text(HELLO);
        by.call(ring).await.map_err(Failure::of_a_read)?;
        let heard = timeout(self.limit, listening.rings.recv()).await;
        let heard = heard.is_ok_and(|ring| ring.is_some_and(|ring| ring.payload() == HELLO));
        Ok(heard.then_some(listening))
    }

    /// Passes on what is rung, and listens again whenever the connection has ended.
    pub(crate) async fn run(self, mut listening: Listening) {
        loop {
            self.pass_on(&mut listening).await;
            self.notifier.interrupted(Moment::now());
            drop(listening);
            let mut back_off = BACK_OFF.0;
            listening = loop {
                if let Ok(listening) = self.listen().await {
                    break listening;
                }
                // Clients that were cut off together come back one after the other.
                sleep(back_off.mul_f64(0.5 + fastrand::f64())).await;
                back_off = (back_off * 2).min(BACK_OFF.1);
            };
            // What was rung meanwhile was heard by nobody.
            self.notifier.notify_all();
        }
    }

    /// Until the connection ends, or does not answer.
    async fn pass_on(&self, listening: &mut Listening) {
        loop {
            match timeout(PROBE, listening.rings.recv()).await {
                Ok(Some(ring)) if ring.channel() == &*self.channel => {
                    pass(&self.notifier, &self.channel, ring.payload());
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    let probe = Request::new(&"SELECT 1".into());
                    if listening.link.ask(&probe, self.limit).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// What a notification says, for core: a hint, so what nobody can read is dropped.
pub(crate) fn pass(notifier: &Notifier, client: &str, said: &str) {
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    if word == "stirred" {
        return notifier.holder_changed(&Name::from(rest));
    }
    let (claim, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let Some(claim) = ClaimId::parse(claim) else { return };
    match (word, Granted::parse(rest)) {
        ("granted", Some(granted)) => notifier.granted(claim, granted.grant(client)),
        ("evicted", _) => notifier.lost(claim, Loss::Evicted),
        ("again", _) => notifier.claim_again(claim),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::seam::Notification;
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn whatever_is_rung_is_passed_on_or_dropped() {
        let notifier = Notifier::new();
        fuzz_text(include_str!("../../corpus/notifications"), |said| pass(&notifier, "lh_1", said));
    }

    #[test]
    fn a_grant_counts_from_the_request_that_set_its_end() {
        let granted = Granted::parse("7 100 64 5000000000 1000").unwrap().grant("lh_1");
        assert_eq!((granted.token.get(), granted.turns, granted.place.as_str()), (100, 64, "lh_1 7"));
        let (sent, late) = (Moment::from_nanos(5_000_000_000), Moment::from_nanos(9_000_000_000));
        assert_eq!(granted.validity.until(late), sent + Duration::from_millis(988));
        for bad in ["", "7 100 64 5", "7 100 64 5 1000 1", "a b c d e", "1 2 99999999999 4 5"] {
            assert!(Granted::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn each_word_reaches_the_claim_that_it_names() {
        let (notifier, id) = (Notifier::new(), ClaimId::fresh());
        let (heard, told) = std::sync::mpsc::channel();
        let _listens = notifier.subscribe(id, move |what| heard.send(what).unwrap());
        for other in
            [format!("again {}", ClaimId::fresh()), "again".into(), format!("rung {id}"), format!("granted {id} x")]
        {
            pass(&notifier, "lh_1", &other);
            assert!(told.try_recv().is_err(), "{other}");
        }
        pass(&notifier, "lh_1", &format!("again {id}"));
        assert!(matches!(told.try_recv(), Ok(Notification::ClaimAgain)));
        pass(&notifier, "lh_1", &format!("evicted {id}"));
        assert!(matches!(told.try_recv(), Ok(Notification::Lost(Loss::Evicted))));
        pass(&notifier, "lh_1", &format!("granted {id} 7 100 64 5000000000 1000"));
        assert!(matches!(told.try_recv(), Ok(Notification::Granted(grant)) if grant.token.get() == 100));
    }
}
