//! The queues that are still to be read over a connection that was made anew.

use std::collections::HashSet;
use std::sync::Arc;

use crate::client::{Client, Closed, SingleFlight};

/// The progress of reading the queues of all holds over this connection; it exists until all are
/// read. Each connection has its own, because work that was begun over an earlier one may never
/// end.
pub(crate) struct Unread {
    over: Closed,
    /// The paths of the locks' nodes whose queues were read.
    pub(crate) read: HashSet<String>,
    /// The turn of the one task that reads the queues.
    pub(crate) turns: Arc<SingleFlight>,
}

impl Unread {
    pub(crate) fn over(over: &Closed) -> Unread {
        Unread {
            over: over.clone(),
            read: HashSet::new(),
            turns: Arc::default(),
        }
    }

    /// Returns whether `client` has this connection.
    pub(crate) fn is_over(&self, client: &Client) -> bool {
        self.over.same_channel(&client.closed)
    }
}
