//! Parts that the tests of every store share: a limit on each test, and the answers of a store to
//! one claim.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]
#![allow(
    missing_docs,
    reason = "each does what its name says, and fails the test if it cannot"
)]

use std::{error::Error as _, fmt::Debug, future::Future, sync::Arc, time::Duration};

use leasehold_conformance::context;
use leasehold_core::backend::{
    Backend, Claim, Grant, LeaseRef, Mode, Place, Renewal, WaitPolicy, Waiting,
};
use leasehold_core::{Contention, ErrorKind, FencingToken};

/// A lease that is long enough that nothing expires by accident.
pub const TTL: Duration = Duration::from_secs(10);

/// Runs a test within the limit that all tests have: ten times what the longest takes on a quiet machine.
pub async fn bounded<T>(test: impl Future<Output = T>) -> T {
    within(240, test).await
}

pub async fn within<T>(seconds: u64, test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), Box::pin(test))
        .await
        .expect("the test hangs")
}

/// Asks again until the answer is `true`.
pub async fn until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    while !is_so().await {
        sleep(10).await;
    }
}

/// Connects a client, and tries again as long as a busy machine does not let it in.
pub async fn connected<T, F: Future<Output = leasehold_core::Result<T>>>(
    connect: impl Fn() -> F,
) -> T {
    loop {
        match connect().await {
            Ok(client) => return client,
            Err(e) => assert!(e.is_retryable(), "a client: {e:?}"),
        }
        sleep(10).await;
    }
}

pub async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

pub async fn granted(store: &dyn Backend, claim: &Claim) -> Grant {
    context::granted(store.claim(claim).await)
}

pub async fn waiting(store: &dyn Backend, claim: &Claim) -> Waiting {
    context::waiting(store.claim(claim).await)
}

pub async fn busy(store: &dyn Backend, claim: &Claim) -> Contention {
    context::busy("it is not busy", store.claim(claim).await)
}

/// A lease to renew, for a store that finds the claim by its name and its id.
pub fn lease(claim: &Claim, token: impl Into<Option<FencingToken>>) -> LeaseRef {
    LeaseRef::new(Arc::new(claim.clone()), Place::new("unused"), token.into())
}

pub async fn renewed(
    store: &dyn Backend,
    claim: &Claim,
    token: impl Into<Option<FencingToken>>,
) -> Renewal {
    context::renewed(store, &lease(claim, token)).await.unwrap()
}

/// The kind of the error that the answer has to be.
pub fn kind<T: Debug>(answer: leasehold_core::Result<T>) -> ErrorKind {
    answer.map_err(|e| e.kind()).unwrap_err()
}

/// All words of the error that the answer has to be, and of its causes. None of the secrets may be
/// among them.
pub fn words_without<T: Debug>(secrets: &[&str], answer: leasehold_core::Result<T>) -> String {
    let error = answer.unwrap_err();
    let mut words = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        words += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    for secret in secrets {
        assert!(!words.contains(secret), "{words}");
    }
    words
}

/// The error of each verb when all its requests are refused. None may contain this secret or the
/// claim's id. Each verb has a client of its own, since some refusals end the connection. A claim
/// after it is refused as well.
pub async fn refusals<B: Backend>(
    client: impl AsyncFn() -> B,
    secret: &str,
) -> Vec<(&'static str, String)> {
    let claims =
        ["x", "y"].map(|name| Claim::new(name, Mode::Exclusive, WaitPolicy::Fast, TTL, "refused"));
    let claim = &claims[0];
    let id = claims[0].id.to_string();
    let secrets = [secret, &id];
    let mut said = Vec::new();
    for verb in [
        "claim",
        "claim_all",
        "renew",
        "release",
        "release_after",
        "inspect",
        "list",
        "evict",
    ] {
        let store = client().await;
        assert!(!format!("{store:?} {:?}", store.guarantees()).contains(secret));
        let words = match verb {
            "claim" => words_without(&secrets, store.claim(claim).await),
            "claim_all" => words_without(&secrets, store.claim_all(&claims).await),
            "renew" => match renewed(&store, claim, None).await {
                Renewal::Unknown(error) => words_without(&secrets, Err::<(), _>(error)),
                // A store without places for waiters sends no request.
                _ => continue,
            },
            "release" => words_without(&secrets, store.release(claim, None).await),
            "release_after" => words_without(&secrets, store.release_after(claim, None, TTL).await),
            "inspect" => words_without(&secrets, store.inspect(&claim.name).await),
            "list" => words_without(&secrets, store.list("", None, 9).await),
            _ => words_without(
                &secrets,
                store.evict(&claim.name, FencingToken::new(7)).await,
            ),
        };
        said.push((verb, words));
        let _ = words_without(&secrets, store.claim(claim).await);
    }
    said
}
