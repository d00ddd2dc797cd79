//! The server has old data again, and sessions that were in them live on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Claimed, LeaseRef, Renewal};
use leasehold_core::{LockQueue, Loss};

/// Longer than a server takes to start, also on a busy machine: a server that starts gives each
/// session its whole time again.
const TTL: Duration = Duration::from_secs(30);

/// Copies the data of a server that does not run.
fn copy(from: &Path, to: &Path) {
    std::fs::remove_dir_all(to).unwrap_or_default();
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &to);
        } else {
            std::fs::copy(file.path(), to).unwrap();
        }
    }
}

/// The entry of a lock that was released since then is there again, and would be as long as its
/// client's session: for ever, if that client goes on. What is still held stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_released_before_is_released_again() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (held, released) = (fair("held", TTL), fair("released", TTL));
        let grants = [
            granted(&client, &held).await,
            granted(&client, &released).await,
        ];
        let lease = [LeaseRef::new(
            Arc::new(held),
            grants[0].place.clone(),
            Some(grants[0].token),
        )];
        let renewed = async || client.renew(&lease).await.unwrap().remove(0);
        server.kill().await.unwrap();
        let saved = server.data().with_extension("saved");
        copy(server.data(), &saved);
        server.start_again().await.unwrap();
        until(|| async {
            client
                .release(&released, Some(&grants[1].place))
                .await
                .is_ok()
        })
        .await;
        until(|| async {
            client
                .inspect(&released.name)
                .await
                .is_ok_and(|queue| queue.holders.is_empty())
        })
        .await;
        assert!(!matches!(renewed().await, Renewal::Lost(_)));
        server.kill().await.unwrap();
        copy(&saved, server.data());
        server.start_again().await.unwrap();
        let next = crate::common::client(&server).await;
        assert_eq!(
            next.inspect(&released.name).await.unwrap().holders.len(),
            1,
            "it is there again"
        );
        let waits = fair("released", TTL);
        until(|| async {
            let renewed = renewed().await;
            assert!(
                !matches!(renewed, Renewal::Lost(_)),
                "the session has ended: {renewed:?}"
            );
            matches!(next.claim(&waits).await, Ok(Claimed::Granted(_)))
        })
        .await;
        until(|| async { matches!(renewed().await, Renewal::Renewed(_)) }).await;
    })
    .await;
}

/// A waiter's session had ended, and with it its place; then the next one was granted. In data of
/// before, both are there, the waiter first: its client, which stood still perhaps, is granted
/// next. So who holds by the later place is told that it has lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_behind_a_waiter_of_before_has_lost() {
    limited(async {
        let server = server().await;
        let (first, waiter, next) = (
            client(&server).await,
            client(&server).await,
            client(&server).await,
        );
        let (holds, waits, follows) = (fair("a", TTL), fair("a", TTL), fair("a", TTL));
        let place = granted(&first, &holds).await.place;
        waiting(&waiter, &waits).await;
        waiting(&next, &follows).await;
        server.kill().await.unwrap();
        let saved = server.data().with_extension("saved");
        copy(server.data(), &saved);
        server.start_again().await.unwrap();
        until(|| async { waiter.close().await.is_ok() }).await;
        until(|| async { first.release(&holds, Some(&place)).await.is_ok() }).await;
        let mut grant = None;
        until(|| async { matches!(next.claim(&follows).await, Ok(Claimed::Granted(_))) }).await;
        until(|| async {
            next.inspect(&follows.name)
                .await
                .is_ok_and(|queue| queue.waiters.is_empty())
        })
        .await;
        if let Claimed::Granted(again) = next.claim(&follows).await.unwrap() {
            grant = Some(again);
        }
        let grant = grant.unwrap();
        let lease = [LeaseRef::new(
            Arc::new(follows),
            grant.place.clone(),
            Some(grant.token),
        )];
        assert!(matches!(
            next.renew(&lease).await.unwrap()[0],
            Renewal::Renewed(_)
        ));
        server.kill().await.unwrap();
        copy(&saved, server.data());
        server.start_again().await.unwrap();
        until(|| async {
            match next.renew(&lease).await.unwrap().remove(0) {
                Renewal::Lost(loss) => loss == Loss::Gone,
                Renewal::Renewed(_) => panic!("it is behind one that waits"),
                _ => false,
            }
        })
        .await;
        // Nothing of it is in the way of others.
        let is_next = |queue: LockQueue| queue.waiters.is_empty() && queue.holders.len() == 1;
        until(|| async { first.inspect(&waits.name).await.is_ok_and(is_next) }).await;
    })
    .await;
}

/// What a client had released since is in the data of before, ahead of what the same client was
/// granted then: nobody comes to hold by that, and it is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_its_own_client_had_released_keeps_no_hold_out() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (first, follows) = (fair("a", TTL), fair("a", TTL));
        let place = granted(&client, &first).await.place;
        waiting(&client, &follows).await;
        server.kill().await.unwrap();
        let saved = server.data().with_extension("saved");
        copy(server.data(), &saved);
        server.start_again().await.unwrap();
        until(|| async { client.release(&first, Some(&place)).await.is_ok() }).await;
        until(|| async { matches!(client.claim(&follows).await, Ok(Claimed::Granted(_))) }).await;
        let grant = granted(&client, &follows).await;
        let lease = [LeaseRef::new(
            Arc::new(follows),
            grant.place,
            Some(grant.token),
        )];
        server.kill().await.unwrap();
        copy(&saved, server.data());
        server.start_again().await.unwrap();
        until(|| async {
            match client.renew(&lease).await.unwrap().remove(0) {
                Renewal::Lost(loss) => panic!("{loss:?}: nobody else can hold"),
                renewed => matches!(renewed, Renewal::Renewed(_)),
            }
        })
        .await;
        let is_alone = |queue: LockQueue| {
            queue.waiters.is_empty() && queue.holders[0].token == Some(grant.token)
        };
        until(|| async { client.inspect(&first.name).await.is_ok_and(is_alone) }).await;
    })
    .await;
}
