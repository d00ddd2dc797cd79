//! The command line. Its words, the environment's names and the exit codes are a contract that scripts rely on.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand, ValueHint};
use leasehold::{FencingToken, Options};
use leasehold_core::Keep;

use crate::durations::{duration, keep, max_hold, period, ttl};
use crate::exit::{self, Exit, NOT_ACQUIRED};
use crate::guardian::wire::Leftovers;
use crate::store_url::StoreArg;
use crate::{output, usage};

const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./report.sh            wait for the lock, run, release it
  leasehold run nightly --no-wait -- ./report.sh  or exit with 75 if the lock is taken
  leasehold once job --every 1d -- ./report.sh    one run a day, on the machine that comes first
  leasehold who nightly                           show the holder, its fencing token, and the waiters

Without --store or LEASEHOLD_STORE, the locks are in a file of the current user, for this machine only.";

/// The codes that every program under a lock shares, and those of one command.
macro_rules! exit_codes {
    ($unavailable:literal, $not_acquired:literal, $max_hold:literal) => {
        concat!(
            "DURATION is a number with a unit (500ms, 30s, 5m, 1h, 1h30m), or a number of seconds.\n\n",
            "Exit codes:\n",
            "  CMD's own, or 128+N if signal N ended it\n",
            "  64   wrong usage: arguments, a name, a URL, a store that this build does not have\n",
            $unavailable,
            $not_acquired,
            "  76   the lock was lost; CMD was ended (processes of other users are listed instead)\n",
            $max_hold,
            "  125  leasehold itself failed; CMD was ended if it ran\n",
            "  126  CMD cannot be executed\n",
            "  127  CMD was not found"
        )
    };
}

/// Hold a distributed lock while a program runs.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version = env!("LEASEHOLD_VERSION"), propagate_version = true, max_term_width = 100)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print more on standard error: -v the state of the lock, -vv details, -vvv also the store's client.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Once(Once),
    Elect(Elect),
    #[command(visible_alias = "list")]
    Ls(List),
    Who(Who),
    Break(Break),
    Forget(Forget),
    Guarantees(Guarantees),
    #[cfg(feature = "lab")]
    Verify(crate::verify::Verify),
    #[cfg(feature = "lab")]
    Compare(crate::compare::Compare),
    #[cfg(feature = "postgres")]
    PostgresSchema(crate::schema::PostgresSchema),
    #[cfg(feature = "redlock")]
    RedlockChange(crate::redlock_change::RedlockChange),
    BridgeSeal(crate::bridge_seal::BridgeSeal),
    BridgeStages(crate::bridge_stages::BridgeStages),
    Completions(Completions),
    Man(Man),
}

/// Run a program while holding the lock.
///
/// Waits for the lock NAME, runs CMD, and releases the lock when CMD has ended; --leftovers says what happens to processes
/// that CMD leaves behind. If the lock is lost, CMD and all its descendants are ended before another client can get the lock:
/// with SIGTERM first, then with SIGKILL.
///
/// CMD gets LEASEHOLD_NAME, LEASEHOLD_FENCING_TOKEN and LEASEHOLD_STORE in its environment. LEASEHOLD_STORE has no credentials:
/// a `leasehold` inside of CMD that needs them needs its own --store, unless the URL is in a file (--store-file). Send the token with each write, and let the resource
/// refuse smaller tokens: no lock can stop a packet that is on its way.
///
/// If the store is unavailable, at the start or later during the wait, the command says so once and the wait continues. --wait
/// limits both together, from the start on. A store that refuses, such as for a wrong password, is not waited for, nor is a file
/// without --wait.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_codes!(
    "  69   the store refused, or was unavailable until the end of --wait, or at --no-wait; CMD was not run\n",
    "  75   the lock was not acquired; CMD was not run (-E changes the code)\n",
    "  124  CMD ran for longer than --max-hold, and was ended\n"
))]
pub(crate) struct Run {
    /// The name of the lock: any text of up to 512 bytes.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// Share the lock with other holders that use --shared; a holder without it waits for all of them.
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Let up to N holders run at the same time. All users of NAME must give the same N.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Wait at most this long [default: without limit].
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: fail if the lock is taken, or the store is unavailable. It ends with the store's first answer.
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// End CMD after this time (more than 0); exit code 124.
    #[arg(long, value_name = "DURATION", value_parser = max_hold)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for at least this time, also if CMD ends sooner: so a machine whose clock is late does not run the job again.
    ///
    /// Where the store keeps the lock by itself, the command ends with CMD. Elsewhere it stays until the time is over, and a
    /// signal ends it and the hold (`leasehold guarantees` says which).
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) min_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) outcome: OutcomeArgs,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

