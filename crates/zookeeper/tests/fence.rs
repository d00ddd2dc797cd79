//! Where the token is spent: a write to ZooKeeper that is refused once its writer's hold is gone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use leasehold_core::seam::{Backend, Tenure};
use leasehold_core::{ErrorKind, FencingToken, Loss, Name};
use leasehold_testbed::Proxy;
use zookeeper_client::{Acls, CheckWriteError, Client, CreateMode, Error as ZkError};

/// Writes what is guarded, if the hold at this node is there.
async fn write(client: &Client, fence: &str, data: &[u8]) -> Result<(), CheckWriteError> {
    let mut writer = client.new_check_writer(fence, None).unwrap();
    writer.add_set_data("/row", data, None).unwrap();
    writer.commit().await.map(drop)
}

fn is_refused(answer: &Result<(), CheckWriteError>) -> bool {
    matches!(answer, Err(CheckWriteError::CheckFailed { source: ZkError::NoNode }))
}

#[tokio::test]
async fn a_holder_that_was_cut_off_writes_no_more() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (paused, near) = (at(proxy.addr()).await, client(&server).await);
        let (far_store, near_store) =
            (leasehold_core::Store::new(paused.clone()), leasehold_core::Store::new(near.clone()));
        let resource = Client::connect(server.addr()).await.unwrap();
        resource.create("/row", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();

        let guard = hold(&far_store, "a", SHORT).await;
        let fence = paused.fence(guard.name(), guard.fencing_token()).await.unwrap();
        write(&resource, &fence, b"first").await.unwrap();
        // The same while it is proclaimed or downgraded: the node is the hold, not its version.
        proxy.hold();
        let next = hold_patiently(&near_store, "a", SHORT).await;
        assert_eq!(guard.lost().await, Loss::Expired);
        let later = near.fence(next.name(), next.fencing_token()).await.unwrap();
        write(&resource, &later, b"second").await.unwrap();
        // What the first holder sends now, not knowing, comes too late.
        let answer = write(&resource, &fence, b"stale").await;
        assert!(is_refused(&answer), "{answer:?}");
        assert_eq!(resource.get_data("/row").await.unwrap().0, b"second");
        // And also when nobody else holds.
        next.release().await.unwrap();
        assert!(is_refused(&write(&resource, &later, b"late").await));
        assert_eq!(resource.get_data("/row").await.unwrap().0, b"second");
    })
    .await;
}

#[tokio::test]
async fn a_fence_is_of_one_hold_and_outlives_what_is_said_of_it() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let resource = Client::connect(server.addr()).await.unwrap();
        resource.create("/row", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
        let (name, claim) = (Name::new("a"), fair("a", LONG));
        let grant = granted(&client, &claim).await;
        let behind = fair("a", LONG);
        waiting(&client, &behind).await;
        let turn = FencingToken::new(grant.token.get() + 3);
        let fence = client.fence(&name, turn).await.unwrap();
        assert_eq!(fence, client.fence(&name, grant.token).await.unwrap());
        granted(&client, &claim.clone().with_label("another")).await;
        write(&resource, &fence, b"x").await.unwrap();
        let tenure = Tenure::new(claim.clone().into(), grant.place.clone(), Some(grant.token));
        client.renew(&[tenure]).await.unwrap();
        write(&resource, &fence, b"y").await.unwrap();
        // Nobody holds with another token, and one who waits does not hold.
        for nobody in [FencingToken::new(256), FencingToken::new(grant.token.get() + 256)] {
            assert_eq!(client.fence(&name, nobody).await.unwrap_err().kind(), ErrorKind::Lost);
        }
        assert!(client.evict(&name, grant.token).await.unwrap());
        assert!(is_refused(&write(&resource, &fence, b"z").await));
        assert_eq!(client.fence(&name, grant.token).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(resource.get_data("/row").await.unwrap().0, b"y");
    })
    .await;
}
