//! One server process: the controls that all kinds of servers share.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rustix::fs::statvfs;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    clock,
    error::{Error, Result},
    process::{self, Manner, Process},
    seen,
};

/// The time within which a server has to be ready. It gets as much again, up to [`PERIODS`] times
/// in all, if it was given processor time meanwhile: a JVM takes seconds, and minutes on an
/// overloaded machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
const PERIODS: u64 = 4;
/// The time limit of one question to a server: the port may be another program's, or the server
/// stopped.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const GLANCE: Duration = Duration::from_millis(5);
const GRACE: Duration = Duration::from_secs(5);
const LOG_LINES: usize = 30;
/// The number of choices of ports that are tried.
const ATTEMPTS: usize = 5;

/// Asks a server whether it is ready and is the one that was started, and does the work that its
/// kind of server needs.
#[async_trait]
pub(crate) trait Probe: std::fmt::Debug + Send + Sync {
    async fn ask(&self, addr: &str, pid: u32) -> Result<()>;

    /// Called before each start, with the folder of its data.
    fn prepare(&self, _data: &Path) -> Result<()> {
        Ok(())
    }

    /// Removes the remains of a killed server in the system, outside its folder.
    fn clean_up(&self, _data: &Path) {}

    /// Returns whether the server leads its cluster, if it can be a member of one.
    async fn leads(&self, _addr: &str) -> Result<bool> {
        Ok(false)
    }
}

/// Starts servers, and starts them again with other ports if a port was taken meanwhile.
pub(crate) async fn started<S, F: Future<Output = Result<S>>>(start: impl Fn() -> F) -> Result<S> {
    let mut attempt = 1;
    loop {
        match start().await {
            Err(error) if error.is_port_taken() && attempt < ATTEMPTS => attempt += 1,
            outcome => return outcome,
        }
    }
}

/// The description of a server to start.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) port: u16,
    /// The folder, which is removed with the server.
    pub(crate) folder: TempDir,
    /// The folder inside `folder` that a restart without data empties.
    pub(crate) data: PathBuf,
    /// Files that are in `data` from the start.
    pub(crate) seed: Vec<(&'static str, String)>,
    pub(crate) probe: Box<dyn Probe>,
    pub(crate) manner: Manner,
}

/// One private server process. Dropping this kills it and removes its data.
///
/// Addresses and ports stay unchanged over restarts.
#[derive(Debug)]
pub struct Server {
    launch: Launch,
    addr: String,
    process: Mutex<Option<Process>>,
}

impl Server {
    /// Starts the process without waiting for it.
    pub(crate) fn launch(launch: Launch) -> Result<Self> {
        let addr = format!("127.0.0.1:{}", launch.port);
        let server = Self {
            launch,
            addr,
            process: Mutex::new(None),
        };
        server.empty_data()?;
        server.spawn()?;
        Ok(server)
    }

