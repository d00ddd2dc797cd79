//! Which queues are still to be read over a connection that was made anew.

use std::collections::HashSet;
use std::sync::Arc;

use crate::client::{Client, Closed, Turns};

/// Until the queues of all holds were read over this connection. Each connection has its own: what is begun over one may never end.
pub(crate) struct Unread {
    over: Closed,
    /// The paths of the locks' nodes whose queues were.
    pub(crate) read: HashSet<String>,
    /// One task reads them.
    pub(crate) turns: Arc<Turns>,
}

impl Unread {
    pub(crate) fn over(over: &Closed) -> Unread {
        Unread { over: over.clone(), read: HashSet::new(), turns: Arc::default() }
    }

    /// Whether this is the connection.
    pub(crate) fn is_over(&self, client: &Client) -> bool {
        self.over.same_channel(&client.closed)
    }
}
