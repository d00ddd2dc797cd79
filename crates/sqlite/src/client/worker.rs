//! What a client is: one transaction after another, what is read from its FIFO, and what it hears of others.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{ClaimId, Moment, Notifier};
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Loss, Result};
use rusqlite::{Connection, ErrorCode};
use rustix::event::{PollFd, PollFlags, poll};

use crate::claim::queue::{Message, Own, Queues};
use crate::client::fifo::{self, Fifo, Liveness, Watches};
use crate::client::file::{File, OPENING};
use crate::client::presence::share;
use crate::client::time::{limit, now, wait_until, wall};
use crate::client::words::Word;
use crate::error;

/// A request, and what it does with its own answer.
pub(crate) type Job = Box<dyn FnOnce(&mut Client) + Send>;

/// What has the connection, and all that this process knows of its places in the file.
pub(crate) struct Client {
    pub(crate) file: File,
    pub(crate) notifier: Notifier,
    /// Made with the first claim: a client that only reads leaves nothing.
    fifo: Option<Fifo>,
    /// A copy of the FIFO was given away, so no other may take its place.
    shared: bool,
    pub(crate) own: Own,
    pub(crate) watches: Watches,
    /// FIFOs whose clients have ended: the next transaction ends their sessions.
    pub(crate) ended: Vec<i64>,
    pub(crate) closed: bool,
    /// It comes for one lock and goes, and observes nothing.
    pub(crate) is_brief: bool,
    /// Nothing of us is in the file: what was there has been removed, and nothing was written since.
    pub(crate) has_left: bool,
    /// Until when nothing is done on another thread than our own, on CLOCK_BOOTTIME.
    pub(crate) only_thread_until: i64,
}

/// What the thread listens to, while others may use the client.
pub(crate) struct Ears {
    fifo: Option<Arc<OwnedFd>>,
    watched: Vec<(i64, Arc<OwnedFd>)>,
}

/// What it has heard: requests, messages, and the ends of other clients.
pub(crate) struct Heard {
    pub(crate) asked: bool,
    messages: bool,
    ended: Vec<i64>,
}

impl Ears {
    /// Waits for a request, for a message, or for the end of another client.
    pub(crate) fn listen(&self, wake: &OwnedFd) -> Heard {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        // Before we have a FIFO, what wakes us stands in for it.
        let fifo = self.fifo.as_ref().map_or(wake.as_fd(), AsFd::as_fd);
        fds.push(PollFd::from_borrowed_fd(fifo, PollFlags::IN));
        fds.extend(self.watched.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::empty())));
        if poll(&mut fds, None).is_err() {
            return Heard { asked: false, messages: false, ended: Vec::new() };
        }
        let is = |at: usize, what: PollFlags| fds[at].revents().intersects(what);
        let ended = self.watched.iter().enumerate().filter(|(at, _)| is(at + 2, PollFlags::ERR));
        let ended = ended.map(|(_, (fifo, _))| *fifo).collect();
        Heard { asked: is(0, PollFlags::IN), messages: self.fifo.is_some() && is(1, PollFlags::IN), ended }
    }
}

impl Client {
    /// Opens the file. Others are waited for as long as that.
    pub(crate) fn open(path: &Path, notifier: Notifier, wait: Duration) -> Result<Client> {
        let deadline = Moment::now() + wait;
        let file = File::open(path, None, deadline)?;
        let (own, watches) = (Own::default(), Watches::default());
        let (fifo, shared, ended, closed, only_thread_until) = Default::default();
        let (is_brief, has_left) = Default::default();
        let mut client =
            Client { file, notifier, fifo, shared, own, watches, ended, closed, is_brief, has_left, only_thread_until };
        client.remove_dead(deadline)?;
        Ok(client)
    }

    /// What the thread is to listen to from now on.
    pub(crate) fn ears(&self) -> Ears {
        Ears { fifo: self.fifo.as_ref().map(|fifo| fifo.fd.clone()), watched: self.watches.fds().collect() }
    }

