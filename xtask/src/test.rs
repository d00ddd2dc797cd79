//! Builds every suite, runs several side by side, passes on what each has printed when it ends, and counts.

use std::{
    collections::VecDeque,
    env,
    io::{self, Read, Seek, Write},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use crate::{
    binaries::{self, Binary},
    matrix::Matrix,
    run::{Outcome, cargo, shown},
    setup,
    suites::{ALONE, BY_CARGO, BY_CARGO_LAST, EXAMPLES, IN_PLAIN, LONG, SLICES, WORDS},
};

/// How many suites run side by side beyond one for each core: much of their time they wait for leases to end.
const BEYOND_CORES: usize = 2;

/// Something to run, with what counts as its success.
struct Suite {
    name: String,
    command: Command,
    /// At least one test must have run.
    must_count: bool,
}

/// What a suite said about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// How a suite went.
struct Report {
    name: String,
    count: Count,
    trouble: Option<String>,
    took: Duration,
}

/// Prepares the machine and runs everything, also after a failure, so that one run tells all there is to know. Of some suites it is
/// a slice, unless it is called with `--all`. `--suite PACKAGE/TARGET`, which may stand several times, runs those alone.
pub(crate) fn test() -> Outcome {
    let only = chosen(env::args().skip(2))?;
    setup::setup()?;
    let is_chosen = |binary: &Binary| match &only[..] {
        [] => binary.package != "leasehold" || !IN_PLAIN.contains(&&*binary.target),
        _ => only.iter().any(|(package, target)| *package == binary.package && *target == binary.target),
    };
    let (alone, mut together): (Vec<Binary>, Vec<Binary>) = binaries::build(&only)?
        .into_iter()
        .filter(is_chosen)
        .partition(|binary| ALONE.contains(&(&*binary.package, &*binary.target)));
    together.sort_by_key(|binary| LONG.iter().position(|long| *long == binary.target).unwrap_or(LONG.len()));
    // Runs of cargo wait for each other: they stand in one row.
    let is_all = only.is_empty();
    let cargos = BY_CARGO.iter().map(by_cargo).chain(EXAMPLES.iter().map(example)).filter(|_| is_all).collect();
    let rows = [cargos].into_iter().chain(together.iter().map(|binary| vec![suite(binary)]));
    let mut run = Run::default();
    run.side_by_side(rows.collect());
    let last = alone.iter().map(suite).chain(BY_CARGO_LAST.iter().map(by_cargo).filter(|_| is_all));
    run.side_by_side(VecDeque::from([last.collect()]));
    let matrix = run.matrix.judge();
    summarize(&run.reports).and(matrix)
}

/// The suites that are named behind `--suite`, each as the names of its package and its target.
fn chosen(mut words: impl Iterator<Item = String>) -> Result<Vec<(String, String)>, String> {
    let mut chosen = Vec::new();
    while let Some(word) = words.next() {
        match &*word {
            "--all" => {}
            "--suite" => {
                let name = words.next().unwrap_or_default();
                let parts = name.split_once('/').filter(|(package, target)| !package.is_empty() && !target.is_empty());
                let (package, target) = parts.ok_or_else(|| format!("--suite PACKAGE/TARGET, not {name:?}"))?;
                chosen.push((package.to_owned(), target.to_owned()));
            }
            other => return Err(format!("it knows --all and --suite PACKAGE/TARGET, not {other:?}")),
        }
    }
    Ok(chosen)
}

fn suite(binary: &Binary) -> Suite {
    let Binary { package, target, is_suite, .. } = binary;
    let of = |table: &[(&str, &str, &'static [&'static str])]| {
        table.iter().find(|(p, t, _)| p == package && t == target).map_or(&[][..], |(_, _, words)| words)
    };
    let slice = if env::args().any(|word| word == "--all") { &[][..] } else { of(SLICES) };
    let what = if *is_suite { target } else { "unit tests" };
    let name = format!("{package}: {what}{}", if slice.is_empty() { "" } else { " (a slice of it)" });
    Suite { name, command: binary.command(&[of(WORDS), slice].concat()), must_count: *is_suite }
}

fn by_cargo((name, words): &(&str, &[&str])) -> Suite {
    Suite { name: (*name).into(), command: cargo(words), must_count: true }
}

fn example(name: &&str) -> Suite {
    let command = cargo(&["run", "--quiet", "--example", name]);
    Suite { name: format!("example: {name}"), command, must_count: false }
}

