//! Credentials that change: a client asks for them anew for each connection.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use leasehold_core::{Error, ErrorKind, Result};

type Function = dyn Fn() -> BoxFuture<'static, Result<(String, String)>> + Send + Sync;

/// A function of the program that returns its user and its password. Its `Debug` shows neither.
#[derive(Clone)]
pub struct Credentials(Arc<Function>);

impl Credentials {
    /// Credentials that this function returns each time it is asked.
    pub fn new<F>(function: impl Fn() -> F + Send + Sync + 'static) -> Credentials
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        Credentials(Arc::new(move || Box::pin(function())))
    }

    /// Asks the function for the current user and password.
    ///
    /// # Errors
    ///
    /// The function's error. Its kind becomes [`Unavailable`](ErrorKind::Unavailable) unless it is
    /// [`Invalid`](ErrorKind::Invalid) or [`Denied`](ErrorKind::Denied), so that the function is
    /// asked again.
    pub async fn ask(&self) -> Result<(String, String)> {
        (self.0)().await.map_err(|e| {
            let last = matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Denied);
            let kind = if last {
                e.kind()
            } else {
                ErrorKind::Unavailable
            };
            Error::new(kind, format!("the credentials: {e}"))
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    #[tokio::test]
    async fn they_are_asked_for_each_time_and_never_shown() {
        let asked = AtomicU32::new(0);
        let credentials = Credentials::new(move || {
            let password = format!("s3cret{}", asked.fetch_add(1, SeqCst));
            async move { Ok(("me".to_owned(), password)) }
        });
        for expected in ["s3cret0", "s3cret1"] {
            assert_eq!(
                credentials.ask().await.unwrap(),
                ("me".to_owned(), expected.to_owned())
            );
        }
        assert_eq!(format!("{credentials:?}"), "Credentials");
    }

    #[tokio::test]
    async fn a_failure_may_pass_unless_the_function_says_that_it_is_final() {
        use ErrorKind::{Ambiguous, Denied, Invalid, Lost, Unavailable};

        for (said, kind) in [
            (Invalid, Invalid),
            (Denied, Denied),
            (Unavailable, Unavailable),
            (Ambiguous, Unavailable),
            (Lost, Unavailable),
        ] {
            let credentials =
                Credentials::new(move || async move { Err(Error::new(said, "no vault")) });
            let error = credentials.ask().await.unwrap_err();
            assert!(
                error.kind() == kind && error.to_string().contains("the credentials: "),
                "{error:?}"
            );
        }
    }
}
