//! What commands work on, and what they say of wrong words.

use std::collections::{BTreeMap, BTreeSet};

use crate::redis::data::Data;
use crate::redis::reply::Reply;

/// What commands work on.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) data: Data,
    /// The server's clock in microseconds since 1970; it stands still while a script runs.
    pub(crate) micros: u64,
    /// There is no room for more data.
    pub(crate) full: bool,
    /// Who is subscribed to a channel, by the numbers of their connections.
    pub(crate) subscribers: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// What is to be said to subscribers.
    pub(crate) pushes: Vec<(u64, Reply)>,
    /// The script that runs has written something.
    pub(crate) wrote: bool,
}

impl State {
    pub(crate) fn now(&self) -> i64 {
        (self.micros / 1000) as i64
    }
}

/// What is wrong with how a command was called.
pub(crate) fn syntax() -> Reply {
    Reply::error("ERR syntax error")
}

pub(crate) fn no_integer() -> Reply {
    Reply::error("ERR value is not an integer or out of range")
}
