//! The campaign: client processes do random lock work over private servers while faults are made by a seed, and the checker
//! judges what they saw. Naive clients beside them must be caught.
//!
//! Without arguments it is a test: a short campaign on each store that is quick; the others are ignored. `run --store NAME
//! --seconds N --seed S` is a longer one, `check FOLDER` judges a history again. `cargo xtask chaos` calls it. What is what:
//!
//! - `run` is one campaign; `kind` what is different about the stores; `servers` with `room`, `clients` what runs; `nemesis` when what breaks.
//! - `clock` is the machine's own one. `faults` is which there are, `breaking` with `changes`, `sessions`, `handovers`, `databases`, `deployments` and `standbys` how each is made; `prove` keeps the numbers, and writes the page of them.
//! - `client` with `aside`, `lodgers` and `idlers`, `work` with `held`, `using`, `both` and `looks`, `resource` and `counter` are what the other processes do: they
//!   are this program, started again. `foreign` starts another one in its place, with a client of another library; `command` is one that runs programs by the command.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of tests"
)]

mod aside;
mod both;
mod breaking;
mod changes;
mod client;
mod clients;
mod clock;
mod command;
mod counter;
mod databases;
mod deployments;
mod faults;
mod foreign;
mod handovers;
mod held;
mod idlers;
mod kind;
mod lodgers;
mod looks;
mod nemesis;
mod prove;
mod recorder;
mod resource;
mod room;
mod run;
mod servers;
mod sessions;
mod standbys;
mod using;
mod work;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};

use self::{faults::Choice, kind::Kind, run::Verdict};

/// How long faults are made on each store in a test: as long as it takes that each kind of client has been paused.
fn slice_of(kind: Kind) -> Duration {
    Duration::from_secs(5) + 4 * kind.ttl()
}

fn main() -> ExitCode {
    if !cfg!(leasehold_lab) && std::env::var_os("LEASEHOLD_FAULTS").is_some() {
        println!("this build has no faults to put back: it needs `--cfg leasehold_lab`");
        return ExitCode::FAILURE;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.first().is_some_and(|word| {
        ["client", "resource", "program", "lock", "check", "page"].contains(&&**word)
    }) {
        room::enter();
    }
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["client", plan] => client::main(serde_json::from_str(plan).unwrap()),
        ["resource", folder] => resource::main(Path::new(folder)),
        ["lock", file] => changes::lock(Path::new(file)),
        ["program", job] => command::program(&serde_json::from_str(job).unwrap()),
        ["check", folder] => return check(Path::new(folder)),
        ["run", ref options @ ..] => return long(options, false),
        ["prove", ref options @ ..] => {
            let code = long(options, true);
            // The page says how long they usually are.
            kind::lengthen(1);
            prove::write();
            return code;
        }
        ["page"] => prove::write(),
        _ => {
            let trial = |kind: Kind| {
                Trial::test(kind.name(), move || slice(kind)).with_ignored_flag(!kind.is_quick())
            };
            let trials = Kind::ALL.map(trial);
            return libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code();
        }
    }
    ExitCode::SUCCESS
}

fn slice(kind: Kind) -> Result<(), Failed> {
    let verdict = campaign(kind, fastrand::u64(..), slice_of(kind), &Choice::default());
    println!("{}", verdict.text);
    if verdict.passed {
        Ok(())
    } else {
        Err(verdict.text.into())
    }
}

/// What a longer run is told: `--seconds`, `--seed`, `--store`, and how many times as long its leases are: `--leases`. Otherwise they are
/// long in its last third. And which faults it makes: `--faults Cut,KillClient` these alone, `--apart SECONDS` one at a time.
struct Options {
    time: Duration,
    seed: u64,
    kinds: Vec<Kind>,
    leases: Option<u32>,
    choice: Choice,
}

impl Options {
    fn of(words: &[&str]) -> Options {
        let value = |key: &str| {
            words
                .windows(2)
                .find(|pair| pair[0] == key)
                .map(|pair| pair[1])
        };
        let time =
            Duration::from_secs(value("--seconds").map_or(60, |seconds| seconds.parse().unwrap()));
        let leases = value("--leases").map(|times| times.parse().unwrap());
        let seed = value("--seed").map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap());
        let store = value("--store");
        let kinds = Kind::ALL
            .into_iter()
            .filter(|kind| store.is_none_or(|name| name == kind.name()))
            .collect();
        let only = value("--faults").map_or_else(Vec::new, |names| {
            names.split(',').map(str::to_owned).collect()
        });
        let apart =
            value("--apart").map(|seconds| Duration::from_secs_f64(seconds.parse().unwrap()));
        Options {
            time,
            seed,
            kinds,
            leases,
            choice: Choice { only, apart },
        }
    }
}

/// Runs one store after the other, and keeps the numbers for the page if it is `to_prove`.
fn long(words: &[&str], to_prove: bool) -> ExitCode {
    let Options {
        time,
        seed,
        kinds,
        leases,
        choice,
    } = Options::of(words);
    let mut code = if kinds.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    };
    for kind in kinds {
        if let Some(unknown) = choice.unknown(kind, seed) {
            eprintln!(
                "{} has no fault {unknown} with the seed {seed}",
                kind.name()
            );
            code = ExitCode::FAILURE;
            continue;
        }
        let parts = leases.map_or(vec![(1, time * 2 / 3), (kind.many(), time / 3)], |leases| {
            vec![(leases, time)]
        });
        for (leases, time) in parts {
            kind::lengthen(leases);
            let verdict = campaign(kind, seed, time, &choice);
            println!("{}\n", verdict.text);
            if to_prove && !verdict.outcome.is_void {
                prove::keep(kind, seed, &choice, &verdict);
            }
            if !verdict.passed {
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn check(folder: &Path) -> ExitCode {
    let (report, control) = run::check(folder);
    run::draw(folder, &report);
    let ordered = run::ordered(folder).map(run::of_order);
    println!(
        "{report}\ncontrol: {} violations\norder: {ordered:?}",
        control.count
    );
    if report.is_clean() && ordered.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn campaign(kind: Kind, seed: u64, time: Duration, choice: &Choice) -> Verdict {
    // What was kept of an earlier run with this seed stays.
    let folder = |n| {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}-{seed}-{n}", kind.name()))
    };
    let folder = (1..).map(folder).find(|folder| !folder.exists()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run::run(kind, seed, time, choice, &folder))
}
