//! Core under schedules that a test chooses: at each mutex and each atomic number of core any thread may go on. Shuttle draws the
//! schedules, by chance and by priorities that change at few points (Burckhardt et al. 2010), and prints how to replay one that fails.
//!
//! Built with `--cfg shuttle`, as `cargo xtask test` does; otherwise there is nothing here. They are the same each time; docs/schedules.md
//! says how to try more.

#![cfg(shuttle)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test binary of its own"
)]

mod cancelling;
mod closing;
mod losing;
mod server;
mod sharing;
mod taking;

use std::env;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Tries the test under many schedules. A thread that waits for ever, beside others that do, fails it.
pub(crate) fn under_all_schedules(test: impl Fn() + Send + Sync + Clone + 'static) {
    let runs = env::var("LEASEHOLD_SCHEDULES").map_or(300, |n| n.parse().unwrap());
    // Core asks which runtime it is in; its tasks are those of the test.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _here = runtime.enter();
    let mut config = Config::new();
    config.stack_size = 256 * 1024;
    Runner::new(RandomScheduler::new_from_seed(1, runs), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new_from_seed(1, 3, runs), config).run(test);
}
