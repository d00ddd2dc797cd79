//! What the ZooKeeper store uses of tokio. All of it is tokio's but for the channel `watch`, which wakes those who wait on it in an order
//! that is drawn anew in each run: here it is the order in which they came.

pub use tokio::{join, pin, runtime, select, spawn, task, test, time, try_join};

/// Tokio's, but for `watch`.
pub mod sync {
    pub use tokio::sync::{Mutex, Semaphore};

    pub mod watch;
}
