//! A connection that a pool of the program has lent.
//!
//! It goes back to the pool when it is dropped, unless a request on it was not answered, or it may
//! have a transaction open: then it is closed, so that nobody else gets it in that state. A pool may
//! start tasks when it gets a connection back, so that happens in the runtime of the loan.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::support::locked;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::client::answer::Row;
use crate::client::request::Request;
use crate::error::Failure;
use crate::pool::PooledConnection;

/// The time in which a pool takes a connection back. One that asks it first whether it lives may
/// wait for an answer that never comes.
const RETURN: Duration = Duration::from_secs(5);

/// A connection of a pool, until it is dropped.
pub(crate) struct Lent {
    /// `None` during a request, and after the end of the connection.
    connection: Mutex<Option<Box<dyn PooledConnection>>>,
    runtime: Handle,
    /// One of the connections that the store may borrow at once.
    permit: Arc<OwnedSemaphorePermit>,
    has_served: AtomicBool,
    /// The session may have been the reason why a request failed.
    has_failed: AtomicBool,
}

/// The connection during a request. Unless that is answered, the drop closes the connection.
struct InUse<'a> {
    lent: &'a Lent,
    connection: Option<Box<dyn PooledConnection>>,
}

impl Lent {
    /// Takes charge of a connection, in the runtime in which its pool has lent it.
    pub(crate) fn new(
        connection: Box<dyn PooledConnection>,
        permit: &Arc<OwnedSemaphorePermit>,
    ) -> Lent {
        Lent {
            connection: Mutex::new(Some(connection)),
            runtime: Handle::current(),
            permit: permit.clone(),
            has_served: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(crate) async fn query(&self, request: &Request) -> Result<Vec<Row>, Failure> {
        let mut using = self.using();
        let answer = using.connection()?.query(request).await;
        using.answered();
        answer.map_err(Failure::of_borrowed)
    }

    /// Executes a request in a transaction of the isolation level that locks need.
    pub(crate) async fn query_isolated(&self, request: &Request) -> Result<Vec<Row>, Failure> {
        let mut using = self.using();
        let connection = using.connection()?;
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
        if let Err(e) = connection.simple_query(begin).await {
            using.answered();
            return Err(Failure::of_borrowed(e));
        }
        let answer = connection.query(request).await;
        // After a failure it rolls back.
        let ended = connection.simple_query("COMMIT").await;
        if ended.is_ok() {
            using.answered();
        }
        let rows = answer.map_err(Failure::of_borrowed)?;
        ended.map(|_| rows).map_err(Failure::of_borrowed)
    }

    pub(crate) async fn simple_query(
        &self,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, Failure> {
        let mut using = self.using();
        let answer = using.connection()?.simple_query(sql).await;
        using.answered();
        answer.map_err(Failure::of_borrowed)
    }

    /// Returns whether the connection may still be used.
    pub(crate) fn is_open(&self) -> bool {
        let connection = locked(&self.connection);
        connection.as_ref().is_some_and(|it| !it.is_closed())
    }

    /// Notes that a request has ended, with this failure or without one. A session may have a time
    /// limit, or other rights than those that the store asks for. A refusal after requests that were
    /// served is about the one function.
    pub(crate) fn ended(&self, failure: Option<&Failure>) {
        let Some(failure) = failure else {
            return self.has_served.store(true, Ordering::Relaxed);
        };
        let is_first = !self.has_served.load(Ordering::Relaxed);
        if failure.is_canceled || failure.forbidden && is_first {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the session may have been the reason why a request failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Returns whether no request may succeed in the session.
    pub(crate) fn is_useless(&self) -> bool {
        self.has_failed() && !self.has_served.load(Ordering::Relaxed)
    }

    /// Closes the connection instead of giving it back.
    pub(crate) fn discard(&self) {
        let connection = locked(&self.connection).take();
        if let Some(connection) = connection {
            self.close(connection);
        }
    }

    fn close(&self, connection: Box<dyn PooledConnection>) {
        let _here = self.runtime.enter();
        connection.discard();
    }

    /// Takes the connection for a request.
    fn using(&self) -> InUse<'_> {
        InUse {
            lent: self,
            connection: locked(&self.connection).take(),
        }
    }
}

impl InUse<'_> {
    fn connection(&mut self) -> Result<&mut dyn PooledConnection, Failure> {
        let ended = || Failure::broken(Unavailable, "the borrowed connection has ended");
        self.connection.as_deref_mut().ok_or_else(ended)
    }

    /// Notes that nothing is under way on the connection any more.
    fn answered(mut self) {
        *locked(&self.lent.connection) = self.connection.take();
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.lent.close(connection);
        }
    }
}

/// The permit ends once the pool has the connection back, so that no further one is opened before,
/// or has not taken it for too long.
impl Drop for Lent {
    fn drop(&mut self) {
        let Some(connection) = locked(&self.connection).take() else {
            return;
        };
        let permit = self.permit.clone();
        let _here = self.runtime.enter();
        let given_back = connection.give_back();
        self.runtime.spawn(async move {
            let _ = timeout(RETURN, given_back).await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::poll_immediate;
    use leasehold_core::backend::async_trait;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::pool::PoolError;

    /// A connection that counts what became of it. It does not answer the statement that it is
    /// told.
    struct Counting {
        silent: &'static str,
        /// Closed, and dropped in any way.
        ends: Arc<[AtomicUsize; 2]>,
    }

    #[async_trait]
    impl PooledConnection for Counting {
        fn is_closed(&self) -> bool {
            false
        }

        async fn query(&mut self, request: &Request) -> Result<Vec<Row>, PoolError> {
            if &*request.sql == self.silent {
                pending::<()>().await;
            }
            Ok(Vec::new())
        }

        async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PoolError> {
            if sql.starts_with(self.silent) {
                pending::<()>().await;
            }
            Ok(Vec::new())
        }

        fn discard(self: Box<Self>) {
            self.ends[0].fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Drop for Counting {
        fn drop(&mut self) {
            // As pools do that start a task.
            let _ = Handle::current();
            self.ends[1].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lent(silent: &'static str) -> (Lent, Arc<[AtomicUsize; 2]>) {
        let ends: Arc<[AtomicUsize; 2]> = Arc::default();
        let connection = Counting {
            silent,
            ends: ends.clone(),
        };
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (Lent::new(Box::new(connection), &Arc::new(permit)), ends)
    }

    fn ends(ends: &[AtomicUsize; 2]) -> [usize; 2] {
        [0, 1].map(|nth| ends[nth].load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn only_a_connection_whose_requests_were_answered_goes_back() {
        let request = Request::new(&"SELECT 1".into());
        let (link, after) = lent("nothing");
        link.query(&request).await.unwrap();
        link.query_isolated(&request).await.unwrap();
        link.simple_query("SELECT 1").await.unwrap();
        assert!(link.is_open());
        drop(link);
        assert_eq!(ends(&after), [0, 1]);
        for silent in ["SELECT 1", "BEGIN", "COMMIT"] {
            let (link, after) = lent(silent);
            assert!(
                poll_immediate(link.query_isolated(&request))
                    .await
                    .is_none()
            );
            assert_eq!(ends(&after), [1, 1], "{silent}");
            assert!(!link.is_open());
            assert!(link.query(&request).await.unwrap_err().broken);
            drop(link);
            assert_eq!(ends(&after), [1, 1], "{silent}");
        }
        for sql in ["SELECT 1", "query"] {
            let (link, after) = lent("SELECT 1");
            let answer = match sql {
                "query" => poll_immediate(link.query(&request)).await.map(drop),
                sql => poll_immediate(link.simple_query(sql)).await.map(drop),
            };
            assert!(answer.is_none());
            assert_eq!(ends(&after), [1, 1], "{sql}");
        }
    }

    #[tokio::test]
    async fn a_session_in_which_requests_fail_before_one_succeeds_is_useless() {
        let failed = |code: &str| {
            Some(Failure::of_borrowed(PoolError::Refused {
                sqlstate: code.to_owned(),
                message: String::new(),
            }))
        };
        for (answers, has_failed, is_useless) in [
            (&[None, failed("55P03"), failed("42501")][..], false, false),
            (&[failed("55P03")], false, false),
            (&[failed("42501")], true, true),
            (&[failed("57014"), failed("55P03")], true, true),
            (&[None, failed("57014")], true, false),
        ] {
            let (link, _) = lent("nothing");
            for answer in answers {
                link.ended(answer.as_ref());
            }
            let found = (link.has_failed(), link.is_useless());
            assert_eq!(found, (has_failed, is_useless), "{answers:?}");
        }
    }

    #[test]
    fn a_connection_goes_back_also_where_no_runtime_is() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (link, after) = runtime.block_on(async { lent("nothing") });
        drop(link);
        assert_eq!(ends(&after), [0, 1]);
        let (link, after) = runtime.block_on(async { lent("nothing") });
        drop(runtime);
        link.discard();
        assert_eq!(ends(&after), [1, 1]);
    }
}
