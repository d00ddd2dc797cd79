//! The client: its transactions, the messages from its FIFO, and the ends of other clients.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{ClaimId, Identity, Moment, Notifier};
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Loss, Result};
use rusqlite::{Connection, ErrorCode};
use rustix::event::{PollFd, PollFlags, poll};

use crate::claim::queue::{Message, OwnPlaces, Queues};
use crate::client::fifo::{self, Fifo, Liveness, Watches};
use crate::client::file::{File, OPENING};
use crate::client::presence::share;
use crate::client::time::{limit, now, wait_until, wall};
use crate::client::words::Word;
use crate::error;

/// A request, which also passes on its own answer.
pub(crate) type Job = Box<dyn FnOnce(&mut Client) + Send>;

/// The owner of the connection, and of all that this client knows of its places in the file.
pub(crate) struct Client {
    pub(crate) file: File,
    identity: Arc<Identity>,
    pub(crate) notifier: Notifier,
    /// The client only looks at the queues, as a rule.
    looks: bool,
    /// The FIFO is made with the first claim, so a client that only reads leaves none.
    fifo: Option<Fifo>,
    /// A copy of the FIFO was given away, so no other may take its place.
    shared: bool,
    pub(crate) own: OwnPlaces,
    pub(crate) watches: Watches,
    /// FIFOs whose clients have ended: the next transaction ends their sessions.
    pub(crate) ended: Vec<i64>,
    pub(crate) closed: bool,
    /// The client comes for one lock and goes, and observes nothing.
    pub(crate) is_brief: bool,
    /// The file has no row of this client: its rows have been removed, and none was written since.
    pub(crate) has_left: bool,
    /// The moment until which requests run on the client's own thread only, on CLOCK_BOOTTIME in
    /// nanoseconds.
    pub(crate) only_thread_until: i64,
}

/// The descriptors to which the thread listens while others may use the client.
pub(crate) struct PollSet {
    fifo: Option<Arc<OwnedFd>>,
    watched: Vec<(i64, Arc<OwnedFd>)>,
}

/// The events that the thread has heard: requests, messages, and the ends of other clients.
pub(crate) struct Events {
    pub(crate) asked: bool,
    messages: bool,
    ended: Vec<i64>,
}

impl PollSet {
    /// Waits for a request, for a message, or for the end of another client.
    pub(crate) fn listen(&self, wake: &OwnedFd) -> Events {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        // Before there is a FIFO, the eventfd takes its place.
        let fifo = self.fifo.as_ref().map_or(wake.as_fd(), AsFd::as_fd);
        fds.push(PollFd::from_borrowed_fd(fifo, PollFlags::IN));
        fds.extend(
            self.watched
                .iter()
                .map(|(_, fd)| PollFd::new(fd, PollFlags::empty())),
        );
        if poll(&mut fds, None).is_err() {
            return Events {
                asked: false,
                messages: false,
                ended: Vec::new(),
            };
        }
        let is = |at: usize, what: PollFlags| fds[at].revents().intersects(what);
        let ended = self
            .watched
            .iter()
            .enumerate()
            .filter(|(at, _)| is(at + 2, PollFlags::ERR));
        let ended = ended.map(|(_, (fifo, _))| *fifo).collect();
        Events {
            asked: is(0, PollFlags::IN),
            messages: self.fifo.is_some() && is(1, PollFlags::IN),
            ended,
        }
    }
}

impl Client {
    /// Opens the file, and waits for others for at most this time.
    pub(crate) fn open(
        path: &Path,
        identity: Arc<Identity>,
        notifier: Notifier,
        looks: bool,
        wait: Duration,
    ) -> Result<Client> {
        let deadline = Moment::now() + wait;
        let file = File::open(path, &identity, None, looks, deadline)?;
        let own = OwnPlaces::default();
        let watches = Watches::default();
        let (fifo, shared, ended, closed, only_thread_until) = Default::default();
        let (is_brief, has_left) = Default::default();
        let mut client = Client {
            file,
            identity,
            notifier,
            looks,
            fifo,
            shared,
            own,
            watches,
            ended,
            closed,
            is_brief,
            has_left,
            only_thread_until,
        };
        client.remove_dead(deadline)?;
        Ok(client)
    }

    /// The descriptors to which the thread is to listen from now on.
    pub(crate) fn ears(&self) -> PollSet {
        PollSet {
            fifo: self.fifo.as_ref().map(|fifo| fifo.fd.clone()),
            watched: self.watches.fds().collect(),
        }
    }

    pub(crate) fn react(&mut self, heard: Events) {
        if heard.messages
            && let Some((text, more)) = self.fifo.as_ref().map(Fifo::drain)
        {
            // A line that cannot be read is ignored.
            text.lines()
                .filter_map(Word::read)
                .for_each(|word| self.handle(word));
            if more {
                self.notifier.notify_all();
            }
        }
        for fifo in heard.ended {
            self.ended.push(fifo);
            self.watches
                .close(fifo)
                .into_iter()
                .for_each(|claim| self.notifier.claim_again(claim));
        }
    }

