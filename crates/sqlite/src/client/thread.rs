//! The thread that runs a client's requests, its handle, and the requests that need no thread.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use leasehold_core::backend::{Identity, Notifier};
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};
use scopeguard::guard;
use tokio::sync::oneshot;

use crate::client::file::OPENING;
use crate::client::time::{now, wait_until_now};
use crate::client::worker::{Client, Job};

/// A request that took longer than `SLOW` was held up by its disk. For the time `PAUSE` after that,
/// none runs on a thread of a runtime. Both are in nanoseconds.
const SLOW: i64 = 50_000_000;
const PAUSE: i64 = 10_000_000_000;

/// The time for which a client may hold a lock that it took on the caller's thread before its own
/// thread is started, which listens for an eviction.
const DEAF: Duration = Duration::from_millis(20);

/// The handle of a client and of its thread, which ends when the handle is dropped.
pub(crate) struct Handle {
    jobs: mpsc::Sender<Job>,
    /// The receiver of the jobs, until a thread is started and takes it.
    asked: Mutex<Option<mpsc::Receiver<Job>>>,
    shared: Arc<Shared>,
}

/// The state that the thread shares with its callers. Only the thread waits for the client.
#[derive(Default)]
struct Shared {
    /// `None` until the file is open, and after the thread has ended.
    client: Mutex<Option<Client>>,
    /// The number of tasks that the thread has to do.
    due: AtomicUsize,
    /// The eventfd that wakes the thread, once there is one.
    wake: OnceLock<OwnedFd>,
}

impl Handle {
    /// Opens the file on a thread of its own.
    pub(crate) async fn start(
        path: PathBuf,
        identity: Arc<Identity>,
        notifier: Notifier,
        looks: bool,
    ) -> Result<Handle> {
        let (opened_here, opened) = oneshot::channel();
        // If this future is dropped unfinished, the handle ends the thread.
        let handle = Handle::new(None);
        handle.run(move |shared, asked| {
            match Client::open(&path, identity, notifier, looks, OPENING) {
                Ok(client) => {
                    *locked(&shared.client) = Some(client);
                    if opened_here.send(Ok(())).is_ok() {
                        shared.run(&asked);
                    }
                }
                Err(e) => drop(opened_here.send(Err(e))),
            }
        })?;
        opened.await.unwrap_or_else(|_| Err(Error::closed()))?;
        Ok(handle)
    }

    /// Opens the file on this thread, if that needs no wait for others. The client's thread is
    /// started once there is something to do for it.
    pub(crate) fn open_at_once(
        path: &Path,
        identity: Arc<Identity>,
        notifier: Notifier,
        looks: bool,
    ) -> Option<Handle> {
        let mut client = Client::open(path, identity, notifier, looks, Duration::ZERO).ok()?;
        client.is_brief = true;
        // If this fails, the log only gets longer.
        let _ = client.file.keep_log_short();
        Some(Handle::new(Some(client)))
    }

    fn new(client: Option<Client>) -> Handle {
        let (jobs, asked) = mpsc::channel();
        let shared = Arc::new(Shared {
            client: Mutex::new(client),
            ..Shared::default()
        });
        Handle {
            jobs,
            asked: Mutex::new(Some(asked)),
            shared,
        }
    }

    /// Returns whether there is a thread, or was one.
    fn has_thread(&self) -> bool {
        self.shared.wake.get().is_some()
    }

    /// Starts the thread, unless there is one.
    fn start_thread(&self) -> Result<()> {
        if self.has_thread() {
            Ok(())
        } else {
            self.run(|shared, asked| shared.run(&asked))
        }
    }

