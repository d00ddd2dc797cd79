//! What both stores share below the locks.
//!
//! It knows servers, keys and scripts, and no lock: `server` reads an address, `connection`
//! keeps one connection alive, `inbox` turns its pushes into notifications, `names` makes keys,
//! `mark` recognizes a database, `foreign` shows the holds of other tools, `walk` finds names in use, `script` runs Lua, `record`
//! reads the answers, `cluster` finds the node of a key, `error` tells failures that are certain
//! from those that are not, `rights` finds the rights and commands that are missing, `checks` asks
//! for the settings of a server.

mod checks;
mod cluster;
mod connection;
mod error;
mod foreign;
mod inbox;
mod mark;
mod names;
mod record;
mod rights;
mod script;
mod server;
mod walk;

pub(crate) use crate::link::checks::warnings;
pub(crate) use crate::link::cluster::{AddressMap, Cluster, fence_of, slot_of};
pub(crate) use crate::link::connection::Connection;
pub(crate) use crate::link::error::{again, junk, of_request};
pub(crate) use crate::link::foreign::{ValueHash, foreign, shortened};
pub(crate) use crate::link::inbox::{Inbox, attempt};
pub(crate) use crate::link::mark::StoreMark;
pub(crate) use crate::link::names::Names;
pub(crate) use crate::link::record::{Ahead, Fields, record};
pub(crate) use crate::link::rights::{Needs, check, forbids_scripts, judged};
#[cfg(feature = "redlock")]
pub(crate) use crate::link::script::GivenUp;
pub(crate) use crate::link::script::{CLOCK, Call, Script, run_all};
pub(crate) use crate::link::server::{
    Protocol, Sentinels, Server, granted_ttl, other_words, server_of_sentinels, servers, verified,
};
pub(crate) use crate::link::walk::{Keys, walk};
