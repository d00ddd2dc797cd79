//! The command line. Its words, the environment's names and the exit codes are a contract that scripts rely on.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Parser, Subcommand};
use leasehold::Options;

use crate::exit::{NOT_ACQUIRED, USAGE};
use crate::guardian::wire::Leftovers;

/// Hold a distributed lock while a program runs.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version = env!("LEASEHOLD_VERSION"), propagate_version = true, max_term_width = 100)]
pub(crate) struct Args {
    /// Say more on standard error: -v what happens to the lock, -vv everything.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
}

/// Which store.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArg {
    /// The store: redis://HOST[:PORT][/DB], etcd://HOST,…, zookeeper://HOST,… [default: $LEASEHOLD_STORE].
    ///
    /// A URL with a password is better put into $LEASEHOLD_STORE: arguments can be seen by other users.
    #[arg(long = "store", value_name = "URL")]
    pub(crate) url: Option<String>,
}

/// Run a program while holding the lock.
///
/// Waits for the lock NAME, runs CMD, and gives the lock back when CMD and what it left behind have ended. If the lock is
/// lost, CMD and all its descendants are ended before anybody else can have it: SIGTERM first, then SIGKILL.
///
/// CMD finds LEASEHOLD_NAME, LEASEHOLD_FENCING_TOKEN and LEASEHOLD_STORE (without credentials) in its environment. Send the
/// token along with each write, and let the resource refuse a smaller one: no lock can stop a packet that is on its way.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Run {
    /// The lock's name: any text of up to 512 bytes.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// Give up after waiting so long [default: wait for ever].
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if somebody else holds it.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// End CMD after so long; exit code 124.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// Write one line of JSON about the outcome: CMD may return any of our exit codes itself.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// The exit code when the lock is not acquired.
    #[arg(short = 'E', long = "conflict-exit-code", value_name = "N", default_value_t = NOT_ACQUIRED)]
    pub(crate) not_acquired: u8,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

/// How the lock is taken and kept.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// The lease: if this machine dies, the lock is free after so long. It is renewed every third of it. At least 1s.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = ttl)]
    pub(crate) ttl: Duration,
    /// Be served in the order of arrival (the default).
    #[arg(long, conflicts_with = "fast")]
    fair: bool,
    /// Be served as is fastest for the store.
    #[arg(long)]
    fast: bool,
    /// Who we are, for `leasehold who` [default: host name and process id].
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
}

/// What is run.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// What becomes of processes that CMD leaves behind when it ends: `kill` those of its process group; `wait` for all;
    /// `leave` them running without the lock.
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) leftovers: Leftovers,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl LeaseArgs {
    /// Who we are.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| {
            let host: String = rustix::system::uname().nodename().to_string_lossy().chars().take(200).collect();
            format!("{host}/{}", std::process::id())
        })
    }

    pub(crate) fn options(&self) -> Options {
        let options = Options::default().ttl(self.ttl).label(self.label());
        if self.fast { options.fast() } else { options.fair() }
    }
}

const EXIT_CODES: &str = "\
Exit codes:
  CMD's own, or 128+N if signal N ended it
  64   bad usage: arguments, a name, a URL, a store that this build lacks
  69   the store could not be used; nothing was run
  75   the lock was not acquired; nothing was run (-E changes it)
  76   the lock was lost; CMD was ended
  124  --max-hold was over; CMD was ended
  125  leasehold itself failed
  126  CMD cannot be executed
  127  CMD was not found";

impl Args {
    /// The arguments of this process, or how it ends without running anything.
    pub(crate) fn read() -> Result<Args, u8> {
        Args::try_parse().map_err(|e| {
            let _ = e.print();
            match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
                _ => USAGE,
            }
        })
    }

    /// Begins to tell what `-v` asks for.
    pub(crate) fn trace(&self) {
        use tracing_subscriber::filter::LevelFilter;
        let level = match self.verbose {
            0 => return,
            1 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        };
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let _ =
            tracing_subscriber::fmt().with_max_level(level).with_ansi(colours).with_writer(std::io::stderr).try_init();
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|e| format!("{e}; write it as in 500ms, 30s, 5m or 1h"))
}

/// Ending processes takes time: a lease must leave some.
fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_secs(1) {
        return Err("below 1s there is no time to end a program when its lock is lost".into());
    }
    if ttl > leasehold::MAX_TTL {
        return Err("longer than a day".into());
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
