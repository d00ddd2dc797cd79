//! Notifies other clients, with one request at a time. A commit that notifies waits for all other
//! notifying commits of the database, so several at once would occupy connections that the verbs
//! need, and gain nothing.

use std::mem::take;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::support::{Signal, locked};
use tokio::sync::Mutex as Turn;
use tokio::time::timeout;

use crate::client::pool::Pool;
use crate::client::request::Request;

/// The number of notifications that one request sends at most.
const AT_ONCE: usize = 1_000;
/// The time that a request waits for the one before it, whose runtime may not be driven any more.
const WAITS: Duration = Duration::from_millis(500);
/// The statement that notifies. It is a transaction of its own, so that it holds up no verb. It
/// gives up before its connection is given up, and commits without waiting for the disk, so that
/// other notifying commits do not wait for it.
const NOTIFY: &str = "SELECT pg_catalog.set_config('lock_timeout', $3::pg_catalog.text, true), pg_catalog.set_config('synchronous_commit', 'off', true), \
                    pg_catalog.pg_notify(c, p) FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) r(c, p)";

/// A channel, and the payload of a notification on it.
pub(crate) type Outgoing = (String, String);

/// The notifications that one client of the store has to send.
pub(crate) struct NotifyQueue {
    pool: Arc<Pool>,
    patience: i32,
    sql: Arc<str>,
    due: Mutex<Vec<Outgoing>>,
    added: Signal,
    turn: Turn<()>,
}

impl NotifyQueue {
    /// Creates a queue that is sent through connections of this pool. A notification waits at most `patience`
    /// milliseconds for others.
    pub(crate) fn new(pool: &Arc<Pool>, patience: i32) -> Arc<NotifyQueue> {
        Arc::new(NotifyQueue {
            pool: pool.clone(),
            patience,
            sql: NOTIFY.into(),
            due: Mutex::default(),
            added: Signal::default(),
            turn: Turn::default(),
        })
    }

    /// Queues these notifications. One that fails is not repeated: a waiter that was granted the
    /// lock finds it by its next renewal.
    pub(crate) fn add(&self, notifications: Vec<Outgoing>) {
        if !notifications.is_empty() && !self.pool.is_closed() {
            locked(&self.due).extend(notifications);
            self.added.notify();
        }
    }

    /// Sends notifications as they become due, for ever.
    pub(crate) async fn run(&self) {
        let mut added = self.added.listen();
        while added.changed().await.is_ok() {
            self.send().await;
        }
    }

    /// Sends the notifications that are due.
    pub(crate) async fn send(&self) {
        let _turn = timeout(WAITS, self.turn.lock()).await;
        loop {
            let mut some = take(&mut *locked(&self.due));
            if some.is_empty() {
                return;
            }
            let rest = some.split_off(AT_ONCE.min(some.len()));
            locked(&self.due).splice(..0, rest);
            let (channels, payloads) = some.into_iter().unzip();
            let request = Request::new(&self.sql)
                .texts(channels)
                .texts(payloads)
                .text(&self.patience.to_string());
            let _ = self.pool.call(request).await;
        }
    }
}
