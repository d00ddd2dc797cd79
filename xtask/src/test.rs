//! Builds every suite, runs several side by side, prints the output of each when it ends, and
//! counts the tests.

use std::{
    collections::VecDeque,
    env, fs,
    io::{self, Read, Seek, Write},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread::{self, ScopedJoinHandle},
    time::{Duration, SystemTime},
};

use crate::{
    binaries::{self, Binary, Kind},
    matrix::Matrix,
    room::Room,
    run::{ON_SHUTTLE, Outcome, cargo, lab, shown},
    servers::{self, SERVERS, Server},
    setup,
    suites::{
        ALONE, BUILDS, BUILDS_AT_LAST, BUSY, BY_CARGO, FEW_SCHEDULES, LONG, PROOFS, SCHEDULES,
        SLICES, UNABRIDGED, WHOLE_ONLY, WORDS,
    },
};

/// The number of lines that the summary repeats of the output of a failed test.
const LINES_OF_A_FAILURE: usize = 12;

/// The interval at which the end of a row is noticed.
const GLANCE: Duration = Duration::from_millis(100);

/// The number of failed tests that are run again at most. More of them have a cause in common.
const MOST_AGAIN: usize = 10;

/// A suite to run, with the condition for its success.
struct Suite {
    name: String,
    command: Command,
    /// At least one test must have run.
    must_count: bool,
    /// The program whose failed tests are run again alone.
    again: Option<Binary>,
}

/// The numbers of tests that a suite reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// The result of a suite.
struct Report {
    name: String,
    count: Count,
    trouble: Option<String>,
    took: Duration,
    /// The processor time of its processes, those of its servers included, where that is known.
    busy: Option<Duration>,
    /// The output of its failed tests, shortened.
    failures: String,
    /// The names of its failed tests.
    failed: Vec<String>,
    again: Option<Binary>,
    /// Its failed tests passed when nothing ran beside them.
    is_flaky: bool,
}

/// Prepares the machine and runs everything, also after a failure, so that one run shows all
/// failures. Some suites run only in part or not at all, unless it is called with `--all`. With `--suite
/// PACKAGE/SUITE`, which may be given several times, it runs only those suites; a suite is a test
/// target, or a module of the target `it`.
///
/// A few tests with real servers may fail because something else kept the machine busy. Each of
/// them is run once more, alone. The summary calls it flaky if it passes: it does not fail the run,
/// but it is a bug to mend. Nothing is run again with `--all` or `--suite`, nor are [`PROOFS`].
pub(crate) fn test() -> Outcome {
    let only = chosen(env::args().skip(2))?;
    setup::setup()?;
    let is_in = |table: &[(&str, &str)], binary: &Binary| {
        table.contains(&(&*binary.package, &*binary.target))
    };
    let is_chosen = |binary: &Binary| match &only[..] {
        [] => is_whole() || !is_in(WHOLE_ONLY, binary),
        _ => only
            .iter()
            .any(|(package, target)| *package == binary.package && *target == binary.target),
    };
    let (alone, others): (Vec<Binary>, Vec<Binary>) = binaries::build(&only)?
        .into_iter()
        .filter(is_chosen)
        .partition(|binary| is_in(ALONE, binary));
    let (busy, mut together): (Vec<Binary>, Vec<Binary>) =
        others.into_iter().partition(|binary| is_in(BUSY, binary));
    together.sort_by_key(|binary| {
        LONG.iter()
            .position(|long| *long == binary.target)
            .unwrap_or(LONG.len())
    });
    // Runs of cargo would wait for each other.
    let due = |suites: &[(&str, &[&str])], is_due: bool| -> Vec<Suite> {
        suites.iter().filter(|_| is_due).map(by_cargo).collect()
    };
    let is_every_suite = only.is_empty();
    let is_whole = is_every_suite && is_whole();
    let mut row = due(BY_CARGO, is_every_suite);
    row.extend(busy.iter().map(suite));
    row.extend(due(BUILDS, is_whole));
    let rows = [row]
        .into_iter()
        .chain(together.iter().map(|binary| vec![suite(binary)]));
    // Without the network the other suites run all the same.
    let servers = if is_whole { servers::install() } else { Ok(()) };
    let others = SERVERS.iter().filter(|_| is_whole && servers.is_ok());
    let others = others.map(|server| on_server(server, &together));
    let mut run = Run::default();
    run.side_by_side(rows.chain(others).collect());
    let last = alone.iter().map(suite).chain(due(BUILDS_AT_LAST, is_whole));
    run.side_by_side(VecDeque::from([last.collect()]));
    if is_every_suite && !is_whole {
        run.again();
    }
    let matrix = run.matrix.judge();
    summarize(&run.reports).and(matrix).and(servers)
}

