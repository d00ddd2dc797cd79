//! The processes of a campaign: clients, and the resource.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Mutex,
    time::Duration,
};

use leasehold_chaos::{Recorder, What};
use leasehold_testbed::Proxy;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
};

use super::{client::Plan, kind::NAIVE_FROM, recorder::Record};

/// Starts this program again in another part.
fn part(words: &[&str], log: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let log = File::options().create(true).append(true).open(log).unwrap();
    command
        .args(words)
        .stdin(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true);
    command
}

/// The process of the resource.
pub(crate) struct Resource {
    pub(crate) address: String,
    _process: Child,
}

impl Resource {
    pub(crate) async fn start(folder: &Path) -> Resource {
        let mut command = part(
            &["resource", &folder.display().to_string()],
            &folder.join("resource.log"),
        );
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut address)
            .await
            .unwrap();
        Resource {
            address: address.trim().to_owned(),
            _process: process,
        }
    }
}

/// A client process, which is started again when it was killed.
pub(crate) struct Slot {
    plan: Mutex<Plan>,
    process: tokio::sync::Mutex<Child>,
    /// Its own ways to the servers.
    pub(crate) proxies: Vec<Proxy>,
}

/// The parameter of a URL that names the identity of the store.
pub(crate) const PIN: &str = "?store=";
/// How often a client can be started again in one slot.
const LIVES: u64 = 1000;

impl Slot {
    pub(crate) fn start(plan: Plan, proxies: Vec<Proxy>) -> Slot {
        let process = tokio::sync::Mutex::new(spawn(&plan));
        Slot {
            plan: Mutex::new(plan),
            process,
            proxies,
        }
    }

    /// Stops it where it stands.
    pub(crate) async fn pause(&self) {
        self.signal(Signal::STOP).await;
    }

    pub(crate) async fn resume(&self) {
        self.signal(Signal::CONT).await;
    }

    async fn signal(&self, signal: Signal) {
        // One that has ended is seen when it is waited for.
        let _ = self.pid().await.map(|pid| kill_process(pid, signal));
    }

    pub(crate) async fn pid(&self) -> Option<Pid> {
        self.process
            .lock()
            .await
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
    }

    /// Whether it stands in the way of all others since it was paused: it writes in a file, or opens one.
    pub(crate) async fn is_in_the_way(&self) -> bool {
        let Some(pid) = self.pid().await else {
            return false;
        };
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let runs = || !fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "));
        for _ in 0..100 {
            if !runs() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let pid = pid.as_raw_nonzero().to_string();
        locks.lines().any(|lock| {
            // Such as `1: POSIX  ADVISORY  WRITE 708 fe:00:1835017 120 120`.
            let words = Vec::from_iter(lock.split_whitespace());
            words.get(4) == Some(&pid.as_str()) && (words[1] == "FLOCK" || words[3] == "WRITE")
        })
    }

    /// Whether it runs programs by the command.
    pub(crate) fn is_command(&self) -> bool {
        self.plan.lock().unwrap().command
    }

    /// Kills it, and starts another one in its place.
    pub(crate) async fn replace(&self, record: &Record) {
        let mut process = self.process.lock().await;
        let target = self.plan.lock().unwrap().p;
        // Before the signal: what it held ends here, and what it writes now is not read.
        record.now(What::Killed { target });
        process.kill().await.unwrap();
        let mut plan = self.plan.lock().unwrap();
        plan.p += 1;
        plan.seed = plan.seed.wrapping_add(LIVES);
        *process = spawn(&plan);
    }

    /// The URL that it was started with.
    pub(crate) fn url(&self) -> String {
        self.plan.lock().unwrap().url.clone()
    }

    /// Kills it, and starts another one with this URL.
    pub(crate) async fn replace_at(&self, url: &str, record: &Record) {
        {
            let mut plan = self.plan.lock().unwrap();
            url.clone_into(&mut plan.url);
            plan.relays.fill(url.to_owned());
        }
        self.replace(record).await;
    }

    /// Returns whether it recognizes a server of another store: it is a client of ours, and its URL names the store, or the store has answered it.
    pub(crate) fn knows_its_store(&self) -> bool {
        let plan = self.plan.lock().unwrap();
        let has_begun = || {
            let written = Recorder::file(&plan.folder, plan.p).metadata();
            written.is_ok_and(|file| file.len() > 0)
        };
        !plan.foreign && (plan.url.contains(PIN) || has_begun())
    }

    /// Tells it something.
    pub(crate) async fn say(&self, words: &str) {
        if let Some(stdin) = &mut self.process.lock().await.stdin {
            // One that has ended is seen when it is waited for.
            let _ = stdin.write_all(format!("{words}\n").as_bytes()).await;
            let _ = stdin.flush().await;
        }
    }

    /// Lets it end what is under way. Says what went wrong, if it has not ended well within this time: then it goes on, so that
    /// what it has in the store can still be seen.
    pub(crate) async fn drain(&self, within: Duration) -> Result<(), String> {
        self.say("drain").await;
        let mut process = self.process.lock().await;
        // To wait closes it, and a client ends with it.
        let stdin = process.stdin.take();
        let p = self.plan.lock().unwrap().p;
        let ended = tokio::time::timeout(within, process.wait()).await;
        process.stdin = stdin;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(status) => Err(format!("client {p} ended with {status:?}")),
            Err(_) => Err(format!("client {p} has not ended within {within:?}")),
        }
    }

    /// Whether it holds a lock just now, by what it has written.
    pub(crate) fn holds(&self) -> bool {
        let plan = self.plan.lock().unwrap();
        let written = tail(&Recorder::file(&plan.folder, plan.p)).unwrap_or_default();
        written.rfind(r#""ev":"ok""#) > written.rfind(r#""ev":"release""#)
    }

    /// The number of a slot's first client.
    pub(crate) fn first(slot: u64, naive: bool) -> u64 {
        let base = if naive { NAIVE_FROM } else { LIVES };
        base + slot * LIVES
    }
}

/// The end of a file: more than what is written of one hold.
fn tail(file: &Path) -> std::io::Result<String> {
    const LENGTH: u64 = 64 * 1024;
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LENGTH)))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn spawn(plan: &Plan) -> Child {
    let log: PathBuf = plan.folder.join(format!("{:07}.log", plan.p));
    let words = ["client", &serde_json::to_string(plan).unwrap()];
    part(&words, &log).stdout(Stdio::null()).spawn().unwrap()
}
