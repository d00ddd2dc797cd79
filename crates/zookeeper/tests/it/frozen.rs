//! Calls that are polled no more, as behind another branch of a `select!` or in a runtime that is
//! not driven: what they have begun keeps no other task of the client from its locks.

use leasehold_core::backend::TokenFloor;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Claim, Claimed, LeaseRef, Renewal};
use leasehold_core::{DEFAULT_TTL, FencingToken, Loss, Store};
use leasehold_testbed::Proxy;
use leasehold_testbed::verbs::within;
use leasehold_zookeeper::ZooKeeper;
use tokio::runtime::Builder;
use zookeeper_client::{Client, CreateMode};

/// A call that goes on only while it is polled.
struct Call<'a, T>(Pin<Box<dyn Future<Output = leasehold_core::Result<T>> + Send + 'a>>);

impl<'a, T> Call<'a, T> {
    fn begun(
        mut call: Pin<Box<dyn Future<Output = leasehold_core::Result<T>> + Send + 'a>>,
    ) -> Call<'a, T> {
        assert!(
            call.as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
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
        let mut call = Call::begun(client.claim(&stuck));
        assert!(matches!(
            within(20, claimed(&client, &other)).await,
            Claimed::Granted(_)
        ));
        // It goes on after all, and takes nothing from what there is by then.
        drop(call.0.as_mut().await);
        assert!(matches!(
            claimed(&client, &stuck).await,
            Claimed::Granted(_)
        ));
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
        let mut call = Call::begun(client.claim(&stuck));
        tokio::select! {
            biased;
            () = reads.sprung() => {}
            claimed = call.0.as_mut() => unreachable!("without reading: {claimed:?}"),
        }
        proxy.deliver_held();
        let Claimed::Granted(first) = within(20, claimed(&client, &other)).await else {
            unreachable!("nobody else")
        };
        assert!(first.token.get() > 1 << 50);
        drop(call.0.as_mut().await);
        let Claimed::Granted(grant) = claimed(&client, &stuck).await else {
            unreachable!("nobody else")
        };
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
        let _call = Call::begun(client.claim(&stuck));
        assert!(matches!(
            within(20, claimed(&client, &other)).await,
            Claimed::Waiting(_)
        ));
    })
    .await;
}

/// A client of this proxy with a hold of its first session, so that it has no other one; and how
/// others claim it.
async fn held(proxy: &Proxy, timeout: u64) -> (ZooKeeper, Claim, [LeaseRef; 1]) {
    let client = connected(&format!(
        "zookeeper://{}/test?timeout={timeout}",
        proxy.addr()
    ))
    .await;
    let claim = fair("a", DEFAULT_TTL);
    let grant = granted(&client, &claim).await;
    let lease = LeaseRef::new(Arc::new(claim.clone()), grant.place, Some(grant.token));
    (client, claim, [lease])
}

/// Reconnects this client. The first that reads its queues then is this call, which is polled no
/// more: the session's own task waits for an answer until that is delivered.
async fn renewal_after_a_reconnect<'a>(
    proxy: &Proxy,
    client: &'a ZooKeeper,
    lease: &'a [LeaseRef],
) -> Call<'a, Vec<Renewal>> {
    let own = proxy.hold_matching("-notify");
    proxy.disconnect().await;
    own.sprung().await;
    Call::begun(client.renew(lease))
}

/// Meanwhile others find that the hold is lost, and its claim takes another place: the call, which
/// knows the former one, takes nothing from that.
#[tokio::test]
async fn what_is_found_out_late_of_an_entry_that_is_gone_takes_nothing_from_the_next_one() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let raw = Client::connect(server.addr()).await.unwrap();
        let first = first_of(&raw, "a", "lock-").await;
        let (client, claim, lease) = held(&proxy, 1000).await;
        raw.create(&first, b"", &anybodys(CreateMode::Ephemeral))
            .await
            .unwrap();
        let mut call = renewal_after_a_reconnect(&proxy, &client, &lease).await;
        let reads = proxy.hold_matching(&first);
        proxy.deliver_held();
        tokio::select! {
            biased;
            () = reads.sprung() => {}
            renewed = call.0.as_mut() => unreachable!("without reading: {renewed:?}"),
        }
        proxy.deliver_held();
        until(|| async {
            matches!(
                client.renew(&lease).await.unwrap()[0],
                Renewal::Lost(Loss::Gone)
            )
        })
        .await;
        let waits = async || match claimed(&client, &claim).await {
            Claimed::Waiting(waiting) => waiting.place,
            other => unreachable!("somebody is before it: {other:?}"),
        };
        let next = waits().await;
        drop(call.0.await);
        assert_eq!(waits().await, next, "it has lost its place");
    })
    .await;
}

#[tokio::test]
async fn who_reads_the_queues_and_is_polled_no_more_keeps_no_hold_from_its_renewal_over_the_next_connection()
 {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        // A call is waited for longer than the lease lasts.
        let (client, _, lease) = held(&proxy, 20_000).await;
        let _call = renewal_after_a_reconnect(&proxy, &client, &lease).await;
        proxy.disconnect().await;
        proxy.deliver_held();
        until(|| async {
            let renewed = client.renew(&lease).await.unwrap().remove(0);
            assert!(!matches!(renewed, Renewal::Lost(_)), "{renewed:?}");
            matches!(renewed, Renewal::Renewed(_))
        })
        .await;
    })
    .await;
}

/// Two stores of one client share its sessions. Where the runtime of the first one is not driven,
/// the second one keeps the session: a hold of the first is not kept, and not said to be.
#[test]
fn a_hold_that_nobody_renews_is_over_before_its_entry_is_removed() {
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let second = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
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
