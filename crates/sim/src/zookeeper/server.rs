//! ZooKeeper in memory: its connections, and the requests over them. It does no I/O, and has no
//! clock.

use std::collections::{BTreeMap, VecDeque};

use leasehold_sim_zookeeper_client::wire::{PASSWORD, PING, Reader, Record, code, next_packet, op};

use super::ensemble::{Ensemble, Said};
use super::read::read;
use super::sessions::Sessions;
use super::tree::Change;
use super::write::write;
use crate::servers::Counts;

const MS: u64 = 1_000_000;
/// The interval in nanoseconds at which containers without children are deleted. A real server does
/// that each minute.
const CLEANS: u64 = 5_000 * MS;
/// The number of ticks after which a member that hears nothing of its leader serves nobody any
/// more.
const GIVES_UP: u64 = 5;

/// The bytes that are sent to a client; `None` closes the connection.
pub type Piece = Option<Vec<u8>>;

/// Servers of ZooKeeper in memory, with the requests that Leasehold makes.
#[derive(Debug)]
pub struct MiniZooKeeper {
    pub(crate) ensemble: Ensemble,
    pub(crate) sessions: Sessions,
    connections: BTreeMap<u64, Connection>,
    /// The shortest and the longest session, in nanoseconds, that each member agrees to.
    pub(crate) limits: Vec<(u64, u64)>,
    cleans: u64,
    outbox: Vec<(u64, i32, Piece)>,
    /// The number of packets that clients have sent.
    packets: u64,
}

#[derive(Debug)]
struct Connection {
    member: usize,
    input: Vec<u8>,
    /// The session of the connection, and its timeout.
    session: Option<(i64, u64)>,
    /// The packets that wait for the leader, and all that came after them.
    waiting: VecDeque<Vec<u8>>,
}

impl MiniZooKeeper {
    /// Starts this number of members, which count in ticks of this many nanoseconds.
    #[must_use]
    pub fn new(seed: u64, members: usize, tick: u64) -> MiniZooKeeper {
        MiniZooKeeper {
            ensemble: Ensemble::new(seed, members),
            sessions: Sessions::new(tick, members),
            connections: BTreeMap::new(),
            limits: vec![(400 * MS, 60_000 * MS); members],
            cleans: CLEANS,
            outbox: Vec::new(),
            packets: 0,
        }
    }

    /// Takes the messages to send: the connection, the operation of the request that it answers (0:
    /// none), and the bytes.
    pub fn said(&mut self) -> Vec<(u64, i32, Piece)> {
        std::mem::take(&mut self.outbox)
    }

    /// Begins the connection of a client with this member.
    pub fn opened(&mut self, connection: u64, member: usize) {
        let new = Connection {
            member,
            input: Vec::new(),
            session: None,
            waiting: VecDeque::new(),
        };
        self.connections.insert(connection, new);
    }

    /// Ends a connection.
    pub fn closed(&mut self, connection: u64) {
        if let Some(gone) = self.connections.remove(&connection) {
            self.ensemble.members[gone.member]
                .watches
                .forget(connection);
        }
    }

    /// Handles bytes of a client that have arrived at this time, in nanoseconds.
    pub fn received(&mut self, connection: u64, bytes: &[u8], now: u64) {
        let Some(client) = self.connections.get_mut(&connection) else {
            return;
        };
        client.input.extend_from_slice(bytes);
        while let Some(client) = self.connections.get_mut(&connection) {
            let Some(packet) = next_packet(&mut client.input) else {
                return;
            };
            self.packets += 1;
            if !client.waiting.is_empty() || !self.handle(connection, &packet, now) {
                self.wait(connection, packet);
            }
        }
    }

    /// The nodes of locks are containers, which end by themselves, and are not counted as lasting.
    /// Each server has all nodes, and its own clients.
    pub(crate) fn counts(&self) -> Counts {
        let tree = &self.ensemble.tree;
        let members = &self.ensemble.members;
        let watches: usize = members.iter().map(|member| member.watches.count()).sum();
        let lasting = tree.ephemerals() + watches + self.connections.len();
        Counts {
            requests: self.packets,
            lasting: lasting as u64,
            contents: tree.paths().count() as u64,
        }
    }

    fn wait(&mut self, connection: u64, packet: Vec<u8>) {
        if let Some(client) = self.connections.get_mut(&connection) {
            client.waiting.push_back(packet);
        }
    }

