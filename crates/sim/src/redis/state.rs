//! The state that commands work on, and the errors for wrong words.

use std::collections::{BTreeMap, BTreeSet};

use crate::redis::data::Data;
use crate::redis::reply::Reply;

/// The state that commands work on.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) data: Data,
    /// The server's clock in microseconds since 1970; it stands still while a script runs.
    pub(crate) micros: u64,
    /// There is no room for more data.
    pub(crate) full: bool,
    /// The subscribers of each channel, by the numbers of their connections.
    pub(crate) subscribers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// The messages that wait for subscribers.
    pub(crate) pushes: Vec<(u64, Reply)>,
    /// The running script has written something.
    pub(crate) wrote: bool,
    /// A script may use only the keys that it declared. A Redis itself allows all; other servers do
    /// not.
    pub(crate) is_strict: bool,
    /// The keys that the running script declared.
    pub(crate) declared: Vec<Vec<u8>>,
}

impl State {
    pub(crate) fn now(&self) -> i64 {
        (self.micros / 1000) as i64
    }
}

/// The error for a command with wrong words.
pub(crate) fn syntax() -> Reply {
    Reply::error("ERR syntax error")
}

pub(crate) fn no_integer() -> Reply {
    Reply::error("ERR value is not an integer or out of range")
}