/// The suites that run against this other version of their server too.
fn on_server(server: &Server, suites: &[Binary]) -> Vec<Suite> {
    let is_due = |binary: &&Binary| server.is_for(&binary.package, &binary.target);
    let on = |binary: &Binary| {
        let mut suite = suite(binary);
        suite.name = format!("{} on {}", suite.name, server.name);
        suite.command.env(servers::VARIABLE, server.path());
        suite
    };
    suites.iter().filter(is_due).map(on).collect()
}

/// Tells tests that nothing is to be left out.
const WHOLE: &str = "LEASEHOLD_WHOLE";
/// Tells tests that a glance at what they do many times is enough.
const GLANCE_ONLY: &str = "LEASEHOLD_GLANCE";

/// Returns whether nothing is to be left out.
fn is_whole() -> bool {
    env::args().any(|word| word == "--all")
}

/// The suites that are named behind `--suite`, each as the names of its package and its own.
fn chosen(mut words: impl Iterator<Item = String>) -> Result<Vec<(String, String)>, String> {
    let mut chosen = Vec::new();
    while let Some(word) = words.next() {
        match &*word {
            "--all" => {}
            "--suite" => {
                let name = words.next().unwrap_or_default();
                let parts = name
                    .split_once('/')
                    .filter(|(package, target)| !package.is_empty() && !target.is_empty());
                let (package, target) =
                    parts.ok_or_else(|| format!("--suite PACKAGE/SUITE, not {name:?}"))?;
                chosen.push((package.to_owned(), target.to_owned()));
            }
            other => {
                return Err(format!(
                    "it knows --all and --suite PACKAGE/SUITE, not {other:?}"
                ));
            }
        }
    }
    Ok(chosen)
}

fn suite(binary: &Binary) -> Suite {
    let Binary {
        package,
        target,
        kind,
        ..
    } = binary;
    let of = |table: &[(&str, &str, &'static [&'static str])]| {
        table
            .iter()
            .find(|(p, t, _)| p == package && t == target)
            .map_or(&[][..], |(_, _, words)| words)
    };
    let slice = if is_whole() { &[][..] } else { of(SLICES) };
    let mut name = match kind {
        Kind::Suite => format!("{package}: {target}"),
        Kind::UnitTests => format!("{package}: unit tests"),
        Kind::Example => format!("example: {target}"),
    };
    if !slice.is_empty() {
        name.push_str(" (a slice of it)");
    }
    let mut command = binary.command(&[of(WORDS), slice].concat());
    if is_whole() {
        command.env(WHOLE, "1");
    } else if !UNABRIDGED.contains(&(&**package, &**target)) {
        command.env(GLANCE_ONLY, "1");
    }
    Suite {
        name,
        command,
        must_count: *kind == Kind::Suite,
        again: Some(binary.clone())
            .filter(|_| *kind == Kind::Suite && !PROOFS.contains(&&**package)),
    }
}

fn by_cargo((name, words): &(&str, &[&str])) -> Suite {
    Suite {
        name: (*name).into(),
        command: of_cargo(words),
        must_count: true,
        again: None,
    }
}

/// A run with a target folder of its own is one of another workspace. The other runs use the
/// existing build.
fn of_cargo(words: &[&str]) -> Command {
    let is_of_another = words.iter().any(|word| word.starts_with("--target-dir"));
    let mut command = match words {
        SCHEDULES => ON_SHUTTLE.cargo(words),
        _ if is_of_another => cargo(words),
        _ => lab(words),
    };
    let (variable, few) = FEW_SCHEDULES;
    if !is_whole() && env::var_os(variable).is_none() {
        command.env(variable, few);
    }
    command
}

#[derive(Default)]
struct Run {
    reports: Vec<Report>,
    matrix: Matrix,
}

