//! One client: the thread that owns the connection, does what it is asked, and listens to FIFOs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use leasehold_core::seam::{Bells, Claim, ClaimId, Claimed, ClaimedAll, Moment, Renewal, Tenure};
use leasehold_core::{Error, ErrorKind, Loss, Name, Result};
use rusqlite::{Transaction, TransactionBehavior};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::sync::oneshot;

use crate::error::{About, of_commit};
use crate::fifo::{Fifo, Life, Watches, life, remove, ring};
use crate::file::{File, wait_until};
use crate::line::{Lines, Ring};
use crate::row::Standing;

/// How long other writers are waited for, at most.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request, and what it does with its own answer.
type Job = Box<dyn FnOnce(&mut Client) + Send>;

/// The way to a client's thread, which ends when this is dropped.
pub(crate) struct Handle {
    jobs: mpsc::Sender<Job>,
    wake: Arc<OwnedFd>,
}

impl Handle {
    /// Starts the thread, which opens the file.
    pub(crate) async fn start(path: PathBuf, bells: Bells) -> Result<Handle> {
        let internal = |e: std::io::Error| Error::new(ErrorKind::Internal, "no thread for the store").with_source(e);
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| internal(e.into()))?;
        let (jobs, asked) = mpsc::channel();
        let (opened_here, opened) = oneshot::channel();
        // Dropped unfinished, it ends the thread as well.
        let handle = Handle { jobs, wake: Arc::new(wake) };
        let ear = handle.wake.clone();
        let run = move || match Client::open(&path, bells) {
            Ok(client) => {
                if opened_here.send(Ok(())).is_ok() {
                    client.run(&asked, &ear);
                }
            }
            Err(e) => drop(opened_here.send(Err(e))),
        };
        std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(run).map_err(internal)?;
        opened.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(handle)
    }

    /// Has `work` done on the thread, in the order of asking. It is done also if the answer is no longer waited for.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ask_for(PATIENCE, work).await
    }

    /// The same for a request that is of no use later: it waits for other writers for so long at most.
    pub(crate) async fn ask_for<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let deadline = Moment::now() + patience.clamp(Duration::from_millis(50), PATIENCE);
        let (answer_here, answer) = oneshot::channel();
        self.tell(move |client| {
            wait_until(deadline);
            drop(answer_here.send(work(client)));
        });
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Has `work` done, and does not wait. Nobody hears it once the store is closed.
    pub(crate) fn tell(&self, work: impl FnOnce(&mut Client) + Send + 'static) {
        let _ = self.jobs.send(Box::new(move |client: &mut Client| {
            wait_until(Moment::now() + PATIENCE);
            work(client);
        }));
        // A note for the thread to look. A full counter means that there is one already.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.tell(|client| drop(client.leave()));
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed")
}

/// What lives on the thread.
pub(crate) struct Client {
    pub(crate) file: File,
    bells: Bells,
    /// Made with the first claim: who only looks leaves nothing.
    fifo: Option<Fifo>,
    /// A copy of the FIFO was given away, so no other may take its place.
    shared: bool,
    watches: Watches,
    /// What others are to hear of the transactions that were committed.
    rings: VecDeque<Ring>,
    closed: bool,
}

impl Client {
    fn open(path: &Path, bells: Bells) -> Result<Client> {
        let (file, watches) = (File::open(path)?, Watches::default());
        let mut client =
            Client { file, bells, fifo: None, shared: false, watches, rings: VecDeque::new(), closed: false };
        for fifo in client.file.clients().about(path)? {
            if let Life::Dead = life(&client.file.real, fifo) {
                client.bury(fifo)?;
            }
        }
        client.ring();
        Ok(client)
    }

    fn run(mut self, asked: &mpsc::Receiver<Job>, wake: &OwnedFd) {
        while !self.closed {
            let ended = self.listen(wake);
            let _ = rustix::io::read(wake, &mut [0; 8]);
            asked.try_iter().for_each(|job| job(&mut self));
            wait_until(Moment::now() + PATIENCE);
            if let Some(heard) = self.fifo.as_ref().map(Fifo::drain) {
                heard.iter().for_each(|word| self.hear(word));
            }
            for fifo in ended {
                // If it fails, those who claim again see the same death.
                let _ = self.bury(fifo);
                self.ring();
                self.watches.end(fifo).into_iter().for_each(|claim| self.bells.claim_again(claim));
            }
        }
    }

    /// Waits for a request, for our bell, or for lives to end, and answers which have.
    fn listen(&self, wake: &OwnedFd) -> Vec<i64> {
        let lives: Vec<(i64, BorrowedFd<'_>)> = self.watches.fds().collect();
        let bell = self.fifo.as_ref().map(|fifo| fifo.fd.as_fd());
        let mut fds: Vec<PollFd<'_>> =
            lives.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::empty())).collect();
        fds.extend(bell.into_iter().chain([wake.as_fd()]).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        if poll(&mut fds, None).is_err() {
            return Vec::new();
        }
        let has_ended = |fd: &PollFd<'_>| fd.revents().contains(PollFlags::ERR);
        lives.iter().zip(&fds).filter(|(_, fd)| has_ended(fd)).map(|((fifo, _), _)| *fifo).collect()
    }

    /// Understands what somebody wrote into our FIFO. What is not understood is nobody's ring.
    fn hear(&mut self, word: &str) {
        if let Some(seq) = word.strip_prefix("granted ").and_then(|seq| seq.parse::<i64>().ok()) {
            let find = self.file.connection.prepare_cached("SELECT * FROM place WHERE seq = ?1 AND fifo = ?2");
            let found = find.and_then(|mut find| find.query_row([seq, self.me()], Standing::read));
            if let Ok(standing) = found
                && let Some(grant) = standing.grant()
                && self.file.is_current().unwrap_or(false)
            {
                self.watches.forget(standing.claim);
                self.bells.granted(standing.claim, grant);
            }
        } else if let Some(claim) = word.strip_prefix("evicted ").and_then(ClaimId::parse) {
            self.bells.lost(claim, Loss::Evicted);
        } else if let Some(name) = word.strip_prefix("stirred ") {
            self.bells.stirred(&Name::new(name));
        }
    }

