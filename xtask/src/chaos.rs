//! Runs a campaign: client processes under faults, and the checker over what they saw.

use std::{env, process::Command};

use crate::{
    run::{Outcome, cargo, output, run},
    setup,
};

/// Runs it with the words that follow the chore's name. `check FOLDER` judges a history again, as it was kept.
pub(crate) fn chaos() -> Outcome {
    let words: Vec<String> = env::args().skip(2).collect();
    if words.first().is_some_and(|word| word == "check") {
        campaign(&[], &words)
    } else {
        with_servers(&[], "run", &words)
    }
}

/// Runs a long one on each store, optimized as programs are shipped, and writes docs/reliability.md. `page` writes it from what there is.
pub(crate) fn prove() -> Outcome {
    let words: Vec<String> = env::args().skip(2).collect();
    let built = &["--release"];
    if words.first().is_some_and(|word| word == "page") {
        campaign(built, &words)
    } else {
        with_servers(built, "prove", &words)
    }
}

fn with_servers(built: &[&str], part: &str, words: &[String]) -> Outcome {
    setup::setup()?;
    campaign(built, &[&[part.to_owned()], words].concat())
}

fn campaign(built: &[&str], words: &[String]) -> Outcome {
    // Some of its programs run under it.
    let mut command = cargo(&["build", "--quiet", "-p", "leasehold-cli", "--all-features"]);
    command.args(built);
    run(command)?;
    let mut campaign = cargo(&["test", "--quiet", "-p", "leasehold-chaos", "--test", "campaign"]);
    campaign.args(built).arg("--");
    let mut commit = Command::new("git");
    commit.args(["describe", "--always", "--dirty"]);
    // What it ran on.
    if let Ok(commit) = output(commit) {
        campaign.env("LEASEHOLD_COMMIT", commit.trim());
    }
    campaign.args(words);
    run(campaign)
}
