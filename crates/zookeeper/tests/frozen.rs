//! Calls that are polled no more, as behind another branch of a `select!` or in a runtime that is not driven: what they have begun keeps no
//! other task of the client from its locks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use common::*;
use leasehold_core::seam::{Backend, Claim, Claimed};
use leasehold_core::{FencingToken, Store};
use leasehold_testbed::Proxy;
use leasehold_testbed::seam::within;
use leasehold_zookeeper::ZooKeeper;
use tokio::runtime::Builder;

/// A claim that goes on only while it is polled.
struct Call<'a>(Pin<Box<dyn Future<Output = leasehold_core::Result<Claimed>> + Send + 'a>>);

impl<'a> Call<'a> {
    fn of(client: &'a ZooKeeper, claim: &'a Claim) -> Call<'a> {
        let mut call = client.claim(claim);
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        Call(call)
    }
}

async fn claimed(client: &ZooKeeper, claim: &Claim) -> Claimed {
    loop {
        match client.claim(claim).await {
            Ok(claimed) => return claimed,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

#[tokio::test]
async fn who_opens_a_session_and_is_polled_no_more_keeps_no_other_from_it() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (stuck, other) = (fair("a", SHORT), fair("b", SHORT));
        let mut call = Call::of(&client, &stuck);
        assert!(matches!(within(20, claimed(&client, &other)).await, Claimed::Granted(_)));
        // It goes on after all, and takes nothing from what there is by then.
        drop(call.0.as_mut().await);
        assert!(matches!(claimed(&client, &stuck).await, Claimed::Granted(_)));
        granted(&client, &other).await;
        until_entries(&server, 2, 2).await;
    })
    .await;
}

#[tokio::test]
async fn who_reads_how_tokens_are_raised_and_is_polled_no_more_keeps_no_other_from_it() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (client, raiser) = (at(proxy.addr()).await, at(server.addr()).await);
        granted(&client, &fair("warm", LONG)).await;
        raiser.raise(FencingToken::new(1 << 50)).await.unwrap();
        let (stuck, other) = (fair("a", LONG), fair("b", LONG));
        let reads = proxy.hold_matching("/test/.leasehold/base");
        let mut call = Call::of(&client, &stuck);
        tokio::select! {
            biased;
            () = reads.sprung() => {}
            claimed = call.0.as_mut() => unreachable!("without reading: {claimed:?}"),
        }
        proxy.deliver_held();
        let Claimed::Granted(first) = within(20, claimed(&client, &other)).await else { unreachable!("nobody else") };
        assert!(first.token.get() > 1 << 50);
        drop(call.0.as_mut().await);
        let Claimed::Granted(grant) = claimed(&client, &stuck).await else { unreachable!("nobody else") };
        assert!(grant.token.get() > 1 << 50);
    })
    .await;
}

#[tokio::test]
async fn who_reads_a_queue_and_is_polled_no_more_keeps_no_other_from_it() {
    limited(async {
        let server = server().await;
        let (client, holder) = (client(&server).await, at(server.addr()).await);
        granted(&holder, &fair("a", LONG)).await;
        waiting(&client, &fair("a", LONG)).await;
        let (stuck, other) = (fair("a", LONG), fair("a", LONG));
        let _call = Call::of(&client, &stuck);
        assert!(matches!(within(20, claimed(&client, &other)).await, Claimed::Waiting(_)));
    })
    .await;
}

/// Two stores of one client share its sessions. Where the runtime of the first one is not driven, the second one keeps the session: a hold
/// of the first is not kept, and not said to be.
#[test]
fn a_hold_that_nobody_renews_is_over_before_its_entry_is_removed() {
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let second = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, client, kept) = second.block_on(limited(async {
        let server = server().await;
        let client = client(&server).await;
        let kept = hold(&Store::new(client.clone()), "b", SHORT).await;
        (server, client, kept)
    }));
    let guard = first.block_on(limited(hold(&Store::new(client), "a", SHORT)));
    second.block_on(limited(async {
        let (store, view) = (store(&server).await, guard.view());
        let next = hold_patiently(&store, "a", SHORT).await;
        // Asked at once: a busy machine may be late.
        assert_eq!(view.remaining(), Duration::ZERO, "two at once");
        next.release().await.unwrap();
        kept.release().await.unwrap();
    }));
    drop(guard);
}