    /// Closes a connection, after everything that was sent on it.
    pub(crate) fn hang_up(&mut self, connection: u64) {
        if self.connections.contains_key(&connection) {
            self.closed(connection);
            self.outbox.push((connection, 0, None));
        }
    }

    /// Closes all connections with this member.
    pub(crate) fn hang_up_all(&mut self, member: usize) {
        let theirs = self
            .connections
            .iter()
            .filter(|(_, client)| client.member == member);
        let theirs: Vec<u64> = theirs.map(|(nth, _)| *nth).collect();
        theirs
            .into_iter()
            .for_each(|connection| self.hang_up(connection));
    }

    fn say(&mut self, connection: u64, op: i32, record: Record) {
        self.outbox.push((connection, op, Some(record.packet())));
    }

    /// Lets a member apply the transactions that have reached it, or all.
    pub(crate) fn catch_up(&mut self, member: usize, all: bool, now: u64) {
        for said in self.ensemble.catch_up(member, all, now) {
            match said {
                Said::Event(to, packet) => self.outbox.push((to, 0, Some(packet))),
                Said::Ended(session) => {
                    let of_it = |client: &Connection| {
                        client.member == member
                            && client.session.is_some_and(|(id, _)| id == session)
                    };
                    let theirs = self.connections.iter().filter(|(_, client)| of_it(client));
                    let theirs: Vec<u64> = theirs.map(|(nth, _)| *nth).collect();
                    theirs
                        .into_iter()
                        .for_each(|connection| self.hang_up(connection));
                }
            }
        }
    }

    fn hear(&mut self, connection: u64, now: u64) {
        let Some(client) = self.connections.get(&connection) else {
            return;
        };
        if let Some((session, timeout)) = client.session {
            self.sessions
                .hear(session, timeout, client.member, self.ensemble.leader, now);
        }
    }

    /// Answers a packet; returns false if it has to wait for the leader.
    fn handle(&mut self, connection: u64, packet: &[u8], now: u64) -> bool {
        let Some(&Connection {
            member, session, ..
        }) = self.connections.get(&connection)
        else {
            return true;
        };
        self.catch_up(member, false, now);
        let is_cut = self.ensemble.members[member].cut.is_some();
        let Some((session, _)) = session else {
            return !is_cut && self.begin(connection, member, packet, now);
        };
        self.hear(connection, now);
        let mut reader = Reader(packet);
        let (Some(xid), Some(op)) = (reader.int(), reader.int()) else {
            self.hang_up(connection);
            return true;
        };
        let writes = matches!(
            op,
            op::CREATE
                | op::CREATE_CONTAINER
                | op::DELETE
                | op::SET_DATA
                | op::CHECK
                | op::MULTI
                | op::CLOSE_SESSION
        );
        if is_cut && (writes || op == op::SYNC) {
            return false;
        }
        if writes {
            return self.write(connection, (member, session), (xid, op), reader.0, now);
        }
        let answer = match op {
            op::PING => Ok(Record::default()),
            op::SYNC => {
                self.catch_up(member, true, now);
                Ok(Record(reader.0.to_vec()))
            }
            _ => {
                let it = &mut self.ensemble.members[member];
                read(
                    (&it.tree, &mut it.watches),
                    (session, connection),
                    op,
                    reader.0,
                )
            }
        };
        let zxid = self.ensemble.members[member].zxid;
        self.reply(
            connection,
            (if op == op::PING { PING } else { xid }, op),
            zxid,
            answer,
        );
        true
    }

    fn reply(
        &mut self,
        connection: u64,
        (xid, op): (i32, i32),
        zxid: i64,
        answer: Result<Record, i32>,
    ) {
        let mut record = Record::default()
            .int(xid)
            .long(zxid)
            .int(answer.as_ref().err().copied().unwrap_or(0));
        record.0.extend(answer.unwrap_or_default().0);
        self.say(connection, op, record);
    }

    /// Carries out a request that writes, as the leader.
    fn write(
        &mut self,
        connection: u64,
        (member, session): (usize, i64),
        (xid, op): (i32, i32),
        request: &[u8],
        now: u64,
    ) -> bool {
        let at = self.ensemble.next(now);
        let at_home = self.sessions.get(session).map(|it| it.member == member);
        let done = match at_home {
            Some(false) => {
                self.hang_up(connection);
                return true;
            }
            None => Err(code::SESSION_EXPIRED),
            Some(true) if op == op::CLOSE_SESSION => {
                // The session's own connection is closed after the answer.
                self.connections
                    .entry(connection)
                    .and_modify(|client| client.session = None);
                let changes = self.end(session);
                changes
                    .iter()
                    .for_each(|change| drop(self.ensemble.tree.apply(change, at)));
                Ok((changes, Record::default()))
            }
            Some(true) => write(&mut self.ensemble.tree, session, op, request, at),
        };
        let (changes, answer) = done.map_or_else(
            |error| (Vec::new(), Err(error)),
            |(all, answer)| (all, Ok(answer)),
        );
        self.ensemble.commit(at, changes, now);
        self.catch_up(member, true, now);
        self.reply(connection, (xid, op), at.zxid, answer);
        if op == op::CLOSE_SESSION {
            self.hang_up(connection);
        }
        true
    }

