//! Where the token is spent: a write to ZooKeeper that is refused once its writer's hold is gone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use leasehold_core::{ErrorKind, Loss, Name, Store};
use leasehold_testbed::Proxy;
use leasehold_zookeeper::ZooKeeper;
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
        let (far_store, near_store) = (Store::new(paused.clone()), Store::new(near.clone()));
        let resource = Client::connect(server.addr()).await.unwrap();
        resource.create("/row", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();

        let guard = hold(&far_store, "a", SHORT).await;
        let fence = paused.still_holds(&guard).unwrap();
        write(&resource, &fence, b"first").await.unwrap();
        // The same while it is proclaimed or downgraded: the node is the hold, not its version.
        proxy.hold();
        let next = hold_patiently(&near_store, "a", SHORT).await;
        assert_eq!(guard.lost().await, Loss::Expired);
        assert_eq!(paused.still_holds(&guard).unwrap_err().kind(), ErrorKind::Lost);
        let later = near.still_holds(&next).unwrap();
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
        let store = Store::new(client.clone());
        let resource = Client::connect(server.addr()).await.unwrap();
        resource.create("/row", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
        let leader = store.election("a").ttl(LONG).campaign("one").await.unwrap();
        let fence = client.still_holds(&leader).unwrap();
        leader.proclaim("another").await.unwrap();
        write(&resource, &fence, b"x").await.unwrap();
        leader.confirm().await.unwrap();
        write(&resource, &fence, b"y").await.unwrap();
        assert_eq!(fence, client.still_holds(&leader).unwrap());
        assert!(store.evict("a", leader.fencing_token()).await.unwrap());
        assert!(is_refused(&write(&resource, &fence, b"z").await));
        leader.lost().await;
        assert_eq!(client.still_holds(&leader).unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(resource.get_data("/row").await.unwrap().0, b"y");
    })
    .await;
}

/// The hold is found by its full name and its place: namespaces, names that end alike, other clients, other roots.
#[tokio::test]
async fn a_fence_is_of_this_guard_and_of_no_other() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let url = format!("zookeeper://{}/other", server.addr());
        let others = [at(server.addr()).await, ZooKeeper::connect(&url).await.unwrap()];
        let resource = Client::connect(server.addr()).await.unwrap();
        resource.create("/row", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
        let store = Store::new(client.clone());
        let inner = store.clone().namespace("b");
        let places = [(&store, "a"), (&inner, "a"), (&inner, "b/a"), (&store, "a/"), (&store, "%2Fa"), (&store, ".")];
        let mut held = Vec::new();
        for (space, name) in places {
            let guard = hold(space, name, LONG).await;
            let fence = client.still_holds(&guard).unwrap();
            for other in &others {
                let e = other.still_holds(&guard).unwrap_err();
                assert_eq!((e.kind(), e.name().map(Name::as_str)), (ErrorKind::Lost, Some(name)));
            }
            held.push((guard, fence));
        }
        while let Some((guard, fence)) = held.pop() {
            write(&resource, &fence, b"held").await.unwrap();
            guard.release().await.unwrap();
            assert!(is_refused(&write(&resource, &fence, b"released").await), "{fence}");
            for (guard, fence) in &held {
                assert_eq!(client.still_holds(guard).unwrap(), *fence);
                write(&resource, fence, b"held").await.unwrap();
            }
        }
        let again = hold(&store, "a", LONG).await;
        assert_eq!(others[0].still_holds(&again).unwrap_err().kind(), ErrorKind::Lost);
        write(&resource, &client.still_holds(&again).unwrap(), b"again").await.unwrap();
    })
    .await;
}
