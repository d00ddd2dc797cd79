//! A program that is run again and again.

use std::process::Stdio;
use std::time::Duration;
use std::{fs, io};

use leasehold::backend::Moment;
use tokio::process::Command;

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::spread::median;
use crate::subject::Result;

/// From its start until it is gone; after that once under `strace`, where that is installed.
pub async fn commands(words: &[String], meter: Meter, window: Duration) -> Result<Sample> {
    let mut sample = meter
        .around(async {
            let (begin, mut took) = (Moment::now(), Vec::new());
            while Moment::now().since(begin) < window {
                let started = Moment::now();
                run(words).await?;
                took.push(Moment::now().since(started).as_nanos() as f64);
            }
            took.sort_by(f64::total_cmp);
            Ok(Done {
                operations: took.len() as f64,
                figures: [(Metric::Median, median(&took))].into(),
                elsewhere: true,
            })
        })
        .await?;
    if let Some(calls) = system_calls(words).await? {
        sample.insert(Metric::SystemCalls, calls);
    }
    Ok(sample)
}

async fn run(words: &[String]) -> Result<()> {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    // Cargo has every library looked for in its own folders first, and a developer's `PATH` is long.
    command
        .env_remove("LD_LIBRARY_PATH")
        .env("PATH", "/usr/bin:/bin");
    match command.status().await?.success() {
        true => Ok(()),
        false => Err(format!("{} failed", words.join(" ")).into()),
    }
}

/// Those of all of its processes and threads. `None`: nothing here counts them.
async fn system_calls(words: &[String]) -> Result<Option<f64>> {
    let trace = tempfile::NamedTempFile::new()?;
    let strace = ["strace", "-f", "-o"].map(String::from);
    let words = [&strace[..], &[trace.path().display().to_string()], words].concat();
    match run(&words).await {
        Ok(()) => {}
        Err(e)
            if e.downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::NotFound) =>
        {
            return Ok(None);
        }
        Err(e) => return Err(e),
    }
    let text = fs::read_to_string(trace.path())?;
    // Signals and ends have no parenthesis before anything else; the second half of a call is not another one.
    let is_call = |line: &&str| {
        line.contains('(') && !["<... ", "--- ", "+++ "].iter().any(|no| line.contains(no))
    };
    Ok(Some(text.lines().filter(is_call).count() as f64))
}
