//! The thread that has a client's requests done, and the way to it; what may be done without it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use leasehold_core::seam::Notifier;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};
use scopeguard::guard;
use tokio::sync::oneshot;

use crate::client::time::{now, wait_until_now};
use crate::client::worker::{Client, Ears, Job};

/// A request that took longer, in nanoseconds, was held up by its disk: for a while, none is done on a thread of a runtime.
const SLOW: i64 = 50_000_000;
const PAUSE: i64 = 10_000_000_000;

/// The way to a client's thread, which ends when this is dropped.
pub(crate) struct Handle {
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
}

/// What the thread shares with those who ask. Only the thread waits for the client.
struct Shared {
    /// None when the thread has ended.
    client: Mutex<Option<Client>>,
    /// How much the thread has to do.
    due: AtomicUsize,
    wake: OwnedFd,
}

impl Handle {
    /// Starts the thread, which opens the file.
    pub(crate) async fn start(path: PathBuf, notifier: Notifier) -> Result<Handle> {
        let short = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "no thread or no descriptor is left for the store").with_source(e)
        };
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| short(e.into()))?;
        let shared = Arc::new(Shared { client: Mutex::default(), due: AtomicUsize::new(0), wake });
        let (jobs, asked) = mpsc::channel();
        let (opened_here, opened) = oneshot::channel();
        // Dropped unfinished, it ends the thread as well.
        let handle = Handle { jobs, shared: shared.clone() };
        let run = move || match Client::open(&path, notifier) {
            Ok(client) => {
                *locked(&shared.client) = Some(client);
                if opened_here.send(Ok(())).is_ok() {
                    shared.run(&asked);
                }
            }
            Err(e) => drop(opened_here.send(Err(e))),
        };
        std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(run).map_err(short)?;
        opened.await.unwrap_or_else(|_| Err(Error::closed()))?;
        Ok(handle)
    }

    /// Has `work` done on the thread, in the order of asking. It is done also if the answer is no longer waited for.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer_here, answer) = oneshot::channel();
        self.send(move |client| drop(answer_here.send(work(client))));
        answer.await.unwrap_or_else(|_| Err(Error::closed()))
    }

    /// Has `work` done, and does not wait.
    pub(crate) fn send(&self, work: impl FnOnce(&mut Client) + Send + 'static) {
        self.shared.due.fetch_add(1, SeqCst);
        // It is lost if the store was closed.
        let _ = self.jobs.send(Box::new(work));
        // A full counter means that the thread was woken already.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// Does `work` right here, unless the thread has anything to do: nothing goes before what was asked earlier. It is not waited
    /// for: neither for another request, nor for other writers of the file. `None`: [ask](Handle::ask) for it.
    pub(crate) fn at_once<T>(&self, work: impl FnOnce(&mut Client) -> Option<T>) -> Option<T> {
        if self.shared.due.load(SeqCst) > 0 {
            return None;
        }
        let mut client = self.shared.client.try_lock().ok()?;
        let client = client.as_mut()?;
        let began = now();
        if began < client.only_thread_until {
            return None;
        }
        wait_until_now();
        let done = work(client);
        let ended = now();
        if ended - began > SLOW {
            client.only_thread_until = ended + PAUSE;
        }
        done
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.send(|client| drop(client.leave()));
    }
}

impl Shared {
    /// The life of the thread.
    fn run(&self, jobs: &mpsc::Receiver<Job>) {
        // Nobody uses a client that no thread serves, however it ended.
        let _end = guard(&self.client, |client| *locked(client) = None);
        let mut ears = Ears::default();
        loop {
            let heard = ears.listen(&self.wake);
            self.due.fetch_add(1, SeqCst);
            let mut client = locked(&self.client);
            let Some(client) = client.as_mut() else { return };
            if heard.asked {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
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
