//! What a session tells those who use it.

use std::future::Future;

use leasehold_core::Loss;

use crate::client::connection::Closed;
use crate::client::session::Session;
use crate::error::Answer;

/// What a session reports to, from its beginning on.
pub(crate) trait SessionHandler: Default + Send + 'static {
    /// The session's [`validity`](Liveness::validity) may have grown. Called four times in the session's timeout while it is connected,
    /// and when the connection is lost.
    fn extended(session: &Session<Self>);

    /// The connection works: what is left to do can be done. Called when it is made and as often, but not while it still runs.
    fn tend(session: &Session<Self>) -> impl Future<Output = ()> + Send;

    /// The session is about to be connected again, over this connection: perhaps to a server that has old data again.
    fn reconnected(&mut self, over: &Closed);

    /// Another client notified this session: some of its nodes may have been removed. After an error it is called again.
    fn notified(session: &Session<Self>) -> impl Future<Output = Answer<()>> + Send;

    /// A server has agreed to less than it did a moment before, and to less than was promised until now.
    fn shortened(session: &Session<Self>);

    /// The session has ended, and with it all its nodes.
    fn ended(session: &Session<Self>, loss: Loss);

    /// Whether nothing here needs the session. It is closed after a minute without use.
    fn is_idle(&self) -> bool;

    /// Whether something was promised that depends on the session's validity: its keep-alives are writes then.
    fn is_holding(&self) -> bool;
}
