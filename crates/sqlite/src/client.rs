//! One client: the thread that owns the connection, does what it is asked, and listens to FIFOs.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Claimed, ClaimedAll, LeaseRef, Moment, Notifier, Renewal, unescape};
use leasehold_core::{Error, ErrorKind, Loss, Name, Result};
use rusqlite::{ErrorCode, Transaction, TransactionBehavior};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::sync::oneshot;

use crate::error;
use crate::fifo::{self, Address, Fifo, Life, Watches, ring};
use crate::file::{File, wait_until};
use crate::line::{Lines, Me, Outlook, Ring, is_end_of_line, nanos};
use crate::row::{Standing, standings};

/// How long a request without a lease may wait for other writers, and any other at most.
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
    pub(crate) async fn start(path: PathBuf, notifier: Notifier) -> Result<Handle> {
        let short = |e: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "no thread or no descriptor is left for the store").with_source(e)
        };
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| short(e.into()))?;
        let wake = Arc::new(wake);
        let (jobs, asked) = mpsc::channel();
        let (opened_here, opened) = oneshot::channel();
        // Dropped unfinished, it ends the thread as well.
        let (ear, handle) = (wake.clone(), Handle { jobs, wake });
        let run = move || match Client::open(&path, notifier) {
            Ok(client) => {
                if opened_here.send(Ok(())).is_ok() {
                    client.run(&asked, &ear);
                }
            }
            Err(e) => drop(opened_here.send(Err(e))),
        };
        std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(run).map_err(short)?;
        opened.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(handle)
    }

    /// Has `work` done on the thread, in the order of asking. It is done also if the answer is no longer waited for.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Client) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer_here, answer) = oneshot::channel();
        let job: Job = Box::new(move |client| drop(answer_here.send(work(client))));
        self.jobs.send(job).map_err(|_| gone())?;
        self.rouse();
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Has `work` done, and does not wait.
    pub(crate) fn tell(&self, work: impl FnOnce(&mut Client) + Send + 'static) {
        // Nobody hears it once the store is closed.
        let _ = self.jobs.send(Box::new(work));
        self.rouse();
    }

    /// A note for the thread to look. A full counter means that there is one already.
    fn rouse(&self) {
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

/// Until when a request of this lease may wait for other writers.
pub(crate) fn limit(lease: Option<Duration>) -> Moment {
    Moment::now() + lease.map_or(PATIENCE, |ttl| (ttl / 6).clamp(Duration::from_millis(50), PATIENCE))
}

/// What lives on the thread.
pub(crate) struct Client {
    pub(crate) file: File,
    notifier: Notifier,
    /// Made with the first claim: who only looks leaves nothing.
    fifo: Option<Fifo>,
    /// A copy of the FIFO was given away, so no other may take its place.
    shared: bool,
    me: Me,
    watches: Watches,
    /// FIFOs whose clients have ended, of which the next transaction tells everybody.
    ended: Vec<i64>,
    closed: bool,
}

impl Client {
    fn open(path: &Path, notifier: Notifier) -> Result<Client> {
        let file = File::open(path, None)?;
        let (me, watches) = (Me::default(), Watches::default());
        let mut client =
            Client { file, notifier, fifo: None, shared: false, me, watches, ended: Vec::new(), closed: false };
        client.sweep()?;
        Ok(client)
    }

    fn run(mut self, asked: &mpsc::Receiver<Job>, wake: &OwnedFd) {
        while !self.closed {
            let (roused, rung, ended) = self.listen(wake);
            if roused {
                let _ = rustix::io::read(wake, &mut [0; 8]);
                asked.try_iter().for_each(|job| job(&mut self));
            }
            if rung && let Some(heard) = self.fifo.as_ref().map(Fifo::drain) {
                heard.lines().for_each(|word| self.hear(word));
            }
            for fifo in ended {
                self.ended.push(fifo);
                self.watches.end(fifo).into_iter().for_each(|claim| self.notifier.claim_again(claim));
            }
        }
    }

    /// Waits for a request, for our bell, or for a life to end.
    fn listen(&self, wake: &OwnedFd) -> (bool, bool, Vec<i64>) {
        let bell = self.fifo.as_ref().map(|fifo| fifo.fd.as_fd());
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        // Without a FIFO of ours yet, what wakes us stands in for it.
        fds.push(PollFd::from_borrowed_fd(bell.unwrap_or(wake.as_fd()), PollFlags::IN));
        let lives: Vec<i64> = self.watches.fds().map(|(fifo, _)| fifo).collect();
        fds.extend(self.watches.fds().map(|(_, fd)| PollFd::from_borrowed_fd(fd, PollFlags::empty())));
        if poll(&mut fds, None).is_err() {
            return (false, false, Vec::new());
        }
        let is = |at: usize, what: PollFlags| fds[at].revents().intersects(what);
        let ended = lives.iter().enumerate().filter(|(at, _)| is(at + 2, PollFlags::ERR)).map(|(_, fifo)| *fifo);
        (is(0, PollFlags::IN), bell.is_some() && is(1, PollFlags::IN), ended.collect())
    }

    /// Understands what somebody wrote into our FIFO. What is not understood is nobody's ring.
    fn hear(&mut self, word: &str) {
        if let Some(seq) = word.strip_prefix("granted ").and_then(|seq| seq.parse::<i64>().ok()) {
            let find = standings!("WHERE p.seq = ?1 AND s.fifo = ?2");
            let found = self.file.connection.prepare_cached(find);
            let found = found.and_then(|mut find| find.query_row([seq, self.me.address.fifo], Standing::read));
            if let Ok(standing) = found
                && let Some(grant) = standing.grant()
                && self.file.is_current()
            {
                self.watches.forget(standing.claim);
                self.notifier.granted(standing.claim, grant);
            }
        } else if let Some(claim) = word.strip_prefix("evicted ").and_then(ClaimId::parse) {
            self.notifier.lost(claim, Loss::Evicted);
        } else if let Some(claim) = word.strip_prefix("again ").and_then(ClaimId::parse) {
            self.notifier.claim_again(claim);
        } else if let Some(name) = word.strip_prefix("stirred ").and_then(|name| unescape(name, is_end_of_line)) {
            self.notifier.holder_changed(&Name::new(name));
        }
    }

    pub(crate) fn claim(&mut self, claim: &Claim, deadline: Moment) -> Result<Claimed> {
        self.ready(deadline)?;
        self.promise(Some(claim.ttl))?;
        loop {
            let answer = self.write(deadline, |lines| lines.claim(claim))??;
            let dead = self.watches.set(&self.file.real, claim.id, &answer.watch);
            if dead.is_empty() {
                if let Claimed::Busy(_) = answer.claimed {
                    self.let_go()?;
                }
                return Ok(answer.claimed);
            }
            self.ended.extend(dead);
        }
    }

    /// Others can see how long our leases may be before we ask for one.
    fn promise(&mut self, ttl: Option<Duration>) -> Result<()> {
        let presence = &mut self.file.presence;
        presence.set(presence.longest().max(ttl.map_or(0, nanos)))
    }

    /// And they see no longer ones than we have.
    fn let_go(&mut self) -> Result<()> {
        let now = now();
        self.me.tended.retain(|_, (_, until)| *until > now);
        self.file.presence.set(self.me.tended.values().map(|(ttl, _)| *ttl).max().unwrap_or(0))
    }

    pub(crate) fn claim_all(&mut self, claims: &[Claim], deadline: Moment) -> Result<ClaimedAll> {
        self.ready(deadline)?;
        self.promise(claims.iter().map(|claim| claim.ttl).max())?;
        let claimed = self.write(deadline, |lines| lines.claim_all(claims))?;
        if let Ok(ClaimedAll::Busy(..)) = claimed {
            self.let_go()?;
        }
        claimed
    }

    pub(crate) fn renew(&mut self, leases: &[LeaseRef], deadline: Moment) -> Result<Vec<Renewal>> {
        self.ready(deadline)?;
        self.write(deadline, |lines| lines.renew(leases))?;
        self.let_go()?;
        // Thousands of places are read without keeping others from writing.
        let of = |e| error::of(&e, &self.file.path);
        let tx = self.file.connection.unchecked_transaction().map_err(of)?;
        let quiet = self.file.quiet().map_err(of)?.unwrap_or_default();
        let seen = Lines::new(&tx, &mut self.me, now(), quiet).renewals(leases).map_err(of)?;
        drop(tx);
        let renewal = |(lease, (renewal, outlook)): (&LeaseRef, (Renewal, Option<Outlook>))| {
            if let Some(Outlook { watch, is_near, .. }) = outlook {
                let dead = self.watches.set(&self.file.real, lease.claim.id, &watch);
                if is_near || !dead.is_empty() {
                    self.notifier.claim_again(lease.claim.id);
                }
                self.ended.extend(dead);
            }
            renewal
        };
        Ok(leases.iter().zip(seen).map(renewal).collect())
    }

    pub(crate) fn release(&mut self, claim: ClaimId, deadline: Moment) -> Result<()> {
        self.watches.forget(claim);
        self.write(deadline, |lines| lines.withdraw(claim))?;
        // Among many it is looked for when they are renewed.
        if self.me.tended.len() < 16 { self.let_go() } else { Ok(()) }
    }

    pub(crate) fn release_after(&mut self, claim: ClaimId, rest: Duration, deadline: Moment) -> Result<()> {
        self.write(deadline, |lines| lines.lapse(claim, nanos(rest)))
    }

    /// From now on, or no longer, this client hears of a name. A hint: that it fails is no error.
    pub(crate) fn observe(&mut self, name: &Name, on: bool) {
        let deadline = limit(None);
        let done = self.ready(deadline).and_then(|()| {
            self.write(deadline, |lines| if on { lines.observe(name.as_str()) } else { lines.unobserve(name.as_str()) })
        });
        if on && done.is_ok() {
            self.notifier.holder_changed(name);
        }
    }

    /// Has a FIFO, and one that others can find.
    fn ready(&mut self, deadline: Moment) -> Result<()> {
        match &self.fifo {
            Some(fifo) if self.shared || !fifo.has_vanished() => Ok(()),
            _ => {
                let fifo = Fifo::create(&self.file.real)?;
                if self.fifo.is_some() {
                    self.write(deadline, |lines| lines.move_to(fifo.address))?;
                }
                self.me.address = fifo.address;
                self.fifo = Some(fifo);
                Ok(())
            }
        }
    }

    /// Other descriptors of our FIFO and of the directory's lock: as long as they are open somewhere, nobody sees this client
    /// as dead, nor forgets its leases in files that are gone.
    pub(crate) fn life_line(&mut self) -> Result<[OwnedFd; 2]> {
        self.ready(limit(None))?;
        self.shared = true;
        let fifo = self.fifo.as_ref().ok_or_else(gone)?;
        let fifo = fifo.fd.try_clone();
        let fifo = fifo.map_err(|e| Error::new(ErrorKind::Unavailable, "no more files").with_source(e))?;
        Ok([fifo, self.file.presence.share()?])
    }

    /// Gives up all that we hold, and ends.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.closed = true;
        let fifo = self.me.address.fifo;
        while self.fifo.is_some() && !self.write(limit(None), |lines| lines.bury(fifo))? {}
        // Before anybody hears that this is done, and perhaps ends the process: no row leads to its file any more.
        self.fifo = None;
        Ok(())
    }

    /// Removes what has ended: clients and their FIFOs, also those that came to no row, and holds that nobody renews.
    fn sweep(&mut self) -> Result<()> {
        let deadline = limit(None);
        let clients: HashMap<i64, Address> = self.clients()?.into_iter().map(|of| (of.fifo, of)).collect();
        for found in fifo::beside(&self.file.real) {
            let client = clients.get(&found.fifo).copied();
            if let Life::Dead = fifo::life(&self.file.real, client.unwrap_or(found)) {
                while client.is_some() && !self.write(deadline, |lines| lines.bury(found.fifo))? {}
                fifo::remove(&self.file.real, found.fifo);
            }
        }
        if self.has_lapsed()? { self.write(deadline, |lines| lines.sweep()) } else { Ok(()) }
    }

    /// One transaction, and the rings that it calls for.
    pub(crate) fn write<T>(
        &mut self,
        deadline: Moment,
        mut work: impl FnMut(&mut Lines<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let (value, mut rings) = self.commit(deadline, &mut work)?;
        while !rings.is_empty() {
            let mut passed = Vec::new();
            for Ring { to, name, word } in rings {
                if to == self.me.address {
                    self.hear(&word);
                } else if let Life::Dead = ring(&self.file.real, to, &word) {
                    self.ended.push(to.fifo);
                    passed.push(name);
                }
            }
            let serve = |lines: &mut Lines<'_>| passed.iter().try_for_each(|name| lines.serve(name));
            // If it fails, those who wait see the same death, or the end of its lease.
            rings = match passed.is_empty() {
                true => Vec::new(),
                false => self.commit(deadline, serve).map(|((), rings)| rings).unwrap_or_default(),
            };
        }
        Ok(value)
    }

    fn commit<T>(
        &mut self,
        deadline: Moment,
        mut work: impl FnMut(&mut Lines<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, Vec<Ring>)> {
        wait_until(deadline);
        for _ in 0..3 {
            match self.attempt(&mut work) {
                Ok(Attempt::Done(value, rings)) => return Ok((value, rings)),
                Ok(Attempt::Full(e)) if !self.file.may_grow() => return Err(e),
                Ok(Attempt::Full(_)) => {}
                Ok(Attempt::WentBack) => self.file.condemn(deadline)?,
                // Nothing that is true of replaced files matters, nor what has become of a commit in them.
                Err(e) if self.file.is_current() => return Err(e),
                Ok(Attempt::Replaced) | Err(_) => self.reopen()?,
            }
            wait_until(deadline);
        }
        Err(Error::new(ErrorKind::Unavailable, "the file is replaced again and again"))
    }

    /// What we had in a file that is gone, or that another boot took over, is lost. There is a new one.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.file = File::open(&self.file.path, Some(&self.file.presence))?;
        (self.me.written, self.watches) = Default::default();
        self.notifier.notify_all();
        Ok(())
    }

    fn attempt<T>(&mut self, work: &mut impl FnMut(&mut Lines<'_>) -> rusqlite::Result<T>) -> Result<Attempt<T>> {
        let of = |e| error::of(&e, &self.file.path);
        let tx = Transaction::new_unchecked(&self.file.connection, TransactionBehavior::Immediate).map_err(of)?;
        // Before the look at the files: whoever replaces them later begins to wait for our leases later than they begin.
        let now = now();
        if !self.file.is_current() {
            return Ok(Attempt::Replaced);
        }
        let Some(quiet) = self.file.quiet().map_err(of)? else { return Ok(Attempt::Replaced) };
        let mut lines = Lines::new(&tx, &mut self.me, now, quiet);
        self.ended.iter().try_for_each(|fifo| lines.end(*fifo)).map_err(of)?;
        let value = match work(&mut lines) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DiskFull) => return Ok(Attempt::Full(of(e))),
            done => done.map_err(of)?,
        };
        if lines.went_back {
            return Ok(Attempt::WentBack);
        }
        let (rings, written) = lines.done().map_err(of)?;
        tx.commit().map_err(|e| error::of_commit(&e, &self.file.path))?;
        self.me.written.extend(written);
        self.ended.clear();
        Ok(Attempt::Done(value, rings))
    }
}

/// What came of a transaction.
enum Attempt<T> {
    Done(T, Vec<Ring>),
    /// The file is not the one any more that was opened.
    Replaced,
    /// It is, and what we have written is not in it any more.
    WentBack,
    /// It would have to grow.
    Full(Error),
}

/// Now on CLOCK_BOOTTIME, as rows have it.
pub(crate) fn now() -> i64 {
    Moment::now().as_nanos() as i64
}
