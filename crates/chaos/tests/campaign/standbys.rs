//! A PostgreSQL primary and its standby, which is promoted while the primary lives on: two primaries of one identity, of which the promoted
//! one is the right one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use leasehold_testbed::{Postgres, PostgresOptions, Proxy};
use tokio::time::sleep;

use super::{breaking::AGAIN, clients::Slot, nemesis::Nemesis};

/// The number of its connections that serve clients.
const CLIENTS: &str = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";
const END_THEM: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";

pub(crate) struct Pair {
    pub(crate) servers: [Arc<Postgres>; 2],
    /// Which of them is the primary that was promoted last.
    primary: AtomicUsize,
}

impl Pair {
    pub(crate) async fn start() -> Pair {
        // No machine is switched off here.
        let options = PostgresOptions::default().set("fsync", "off");
        let primary = Postgres::start_with(&options).await.unwrap();
        let standby = primary.standby("standby").await.unwrap();
        Pair {
            servers: [primary, standby].map(Arc::new),
            primary: AtomicUsize::new(0),
        }
    }

    pub(crate) fn primary(&self) -> &Arc<Postgres> {
        &self.servers[self.primary.load(Relaxed)]
    }

    /// Promotes the standby once it has all that the primary has told its clients, which are cut off. Returns the former primary, which lives
    /// on.
    async fn promote(&self) -> &Arc<Postgres> {
        let former = self.primary();
        let next = 1 - self.primary.load(Relaxed);
        // Requests that have reached it end first.
        while former.number(CLIENTS).await.unwrap() > 0 {
            former.query(END_THEM).await.unwrap();
            sleep(AGAIN).await;
        }
        let written = former.text("SELECT pg_current_wal_insert_lsn()").await;
        let written = written.unwrap();
        let has_it = format!("SELECT (pg_last_wal_replay_lsn() >= '{written}')::int");
        while self.servers[next].number(&has_it).await.unwrap() == 0 {
            sleep(AGAIN).await;
        }
        self.servers[next].promote().await.unwrap();
        self.primary.store(next, Relaxed);
        former
    }
}

impl Nemesis<'_> {
    /// Promotes the standby beside its primary. From then on all clients reach both, until the former one is a standby again. Meanwhile some
    /// lose their way to the promoted one.
    pub(super) async fn promote_beside(&self, pair: &Pair, length: Duration) {
        let slots = Vec::from_iter(self.clients.iter().chain(self.naive));
        let ways = || slots.iter().flat_map(|slot| &slot.proxies);
        // Who goes on over an old link to the former primary cannot know of the other one.
        join_all(ways().map(Proxy::cut)).await;
        let former = pair.promote().await;
        join_all(ways().map(Proxy::heal)).await;
        join_all(slots.iter().map(|slot| self.mislead(pair, slot, length))).await;
        former.follow(pair.primary(), "standby").await.unwrap();
    }

    /// Cuts a client off from the primary for a while, or not.
    async fn mislead(&self, pair: &Pair, client: &Slot, length: Duration) {
        if self.coin() {
            return sleep(length).await;
        }
        sleep(self.up_to(length)).await;
        let way = &client.proxies[pair.primary.load(Relaxed)];
        way.cut().await;
        sleep(self.up_to(length)).await;
        way.heal().await;
    }
}