    fn handle(&mut self, word: Word) {
        match word {
            Word::Granted(claim) => self.granted(claim),
            Word::Evicted(claim) => self.notifier.lost(claim, Loss::Evicted),
            Word::Again(claim) => self.notifier.claim_again(claim),
            Word::Changed(name) => self.notifier.holder_changed(&name),
        }
    }

    fn granted(&mut self, claim: ClaimId) {
        if let Ok(Some(entry)) = self.read(|connection| self.own.read(connection, claim))
            && let Some(grant) = entry.grant()
            && self.file.is_current()
        {
            self.watches.forget(claim);
            if let Some(mine) = self.own.places.get_mut(&claim) {
                // The place is good until the end of its session, which may have been extended
                // meanwhile for other places.
                mine.until = mine.until.max(entry.until);
            }
            self.notifier.granted(claim, grant);
        }
    }

    /// Makes sure that this client has a FIFO that others can find.
    pub(crate) fn ready(&mut self, deadline: Moment) -> Result<()> {
        if self.can_be_found() {
            return Ok(());
        }
        let fifo = Fifo::create(&self.file.real)?;
        if self.fifo.is_some() {
            self.write(deadline, |queues| queues.move_to(fifo.address))?;
        }
        self.own.address = fifo.address;
        self.fifo = Some(fifo);
        Ok(())
    }

    /// Returns whether others can find this client's FIFO, without a wait for anybody. The first
    /// FIFO is made only if `may_make`.
    pub(crate) fn is_found_at_once(&mut self, may_make: bool) -> bool {
        match self.fifo {
            None => may_make && self.ready(Moment::from_nanos(0)).is_ok(),
            Some(_) => self.can_be_found(),
        }
    }

    /// Returns whether other clients can notify this one, and see its end.
    pub(crate) fn can_be_found(&self) -> bool {
        self.fifo
            .as_ref()
            .is_some_and(|fifo| self.shared || !fifo.has_vanished())
    }

    /// Returns copies of the descriptors of the FIFO and of the directory's lock. As long as they
    /// are open in some process, no client takes this one for dead, or forgets its leases in files
    /// that are gone.
    pub(crate) fn life_line(&mut self) -> Result<[OwnedFd; 2]> {
        self.ready(limit(None))?;
        self.shared = true;
        let fifo = self.fifo.as_ref().ok_or_else(Error::closed)?;
        Ok([share(&fifo.fd)?, share(&self.file.presence.folder)?])
    }