    pub(crate) fn react(&mut self, heard: Heard) {
        if heard.messages
            && let Some((text, more)) = self.fifo.as_ref().map(Fifo::drain)
        {
            // What cannot be read is ignored.
            text.lines().filter_map(Word::read).for_each(|word| self.handle(word));
            if more {
                self.notifier.notify_all();
            }
        }
        for fifo in heard.ended {
            self.ended.push(fifo);
            self.watches.close(fifo).into_iter().for_each(|claim| self.notifier.claim_again(claim));
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
                // It is good for as long as the session has been extended meanwhile, for others.
                mine.until = mine.until.max(entry.until);
            }
            self.notifier.granted(claim, grant);
        }
    }

    /// Has a FIFO, and one that others can find.
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

    /// The same without a wait for anybody; makes the first FIFO only if that is allowed.
    pub(crate) fn is_found_at_once(&mut self, may_make: bool) -> bool {
        match self.fifo {
            None => may_make && self.ready(Moment::from_nanos(0)).is_ok(),
            Some(_) => self.can_be_found(),
        }
    }

    /// Whether other clients can notify us, and see our end.
    pub(crate) fn can_be_found(&self) -> bool {
        self.fifo.as_ref().is_some_and(|fifo| self.shared || !fifo.has_vanished())
    }

    /// Other descriptors of our FIFO and of the directory's lock: as long as they are open somewhere, no client sees this one
    /// as dead, or forgets its leases in files that are gone.
    pub(crate) fn life_line(&mut self) -> Result<[OwnedFd; 2]> {
        self.ready(limit(None))?;
        self.shared = true;
        let fifo = self.fifo.as_ref().ok_or_else(Error::closed)?;
        Ok([share(&fifo.fd)?, share(&self.file.presence.folder)?])
    }

    /// Gives up all that we hold, and ends.
    pub(crate) fn leave(&mut self) -> Result<()> {
        self.closed = true;
        while self.has_to_leave() && !self.write(limit(None), |queues| queues.leave())? {}
        // Before the caller knows that this is done, and perhaps ends the process: no row leads to its file any more.
        self.fifo = None;
        Ok(())
    }

    /// The same for a client that has no place, if no other writer has to be waited for.
    pub(crate) fn leave_at_once(&mut self) -> Option<()> {
        if !self.own.places.is_empty() || !self.ended.is_empty() {
            return None;
        }
        if self.has_to_leave() && !matches!(self.attempt(&mut |queues| queues.leave()), Ok(Attempt::Done(true, _))) {
            return None;
        }
        self.closed = true;
        self.fifo = None;
        Some(())
    }

    fn has_to_leave(&self) -> bool {
        self.fifo.is_some() && !self.has_left
    }

    /// Removes what has ended: clients and their FIFOs, also those without a row, and holds that no client renews.
    fn remove_dead(&mut self, deadline: Moment) -> Result<()> {
        let clients = std::mem::take(&mut self.file.clients);
        for found in fifo::all(&self.file.real, &self.file.presence.folder) {
            let client = clients.get(&found.fifo).copied();
            if client.is_none() && fault("Q3") {
                continue;
            }
            if let Liveness::Dead = fifo::liveness(&self.file.real, client.unwrap_or(found)) {
                while client.is_some() && !self.write(deadline, |queues| queues.remove_client(found.fifo))? {}
                fifo::remove(&self.file.real, found.fifo);
            }
        }
        // Most of the time no hold has lapsed, and nothing is to be written.
        match clients.keys().any(|fifo| *fifo < 0) {
            true => self.write(deadline, |queues| queues.remove_ended()),
            false => Ok(()),
        }
    }

    /// Reads without waiting for writers.
    pub(crate) fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        work(&self.file.connection).map_err(|e| error::of(&e, &self.file.path))
    }

    /// One transaction, and the messages that it leads to.
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
            let admit =
                |queues: &mut Queues<'_>| passed.iter().try_for_each(|name| queues.admit_waiters(name).map(drop));
            // If it fails, the waiters see the same death, or the end of its lease.
            messages = match passed.is_empty() {
                true => Vec::new(),
                false => self.commit(deadline, admit).map(|((), messages)| messages).unwrap_or_default(),
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
                Ok(Attempt::WentBack) => self.file.replace(self.longest(), deadline)?,
                // Nothing that is true of replaced files matters, nor what has become of a commit in them.
                Ok(Attempt::NotBegun(e)) if self.file.is_whole() => return Err(error::of(&e, &self.file.path)),
                Err(e) if self.file.is_whole() => return Err(e),
                Ok(Attempt::Replaced | Attempt::NotBegun(_)) | Err(_) => self.reopen()?,
            }
            wait_until(deadline);
        }
        Err(Error::new(ErrorKind::Unavailable, "the file is replaced again and again"))
    }

    /// What we had in a file that is gone, or that another boot took over, is lost. There is a new one.
    pub(crate) fn reopen(&mut self) -> Result<()> {
        let before = Some((&self.file.presence, self.longest()));
        self.file = File::open(&self.file.path, before, Moment::now() + OPENING)?;
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
        // Who does not wait for others has no use for a text that names them: all locks of the machine are read for it.
        let _tx = match self.file.begin() {
            Ok(tx) => tx,
            Err(e) => return Ok(Attempt::NotBegun(e)),
        };
        // Before the check of the files: a client that replaces them later begins to wait for our leases after they began, and with
        // tokens that are greater.
        let began = (now(), wall());
        if !self.file.is_current() {
            return Ok(Attempt::Replaced);
        }
        let Some(meta) = self.file.meta().map_err(of)? else { return Ok(Attempt::Replaced) };
        let mut queues = Queues::new(&self.file.connection, &mut self.own, began, meta);
        self.ended.iter().try_for_each(|fifo| queues.end_sessions(*fifo)).map_err(of)?;
        let value = match work(&mut queues) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DiskFull) => return Ok(Attempt::Full(of(e))),
            done => done.map_err(of)?,
        };
        if queues.went_back {
            // They are not there, and will not be.
            let Queues { inserted, own, .. } = queues;
            inserted.iter().for_each(|claim| drop(own.places.remove(claim)));
            return Ok(Attempt::WentBack);
        }
        queues.notify_observers().map_err(of)?;
        let Queues { messages, written, released, .. } = queues;
        self.file.commit().map_err(|e| error::of_commit(&e, &self.file.path))?;
        self.own.sessions.extend(written);
        for (claim, seq) in released {
            if self.own.places.get(&claim).is_some_and(|mine| mine.seq == seq) {
                self.own.places.remove(&claim);
            }
        }
        self.ended.clear();
        Ok(Attempt::Done(value, messages))
    }
}

/// What came of a transaction.
pub(crate) enum Attempt<T> {
    Done(T, Vec<Message>),
    /// The file is not the one any more that was opened.
    Replaced,
    /// It is, and what we have written is not in it any more.
    WentBack,
    /// It would have to grow.
    Full(Error),
    /// Another one is under way, or the file cannot be used.
    NotBegun(rusqlite::Error),
}
