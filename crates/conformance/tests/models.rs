//! Random programs on the memory store, on virtual time, against the sequential models; a failing one is made small.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test binary of its own"
)]

use std::time::Duration;

use fastrand::Rng;
use leasehold_conformance::model::{Op, Stage, play};
use leasehold_core::Store;
use leasehold_core::backend::{VirtualClock, async_trait};
use leasehold_memory::Memory;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, TestCaseError, TestRunner};

const TTL: Duration = Duration::from_secs(6);

/// Three clients of a store in memory, whose time the program moves.
struct Virtual {
    time: VirtualClock,
    clients: Vec<(Memory, Store)>,
}

impl Virtual {
    fn new() -> Virtual {
        let (memory, time) = Memory::with_virtual_time();
        let client = |i| {
            let client = memory.another_client();
            let store = Store::with_random_seed(client.clone(), i).ttl(TTL);
            (client, store)
        };
        Virtual {
            time,
            clients: (0..3).map(client).collect(),
        }
    }

    /// Lets `d` pass in steps that leave every holder time to renew.
    async fn advance(&self, d: Duration) {
        const STEP: Duration = Duration::from_millis(500);
        let mut left = d;
        while !left.is_zero() {
            let now = left.min(STEP);
            self.time.advance(now);
            settle().await;
            left -= now;
        }
    }
}

/// Lets every task run until all of them wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
impl Stage for Virtual {
    fn store(&self, who: usize) -> Store {
        self.clients[who].1.clone()
    }

    async fn pause(&self) {
        settle().await;
    }

    async fn pass(&self) {
        self.advance(TTL * 2 / 3).await;
    }

    async fn crash(&self, who: usize) {
        self.clients[who].0.cut_off();
        self.advance(TTL + Duration::from_secs(1)).await;
        self.clients[who].0.reconnect();
    }
}

#[test]
fn random_programs_follow_the_models() {
    let config = Config {
        cases: 1000,
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..Config::default()
    };
    // A program is made small by leaving out steps.
    let step = any::<u64>()
        .no_shrink()
        .prop_map(|seed| Op::draw(&mut Rng::with_seed(seed), true));
    let outcome = TestRunner::new(config).run(&vec(step, 1..=40), |program| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime
            .block_on(play(&Virtual::new(), &program))
            .map_err(TestCaseError::fail)
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
}