    /// Releases everything that this client holds, and closes it.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.closed = true;
        while self.has_to_leave() && !self.write(limit(None), |queues| queues.leave())? {}
        // The FIFO is removed before the caller has the answer, and perhaps ends the process: no
        // row names it any more.
        self.fifo = None;
        Ok(())
    }

    /// Closes a client that has no place, if no other writer has to be waited for.
    pub(crate) fn leave_at_once(&mut self) -> Option<()> {
        if !self.own.places.is_empty() || !self.ended.is_empty() {
            return None;
        }
        if self.has_to_leave()
            && !matches!(
                self.attempt(&mut |queues| queues.leave()),
                Ok(Attempt::Done(true, _))
            )
        {
            return None;
        }
        self.closed = true;
        self.fifo = None;
        Some(())
    }

    fn has_to_leave(&self) -> bool {
        self.fifo.is_some() && !self.has_left
    }

    /// Removes ended clients and their FIFOs, also FIFOs without a row, and holds that no client
    /// renews.
    fn remove_dead(&mut self, deadline: Moment) -> Result<()> {
        let clients = std::mem::take(&mut self.file.clients);
        for found in fifo::all(&self.file.real, &self.file.presence.folder) {
            let client = clients.get(&found.fifo).copied();
            if client.is_none() && fault("Q3") {
                continue;
            }
            if let Liveness::Dead = fifo::liveness(&self.file.real, client.unwrap_or(found)) {
                while client.is_some()
                    && !self.write(deadline, |queues| queues.remove_client(found.fifo))?
                {
                }
                fifo::remove(&self.file.real, found.fifo);
            }
        }
        // Mostly no hold has lapsed, and nothing has to be written.
        match clients.keys().any(|fifo| *fifo < 0) {
            true => self.write(deadline, |queues| queues.remove_ended()),
            false => Ok(()),
        }
    }

    /// Reads without waiting for writers.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T> {
        work(&self.file.connection).map_err(|e| error::of(&e, &self.file.path))
    }

    /// Runs one transaction, and sends the messages that result from it.
    pub(crate) fn write<T>(
        &mut self,
        deadline: Moment,
        mut work: impl FnMut(&mut Queues<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let (value, mut messages) = self.commit(deadline, &mut work)?;
        while !messages.is_empty() {
            let mut passed = Vec::new();
            for Message { to, name, word } in messages {
                if to == self.own.address {
                    self.handle(word);
                } else if let Liveness::Dead = fifo::send(&self.file.real, to, &word) {
                    self.ended.push(to.fifo);
                    passed.push(name);
                }
            }
            let admit = |queues: &mut Queues<'_>| {
                passed
                    .iter()
                    .try_for_each(|name| queues.admit_waiters(name).map(drop))
            };
            // If this fails, the waiters see the same death themselves, or the end of its lease.
            messages = match passed.is_empty() {
                true => Vec::new(),
                false => self
                    .commit(deadline, admit)
                    .map(|((), messages)| messages)
                    .unwrap_or_default(),
            };
        }
        Ok(value)
    }

    fn commit<T>(
        &mut self,
        deadline: Moment,
        mut work: impl FnMut(&mut Queues<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, Vec<Message>)> {
        wait_until(deadline);
        for _ in 0..3 {
            match self.attempt(&mut work) {
                Ok(Attempt::Done(value, messages)) => return Ok((value, messages)),
                Ok(Attempt::Full(e)) if !self.file.may_grow() => return Err(e),
                Ok(Attempt::Full(_)) => {}
                Ok(Attempt::WentBack) => {
                    let _begun = self
                        .file
                        .replace(&self.identity, self.longest(), deadline)?;
                    self.reopen()?;
                }
                // An error counts only if the files are in their place: neither errors nor commits
                // in replaced files matter.
                Ok(Attempt::NotBegun(e)) if self.file.is_whole() => {
                    return Err(error::of(&e, &self.file.path));
                }
                Err(e) if self.file.is_whole() => return Err(e),
                Ok(Attempt::Replaced | Attempt::NotBegun(_)) | Err(_) => self.reopen()?,
            }
            wait_until(deadline);
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the file is replaced again and again",
        ))
    }

    /// Turns to the file that is at the path now, if it is another one.
    pub(crate) fn catch_up(&mut self) -> Result<()> {
        wait_until(limit(None));
        if self.file.is_current() {
            Ok(())
        } else {
            self.reopen_to(self.looks)
        }
    }

    /// Turns to the new file at the path. The places in a file that is gone, or that another boot
    /// took over, are lost.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        self.reopen_to(false)
    }

    fn reopen_to(&mut self, look: bool) -> Result<()> {
        let before = Some((&self.file.presence, self.longest()));
        let until = Moment::now() + OPENING;
        let opened = File::open(&self.file.path, &self.identity, before, look, until);
        if opened.is_err() {
            // The lease that was announced for a request is not taken, so others need not reckon
            // with it.
            self.announce_longest()?;
        }
        self.file = opened?;
        (self.own.sessions, self.watches) = Default::default();
        self.notifier.notify_all();
        Ok(())
    }

    pub(crate) fn attempt<T>(
        &mut self,
        work: &mut impl FnMut(&mut Queues<'_>) -> rusqlite::Result<T>,
    ) -> Result<Attempt<T>> {
        let of = |e| error::of(&e, &self.file.path);
        self.has_left = false;
        // The error is not put into words yet: to name the other process, all locks of the machine
        // are read, and a caller that does not wait has no use for that.
        let _tx = match self.file.begin() {
            Ok(tx) => tx,
            Err(e) => return Ok(Attempt::NotBegun(e)),
        };
        // Taken before the check of the files: a client that replaces them later begins to wait for
        // these leases after they began, and with greater tokens.
        let began = (now(), wall());
        if !self.file.is_current() {
            return Ok(Attempt::Replaced);
        }
        let Some(meta) = self.file.meta().map_err(of)? else {
            return Ok(Attempt::Replaced);
        };
        let mut queues = Queues::new(&self.file, &mut self.own, began, meta);
        self.ended
            .iter()
            .try_for_each(|fifo| queues.end_sessions(*fifo))
            .map_err(of)?;
        let value = match work(&mut queues) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                return Ok(Attempt::Full(of(e)));
            }
            done => done.map_err(of)?,
        };
        if queues.went_back {
            // These places are not in the file, and will not be.
            let Queues { inserted, own, .. } = queues;
            inserted
                .iter()
                .for_each(|claim| drop(own.places.remove(claim)));
            return Ok(Attempt::WentBack);
        }
        queues.notify_observers().map_err(of)?;
        let Queues {
            messages,
            written,
            released,
            ..
        } = queues;
        self.file
            .commit()
            .map_err(|e| error::of_commit(&e, &self.file.path))?;
        self.own.sessions.extend(written);
        for (claim, seq) in released {
            if self
                .own
                .places
                .get(&claim)
                .is_some_and(|mine| mine.seq == seq)
            {
                self.own.places.remove(&claim);
            }
        }
        self.ended.clear();
        Ok(Attempt::Done(value, messages))
    }
}

/// The outcome of a transaction.
pub(crate) enum Attempt<T> {
    Done(T, Vec<Message>),
    /// The file at the path is not the one any more that was opened.
    Replaced,
    /// The file is the one that was opened, but lacks something that this client has written.
    WentBack,
    /// The file would have to grow.
    Full(Error),
    /// Another transaction is under way, or the file cannot be used.
    NotBegun(rusqlite::Error),
}