/// Run a program unless its work is done, and record that it is.
///
/// Takes the lock NAME and runs CMD as `run` does. If CMD ends with 0, the step that ends the hold records that the work NAME is
/// done. Until the record ends (--keep), nobody runs NAME again: `once` shows who did it, and ends with 0. If CMD fails, is ended, or
/// loses the lock, nothing is recorded, and whoever comes next runs it.
///
/// It cannot promise that CMD runs exactly once: a machine may die after the work of CMD and before that is recorded. Let CMD do
/// the same work twice without harm, or fence it by LEASEHOLD_FENCING_TOKEN.
///
/// With --every, NAME is a job that every machine starts at about the same time. Each start has the number of the nearest period by
/// the machine's clock in UTC, its fire. The job is done if the record has this fire or a later one, so one job has one record, and no
/// fire runs beside another. After --every or --offset was changed, `forget` the record, or a fire may be missed.
#[derive(Debug, clap::Args)]
#[command(after_help = concat!(
    "Examples:\n",
    "  leasehold once schema/17 --wait -- psql -f 17.sql    in each replica: one migrates, the others wait for its end\n",
    "  leasehold once nightly --every 1d -- ./report.sh     in the crontab of each machine: one run a day\n",
    "  leasehold once mail --key 4711 --keep 30d -- ./send  for a message that may come twice\n\n",
    exit_codes!(
        "  69   the store refused, or was unavailable: CMD was not run, or it ended with 0 and that was not recorded\n  \
         70   CMD ended with 0, and it is not known whether that is recorded\n",
        "  75   another client runs NAME, until the end of --wait; CMD was not run (-E changes the code)\n",
        "  124  CMD ran for longer than --max-hold, and was ended\n"
    )
))]
pub(crate) struct Once {
    /// The name of the work, and of the lock that it takes: with the key, any text of up to 512 bytes.
    pub(crate) name: String,
    /// Only the work of this key, such as the id of a message: the name is NAME/K.
    #[arg(long, value_name = "K", conflicts_with = "every")]
    pub(crate) key: Option<String>,
    /// Once in each period of this length, at least 2s.
    #[arg(long, value_name = "DURATION", value_parser = period)]
    pub(crate) every: Option<Duration>,
    /// The time of the start within the period in UTC, if that is not its beginning: 3h for 1d at 3 o'clock. The same on all
    /// machines.
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, requires = "every", value_parser = duration)]
    pub(crate) offset: Duration,
    /// The time for which the record counts, at least --ttl, or the word `forever`. With --every at least two periods
    /// [default: forever; with --every two periods].
    #[arg(long, value_name = "DURATION", value_parser = keep)]
    pub(crate) keep: Option<Keep>,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    /// If another client runs NAME, wait until it is done, and run CMD if it fails: at most this long, or without a limit.
    ///
    /// Without --wait, nothing is run then, and nobody tries again if that client fails.
    #[arg(short, long, value_name = "DURATION", num_args = 0..=1, value_parser = duration)]
    pub(crate) wait: Option<Option<Duration>>,
    /// Run CMD again if it fails, up to N times, under the same hold: after 1 s, 2 s, 4 s, up to 1 min.
    ///
    /// Not if it was asked to end by a signal, or has left processes behind.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) retries: u32,
    /// A file in which CMD leaves a result of up to 4096 bytes, which is recorded. No secrets: whoever can read the store can read it.
    ///
    /// The file is read when CMD has ended with 0, also if CMD has not changed it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) result: Option<PathBuf>,
    /// The exit code if the work is done already.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) done_code: u8,
    /// End CMD after this time (more than 0); exit code 124. All retries together have this time.
    #[arg(long, value_name = "DURATION", value_parser = max_hold)]
    pub(crate) max_hold: Option<Duration>,
    #[command(flatten)]
    pub(crate) outcome: OutcomeArgs,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