#[derive(Default)]
struct Run {
    reports: Vec<Report>,
    matrix: Matrix,
}

impl Run {
    /// Runs these rows of suites, each row one suite after the other.
    fn side_by_side(&mut self, rows: VecDeque<Vec<Suite>>) {
        let (rows, run) = (Mutex::new(rows), Mutex::new(self));
        let work = || {
            loop {
                let row = rows.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                for suite in row.into_iter().flatten() {
                    println!("begins: {}", suite.name);
                    let (report, printed) = suite.run();
                    run.lock().unwrap_or_else(PoisonError::into_inner).take_in(report, &printed);
                }
                if rows.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                    return;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..BEYOND_CORES + thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(work);
            }
        });
    }

    fn take_in(&mut self, report: Report, printed: &str) {
        println!("\n==== {}\n{printed}---- {}: {:.1} s", report.name, report.name, report.took.as_secs_f64());
        printed.lines().for_each(|line| self.matrix.add(line));
        self.reports.push(report);
        // What is lost of it is only the showing.
        let _ = io::stdout().flush();
    }
}

impl Suite {
    /// Runs it to its end; what it printed comes with the report.
    fn run(self) -> (Report, String) {
        let Suite { name, command, must_count } = self;
        let said = shown(&command);
        let begin = SystemTime::now();
        let (printed, mut trouble) = match captured(command) {
            Ok((printed, trouble)) => (printed, trouble),
            Err(error) => (String::new(), Some(format!("{said}: {error}"))),
        };
        let took = begin.elapsed().unwrap_or_default();
        let mut count = Count::default();
        printed.lines().for_each(|line| count.add(line));
        if must_count && trouble.is_none() && count.passed == 0 {
            trouble = Some("no test ran".into());
        }
        (Report { name, count, trouble, took }, printed)
    }
}

/// Runs a command with its output and its complaints in one file, as a terminal would show them.
fn captured(mut command: Command) -> io::Result<(String, Option<String>)> {
    let mut file = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let status = command.status()?;
    let mut printed = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut printed)?;
    Ok((String::from_utf8_lossy(&printed).into_owned(), (!status.success()).then(|| status.to_string())))
}

impl Count {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else { return };
        let words: Vec<&str> = result.split_whitespace().collect();
        for pair in words.windows(2) {
            let number = pair[0].parse::<u64>().unwrap_or_default();
            match pair[1] {
                "passed;" => self.passed += number,
                "failed;" => self.failed += number,
                "ignored;" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// One line for each suite, and at last the sum. A suite that failed without a failed test counts as one.
fn summarize(reports: &[Report]) -> Outcome {
    println!("\n==== summary");
    let (mut passed, mut failed) = (0, 0);
    for Report { name, count, trouble, took } in reports {
        passed += count.passed;
        failed += if trouble.is_some() { count.failed.max(1) } else { count.failed };
        let verdict = if trouble.is_none() && count.failed == 0 { "ok" } else { "FAILED" };
        let ignored = if count.ignored > 0 { format!(", {} ignored", count.ignored) } else { String::new() };
        let trouble = trouble.as_deref().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
        let seconds = took.as_secs_f64();
        println!(
            "{verdict:6} {name}: {} passed, {} failed{ignored} in {seconds:.1} s{trouble}",
            count.passed, count.failed
        );
    }
    println!("\n{passed} passed, {failed} failed");
    if failed == 0 { Ok(()) } else { Err("not everything passed".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_named_by_package_and_target() {
        let chosen = |words: &str| chosen(words.split_whitespace().map(str::to_owned));
        assert_eq!(chosen("--all"), Ok(Vec::new()));
        let two = chosen("--suite a/x --all --suite b/y").unwrap();
        assert_eq!(two, [("a", "x"), ("b", "y")].map(|(package, target)| (package.to_owned(), target.to_owned())));
        for wrong in ["--suite", "--suite a", "--suite /x", "--suite a/", "a/x", "--al"] {
            assert!(chosen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_add_up() {
        let mut count = Count::default();
        count.add("test result: ok. 13 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.86s");
        count.add("test result: FAILED. 1 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        count.add("test a_test_result: passed; 7 passed");
        assert_eq!(count, Count { passed: 14, failed: 4, ignored: 2 });
    }
}
