//! Notifications: one connection that listens, and that is opened again for as long as the store
//! lives.
//!
//! The connection is optional. The client tests it with notifications that it sends to itself over
//! a connection of the pool, because there are two faults that no error reports: a pooler in
//! transaction mode lets no notification through, and the server of this connection may no longer
//! be the one that executes claims. While notifications do not arrive, waiters poll, and the client
//! tries again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{ClaimId, Moment, Notifier};
use leasehold_core::support::locked;
use leasehold_core::{Error, Loss, Name, Result};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};
use tokio_postgres::Notification;

use crate::client::link::Link;
use crate::client::pool::Pool;
use crate::client::request::Request;
use crate::config::Server;
use crate::entry::Granted;
use crate::error::Failure;

/// The interval after which a connection without notifications is tested.
const TEST: Duration = Duration::from_secs(5);
/// The time before the next attempt to connect, at first and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// The time before the next attempt if a connection was made but notifications did not arrive: each
/// test costs the server four statements.
const DEAF: Duration = Duration::from_secs(60);
/// The channel for the test of a new connection. A pooler keeps `LISTEN` in its connection to the
/// server, so all clients use this one channel.
const TESTED: &str = "leasehold_test";
/// The statement that notifies. It commits without waiting for the disk, so that other notifying
/// commits do not wait for it, and gives up before its connection is given up.
const NOTIFY: &str = "SELECT pg_catalog.pg_notify($1, $2), pg_catalog.set_config('synchronous_commit', 'off', true), \
                      pg_catalog.set_config('lock_timeout', $3, true)";

/// Listens for one client of the store.
#[derive(Clone)]
pub(crate) struct Listener {
    server: Server,
    /// The channel that the client listens to.
    channel: Arc<str>,
    limit: Duration,
    /// The time that a notification waits for others, in milliseconds.
    patience: i32,
    pool: Arc<Pool>,
    notifier: Notifier,
    hearing: Arc<Hearing>,
}

/// The state of notifications: if they arrive, and if a waiter or an observer needs one.
pub(crate) struct Hearing {
    /// The reason why notifications do not arrive; `None` if they do.
    trouble: Mutex<Option<String>>,
    /// The moment until which a waiter or an observer needs notifications, in nanoseconds.
    needed: AtomicU64,
}

/// A connection that listens.
pub(crate) struct Listening {
    link: Link,
    heard: UnboundedReceiver<Notification>,
}

impl Hearing {
    /// Creates the state that notifications do not arrive, for this reason.
    pub(crate) fn none(why: impl Into<String>) -> Hearing {
        Hearing {
            trouble: Mutex::new(Some(why.into())),
            needed: AtomicU64::new(0),
        }
    }

    pub(crate) fn arrive(&self) -> bool {
        locked(&self.trouble).is_none()
    }

    /// The reason why notifications do not arrive, in words for an operator; `None` if they do, or
    /// if they are off.
    pub(crate) fn trouble(&self) -> Option<String> {
        locked(&self.trouble).clone().filter(|why| !why.is_empty())
    }

    /// Records that a waiter or an observer needs notifications for this time.
    pub(crate) fn needed_for(&self, time: Duration) {
        let until = Moment::now() + time;
        self.needed.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    fn is_needed(&self) -> bool {
        Moment::now().as_nanos() < self.needed.load(Ordering::Relaxed)
    }

    fn set(&self, trouble: Option<String>) {
        *locked(&self.trouble) = trouble;
    }
}

impl Listener {
    pub(crate) fn new(
        server: &Server,
        channel: &str,
        (limit, patience): (Duration, i32),
        pool: &Arc<Pool>,
        notifier: &Notifier,
    ) -> Listener {
        Listener {
            server: server.clone(),
            channel: channel.into(),
            limit,
            patience,
            pool: pool.clone(),
            notifier: notifier.clone(),
            hearing: Arc::new(Hearing::none(UNTRIED)),
        }
    }

    pub(crate) fn hearing(&self) -> &Arc<Hearing> {
        &self.hearing
    }

