//! The campaign: client processes do random lock work over private servers while faults are made by a seed, and the checker
//! judges what they saw. Naive clients beside them must be caught.
//!
//! Without arguments it is a test: a short campaign on each store that is quick; the others are ignored. `run --store NAME --seconds N --seed S` is a longer one,
//! `check FOLDER` judges a history again. `cargo xtask chaos` calls it. What is what:
//!
//! - `run` is one campaign; `kind` what is different about the stores; `servers`, `clients` what runs; `nemesis` what breaks.
//! - `client`, `work` and `resource` are what the other processes do: they are this program, started again.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::print_stderr, reason = "a program of tests")]

mod client;
mod clients;
mod kind;
mod nemesis;
mod recorder;
mod resource;
mod run;
mod servers;
mod work;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};

use self::{kind::Kind, run::Verdict};

/// How long faults are made on each store in a test: as long as it takes that each kind of client has been paused.
fn slice_of(kind: Kind) -> Duration {
    Duration::from_secs(5) + 4 * kind.ttl()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client", plan] => client::main(serde_json::from_str(plan).unwrap()),
        ["resource", folder] => resource::main(Path::new(folder)),
        ["check", folder] => return check(Path::new(folder)),
        ["run", ref options @ ..] => return long(options),
        _ => {
            let trial = |kind: Kind| Trial::test(kind.name(), move || slice(kind)).with_ignored_flag(!kind.is_quick());
            let trials = Kind::ALL.map(trial);
            return libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code();
        }
    }
    ExitCode::SUCCESS
}

/// How often a campaign is made in a test, each time for twice as long, if it was void: where a machine is busy, little happens.
const TRIES: u32 = 4;

fn slice(kind: Kind) -> Result<(), Failed> {
    let (mut left, mut time) = (TRIES, slice_of(kind));
    loop {
        let verdict = campaign(kind, fastrand::u64(..), time);
        println!("{}", verdict.text);
        (left, time) = (left - 1, time * 2);
        match verdict {
            Verdict { passed: true, .. } => return Ok(()),
            Verdict { void: true, .. } if left > 0 => {}
            verdict => return Err(verdict.text.into()),
        }
    }
}

fn long(options: &[&str]) -> ExitCode {
    let value = |key: &str| options.windows(2).find(|pair| pair[0] == key).map(|pair| pair[1]);
    let seconds = value("--seconds").map_or(60, |seconds| seconds.parse().unwrap());
    let seed = value("--seed").map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
    let store = value("--store");
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| store.is_none_or(|name| name == kind.name())).collect();
    let mut code = if kinds.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    for kind in kinds {
        let verdict = campaign(kind, seed, Duration::from_secs(seconds));
        println!("{}\n", verdict.text);
        if !verdict.passed {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn check(folder: &Path) -> ExitCode {
    let (report, control) = run::check(folder);
    run::draw(folder, &report);
    println!("{report}\ncontrol: {} violations", control.count);
    if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn campaign(kind: Kind, seed: u64, time: Duration) -> Verdict {
    // What was kept of an earlier run with this seed stays.
    let folder = |n| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}-{seed}-{n}", kind.name()));
    let folder = (1..).map(folder).find(|folder| !folder.exists()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run::run(kind, seed, time, &folder))
}