/// Run a program only while leader of an election.
///
/// Waits to become the leader of the election NAME, and then runs CMD. If the leadership is lost, CMD and all its descendants
/// are ended before another candidate can lead, and the wait begins again, unless a process of CMD runs on as another user.
/// When CMD ends by itself, the command resigns and returns CMD's exit code; a service manager that restarts it makes it a
/// candidate again. If the store is unavailable, at the start or later, the command says so once and waits.
#[derive(Debug, clap::Args)]
#[command(after_help = exit_codes!("  69   the store refused; CMD was not run\n", "", ""))]
pub(crate) struct Elect {
    /// The name of the election. It shares its queue with a lock of this name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// The value that the leader publishes, such as its address [default: the label]. `leasehold who` shows it instead of the label.
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) lease: LeaseArgs,
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

/// List the locks that are held or waited for, and the records of work that is done.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only names that begin with this text.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Only names after this one.
    #[arg(long, value_name = "NAME")]
    pub(crate) after: Option<String>,
    /// At most N names. If there are more, standard error says how to continue.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the holders and the waiters of a lock, and the record that its work is done. Exit code 1 if it is free.
///
/// On etcd and ZooKeeper, SINCE is when a holder took its place in the queue, not when it got the lock.
#[derive(Debug, clap::Args)]
pub(crate) struct Who {
    /// The lock's name.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// End a hold by force. Exit code 1 if no hold has that token.
///
/// The next waiter gets the lock at once. The holder is notified as soon as the store can do it: `leasehold run` then kills its
/// program and exits with 76, `leasehold elect` becomes a candidate again. Until then the program runs on, perhaps beside the
/// next holder's, and only a resource that checks tokens is protected from it.
///
/// For a key of another tool, on Redis, TOKEN is the number that `who` shows in its place: the key is deleted if it still has the
/// value that was shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) at: ByToken,
}

/// Remove the record that work is done, so that the next `once` runs it. Exit code 1 if no record has that token.
#[derive(Debug, clap::Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    pub(crate) at: ByToken,
}

/// One hold, or one record.
#[derive(Debug, clap::Args)]
pub(crate) struct ByToken {
    /// The lock's name.
    pub(crate) name: String,
    /// The token, as `leasehold who` shows it. It makes sure that no later one is meant.
    #[arg(value_name = "TOKEN", required_unless_present = "token")]
    token_there: Option<u64>,
    /// The token, as an option.
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_there")]
    token: Option<u64>,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Command {
    /// Returns whether the command reads all signals itself, or hands them on to a program.
    pub(crate) fn takes_over_signals(&self) -> bool {
        #[cfg(feature = "lab")]
        if matches!(self, Command::Verify(_)) {
            return true;
        }
        matches!(self, Command::Run(_) | Command::Once(_) | Command::Elect(_))
    }
}

impl ByToken {
    /// The token, from either of its two arguments.
    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(self.token_there.or(self.token).unwrap_or_default())
    }
}

/// Show what a store guarantees as its server is set up, and under which conditions; `verify` tests that server.
#[derive(Debug, clap::Args)]
pub(crate) struct Guarantees {
    /// The same as --store URL.
    #[arg(value_name = "URL", conflicts_with_all = ["url", "file"])]
    pub(crate) of: Option<String>,
    #[command(flatten)]
    pub(crate) store: StoreArg,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the completion script of a shell.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page of the program or of one command, or write all pages to a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// A command, or an existing folder.
    #[arg(value_name = "COMMAND|FOLDER")]
    pub(crate) of: Option<PathBuf>,
}