    /// Handles the first packet of a connection, which opens a session or continues one.
    fn begin(&mut self, connection: u64, member: usize, packet: &[u8], now: u64) -> bool {
        let mut reader = Reader(packet);
        let said = (
            reader.int(),
            reader.long(),
            reader.int(),
            reader.long(),
            reader.bytes(),
        );
        let (Some(_), Some(_), Some(asked), Some(id), Some(password)) = said else {
            self.hang_up(connection);
            return true;
        };
        let (least, most) = self.limits[member];
        let timeout = (u64::try_from(asked).unwrap_or_default() * MS).clamp(least, most);
        let (id, password) = if id == 0 {
            let opened = self.sessions.open(member, timeout, now);
            self.ensemble.execute(Vec::new(), now);
            self.catch_up(member, true, now);
            opened
        } else if self.sessions.reopen(id, password, (member, timeout), now) {
            // A member has one connection of each session.
            let same = |client: &Connection| {
                client.member == member && client.session.is_some_and(|(it, _)| it == id)
            };
            let before = self
                .connections
                .iter()
                .find(|(_, client)| same(client))
                .map(|(nth, _)| *nth);
            before.into_iter().for_each(|before| self.hang_up(before));
            (id, password.try_into().unwrap_or_default())
        } else {
            (0, [0; PASSWORD])
        };
        let millis = if id == 0 { 0 } else { (timeout / MS) as i32 };
        self.connections
            .entry(connection)
            .and_modify(|it| it.session = (id != 0).then_some((id, timeout)));
        self.say(
            connection,
            0,
            Record::default()
                .int(0)
                .int(millis)
                .long(id)
                .bytes(&password)
                .bool(false),
        );
        if id == 0 {
            self.hang_up(connection);
        }
        true
    }

    /// Ends a session. Returns the changes that delete its nodes.
    fn end(&mut self, session: i64) -> Vec<Change> {
        self.sessions.close(session);
        let paths = self.ensemble.tree.of_session(session).into_iter();
        paths
            .map(|path| Change::Delete { path })
            .chain([Change::End { session }])
            .collect()
    }

    /// Ends a session, as the leader.
    pub(crate) fn expire(&mut self, session: i64, now: u64) {
        let changes = self.end(session);
        self.ensemble.execute(changes, now);
    }

    /// Does the servers' work that no client asks for.
    pub fn tick(&mut self, now: u64) {
        let members = &self.ensemble.members;
        let leads = !members[self.ensemble.leader].is_down;
        self.sessions.report(
            |member| members[member].cut.is_none() && !members[member].is_down,
            now,
        );
        if leads {
            self.sessions
                .over(now)
                .into_iter()
                .for_each(|session| self.expire(session, now));
            if self.cleans <= now {
                self.cleans = now + CLEANS;
                for path in self.ensemble.tree.unused() {
                    self.ensemble.execute(vec![Change::Delete { path }], now);
                }
            }
        }
        let longest = GIVES_UP * self.sessions.tick();
        for member in 0..self.ensemble.members.len() {
            self.catch_up(member, false, now);
            if self.ensemble.members[member]
                .cut
                .is_some_and(|since| since + longest <= now)
            {
                self.hang_up_all(member);
            }
        }
    }

    /// Connects a member with its leader again, and carries out the requests that have waited for
    /// that.
    pub(crate) fn rejoin(&mut self, member: usize, now: u64) {
        self.ensemble.members[member].cut = None;
        self.catch_up(member, true, now);
        let theirs = self
            .connections
            .iter()
            .filter(|(_, client)| client.member == member);
        for connection in theirs.map(|(nth, _)| *nth).collect::<Vec<_>>() {
            while let Some(client) = self.connections.get_mut(&connection) {
                let Some(packet) = client.waiting.pop_front() else {
                    break;
                };
                self.handle(connection, &packet, now);
            }
        }
    }
}
