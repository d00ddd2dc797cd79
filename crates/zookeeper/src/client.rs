//! The client that the store is built on. It knows servers, sessions, and nodes that live as long
//! as a session, and no lock.
//!
//! A session is opened when it is first needed, one for each TTL in use. Writes verify that it
//! lives. It is closed when nothing has used it for a while. Its events are reported to its
//! [`SessionHandler`].

mod base;
mod connection;
mod identity;
mod keep_alive;
mod liveness;
mod node;
mod reach;
mod request;
#[cfg(feature = "tls-no-provider")]
mod secure;
mod session;
mod sessions;
mod shared;
mod single_flight;

pub(crate) use base::{Raises, read_raises};
pub(crate) use connection::{Client, Closed};
pub(crate) use liveness::Liveness;
pub(crate) use node::{First, Node, Unchanged};
pub(crate) use request::{AT_ONCE, RETRY_INTERVAL, children, exists, found, mkdir, read};
#[cfg(feature = "tls-no-provider")]
pub(crate) use secure::secure_host;
pub(crate) use session::{Session, SessionHandler};
pub(crate) use sessions::Sessions;
pub(crate) use shared::SharedAnswers;
pub(crate) use single_flight::SingleFlight;