impl Run {
    /// Runs these rows of suites, each row one suite after the other. A row begins when the machine
    /// has room for it.
    fn side_by_side(&mut self, mut rows: VecDeque<Vec<Suite>>) {
        let run = Mutex::new(self);
        let work = |row: Vec<Suite>| {
            for suite in row {
                println!("begins: {}", suite.name);
                let (report, printed) = suite.run();
                run.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take_in(report, &printed);
            }
        };
        thread::scope(|scope| {
            let mut under_way = Vec::new();
            let mut room = Room::default();
            while !rows.is_empty() {
                under_way.retain(|row: &ScopedJoinHandle<'_, ()>| !row.is_finished());
                match room.for_another(under_way.len()) {
                    true => under_way.extend(rows.pop_front().map(|row| scope.spawn(|| work(row)))),
                    false => thread::sleep(GLANCE),
                }
            }
        });
    }

    fn take_in(&mut self, report: Report, printed: &str) {
        println!(
            "\n==== {}\n{printed}---- {}: {:.1} s",
            report.name,
            report.name,
            report.took.as_secs_f64()
        );
        if report.failed.is_empty() {
            printed.lines().for_each(|line| self.matrix.add(line));
        }
        self.reports.push(report);
        // A failed flush only delays the output.
        let _ = io::stdout().flush();
    }

    /// Runs the failed tests once more, one suite after the other.
    fn again(&mut self) {
        let failed: usize = self.reports.iter().map(|report| report.failed.len()).sum();
        if failed > MOST_AGAIN {
            return;
        }
        for report in &mut self.reports {
            let Some(binary) = report.again.take().filter(|_| !report.failed.is_empty()) else {
                continue;
            };
            let alone = Suite {
                name: format!("{}, alone", report.name),
                command: binary.command_of(&report.failed),
                must_count: true,
                again: None,
            };
            println!("begins: {}", alone.name);
            let (second, printed) = alone.run();
            println!("\n==== {}\n{printed}", second.name);
            report.is_flaky =
                second.trouble.is_none() && second.count.passed == report.failed.len() as u64;
        }
    }
}

impl Suite {
    /// Runs the suite to its end. Returns the report and the output.
    fn run(self) -> (Report, String) {
        let Suite {
            name,
            command,
            must_count,
            again,
        } = self;
        let said = shown(&command);
        let begin = SystemTime::now();
        let Captured {
            printed,
            mut trouble,
            busy,
        } = captured(command).unwrap_or_else(|error| Captured {
            printed: String::new(),
            trouble: Some(format!("{said}: {error}")),
            busy: None,
        });
        let took = begin.elapsed().unwrap_or_default();
        let mut count = Count::default();
        printed.lines().for_each(|line| count.add(line));
        if must_count && trouble.is_none() && count.passed == 0 {
            trouble = Some("no test ran".into());
        }
        (
            Report {
                name,
                count,
                trouble,
                took,
                busy,
                failures: failures(&printed),
                failed: failed(&printed),
                again,
                is_flaky: false,
            },
            printed,
        )
    }
}

/// A command that has ended.
struct Captured {
    printed: String,
    /// The reason why it failed, if it has.
    trouble: Option<String>,
    busy: Option<Duration>,
}

/// Runs a command with its output and its complaints in one file, as a terminal would show them.
fn captured(mut command: Command) -> io::Result<Captured> {
    let mut file = tempfile::tempfile()?;
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file.try_clone()?);
    let mut child = command.spawn()?;
    let busy = busy_until_its_end(&child);
    let status = child.wait()?;
    let mut printed = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut printed)?;
    Ok(Captured {
        printed: String::from_utf8_lossy(&printed).into_owned(),
        trouble: (!status.success()).then(|| status.to_string()),
        busy,
    })
}

/// Waits until a process has ended, and leaves it to be reaped. Returns the processor time that it
/// and the processes it has reaped have used.
#[cfg(target_os = "linux")]
fn busy_until_its_end(child: &Child) -> Option<Duration> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    let pid = Pid::from_raw(child.id().try_into().ok()?)?;
    let until = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), until) {}
    busy(&fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?)
}

/// Nothing tells it elsewhere.
#[cfg(not(target_os = "linux"))]
fn busy_until_its_end(_child: &Child) -> Option<Duration> {
    None
}

/// Reads the processor time of a process and its reaped children from its line in `/proc`, where a
/// tick is a hundredth of a second.
fn busy(stat: &str) -> Option<Duration> {
    // The name of the program may have spaces, and ends in the last parenthesis.
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ticks: Vec<u64> = fields
        .skip(11)
        .map_while(|field| field.parse().ok())
        .take(4)
        .collect();
    let ticks: [u64; 4] = ticks.try_into().ok()?;
    Some(Duration::from_millis(10 * ticks.iter().sum::<u64>()))
}

/// Returns the output of the failed tests, each shortened to its first lines.
fn failures(printed: &str) -> String {
    let mut left = 0;
    let mut lines = Vec::new();
    for line in printed.lines() {
        if line.starts_with("---- ") {
            left = LINES_OF_A_FAILURE;
        } else if ["failures:", "test result: "]
            .iter()
            .any(|end| line.starts_with(end))
        {
            left = 0;
        }
        if left > 0 {
            lines.push(line);
            left -= 1;
        }
    }
    lines.join("\n")
}

