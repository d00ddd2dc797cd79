//! Runs simulated worlds, by their seeds.

use std::env;

use crate::run::{Outcome, lab, run};

/// Runs them with the words that follow the chore's name. With `LEASEHOLD_FAULTS` faults of earlier versions are put back.
pub(crate) fn sim() -> Outcome {
    let mut worlds = lab(&["run", "--quiet", "--profile", "sim", "-p", "leasehold-sim"]);
    worlds.arg("--").args(env::args().skip(2));
    run(worlds)
}
