//! Runs every suite, passes its output through and counts what it says.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use crate::{
    Outcome,
    matrix::Matrix,
    run::{cargo, shown},
    setup,
    suites::{EXAMPLES, SUITES},
};

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

/// Prepares the machine and runs everything, also after a failure, so that one run tells all there is to know.
pub(crate) fn test() -> Outcome {
    setup::setup()?;
    let (mut reports, mut matrix) = (Vec::new(), Matrix::default());
    for suite in SUITES {
        let mut args = suite.args.to_vec();
        args.insert(1, "--no-fail-fast");
        let command = cargo(&args);
        reports.push(report(suite.name, command, true, &mut matrix));
    }
    for example in EXAMPLES {
        let command = cargo(&["run", "--quiet", "--example", example]);
        reports.push(report(&format!("example: {example}"), command, false, &mut matrix));
    }
    let matrix = matrix.judge();
    summarize(&reports).and(matrix)
}

fn report(name: &str, command: Command, counts: bool, matrix: &mut Matrix) -> Report {
    println!("\n==== {name}: {}", shown(&command));
    let begin = SystemTime::now();
    let (count, mut trouble) = match stream(command, matrix) {
        Ok((count, trouble)) => (count, trouble),
        Err(error) => (Count::default(), Some(error.to_string())),
    };
    if counts && trouble.is_none() && count.passed == 0 {
        trouble = Some("no test ran".into());
    }
    let took = begin.elapsed().unwrap_or_default();
    println!("---- {name}: {:.1} s", took.as_secs_f64());
    Report { name: name.into(), count, trouble, took }
}

/// Runs a command, passing through what it prints and adding up the results in it.
fn stream(mut command: Command, matrix: &mut Matrix) -> io::Result<(Count, Option<String>)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut count = Count::default();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            io::stdout().write_all(&line)?;
            let text = String::from_utf8_lossy(&line);
            count.add(&text);
            matrix.add(&text);
            line.clear();
        }
    }
    let status = child.wait()?;
    Ok((count, (!status.success()).then(|| status.to_string())))
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
    fn results_add_up() {
        let mut count = Count::default();
        count.add("test result: ok. 13 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.86s");
        count.add("test result: FAILED. 1 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out");
        count.add("test a_test_result: passed; 7 passed");
        assert_eq!(count, Count { passed: 14, failed: 4, ignored: 2 });
    }
}
