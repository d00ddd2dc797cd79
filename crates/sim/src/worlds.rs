//! Runs the worlds of many seeds, or of one. `cargo xtask sim` calls it.
//!
//! `--store simple`: the store. `--seed S --seeds N`: N seeds, from S on. `--seconds T`: no world
//! is begun after that time. `--steps 1,2 --faults 3`: only these steps and faults of each world;
//! `--steps none` leaves out all. `--history`: prints the history.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use leasehold_chaos::Figures;
use leasehold_sim::{Kind, Outcome, Part, run, shrink};

/// The options of the command line.
struct Options {
    kind: Kind,
    seed: u64,
    seeds: u64,
    time: Duration,
    part: Part,
    history: bool,
}

impl Default for Options {
    fn default() -> Options {
        let kind = Kind::Simple;
        let part = Part::default();
        Options {
            kind,
            seed: 0,
            seeds: 1000,
            time: Duration::MAX,
            part,
            history: false,
        }
    }
}

impl Options {
    fn of(words: &[String]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--history" {
                options.history = true;
                continue;
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|e| format!("{word} {value}: {e}"))
            };
            match &**word {
                "--store" => {
                    options.kind =
                        Kind::named(value).ok_or_else(|| format!("no store is called {value}"))?;
                }
                "--seed" => options.seed = number()?,
                "--seeds" => options.seeds = number()?,
                "--seconds" => options.time = Duration::from_secs(number()?),
                "--steps" => options.part.steps = Some(list(value)?),
                "--faults" => options.part.faults = Some(list(value)?),
                _ => return Err(format!("what is {word} {value}?")),
            }
        }
        Ok(options)
    }
}

fn list(text: &str) -> Result<Vec<usize>, String> {
    let numbers = text.split(',').filter(|it| *it != "none");
    numbers
        .map(|it| it.parse().map_err(|e| format!("{it}: {e}")))
        .collect()
}

pub(crate) fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options = match Options::of(&words) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let begun = SystemTime::now();
    let next = AtomicU64::new(0);
    let took = || begun.elapsed().unwrap_or_default();
    let failed = Mutex::new(None);
    let sum = Mutex::new(Sum::default());
    let work = || {
        while took() < options.time && locked(&failed).is_none() {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= options.seeds {
                return;
            }
            let seed = options.seed.wrapping_add(nth);
            let outcome = run(options.kind, seed, &options.part);
            if options.history {
                outcome.lines().iter().for_each(|line| println!("{line}"));
            }
            locked(&sum).add(&outcome.figures);
            if !outcome.wrong.is_empty() {
                locked(&failed).get_or_insert((seed, outcome, took()));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    println!("{} in {:.1} s", locked(&sum), took().as_secs_f64());
    let failed = locked(&failed).take();
    let Some((seed, outcome, at)) = failed else {
        return ExitCode::SUCCESS;
    };
    tell(&options, seed, outcome, at);
    ExitCode::FAILURE
}

/// Reports the errors of a seed, and the command that shows them again in their smallest form.
fn tell(options: &Options, seed: u64, outcome: Outcome, at: Duration) {
    println!(
        "\nseed {seed} fails, found after {:.1} s:\n{}",
        at.as_secs_f64(),
        outcome.wrong.join("\n")
    );
    let small = shrink(options.kind, seed, &options.part, outcome);
    println!(
        "\nthe smallest part of it that fails, after {} tries:",
        small.tries
    );
    small
        .outcome
        .lines()
        .iter()
        .for_each(|line| println!("    {line}"));
    println!(
        "{}\n\nto see it again:\n    {}",
        small.outcome.wrong.join("\n"),
        replay(options.kind, seed, &small.part)
    );
}

fn replay(kind: Kind, seed: u64, part: &Part) -> String {
    let list = |name: &str, part: &Option<Vec<usize>>| match part.as_deref() {
        None => String::new(),
        Some([]) => format!(" --{name} none"),
        Some(all) => format!(
            " --{name} {}",
            all.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(",")
        ),
    };
    // The command includes the faults that were set, because nothing outside of it may change a
    // seed's history.
    let faults = std::env::var("LEASEHOLD_FAULTS")
        .map(|names| format!("LEASEHOLD_FAULTS={names} "))
        .unwrap_or_default();
    let steps = list("steps", &part.steps);
    let made = list("faults", &part.faults);
    let store = kind.name();
    format!("{faults}cargo xtask sim --store {store} --seed {seed} --seeds 1{steps}{made}")
}

/// The figures of all worlds together.
#[derive(Default)]
struct Sum {
    worlds: u64,
    figures: Figures,
}

impl Sum {
    fn add(&mut self, of: &Figures) {
        self.worlds += 1;
        let sum = &mut self.figures;
        sum.events += of.events;
        sum.grants += of.grants;
        sum.refusals += of.refusals;
        sum.unknown += of.unknown;
        sum.accepted += of.accepted;
        sum.rejected += of.rejected;
        sum.losses += of.losses;
        sum.killed += of.killed;
        sum.queued += of.queued;
        for (kind, times) in &of.faults {
            let kind = kind.split_once('(').map_or(&**kind, |(kind, _)| kind);
            *sum.faults.entry(kind.to_owned()).or_default() += times;
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures {
            events,
            grants,
            refusals,
            unknown,
            accepted,
            rejected,
            losses,
            faults,
            ..
        } = &self.figures;
        let faults: BTreeMap<_, _> = faults.iter().collect();
        writeln!(
            f,
            "{events} events: {grants} grants, {refusals} refusals, {unknown} unknown, {losses} losses, {accepted} writes, {rejected} refused"
        )?;
        writeln!(f, "faults: {faults:?}")?;
        write!(f, "{} worlds", self.worlds)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
