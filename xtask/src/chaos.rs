//! Runs a campaign: client processes under faults, and the checker over their histories.

use std::{env, process::Command};

use crate::{
    run::{Outcome, cargo, lab, output, run},
    setup,
};

/// Runs it with the words that follow the chore's name. `check FOLDER` judges a kept history again.
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
    // Faults of earlier versions are in no other build.
    let build = if env::var_os("LEASEHOLD_FAULTS").is_some() {
        lab
    } else {
        cargo
    };
    // Some programs of the campaign run under the command.
    let mut command = build(&["build", "--quiet", "-p", "leasehold-cli", "--all-features"]);
    command.args(built);
    run(command)?;
    let mut campaign = build(&[
        "test",
        "--quiet",
        "-p",
        "leasehold-chaos",
        "--test",
        "campaign",
    ]);
    campaign.args(built).arg("--");
    let mut commit = Command::new("git");
    commit.args(["describe", "--always", "--dirty"]);
    // The commit of the run, for the report.
    if let Ok(commit) = output(commit) {
        campaign.env("LEASEHOLD_COMMIT", commit.trim());
    }
    campaign.args(words);
    run(campaign)
}
