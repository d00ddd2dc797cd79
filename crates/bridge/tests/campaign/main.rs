//! The campaign: a fleet of client processes moves from one store to another and back, by rolling deploys, while they are killed and
//! paused, links break, stores stop and holders are evicted. The checker of `leasehold-chaos` judges what they saw.
//!
//! Without arguments it is a test: a short one on each pair that is quick, and with `LEASEHOLD_CAMPAIGN=1` all pairs with 200 kills in
//! each stage. `run PAIR KILLS SEED` is one of them, `check FOLDER` judges a history again.
//!
//! - `pairs` is which stores there are, `fleet` the client processes and what stage each has, `moves` the way there and back.
//! - `nemesis` is what breaks meanwhile; `judge` what came of it; `control` what must be caught, or the run shows nothing.
//! - `client` is what the processes do, `resource` what the lock protects.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of tests"
)]

mod client;
mod control;
mod fleet;
mod judge;
mod moves;
mod nemesis;
mod pairs;
mod resource;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use self::pairs::Kind;

/// How many processes are killed in each of the three stages: in a test of each day, and in a campaign.
const FEW: u64 = 4;
const MANY: u64 = 200;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client", plan] => client::main(serde_json::from_str(plan).unwrap()),
        ["check", folder] => {
            let verdict = judge::check(Path::new(folder));
            println!("{}", verdict.text);
            return if verdict.passed {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        ["run", pair, kills, seed] => {
            let kind = Kind::ALL
                .into_iter()
                .find(|kind| kind.name() == pair)
                .unwrap();
            return match campaign(kind, kills.parse().unwrap(), seed.parse().unwrap()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        _ => {
            let all = std::env::var_os("LEASEHOLD_CAMPAIGN").is_some_and(|on| on == "1");
            let kills = if all { MANY } else { FEW };
            let trials = Kind::ALL.map(|kind| {
                let seed = fastrand::u64(..1 << 32);
                Trial::test(kind.name(), move || campaign(kind, kills, seed))
                    .with_ignored_flag(!all && !kind.is_quick())
            });
            return libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code();
        }
    }
    ExitCode::SUCCESS
}

fn campaign(kind: Kind, kills: u64, seed: u64) -> Result<(), Failed> {
    let folder = |n| {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("bridge-{}-{seed}-{n}", kind.name()))
    };
    let folder = (1..).map(folder).find(|folder| !folder.exists()).unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let troubles = runtime.block_on(moves::there_and_back(kind, kills, seed, &folder));
    let verdict = judge::check(&folder);
    let passed = verdict.passed && troubles.is_empty();
    println!(
        "{} seed {seed}: {} {}",
        kind.name(),
        verdict.text,
        troubles.join("; ")
    );
    if passed {
        std::fs::remove_dir_all(&folder).unwrap();
        return Ok(());
    }
    println!("kept in {}", folder.display());
    Err(format!("{} {}", verdict.text, troubles.join("; ")).into())
}