/// Returns the names of the failed tests, from the list of them at the end of the output.
fn failed(printed: &str) -> Vec<String> {
    let list = printed.rsplit_once("\nfailures:\n").unwrap_or_default().1;
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

impl Count {
    /// Adds a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn add(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
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
    let [mut passed, mut failed, mut flaky] = [0; 3];
    for Report {
        name,
        count,
        trouble,
        took,
        busy,
        is_flaky,
        ..
    } in reports
    {
        passed += count.passed;
        let of_suite = match trouble {
            Some(_) => count.failed.max(1),
            None => count.failed,
        };
        let verdict = match of_suite {
            0 => "ok",
            _ if *is_flaky => "FLAKY",
            _ => "FAILED",
        };
        match is_flaky {
            true => flaky += of_suite,
            false => failed += of_suite,
        }
        let ignored = if count.ignored > 0 {
            format!(", {} ignored", count.ignored)
        } else {
            String::new()
        };
        let trouble = trouble
            .as_deref()
            .map(|trouble| format!(" ({trouble})"))
            .unwrap_or_default();
        let seconds = took.as_secs_f64();
        let busy = busy
            .map(|busy| format!(", {:.1} s of a processor", busy.as_secs_f64()))
            .unwrap_or_default();
        println!(
            "{verdict:6} {name}: {} passed, {} failed{ignored} in {seconds:.1} s{busy}{trouble}",
            count.passed, count.failed
        );
    }
    // Whoever has only the end of the output sees the reasons.
    for report in reports.iter().filter(|report| !report.failures.is_empty()) {
        println!("\n==== failed in {}\n{}", report.name, report.failures);
    }
    println!("\n{passed} passed, {failed} failed, {flaky} passed only alone");
    if failed == 0 {
        Ok(())
    } else {
        Err("not everything passed".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_named_by_package_and_target() {
        let chosen = |words: &str| chosen(words.split_whitespace().map(str::to_owned));
        assert_eq!(chosen("--all"), Ok(Vec::new()));
        let two = chosen("--suite a/x --all --suite b/y").unwrap();
        assert_eq!(
            two,
            [("a", "x"), ("b", "y")]
                .map(|(package, target)| (package.to_owned(), target.to_owned()))
        );
        for wrong in [
            "--suite",
            "--suite a",
            "--suite /x",
            "--suite a/",
            "a/x",
            "--al",
        ] {
            assert!(chosen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_summary_repeats_the_beginning_of_each_failure() {
        let lines = |n: usize| (0..n).map(|i| format!("{i}\n")).collect::<String>();
        let printed = format!(
            "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n{}---- b stdout ----\n{}failures:\n    a\n    b\n\ntest result: FAILED. 0 passed\n",
            lines(100),
            lines(2)
        );
        let repeated = failures(&printed);
        assert!(
            repeated.starts_with("---- a stdout ----\n0\n"),
            "{repeated}"
        );
        assert!(
            repeated.ends_with("10\n---- b stdout ----\n0\n1"),
            "{repeated}"
        );
        assert_eq!(failures("test result: ok. 1 passed; 0 failed"), "");
    }

    #[test]
    fn failed_tests_are_named_by_the_list_at_the_end() {
        let printed = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n    at x\n\nfailures:\n    a\n    b/c (faulty)\n\ntest result: FAILED. 0 passed\n";
        assert_eq!(failed(printed), ["a", "b/c (faulty)"]);
        assert!(failed("test a ... ok\n\ntest result: ok. 1 passed\n").is_empty());
        assert!(failed("failures:\n\n---- a stdout ----\n").is_empty());
    }

    #[test]
    fn a_test_that_passed_only_alone_fails_no_run() {
        let report = |is_flaky| Report {
            name: "a".into(),
            count: Count {
                failed: 1,
                ..Count::default()
            },
            trouble: Some("exit status: 101".into()),
            took: Duration::ZERO,
            busy: None,
            failures: String::new(),
            failed: vec!["b".into()],
            again: None,
            is_flaky,
        };
        assert!(summarize(&[report(true)]).is_ok());
        assert!(summarize(&[report(true), report(false)]).is_err());
    }

    #[test]
    fn the_processor_time_of_a_process_and_its_children_is_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 10 20 0 0 101 22 3000 40 20 0 1 0 99";
        assert_eq!(busy(stat), Some(Duration::from_millis(31_630)));
        assert_eq!(busy("7 (a) S 1 7"), None);
    }

    #[test]
    fn results_add_up() {
        let mut count = Count::default();
        count.add("test result: ok. 13 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.86s");
        count.add("test result: FAILED. 1 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        count.add("test a_test_result: passed; 7 passed");
        assert_eq!(
            count,
            Count {
                passed: 14,
                failed: 4,
                ignored: 2
            }
        );
    }
}