/// How the lock is acquired and kept.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// The lease: if this machine dies, the lock is free after this time. From 1s (on etcd 2s) to 24h; where the store allows no
    /// longer ones (ZooKeeper: 40s as shipped), it is as long as the longest.
    ///
    /// It is renewed about every third of this time. When CMD must end, it has three twentieths of it, at most 30s, from SIGTERM to
    /// SIGKILL.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = ttl)]
    pub(crate) ttl: Duration,
    /// The label of this holder, for `leasehold who` [default: HOST/PID, the host name and the process id].
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
}

/// The order in which waiters get the lock.
#[derive(Debug, clap::Args)]
pub(crate) struct OrderArgs {
    /// Wait in the order of the queue: the default on every store that has a queue.
    #[arg(long, conflicts_with = "fast")]
    fair: bool,
    /// Prefer throughput to the order of the queue.
    #[arg(long)]
    fast: bool,
}

/// The ways in which the outcome is told.
#[derive(Debug, clap::Args)]
pub(crate) struct OutcomeArgs {
    /// Write one line of JSON with the outcome to this file: CMD may return the exit codes above itself.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print nothing about a lock that is taken, neither during the wait nor if it is not acquired. Errors are printed.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The exit code if the lock is not acquired.
    #[arg(short = 'E', long = "conflict-exit-code", value_name = "N", default_value_t = NOT_ACQUIRED)]
    pub(crate) not_acquired: u8,
}

/// What is run.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// What to do with processes that CMD leaves behind: `kill` those of its process group (daemons that left the group run on
    /// WITHOUT the lock, and are listed); `wait` for all of them; `leave` all of them running without the lock.
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) leftovers: Leftovers,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

impl LeaseArgs {
    /// The label of this holder.
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| {
            let host: String = rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .chars()
                .take(200)
                .collect();
            format!("{host}/{}", std::process::id())
        })
    }

    pub(crate) fn options(&self, label: &str) -> Options {
        Options::default().ttl(self.ttl).label(label)
    }
}

impl OrderArgs {
    pub(crate) fn of(&self, options: Options) -> Options {
        match (self.fair, self.fast) {
            (true, _) => options.fair(),
            (_, true) => options.fast(),
            // Neither is asked for: the store's own default.
            _ => options,
        }
    }
}

impl Args {
    /// The arguments of this process, or its exit if it runs nothing.
    pub(crate) fn read() -> Result<Args, Exit> {
        let words: Vec<OsString> = std::env::args_os().collect();
        Args::try_parse_from(&words).map_err(|e| match usage::report(e, &words) {
            Ok(code) => Exit::Code(code),
            Err(e) => exit::failed(&e),
        })
    }

    /// Prints the traces that `-v` asks for, from now on.
    pub(crate) fn trace(&self) {
        use tracing_subscriber::filter::{LevelFilter, Targets};
        use tracing_subscriber::prelude::*;
        let targets = Targets::new();
        let targets = match self.verbose {
            0 => return,
            1 => targets.with_target("leasehold", LevelFilter::DEBUG),
            2 => targets.with_target("leasehold", LevelFilter::TRACE),
            _ => targets.with_default(LevelFilter::TRACE),
        };
        let colours = output::has_colours(&std::io::stderr());
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(colours)
            .with_writer(std::io::stderr);
        let _ = tracing_subscriber::registry()
            .with(lines.with_filter(targets))
            .try_init();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store_url::SCHEMES;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_shows_what_each_url_looks_like() {
        use clap::CommandFactory;
        let commands = Args::command();
        let run = commands.find_subcommand("run").unwrap();
        let store = run.get_arguments().find(|it| it.get_id() == "url").unwrap();
        let help = store.get_help().unwrap().to_string();
        for scheme in SCHEMES
            .iter()
            .filter(|it| !it.is_tls && !["memory", "postgresql"].contains(&it.name))
        {
            assert!(help.contains(scheme.form), "{help}");
        }
    }
}
