//! Holders that are killed: a process of its own, or a client whose runtime is shut down.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Result, Store};
use scopeguard::{ScopeGuard, guard};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::compare::subject::Subject;

/// The process prints this when it holds the lock.
const HELD: &str = "held";
/// The time limit for a holder to acquire the lock.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// The work of a process that [`Subject::killed_as`] starts: it holds the lock until it is killed and reports that on its standard
/// output. It ends when its standard input does, so it never outlives the process that started it.
///
/// # Errors
/// The store's error.
pub async fn hold_until_killed(store: &Store, name: &str, lease: Duration) -> Result<()> {
    let guard = store.lock(name).ttl(lease).acquire().await?;
    let mut stdout = io::stdout();
    let said = writeln!(stdout, "{HELD}").and_then(|()| stdout.flush());
    if said.is_ok() {
        // A thread, because reading a terminal or a pipe blocks.
        let (ended, end) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            drop(ended);
        });
        let _ = end.await;
    }
    guard.release().await
}

/// A holder that can be killed.
pub(crate) enum Holder {
    Process(ScopeGuard<Child, fn(Child)>),
    Client(oneshot::Sender<()>),
}

impl Holder {
    /// Starts one, and waits until it holds.
    pub(crate) async fn start(subject: &Subject, name: &str, lease: Duration) -> Result<Holder> {
        let starting = async {
            match subject.holder(name, lease) {
                Some(command) => Holder::process(command).await,
                None => Holder::client(subject.clone(), name.to_owned(), lease).await,
            }
        };
        tokio::time::timeout(START_TIMEOUT, starting)
            .await
            .unwrap_or_else(|_| Err(failed("it did not acquire the lock in time")))
    }

    async fn process(mut command: Command) -> Result<Holder> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = guard(
            command.spawn().map_err(|e| failed(&e.to_string()))?,
            end as fn(Child),
        );
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        // It ends with the process, if that is ended before it has said anything.
        let said = spawn_blocking(move || -> io::Result<Option<String>> {
            let mut said = String::new();
            stdout.map_or(Ok(0), |stdout| BufReader::new(stdout).read_line(&mut said))?;
            if said.trim() == HELD {
                return Ok(None);
            }
            let mut why = String::new();
            if let Some(mut stderr) = stderr {
                let _ = stderr.read_to_string(&mut why);
            }
            Ok(Some(why))
        });
        match said.await.map_err(io::Error::from).flatten() {
            Ok(None) => Ok(Holder::Process(child)),
            Ok(Some(why)) => Err(failed(why.trim())),
            Err(e) => Err(failed(&e.to_string())),
        }
    }

    async fn client(subject: Subject, name: String, lease: Duration) -> Result<Holder> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| failed(&e.to_string()))?;
        let (kill, killed) = oneshot::channel::<()>();
        let (held, holds) = oneshot::channel();
        std::thread::spawn(move || {
            let taken = runtime.block_on(async {
                let store = subject.store().await?;
                let guard = store.lock(name.as_str()).ttl(lease).acquire().await?;
                Ok((store, guard))
            });
            match taken {
                Ok(living) => {
                    let _ = held.send(Ok(()));
                    let _ = runtime.block_on(killed);
                    // A killed process runs no destructors.
                    std::mem::forget(living);
                }
                Err(e) => drop(held.send(Err(e))),
            }
            runtime.shutdown_background();
        });
        holds.await.unwrap_or_else(|_| Err(failed("it ended")))?;
        Ok(Holder::Client(kill))
    }

    /// Kills it; it does nothing more.
    pub(crate) async fn kill(self) {
        match self {
            Holder::Process(child) => drop(spawn_blocking(|| drop(child)).await),
            Holder::Client(kill) => drop(kill.send(())),
        }
    }
}

/// Kills it, if it lives, and waits until it is gone.
fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn failed(why: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the holder that was to be killed could not be started: {why}"),
    )
}
