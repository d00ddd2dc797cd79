//! Runs a campaign: client processes under faults, and the checker over what they saw.

use std::env;

use crate::{
    run::{Outcome, cargo, run},
    setup,
};

/// Runs it with the words that follow the chore's name. `check FOLDER` judges a history again, as it was kept.
pub(crate) fn chaos() -> Outcome {
    let words: Vec<String> = env::args().skip(2).collect();
    let checks = words.first().is_some_and(|word| word == "check");
    if !checks {
        setup::setup()?;
    }
    let mut campaign = cargo(&["test", "--quiet", "-p", "leasehold-chaos", "--test", "campaign", "--"]);
    if !checks {
        campaign.arg("run");
    }
    campaign.args(words);
    run(campaign)
}
