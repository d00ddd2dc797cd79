//! Deletions have no condition: one that is late must meet no later entry of its key.

use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Grant};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use tokio::time::timeout;

/// A deletion that is held up in the network, and arrives when the name is held again: its release
/// was dropped, or failed, or another endpoint answered. `None`: that one was not held up.
async fn late_deletion(server: &testbed::Etcd, way: u32) -> Option<bool> {
    let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
    let second = if way == 2 {
        format!(",{}", server.addr())
    } else {
        String::new()
    };
    let etcd = Etcd::connect(&format!("etcd://{}{second}/test?timeout=150", proxy.addr()))
        .await
        .unwrap();
    let (first, next) = (fair("late"), fair("late"));
    becomes_granted(&etcd, &first).await;
    let trap = proxy.hold_matching("test/late/");
    let mut answered = false;
    if way == 0 {
        let mut release = etcd.release(&first, None);
        while !trap.has_sprung() && !answered {
            // On a busy machine its time may be over before it is held up.
            answered = timeout(Duration::from_millis(5), &mut release)
                .await
                .is_ok();
        }
    }
    while etcd.release(&first, None).await.is_err() {}
    let sprung = trap.has_sprung();
    let token = becomes_granted(&etcd, &next).await.token;
    proxy.deliver_held();
    if sprung {
        trap.done().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let lives = keys(server, "test/late/").await.len() == 1
        && becomes_granted(&etcd, &next).await.token == token;
    while etcd.release(&next, None).await.is_err() {}
    while etcd.close().await.is_err() {}
    (sprung && !answered).then_some(lives)
}

#[tokio::test]
async fn a_late_deletion_frees_no_other() {
    within(60, async {
        let server = server().await;
        for way in [0, 1, 2, 0, 1, 2] {
            // Of two endpoints, the one that is asked first is chosen at random.
            let lives = loop {
                if let Some(lives) = late_deletion(&server, way).await {
                    break lives;
                }
            };
            assert!(lives, "way {way}");
        }
    })
    .await;
}

/// Which may happen in any order, and one that is confirmed does not say that the other has ended.
#[tokio::test]
async fn a_key_of_which_two_releases_are_under_way_is_never_used_again() {
    within(30, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let (first, second, third) = (fair("a"), fair("a"), fair("a"));
        let before = becomes_granted(&etcd, &first).await;
        let used_again = |grant: &Grant| grant.place.as_str() == before.place.as_str();
        release(&etcd, &first).await;
        assert!(
            used_again(&becomes_granted(&etcd, &second).await),
            "the control"
        );
        {
            let mut under_way = etcd.release(&second, None);
            assert!(futures_util::poll!(&mut under_way).is_pending());
            release(&etcd, &second).await;
            under_way.await.unwrap();
        }
        assert!(!used_again(&becomes_granted(&etcd, &third).await));
        release(&etcd, &third).await;
    })
    .await;
}