    /// The address to which clients connect: `host:port`.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// The port clients connect to, on `127.0.0.1`.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.launch.port
    }

    /// The id of the process, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().and_then(Process::id)
    }

    /// Returns whether the process exists (it may be paused).
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process()
            .as_mut()
            .is_some_and(|process| !process.has_ended())
    }

    /// Ends the server as its operator would (SIGTERM; PostgreSQL by SIGINT), and kills it if that
    /// takes longer than 5 s.
    ///
    /// A server that is not running stays down. [`Server::start_again`] brings it back.
    pub async fn stop(&self) -> Result<()> {
        match self.take() {
            Some(process) => process
                .terminate(GRACE)
                .await
                .map_err(self.doing("stopping")),
            None => Ok(()),
        }
    }

    /// Kills the server (SIGKILL) and returns when it is gone.
    pub async fn kill(&self) -> Result<()> {
        match self.take() {
            Some(process) => process.kill().await.map_err(self.doing("killing")),
            None => Ok(()),
        }
    }

    /// Starts a server that was stopped or killed, with the data it left, and waits until it is ready.
    pub async fn start_again(&self) -> Result<()> {
        if !self.is_running() {
            self.spawn()?;
        }
        self.until_ready().await
    }

    /// Kills the server and starts it with the data it left on disk.
    ///
    /// Redis leaves data only when started with [`RedisOptions::persistent`](crate::RedisOptions::persistent).
    pub async fn restart_with_data(&self) -> Result<()> {
        self.kill().await?;
        self.start_again().await
    }

    /// Kills the server, removes its data and starts it.
    ///
    /// A member of an etcd cluster does not get ready again this way: it has forgotten what it promised to the others.
    pub async fn restart_without_data(&self) -> Result<()> {
        self.kill().await?;
        self.empty_data()?;
        self.start_again().await
    }

    /// Stops the process (SIGSTOP): connections stay open, and nothing is answered. Returns when
    /// all its threads have stopped.
    pub async fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let Some(pid) = self.pid() else { return Ok(()) };
        process::until_stopped(pid)
            .await
            .map_err(self.doing("pausing"))?;
        // The stopped process makes no more children.
        process::until_all_stopped(&self.signal_children(Signal::STOP)?).await;
        Ok(())
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) -> Result<()> {
        self.signal_children(Signal::CONT)?;
        self.signal(Signal::CONT)
    }

    /// Steps the wall clock of a server that was started with one of its own, now and for all its
    /// later starts. A negative number steps it back.
    pub fn step_clock(&self, microseconds: i64) -> Result<()> {
        clock::step(self.launch.folder.path(), microseconds.saturating_mul(1000))
    }

    /// The folder that holds the server's data.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.launch.data
    }

    /// Returns whether the server says that it leads its cluster.
    pub async fn is_leader(&self) -> Result<bool> {
        self.launch.probe.leads(&self.addr).await
    }

    /// The last lines the server wrote to its log.
    fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Waits until the server answers and is the one that was started here.
    pub(crate) async fn until_ready(&self) -> Result<()> {
        let mut used = 0;
        let mut periods = 1;
        let mut since = seen::clock();
        loop {
            let pid = match self.pid() {
                Some(pid) if self.is_running() => pid,
                _ => {
                    return Err(Error::Ended {
                        server: self.to_string(),
                        log: self.log_tail(),
                    });
                }
            };
            let last =
                match tokio::time::timeout(ANSWER_WITHIN, self.launch.probe.ask(&self.addr, pid))
                    .await
                {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "no answer".into(),
                };
            if since.elapsed() > READY_WITHIN {
                let before = std::mem::replace(&mut used, process::ticks_of(pid));
                if used <= before || periods == PERIODS {
                    let seconds = READY_WITHIN.as_secs() * periods;
                    return Err(Error::NotReady {
                        server: self.to_string(),
                        seconds,
                        last,
                        log: self.log_tail(),
                    });
                }
                (periods, since) = (periods + 1, seen::clock());
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    fn spawn(&self) -> Result<()> {
        let Launch {
            program,
            args,
            probe,
            data,
            manner,
            ..
        } = &self.launch;
        probe.prepare(data)?;
        let process =
            Process::spawn(program, args, &self.log(), *manner).map_err(self.doing("starting"))?;
        *self.process() = Some(process);
        Ok(())
    }

    fn empty_data(&self) -> Result<()> {
        let data = &self.launch.data;
        self.launch.probe.clean_up(data);
        let emptied = match fs::remove_dir_all(data) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::create_dir_all(data),
        };
        emptied.map_err(self.doing("emptying the data of"))?;
        for (name, content) in &self.launch.seed {
            fs::write(data.join(name), content).map_err(self.doing("writing the data of"))?;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match self.process().as_ref() {
            Some(process) => process.signal(signal).map_err(self.doing("signalling")),
            None => Err(Error::NotRunning(self.to_string())),
        }
    }

    fn signal_children(&self, signal: Signal) -> Result<Vec<u32>> {
        match self.process().as_ref() {
            Some(process) => process
                .signal_children(signal)
                .map_err(self.doing("signalling children of")),
            None => Err(Error::NotRunning(self.to_string())),
        }
    }

    fn log(&self) -> PathBuf {
        self.launch.folder.path().join("server.log")
    }

    fn take(&self) -> Option<Process> {
        self.process().take()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doing(&self, what: &str) -> impl FnOnce(io::Error) -> Error {
        Error::io(format!("{what} {self}"))
    }
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.launch.name, self.addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process ends before its folder is removed, so that it does not write into it
        // meanwhile.
        drop(self.take());
        self.launch.probe.clean_up(&self.launch.data);
    }
}

/// The file system in memory.
const MEMORY: &str = "/dev/shm";

/// The environment variable that has servers write to the disk all the same, for measurements of
/// that.
pub const ON_DISK: &str = "LEASEHOLD_ON_DISK";

/// The free space that it must have for one more server: etcd and ZooKeeper allocate 64 MB each
/// time they begin a log.
const ROOM: u64 = 4 << 30;

/// Makes a folder that is removed when dropped. It is in memory if there is room: servers sync each
/// write, and a disk that others write to at the same time can take longer for that than a client
/// waits.
pub(crate) fn folder(name: &str) -> Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    let prefix = format!("leasehold-{name}-");
    folder.prefix(&prefix);
    let room = statvfs(MEMORY).map_or(0, |found| found.f_bavail * found.f_frsize);
    let made = if room >= ROOM && env::var_os(ON_DISK).is_none() {
        folder.tempdir_in(MEMORY)
    } else {
        folder.tempdir()
    };
    made.map_err(Error::io("making a temporary folder"))
}
