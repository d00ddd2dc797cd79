//! Connections that are made again while locks are held.

use std::time::Duration;

use crate::common::*;
use leasehold_core::{ErrorKind, Store};
use leasehold_testbed::Proxy;

/// One after the other they would take up all of its time.
#[tokio::test]
async fn a_session_finds_the_server_that_answers_before_it_ends() {
    limited(async {
        let ensemble = ensemble_of_one().await;
        let server = &ensemble.members()[0];
        let (servers, proxies) = beside_silent_ones(server, 4).await;
        let store = Store::new(at(&servers).await);
        let guard = hold_patiently(&store, "a", Duration::from_secs(8)).await;
        for round in 0..8 {
            proxies[4].disconnect().await;
            // Until it is connected again.
            while let Err(e) = guard.confirm().await {
                assert_ne!(e.kind(), ErrorKind::Lost, "round {round}: {e:?}");
            }
        }
        guard.release().await.unwrap();
    })
    .await;
}

/// A session that is connected again, and whose first write there is not answered in time, still
/// holds what it held: whoever gives up that connection must not close it.
#[tokio::test]
async fn a_connection_that_is_not_verified_does_not_end_its_session() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let holder = Store::new(at(proxy.addr()).await);
        let guard = hold_patiently(&holder, "a", LONG).await;
        // The write of a keep-alive: its number, and the node.
        let write = proxy.hold_reply_matching(b"\0\0\0\x05\0\0\0\x10/test/.leasehold");
        proxy.disconnect().await;
        write.sprung().await;
        // Until it is connected once more.
        while let Err(e) = guard.confirm().await {
            assert_ne!(e.kind(), ErrorKind::Lost, "{e:?}");
        }
        let refused = store(&server)
            .await
            .lock("a")
            .try_acquire()
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Contended);
        guard.release().await.unwrap();
    })
    .await;
}