    /// Connects and listens. The answer is `None` if notifications do not arrive. The outcome is
    /// recorded in [`Hearing`].
    pub(crate) async fn open(&self) -> Result<Option<Listening>> {
        let opened = self.try_to_open().await;
        self.hearing.set(match &opened {
            Ok(Some(_)) => None,
            Ok(None) => Some(UNHEARD.to_owned()),
            Err(e) => Some(unreached(e)),
        });
        opened
    }

    async fn try_to_open(&self) -> Result<Option<Listening>> {
        // If the server has room for one connection only, the pool is to have it, so it connects
        // first.
        let ask = Request::new(&"SELECT 1".into());
        self.pool.call(ask).await.map_err(Failure::of_a_read)?;
        let (link, heard) = Link::open(&self.server, self.limit).await?;
        let mut listening = Listening { link, heard };
        listening
            .execute(&format!("LISTEN {TESTED}"), self.limit)
            .await?;
        let arrive = self.arrive(&mut listening, TESTED).await;
        if let Ok(true) = arrive {
            let listen = format!("UNLISTEN {TESTED}; LISTEN {}", self.channel);
            listening.execute(&listen, self.limit).await?;
            return Ok(Some(listening));
        }
        listening
            .execute(&format!("UNLISTEN {TESTED}"), self.limit)
            .await?;
        arrive.map(|_| None)
    }

    /// Returns whether a notification that the pool sends arrives on this connection. It fails if
    /// the notification could not be sent.
    async fn arrive(&self, listening: &mut Listening, channel: &str) -> Result<bool> {
        let hello = format!("hello {:x}", fastrand::u128(..));
        let notify = Request::new(&NOTIFY.into())
            .text(channel)
            .text(&hello)
            .text(&self.patience.to_string());
        self.pool.call(notify).await.map_err(Failure::of_a_read)?;
        let arrives = async {
            while let Some(said) = listening.heard.recv().await {
                if said.payload() == hello {
                    return true;
                }
                self.pass_on(&said);
            }
            false
        };
        Ok(timeout(self.limit, arrives).await.unwrap_or(false))
    }

