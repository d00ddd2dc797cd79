//! `compare`: runs equal workloads on several stores, and shows the results as a table, as JSON,
//! and as a page.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_lab::compare::{Settings, Subject, compare, hold_until_killed};
use tempfile::NamedTempFile;

use crate::exit::{self, Exit, FAILED, UNAVAILABLE, say};
use crate::output;
use crate::status_line::StatusLine;
use crate::store_url::{StoreUrl, VARIABLE};

/// The argument with which this program starts itself as a holder that is killed later. The URL is
/// in the environment, because it may contain a password.
pub(crate) const HOLD: &str = "__hold";

/// Measure the same lock workloads on several stores.
///
/// The workloads: acquire and release without contention; 2, 8 and 64 waiters; 1,000 locks renewed; holders killed; each with
/// fair and fast, in relation to the round trip of the store. The result says which store, and which of fair and fast, suits
/// which need. It takes about half a minute for each store. If a store cannot be used, the others are compared (exit code 69).
/// The names are in a namespace of the run, and end with their leases.
#[derive(Debug, clap::Args)]
pub(crate) struct Compare {
    /// The stores: redis://…, etcd://…, zookeeper://…, and the others of --store.
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write an HTML page with plots to this file. An existing file is replaced at the end.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Run each workload once and briefly: a test of the set-up, not a measurement.
    #[arg(long)]
    glance: bool,
}

pub(crate) async fn main(args: Compare) -> io::Result<Exit> {
    // The file is opened before the minutes of work, not after.
    let page = match args.html.as_deref().map(Page::open).transpose() {
        Ok(page) => page,
        Err(e) => return Ok(exit::bad_usage(format_args!("the page's file: {e}"))),
    };
    let program = std::env::current_exe()?;
    let subjects: Vec<Subject> = args
        .urls
        .iter()
        .map(|url| subject(url, program.clone()))
        .collect();
    let settings = if args.glance {
        Settings::glance()
    } else {
        Settings::default()
    };
    let bar = StatusLine::bar();
    let compared = compare(&subjects, &settings, |p| {
        bar.show(p.done, &format!("{}: {}", p.store, p.workload));
    })
    .await;
    drop(bar);
    let report = match compared {
        Ok(report) => report,
        Err(e) => {
            say(exit::chain(&e));
            return Ok(Exit::Code(exit::of_error(&e)));
        }
    };
    let text = if args.json {
        output::safe_json(&(report.json()? + "\n"))
    } else {
        output::plain_lines(&report.table())
    };
    // If one of the two cannot be written, the other still is.
    let printed = output::print(&text);
    let written = page.map_or(Ok(()), |page| page.write(&report.page()));
    if let Err(e) = &written {
        say(format_args!("the page's file: {e}"));
    }
    report.unreachable.iter().for_each(say);
    printed?;
    Ok(Exit::Code(match (written, report.unreachable.is_empty()) {
        (Err(_), _) => FAILED,
        (Ok(()), false) => UNAVAILABLE,
        (Ok(()), true) => 0,
    }))
}

/// A store, and the command that holds its locks in another process.
fn subject(url: &str, program: PathBuf) -> Subject {
    let subject = Subject::at(url, StoreUrl::new(url).to_string());
    if url.trim().starts_with("memory:") {
        return subject; // no other process could hold its locks
    }
    let url = url.to_owned();
    subject.killed_as(move |name, lease| {
        let mut command = Command::new(&program);
        command
            .arg(HOLD)
            .arg(name)
            .arg(lease.as_millis().to_string())
            .env(VARIABLE, &url);
        command
    })
}

/// The page's file. An existing file stays as it is until the new one is complete.
enum Page {
    /// Written beside the existing file, and renamed.
    Beside(NamedTempFile, PathBuf),
    /// No regular file, such as `/dev/stdout`: written directly.
    Special(File),
}

impl Page {
    fn open(path: &Path) -> io::Result<Page> {
        // A link stays a link: its target is replaced.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if target
            .metadata()
            .is_ok_and(|about| !about.is_file() && !about.is_dir())
        {
            return Ok(Page::Special(File::options().write(true).open(&target)?));
        }
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let folder = target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        // The file gets the rights that any new file gets.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        let file = tempfile::Builder::new()
            .prefix(".leasehold-")
            .permissions(mode)
            .tempfile_in(folder)?;
        Ok(Page::Beside(file, target))
    }

    fn write(self, text: &str) -> io::Result<()> {
        match self {
            Page::Special(mut file) => file.write_all(text.as_bytes()),
            Page::Beside(mut file, target) => {
                file.write_all(text.as_bytes())?;
                file.persist(target).map(drop).map_err(|e| e.error)
            }
        }
    }
}

/// Runs the holder that is killed. The words are its lock's full name, and its lease in
/// milliseconds.
pub(crate) async fn hold(words: &[OsString]) -> io::Result<Exit> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let ([name, lease], Ok(url)) = (&words[..], std::env::var(VARIABLE)) else {
        return Ok(exit::not_for_users());
    };
    let lease = Duration::from_millis(lease.parse().map_err(io::Error::other)?);
    let held = async { hold_until_killed(&leasehold::connect(&url).await?, name, lease).await };
    held.await.map(|()| Exit::Code(0)).map_err(io::Error::other)
}