    pub(crate) fn claim(&mut self, claim: &Claim) -> Result<Claimed> {
        self.ready()?;
        loop {
            let (claimed, watch) = self.write(|lines| lines.claim(claim))??;
            let dead = self.watches.set(&self.file.real, claim.id, &watch);
            if dead.is_empty() {
                return Ok(claimed);
            }
            dead.into_iter().try_for_each(|fifo| self.bury(fifo))?;
            self.ring();
        }
    }

    pub(crate) fn claim_all(&mut self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.ready()?;
        self.write(|lines| lines.claim_all(claims))?
    }

    pub(crate) fn renew(&mut self, tenures: &[Tenure]) -> Result<Vec<Renewal>> {
        self.ready()?;
        let mut all = Vec::with_capacity(tenures.len());
        // Thousands do not keep others from writing for long.
        for part in tenures.chunks(500) {
            all.extend(self.write(|lines| lines.renew(part))?);
        }
        Ok(all)
    }

    pub(crate) fn release(&mut self, claim: ClaimId) -> Result<()> {
        self.watches.forget(claim);
        self.write(|lines| lines.withdraw(claim))
    }

    /// From now on, or no longer, this client hears of a name. A hint: that it fails is no error.
    pub(crate) fn observe(&mut self, name: &Name, on: bool) {
        let done = self.ready().and_then(|()| {
            self.write(|lines| if on { lines.observe(name.as_str()) } else { lines.unobserve(name.as_str()) })
        });
        if on && done.is_ok() {
            self.bells.stirred(name);
        }
    }

    /// The number of our FIFO.
    fn me(&self) -> i64 {
        self.fifo.as_ref().map_or(0, |fifo| fifo.number)
    }

    /// Has a FIFO, and one that others can find.
    fn ready(&mut self) -> Result<()> {
        if self.fifo.as_ref().is_some_and(|fifo| self.shared || !fifo.has_vanished()) {
            return Ok(());
        }
        let fifo = Fifo::create(&self.file.real)?;
        if self.fifo.is_some() {
            self.write(|lines| lines.move_to(fifo.number))?;
        }
        self.fifo = Some(fifo);
        Ok(())
    }

    /// Another descriptor of our FIFO: as long as it is open somewhere, nobody sees this client as dead.
    pub(crate) fn life_line(&mut self) -> Result<OwnedFd> {
        self.ready()?;
        self.shared = true;
        let fifo = self.fifo.as_ref().ok_or_else(gone)?;
        fifo.fd.try_clone().map_err(|e| Error::new(ErrorKind::Unavailable, "no more files").with_source(e))
    }

    /// Gives up all that we hold, and ends.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.closed = true;
        if self.fifo.is_some() {
            self.bury(self.me())?;
            self.ring();
        }
        // Before anybody hears that this is done, and perhaps ends the process: no row leads to its file any more.
        self.fifo = None;
        Ok(())
    }

    /// Removes what a client has left that has ended.
    fn bury(&mut self, fifo: i64) -> Result<()> {
        while !self.commit(|lines| lines.bury(fifo))? {}
        remove(&self.file.real, fifo);
        Ok(())
    }

    /// One transaction, and the rings that it calls for.
    pub(crate) fn write<T>(&mut self, work: impl FnMut(&mut Lines<'_>) -> rusqlite::Result<T>) -> Result<T> {
        let value = self.commit(work)?;
        self.ring();
        Ok(value)
    }

    /// Rings. Whoever is found to be dead is buried, which may ring others.
    fn ring(&mut self) {
        while let Some(Ring { to, word }) = self.rings.pop_front() {
            if to == self.me() {
                self.hear(&word);
            } else if let Life::Dead = ring(&self.file.real, to, &word) {
                // If it fails, those who wait see the same death, or the end of its lease.
                let _ = self.bury(to);
            }
        }
    }

    fn commit<T>(&mut self, mut work: impl FnMut(&mut Lines<'_>) -> rusqlite::Result<T>) -> Result<T> {
        for _ in 0..2 {
            let (me, path) = (self.me(), &self.file.path);
            let begin = Transaction::new_unchecked(&self.file.connection, TransactionBehavior::Immediate);
            let tx = begin.about(path)?;
            if self.file.is_current().about(path)? {
                let mut lines = Lines { tx: &tx, me, now: now(), rings: Vec::new() };
                let value = work(&mut lines).about(path)?;
                let rings = lines.rings;
                tx.commit().map_err(|e| of_commit(&e, path))?;
                self.rings.extend(rings);
                return Ok(value);
            }
            drop(tx);
            self.reopen()?;
        }
        Err(Error::new(ErrorKind::Unavailable, "the file is replaced again and again"))
    }

    /// What we had in a file that is gone, or that another boot took over, is lost. There is a new one.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.file = File::open(&self.file.path)?;
        self.watches = Watches::default();
        // A copy may have old places of ours. Who waits behind one sees that when its lease would have ended.
        let old = self.file.connection.execute("DELETE FROM place WHERE fifo = ?1", [self.me()]);
        old.about(&self.file.path)?;
        self.bells.everyone();
        Ok(())
    }
}

/// Now on CLOCK_BOOTTIME, as rows have it.
pub(crate) fn now() -> i64 {
    (Moment::now().as_nanos() / 1_000_000) as i64
}
