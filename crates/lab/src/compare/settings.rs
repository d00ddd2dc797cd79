//! The durations and sizes of the workloads.

use std::time::Duration;

use serde::Serialize;

/// The durations and sizes of the workloads. The default takes about half a minute for each store.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// For how long one client acquires and releases a lock without contention.
    pub alone: Duration,
    /// For how long each number of waiters competes.
    pub contended: Duration,
    /// The numbers of competing waiters, run one after the other.
    pub waiters: Vec<usize>,
    /// Over how many clients, as over so many processes, the waiters are spread.
    pub clients: usize,
    /// The number of locks that are held and renewed at once.
    pub locks: usize,
    /// The number of holders that are killed.
    pub kills: usize,
    /// The lease of holders that are killed, and of the locks that are renewed; longer where the store's shortest is.
    pub lease: Duration,
    /// Everything is done once, and briefly: numbers that show that it works, and measure little.
    pub glance: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            alone: Duration::from_millis(1200),
            contended: Duration::from_millis(1500),
            waiters: vec![2, 8, 64],
            clients: 4,
            locks: 1000,
            kills: 3,
            lease: Duration::from_secs(3),
            glance: false,
        }
    }
}

impl Settings {
    /// Everything once, and briefly: shows that it works, and measures little.
    pub fn glance() -> Settings {
        Settings {
            alone: Duration::from_millis(50),
            contended: Duration::from_millis(100),
            waiters: vec![2, 8],
            locks: 50,
            kills: 1,
            lease: Duration::from_millis(500),
            glance: true,
            ..Settings::default()
        }
    }
}
