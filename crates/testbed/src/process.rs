//! A child process that ends with the test, and the signals that can be sent to it.

use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, mpsc},
    thread,
    time::Duration,
};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// The interval at which the testbed checks a state that the system does not announce.
const GLANCE: Duration = Duration::from_millis(2);

/// The processor time that a process was given, in the system's ticks; 0 if it is unknown.
pub(crate) fn ticks_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in brackets may have blanks. Behind it the first word is the state; the 12th and the
    // 13th are the user and the system time.
    let words = stat
        .rsplit_once(") ")
        .map_or("", |(_, words)| words)
        .split(' ');
    words
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum()
}

/// A user of the system, and the group to run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The user, the signal and the processes of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// The user that it runs as, if it is not the user of this process.
    pub(crate) user: Option<User>,
    /// The signal that asks it to end.
    pub(crate) end: Signal,
    /// It works in child processes: they are stopped and killed with it.
    pub(crate) children: bool,
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            user: None,
            end: Signal::TERM,
            children: false,
        }
    }
}

/// A running child process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Option<Child>,
    manner: Manner,
}

impl Process {
    /// Starts `program`. Its output is appended to `log`.
    pub(crate) fn spawn(
        program: &Path,
        args: &[String],
        log: &Path,
        manner: Manner,
    ) -> io::Result<Self> {
        let mut command = bound_to_us(program);
        if let Some(User { uid, gid }) = manner.user {
            command.uid(uid).gid(gid);
        }
        let output = File::options().create(true).append(true).open(log)?;
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        if let Some(folder) = log.parent() {
            command.current_dir(folder);
        }
        spawn_from_lasting_thread(command).map(|child| Self {
            child: Some(child),
            manner,
        })
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child
            .as_mut()
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = self
            .child
            .as_ref()
            .map(Pid::from_child)
            .ok_or(io::ErrorKind::NotFound)?;
        Ok(kill_process(pid, signal)?)
    }

    /// Signals its child processes, if it works in them, and returns their ids.
    pub(crate) fn signal_children(&self, signal: Signal) -> io::Result<Vec<u32>> {
        let children = if self.manner.children {
            self.id().map(children_of).unwrap_or_default()
        } else {
            Vec::new()
        };
        for &child in &children {
            signal_if_there(child, signal)?;
        }
        Ok(children)
    }

    /// Asks the process to end, and kills it if it has not ended after `grace`.
    pub(crate) async fn terminate(mut self, grace: Duration) -> io::Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        self.signal_children(Signal::CONT)?;
        self.signal(Signal::CONT)?;
        self.signal(self.manner.end)?;
        let ended = async {
            while !self.has_ended() {
                tokio::time::sleep(GLANCE).await;
            }
        };
        // The grace period may pass: the process is then killed below.
        let _ = tokio::time::timeout(grace, ended).await;
        self.kill().await
    }

    /// Kills the process and waits until it is gone.
    pub(crate) async fn kill(mut self) -> io::Result<()> {
        let child = self.child.take();
        let children = self.manner.children;
        let gone =
            tokio::task::spawn_blocking(move || child.map_or(Ok(()), |child| end(child, children)));
        gone.await.map_err(io::Error::other)?
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // Errors are ignored: the process may be gone already.
            let _ = end(child, self.manner.children);
        }
    }
}

fn end(mut child: Child, with_children: bool) -> io::Result<()> {
    let mut children = Vec::new();
    if with_children && matches!(child.try_wait(), Ok(None)) {
        // A stopped process starts no more children.
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP)?;
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )?;
        children = children_of(child.id());
    }
    child.kill()?;
    child.wait()?;
    for &pid in &children {
        signal_if_there(pid, Signal::KILL)?;
    }
    while children
        .iter()
        .any(|&pid| state_of(pid).is_some_and(|state| state != 'Z'))
    {
        thread::sleep(GLANCE);
    }
    Ok(())
}

/// The processes that the first thread of a process has started.
fn children_of(pid: u32) -> Vec<u32> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn signal_if_there(pid: u32, signal: Signal) -> io::Result<()> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    match kill_process(pid, signal) {
        Err(Errno::SRCH) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// The letter with which the system reports the state of a process; `None` if it is gone.
fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Waits until these processes, which need not be children of this one, are stopped or gone.
pub(crate) async fn until_all_stopped(pids: &[u32]) {
    while pids
        .iter()
        .any(|&pid| state_of(pid).is_some_and(|state| !matches!(state, 'T' | 'Z')))
    {
        tokio::time::sleep(GLANCE).await;
    }
}

/// Waits until every thread of a stopped process is stopped. The signal alone only asks for it; the
/// kernel reports the stop of the last thread.
pub(crate) async fn until_stopped(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(io::ErrorKind::NotFound)?;
    let stopped = move || {
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
        )
    };
    tokio::task::spawn_blocking(stopped)
        .await
        .map_err(io::Error::other)??;
    Ok(())
}

/// A command whose process is killed when this process ends, also if this one is killed. That needs
/// `setpriv` of util-linux; without it the command runs unbound.
fn bound_to_us(program: &Path) -> Command {
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.is_file());
    match setpriv {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

static SPAWNER: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<Order>();
    thread::spawn(move || {
        for (mut command, answer) in inbox {
            // The task that sent the order waits for the answer.
            let _ = answer.send(command.spawn());
        }
    });
    orders
});

/// Spawns a command on a lasting thread. The kernel counts the death of the *thread* that started a
/// child as the death of its parent, and threads of a runtime come and go with each test. Therefore
/// one thread that lasts as long as this process starts all of them.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    let (answer, child) = mpsc::channel();
    SPAWNER.send((command, answer)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}
