//! `--report FILE`: how it went, as one line of JSON, because the program may return any of our exit codes itself.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::output;

/// What became of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The program ended by itself, or by a signal that was not ours, under the lock.
    Ended,
    NotAcquired,
    Unavailable,
    Lost,
    MaxHold,
    /// A signal came while waiting.
    Interrupted,
    Failed,
}

/// One run.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) outcome: Outcome,
    pub(crate) name: &'a str,
    pub(crate) store: &'a str,
    /// The fencing token, if the lock was held.
    pub(crate) token: Option<u64>,
    /// The program's exit code.
    pub(crate) code: Option<i32>,
    /// The signal that ended the program.
    pub(crate) signal: Option<i32>,
    /// The program's processes that run on, without the lock.
    pub(crate) left: Vec<i32>,
    /// What happened, for people.
    pub(crate) detail: String,
}

/// A report's file, opened before anything is done.
#[derive(Debug)]
pub(crate) struct ReportFile(Option<File>);

impl ReportFile {
    pub(crate) fn open(path: Option<&Path>) -> io::Result<ReportFile> {
        if path.is_some_and(|path| path.as_os_str() == "-") {
            return Err(io::Error::other("standard output is CMD's; name a file, such as /dev/stderr"));
        }
        Ok(ReportFile(path.map(File::create).transpose()?))
    }

    /// No report.
    pub(crate) fn none() -> ReportFile {
        ReportFile(None)
    }

    pub(crate) fn write(&mut self, report: &Report<'_>) -> io::Result<()> {
        let Some(file) = &mut self.0 else { return Ok(()) };
        let mut line = output::safe_json(&serde_json::to_string(report)?);
        line.push('\n');
        file.write_all(line.as_bytes())
    }
}
