//! What the conformance suite cannot see of `still_holds`: other clients of the same server, other
//! roots, odd names.

use crate::common::*;
use leasehold_core::{ErrorKind, Name, Store};
use zookeeper_client::{Acls, CheckWriteError, Client, CreateMode, Error as ZkError};

/// Writes what is guarded, if the hold at this node exists.
async fn write(client: &Client, fence: &str, data: &[u8]) -> Result<(), CheckWriteError> {
    let mut writer = client.new_check_writer(fence, None).unwrap();
    writer.add_set_data("/row", data, None).unwrap();
    writer.commit().await.map(drop)
}

/// The hold is found by its full name and its place: namespaces, names that end alike, other
/// clients, other roots.
#[tokio::test]
async fn a_fence_is_of_this_guard_and_of_no_other() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let url = format!("zookeeper://{}/other", server.addr());
        let others = [at(server.addr()).await, connected(&url).await];
        let resource = Client::connect(server.addr()).await.unwrap();
        resource
            .create(
                "/row",
                b"",
                &CreateMode::Persistent.with_acls(Acls::anyone_all()),
            )
            .await
            .unwrap();
        let store = Store::new(client.clone());
        let inner = store.clone().namespace("b");
        let places = [
            (&store, "a"),
            (&inner, "a"),
            (&inner, "b/a"),
            (&store, "a/"),
            (&store, "%2Fa"),
            (&store, "."),
        ];
        let mut held = Vec::new();
        for (space, name) in places {
            let guard = hold(space, name, LONG).await;
            let fence = client.still_holds(&guard).unwrap();
            for other in &others {
                let e = other.still_holds(&guard).unwrap_err();
                assert_eq!(
                    (e.kind(), e.name().map(Name::as_str)),
                    (ErrorKind::Lost, Some(name))
                );
            }
            held.push((guard, fence));
        }
        while let Some((guard, fence)) = held.pop() {
            write(&resource, &fence, b"held").await.unwrap();
            guard.release().await.unwrap();
            let answer = write(&resource, &fence, b"released").await;
            let refused = matches!(
                answer,
                Err(CheckWriteError::CheckFailed {
                    source: ZkError::NoNode
                })
            );
            assert!(refused, "{fence}: {answer:?}");
            for (guard, fence) in &held {
                assert_eq!(client.still_holds(guard).unwrap(), *fence);
                write(&resource, fence, b"held").await.unwrap();
            }
        }
        assert_eq!(resource.get_data("/row").await.unwrap().0, b"held");
        // A proclamation writes to the node, and the fence is the same.
        let leader = store.election("a").ttl(LONG).campaign("one").await.unwrap();
        let fence = client.still_holds(&leader).unwrap();
        leader.proclaim("another").await.unwrap();
        assert_eq!(client.still_holds(&leader).unwrap(), fence);
        write(&resource, &fence, b"again").await.unwrap();
        // A transaction that arrives late would be executed in the turn of the next task.
        let guard = store.lock("b").fast().acquire().await.unwrap();
        let refused = client.still_holds(&guard).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    })
    .await;
}
