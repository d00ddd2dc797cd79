//! ZooKeeper's protocol: its numbers, its records, its packets.

use zookeeper_client::Stat;

/// The operations of requests.
pub mod op {
    #![allow(missing_docs, reason = "ZooKeeper's names")]
    pub const CREATE_OF_MULTI: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE: i32 = 15;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const MULTI_READ: i32 = 22;
    pub const GET_EPHEMERALS: i32 = 103;
    pub const CLOSE_SESSION: i32 = -11;
    pub const ERROR: i32 = -1;
}

/// The error numbers of replies.
pub mod code {
    #![allow(missing_docs, reason = "ZooKeeper's names")]
    pub const RUNTIME_INCONSISTENCY: i32 = -2;
    pub const UNIMPLEMENTED: i32 = -6;
    pub const BAD_ARGUMENTS: i32 = -8;
    pub const NO_NODE: i32 = -101;
    pub const BAD_VERSION: i32 = -103;
    pub const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub const NODE_EXISTS: i32 = -110;
    pub const NOT_EMPTY: i32 = -111;
    pub const SESSION_EXPIRED: i32 = -112;
    pub const SESSION_MOVED: i32 = -118;
    pub const NO_WATCHER: i32 = -121;
}

/// The number of a packet with an event, which answers no request.
pub const EVENT: i32 = -1;
/// The number of a ping and of its answer.
pub const PING: i32 = -2;

/// The flag of a new node that ends with its session.
pub const EPHEMERAL: i32 = 1;
/// The flag of a new node that gets a number.
pub const SEQUENTIAL: i32 = 2;
/// The flags of a new container.
pub const CONTAINER: i32 = 4;

/// The number of bytes of a session's password.
pub const PASSWORD: usize = 16;

/// A record that is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record(pub Vec<u8>);

impl Record {
    /// Adds a number.
    #[must_use]
    pub fn int(mut self, number: i32) -> Record {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Adds a long number.
    #[must_use]
    pub fn long(mut self, number: i64) -> Record {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Adds yes or no.
    #[must_use]
    pub fn bool(mut self, yes: bool) -> Record {
        self.0.push(u8::from(yes));
        self
    }

    /// Adds bytes, with their number before them.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Record {
        let mut record = self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        record.0.extend(bytes);
        record
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, text: &str) -> Record {
        self.bytes(text.as_bytes())
    }

    /// Adds texts, with their number before them.
    #[must_use]
    pub fn texts(self, texts: &[String]) -> Record {
        let record = self.int(i32::try_from(texts.len()).unwrap_or(i32::MAX));
        texts.iter().fold(record, |record, text| record.text(text))
    }

    /// Adds the facts about a node.
    #[must_use]
    pub fn stat(self, stat: &Stat) -> Record {
        let Stat {
            czxid,
            mzxid,
            pzxid,
            ctime,
            mtime,
            version,
            cversion,
            aversion,
            ..
        } = *stat;
        let record = self
            .long(czxid)
            .long(mzxid)
            .long(ctime)
            .long(mtime)
            .int(version)
            .int(cversion)
            .int(aversion);
        record
            .long(stat.ephemeral_owner)
            .int(stat.data_length)
            .int(stat.num_children)
            .long(pzxid)
    }

    /// Adds the beginning of one part of several.
    #[must_use]
    pub fn part(self, op: i32, error: i32) -> Record {
        self.int(op).bool(false).int(error)
    }

    /// Adds the end of all parts.
    #[must_use]
    pub fn end(self) -> Record {
        self.int(op::ERROR).bool(true).int(-1)
    }

    /// The record as a packet.
    #[must_use]
    pub fn packet(self) -> Vec<u8> {
        Record::default().bytes(&self.0).0
    }
}

/// A record that is read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, many: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(many)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a number; `None` if the record has ended.
    pub fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Reads a long number.
    pub fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Reads yes or no.
    pub fn bool(&mut self) -> Option<bool> {
        Some(self.take(1)? != [0])
    }

    /// Reads bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let many = self.int()?.max(0);
        self.take(usize::try_from(many).ok()?)
    }

    /// Reads a text.
    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// Reads texts.
    pub fn texts(&mut self) -> Option<Vec<String>> {
        (0..self.int()?).map(|_| self.text()).collect()
    }

    /// Reads the facts about a node.
    pub fn stat(&mut self) -> Option<Stat> {
        let (czxid, mzxid, ctime, mtime) = (self.long()?, self.long()?, self.long()?, self.long()?);
        let (version, cversion, aversion) = (self.int()?, self.int()?, self.int()?);
        let (ephemeral_owner, data_length, num_children) = (self.long()?, self.int()?, self.int()?);
        let pzxid = self.long()?;
        Some(Stat {
            czxid,
            mzxid,
            pzxid,
            ctime,
            mtime,
            version,
            cversion,
            aversion,
            ephemeral_owner,
            data_length,
            num_children,
        })
    }

    /// Reads the beginning of the next part of several; `None` after the last one.
    pub fn part(&mut self) -> Option<i32> {
        let (op, done, _) = (self.int()?, self.bool()?, self.int()?);
        (!done).then_some(op)
    }
}

/// Takes the first packet off, if it is complete.
pub fn next_packet(input: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut reader = Reader(input);
    let packet = reader.bytes()?.to_vec();
    input.drain(..4 + packet.len());
    Some(packet)
}