    fn run(
        &self,
        life: impl FnOnce(Arc<Shared>, mpsc::Receiver<Job>) + Send + 'static,
    ) -> Result<()> {
        let short = |e: std::io::Error| {
            Error::new(
                ErrorKind::Unavailable,
                "no thread or no descriptor is left for the store",
            )
            .with_source(e)
        };
        let mut place = locked(&self.asked);
        let Some(asked) = place.take() else {
            return Ok(());
        };
        let wake =
            eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| short(e.into()));
        // The thread gets its state once it runs, so nothing is lost if it does not start.
        let (give, get) = mpsc::channel();
        let run = move || {
            if let Ok((shared, asked)) = get.recv() {
                life(shared, asked);
            }
        };
        let started = std::thread::Builder::new().name("leasehold-sqlite".into());
        match wake.and_then(|wake| started.spawn(run).map_err(short).map(|_| wake)) {
            Ok(wake) => {
                let _ = self.shared.wake.set(wake);
                let _ = give.send((self.shared.clone(), asked));
                Ok(())
            }
            Err(e) => {
                *place = Some(asked);
                Err(e)
            }
        }
    }

    /// Runs `work` on the thread, in the order of the calls, even if the caller stops waiting for
    /// the answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer_here, answer) = oneshot::channel();
        self.send(move |client| drop(answer_here.send(work(client))))?;
        answer.await.unwrap_or_else(|_| Err(Error::closed()))
    }

    /// Runs `work` on the thread, without waiting for it.
    pub(crate) fn send(&self, work: impl FnOnce(&mut Client) + Send + 'static) -> Result<()> {
        self.start_thread()?;
        self.shared.due.fetch_add(1, SeqCst);
        // The job is lost if the store was closed.
        let _ = self.jobs.send(Box::new(work));
        // A full counter means that the thread was woken already.
        if let Some(wake) = self.shared.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Starts the thread soon, if there is none, so that the client hears of an eviction: without a
    /// thread, nothing listens for it.
    pub(crate) fn listen_soon(self: &Arc<Self>) {
        if self.has_thread() {
            return;
        }
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(DEAF).await;
            if let Some(handle) = weak.upgrade() {
                // Without a thread the client learns of an eviction at its next renewal.
                let _ = handle.start_thread();
            }
        });
    }

    /// Runs `work` as [at_once](Handle::at_once) does, but only if there is no thread: for work
    /// that changes the descriptors to which a thread listens.
    pub(crate) fn at_once_alone<T>(
        &self,
        work: impl FnOnce(&mut Client) -> Option<T>,
    ) -> Option<T> {
        self.at_once(|client, alone| if alone { work(client) } else { None })
    }

    /// Runs `work` on this thread, unless the client's thread has something to do: no request
    /// overtakes an earlier one. It waits neither for another request nor for other writers of the
    /// file. (SQLite itself sleeps for some µs if it meets a writer between its two copies of the
    /// head of the log's index, and for longer if that writer is stopped at that point.) The flag
    /// tells `work` that there is no thread: a thread would have to be told of new descriptors to
    /// listen to. `None`: the caller has to [ask](Handle::ask) the thread.
    pub(crate) fn at_once<T>(
        &self,
        work: impl FnOnce(&mut Client, bool) -> Option<T>,
    ) -> Option<T> {
        if self.shared.due.load(SeqCst) > 0 {
            return None;
        }
        let mut client = self.shared.client.try_lock().ok()?;
        let client = client.as_mut().filter(|client| !client.closed)?;
        let began = now();
        if began < client.only_thread_until {
            return None;
        }
        wait_until_now();
        // A thread that is started now looks at the client after this work.
        let done = work(client, !self.has_thread());
        let ended = now();
        if ended - began > SLOW {
            client.only_thread_until = ended + PAUSE;
        }
        done
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let is_closed = |client: &Client| client.closed;
        if !self
            .shared
            .client
            .try_lock()
            .is_ok_and(|client| client.as_ref().is_some_and(is_closed))
        {
            let _ = self.send(|client| drop(client.leave()));
        }
    }
}

impl Shared {
    /// Runs the thread until the client is closed or gone.
    fn run(&self, jobs: &mpsc::Receiver<Job>) {
        // However the thread ends, the client is not used without a thread that serves it.
        let _end = guard(&self.client, |client| *locked(client) = None);
        let Some(wake) = self.wake.get() else { return };
        let mut ears = match locked(&self.client).as_ref() {
            Some(client) if !client.closed => client.ears(),
            _ => return,
        };
        loop {
            let heard = ears.listen(wake);
            self.due.fetch_add(1, SeqCst);
            let mut client = locked(&self.client);
            let Some(client) = client.as_mut() else {
                return;
            };
            if heard.asked {
                let _ = rustix::io::read(wake, &mut [0; 8]);
                for job in jobs.try_iter() {
                    job(client);
                    self.due.fetch_sub(1, SeqCst);
                    if client.closed {
                        return;
                    }
                }
            }
            client.react(heard);
            ears = client.ears();
            self.due.fetch_sub(1, SeqCst);
        }
    }
}