    /// Passes on notifications, and connects again whenever the connection has ended. `opened` is
    /// the answer of [`open`](Self::open), if this runtime has called it.
    pub(crate) async fn run(self, opened: Option<Result<Option<Listening>>>) {
        let mut back_off = BACK_OFF.0;
        let mut opened = match opened {
            Some(opened) => opened,
            None => {
                // The connection of another runtime is not driven any more.
                self.notifier.interrupted(Moment::now());
                let opened = self.open().await;
                self.notifier.notify_all();
                opened
            }
        };
        loop {
            match opened {
                Ok(Some(mut listening)) => {
                    self.hear(&mut listening).await;
                    self.notifier.interrupted(Moment::now());
                    // A pooler may have kept the `LISTEN` in its connection to the server.
                    let _ = listening.execute("UNLISTEN *", self.limit).await;
                    back_off = BACK_OFF.0;
                }
                Ok(None) => pause(DEAF).await,
                Err(_) => {
                    pause(back_off).await;
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
            let arrived = self.hearing.arrive();
            opened = self.open().await;
            if arrived || self.hearing.arrive() {
                // Waiters poll from now on, or have missed the notifications of the meantime.
                self.notifier.notify_all();
            }
        }
    }

    /// Passes on notifications until the connection ends or none arrive any more.
    async fn hear(&self, listening: &mut Listening) {
        loop {
            let heard = tokio::select! {
                heard = timeout(TEST, listening.heard.recv()) => heard,
                // The pool comes first if the server accepts no further connection.
                () = self.pool.needs_a_connection() => return,
            };
            match heard {
                Ok(Some(said)) => self.pass_on(&said),
                Ok(None) => return,
                Err(_) if self.is_good(listening).await => self.hearing.set(None),
                Err(_) => {
                    self.hearing.set(Some(UNHEARD.to_owned()));
                    return self.notifier.notify_all();
                }
            }
        }
    }

    async fn is_good(&self, listening: &mut Listening) -> bool {
        // A notification costs every client that listens, so none is sent unless somebody needs it.
        if self.hearing.is_needed() {
            let channel = self.channel.clone();
            // If the notification could not be sent, this connection is not at fault.
            if let Ok(arrives) = self.arrive(listening, &channel).await {
                return arrives;
            }
        }
        let probe = Request::new(&"SELECT 1".into());
        listening.link.ask(&probe, self.limit).await.is_ok()
    }

    fn pass_on(&self, said: &Notification) {
        if said.channel() == &*self.channel {
            pass(&self.notifier, &self.channel, said.payload());
        }
    }
}

impl Listening {
    async fn execute(&self, sql: &str, limit: Duration) -> Result<()> {
        let done = self.link.execute(sql, limit).await;
        done.map(drop).map_err(|failure| failure.of_a_read().into())
    }
}

const UNTRIED: &str = "Notifications have not been listened to yet.";
const UNHEARD: &str = "\
Notifications do not arrive: a pooler in transaction mode lets none through. Waiters poll. Give the address of the server itself, \
listen=host:port, or say listen=off.";

/// Waits for a random time around this one, so that clients that were cut off together come back
/// one after the other.
async fn pause(time: Duration) {
    sleep(time.mul_f64(0.5 + fastrand::f64())).await;
}

fn unreached(e: &Error) -> String {
    format!("Notifications cannot be listened to, and waiters poll ({e}).")
}

/// Passes the payload of a notification on to core. A notification is a hint, so one that cannot be
/// read is dropped.
pub(crate) fn pass(notifier: &Notifier, client: &str, said: &str) {
    let (word, rest) = said.split_once(' ').unwrap_or((said, ""));
    if word == "changed" {
        return notifier.holder_changed(&Name::from(rest));
    }
    let (claim, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let Some(claim) = ClaimId::parse(claim) else {
        return;
    };
    match (word, Granted::parse(rest)) {
        ("granted", Some(granted)) => notifier.granted(claim, granted.grant(client)),
        ("evicted", _) => notifier.lost(claim, Loss::Evicted),
        ("again", _) => notifier.claim_again(claim),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::backend::Notification;
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn whatever_is_said_is_passed_on_or_dropped() {
        let notifier = Notifier::new();
        fuzz_text(include_str!("../../corpus/notifications"), |said| {
            pass(&notifier, "lh_1", said);
        });
    }

    #[test]
    fn a_grant_counts_from_the_request_that_set_its_end() {
        let granted = Granted::parse("7 100 64 5000000000 1000")
            .unwrap()
            .grant("lh_1");
        assert_eq!(
            (granted.token.get(), granted.turns, granted.place.as_str()),
            (100, 64, "lh_1 7")
        );
        let sent = Moment::from_nanos(5_000_000_000);
        let late = Moment::from_nanos(9_000_000_000);
        assert_eq!(
            granted.validity.until(late),
            sent + Duration::from_millis(988)
        );
        for bad in [
            "",
            "7 100 64 5",
            "7 100 64 5 1000 1",
            "a b c d e",
            "1 2 99999999999 4 5",
        ] {
            assert!(Granted::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn each_word_reaches_the_claim_that_it_names() {
        let notifier = Notifier::new();
        let id = ClaimId::fresh();
        let (heard, told) = std::sync::mpsc::channel();
        let _listens = notifier.subscribe(id, move |what| heard.send(what).unwrap());
        for other in [
            format!("again {}", ClaimId::fresh()),
            "again".into(),
            format!("other {id}"),
            format!("granted {id} x"),
        ] {
            pass(&notifier, "lh_1", &other);
            assert!(told.try_recv().is_err(), "{other}");
        }
        pass(&notifier, "lh_1", &format!("again {id}"));
        assert!(matches!(told.try_recv(), Ok(Notification::ClaimAgain)));
        pass(&notifier, "lh_1", &format!("evicted {id}"));
        assert!(matches!(
            told.try_recv(),
            Ok(Notification::Lost(Loss::Evicted))
        ));
        pass(
            &notifier,
            "lh_1",
            &format!("granted {id} 7 100 64 5000000000 1000"),
        );
        assert!(
            matches!(told.try_recv(), Ok(Notification::Granted(grant)) if grant.token.get() == 100)
        );
    }
}
