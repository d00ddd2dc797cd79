//! Does the store do what the sequential models say, for random requests in random order?

use fastrand::Rng;
use leasehold_core::Store;

use crate::context::TestContext;
use crate::model::{Stage, play, program};

/// The number of programs, the number that run at once, and the greatest number of steps of each.
const PROGRAMS: usize = 12;
const WORKERS: usize = 4;
const STEPS: usize = 24;

/// Three clients, and a namespace for each program.
struct Worker {
    stores: Vec<Store>,
    number: usize,
}

impl Stage for Worker {
    fn store(&self, who: usize) -> Store {
        self.stores[who]
            .clone()
            .namespace(&format!("program {}", self.number))
    }
}

/// Random programs drawn from the case's seed run on this store.
/// `crates/conformance/tests/models.rs` runs such programs on the memory store, on virtual time,
/// and shrinks those that fail.
pub(crate) async fn follow_the_models(ctx: TestContext) {
    let mut random = Rng::with_seed(ctx.seed());
    let programs: Vec<_> = (0..PROGRAMS).map(|_| program(&mut random, STEPS)).collect();
    let mut workers = Vec::new();
    for worker in 0..WORKERS {
        let stores = vec![ctx.store().await, ctx.store().await, ctx.store().await];
        let mine: Vec<_> = programs
            .iter()
            .cloned()
            .enumerate()
            .skip(worker)
            .step_by(WORKERS)
            .collect();
        workers.push(tokio::spawn(async move {
            for (number, program) in mine {
                let stage = Worker {
                    stores: stores.clone(),
                    number,
                };
                if let Err(e) = play(&stage, &program).await {
                    panic!("{e}\nin {program:#?}");
                }
            }
        }));
    }
    for worker in workers {
        if let Err(e) = worker.await {
            std::panic::resume_unwind(e.into_panic());
        }
    }
}
