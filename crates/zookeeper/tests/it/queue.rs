//! What a queue survives: entries that others remove, a queue that is too long, locks' nodes that
//! come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode};
use leasehold_core::{ErrorKind, Store};
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

async fn raw(server: &leasehold_testbed::ZooKeeper) -> Client {
    Client::connect(server.addr()).await.unwrap()
}

async fn holds(client: &ZooKeeper, claim: &Claim) -> bool {
    matches!(client.claim(claim).await.unwrap(), Claimed::Granted(_))
}

/// As core does it: until one of them holds, all claim again. Never do two.
async fn only_one_comes_to_hold(clients: &[ZooKeeper], claims: &[Claim]) -> usize {
    loop {
        let mut holders = Vec::new();
        for (i, claim) in claims.iter().enumerate() {
            if holds(&clients[i % clients.len()], claim).await {
                holders.push(i);
            }
        }
        assert!(holders.len() <= 1, "{holders:?} hold");
        if let [holder] = holders[..] {
            return holder;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An entry that somebody removes by hand, whether it waits or holds, lets nobody in beside
/// another.
#[tokio::test]
async fn an_entry_removed_by_hand_leaves_one_holder() {
    limited(async {
        for number_of_clients in [1, 2, 5] {
            let server = server().await;
            let (raw, mut clients) = (raw(&server).await, Vec::new());
            for _ in 0..number_of_clients {
                clients.push(client(&server).await);
            }
            for removed in 1..4 {
                let name = format!("a{removed}");
                let claims: Vec<Claim> = (0..5).map(|_| fair(&name, LONG)).collect();
                let mut places = vec![granted(&clients[0], &claims[0]).await.place];
                for (i, claim) in claims.iter().enumerate().skip(1) {
                    places.push(waiting(&clients[i % number_of_clients], claim).await.place);
                }
                raw.delete(places[removed].as_str(), None).await.unwrap();
                // All those that are still there are served, each alone; the one that was removed
                // comes last.
                let mut served = vec![0];
                clients[0].release(&claims[0], None).await.unwrap();
                while served.len() < 5 {
                    let rest: Vec<usize> = (0..5).filter(|i| !served.contains(i)).collect();
                    let (of, theirs): (Vec<ZooKeeper>, Vec<Claim>) = rest
                        .iter()
                        .map(|i| (clients[i % number_of_clients].clone(), claims[*i].clone()))
                        .unzip();
                    let next = rest[only_one_comes_to_hold(&of, &theirs).await];
                    clients[next % number_of_clients]
                        .release(&claims[next], None)
                        .await
                        .unwrap();
                    served.push(next);
                }
                let mut expected: Vec<usize> = (0..5).filter(|i| *i != removed).collect();
                expected.push(removed);
                assert_eq!(served, expected, "{number_of_clients} clients");
            }
        }
    })
    .await;
}

/// Those who come together share lists. Of a hundred tasks each has read a queue of a hundred.
#[tokio::test]
async fn those_who_come_together_share_what_they_read() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (holder, claims) = (
            fair("a", LONG),
            (0..100).map(|_| fair("a", LONG)).collect::<Vec<_>>(),
        );
        granted(&client, &holder).await;
        waiting(&client, &claims[0]).await;
        let (sent, answers) = requests(
            &server,
            join_all(claims[1..].iter().map(|claim| client.claim(claim))),
        )
        .await;
        assert!(
            answers
                .into_iter()
                .all(|answer| matches!(answer, Ok(Claimed::Waiting(_))))
        );
        assert!(
            sent <= 2 * 99 + 20,
            "{sent} requests of 99 claims: a creation and a watch each"
        );
        assert_eq!(
            client.inspect(&"a".into()).await.unwrap().waiters.len(),
            100
        );
    })
    .await;
}

/// An error is shared, too, and those whose creation was answered are withdrawn by their paths.
#[tokio::test]
async fn those_who_come_together_share_an_error() {
    limited(async {
        let server = server().await;
        let (client, raw) = (client(&server).await, raw(&server).await);
        let (holder, claims) = (
            fair("a", LONG),
            (0..100).map(|_| fair("a", LONG)).collect::<Vec<_>>(),
        );
        granted(&client, &holder).await;
        waiting(&client, &claims[0]).await;
        let unreadable = Permission::CREATE | Permission::DELETE | Permission::ADMIN;
        raw.set_acl("/test/a", &[Acl::new(unreadable, AuthId::anyone())], None)
            .await
            .unwrap();
        let (sent, answers) = requests(
            &server,
            join_all(claims[1..].iter().map(|claim| client.claim(claim))),
        )
        .await;
        assert!(
            answers
                .into_iter()
                .all(|answer| answer.is_err_and(|e| e.kind() == ErrorKind::Denied))
        );
        assert!(sent <= 99 + 20, "{sent} requests of 99 claims");
        let (sent, _) = requests(
            &server,
            join_all(claims[1..].iter().map(|claim| client.release(claim, None))),
        )
        .await;
        assert!(sent <= 99 + 3, "{sent} requests of 99 releases");
        until_entries(&server, 2, 2).await;
    })
    .await;
}

/// Readers of one client behind a writer of it, which becomes a reader: all get in at once.
#[tokio::test]
async fn a_downgrade_lets_in_the_readers_of_the_same_client() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (first, mut writer) = (of_mode(Mode::Shared, "a"), of_mode(Mode::Exclusive, "a"));
        granted(&client, &first).await;
        waiting(&client, &writer).await;
        let readers: Vec<Claim> = (0..3).map(|_| of_mode(Mode::Shared, "a")).collect();
        for reader in &readers {
            waiting(&client, reader).await;
        }
        let last = of_mode(Mode::Exclusive, "a");
        waiting(&client, &last).await;
        client.release(&first, None).await.unwrap();
        until(|| async { holds(&client, &writer).await }).await;
        for reader in &readers {
            waiting(&client, reader).await;
        }
        writer.mode = Mode::Shared;
        granted(&client, &writer).await;
        for reader in &readers {
            granted(&client, reader).await;
        }
        client.release(&writer, None).await.unwrap();
        for reader in &readers {
            waiting(&client, &last).await;
            client.release(reader, None).await.unwrap();
        }
        until(|| async { holds(&client, &last).await }).await;
    })
    .await;
}

/// A name that nobody else uses costs two requests, and nothing of it is left.
#[tokio::test]
async fn what_was_touched_leaves_nothing() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let nodes = async || {
            server.mntr().await.unwrap()["zk_znode_count"]
                .parse::<u64>()
                .unwrap()
        };
        let cycle = async |name: String| {
            let claim = fair(&name, LONG);
            let grant = granted(&client, &claim).await;
            release(&client, &claim, &grant.place).await;
        };
        cycle("warm".to_owned()).await; // the session, and the root
        let before = nodes().await;
        let (sent, _) = requests(
            &server,
            join_all((0..500).map(|i| cycle(format!("name {i}")))),
        )
        .await;
        assert_eq!(nodes().await, before);
        assert!(sent <= 2 * 500 + 5, "{sent} requests");
        // One that another client waits for stays until the server removes it; and a node that was
        // made by others for good.
        let other = crate::common::client(&server).await;
        let (first, second) = (fair("shared", LONG), fair("shared", LONG));
        granted(&client, &first).await;
        waiting(&other, &second).await;
        client.release(&first, None).await.unwrap();
        granted(&other, &second).await;
        other.release(&second, None).await.unwrap();
        assert!(
            raw(&server)
                .await
                .check_stat("/test/shared")
                .await
                .unwrap()
                .is_some()
        );
        let (raw, persistent) = (
            raw(&server).await,
            CreateMode::Persistent.with_acls(Acls::anyone_all()),
        );
        raw.create("/test/made", b"", &persistent).await.unwrap();
        cycle("made".to_owned()).await;
        assert!(raw.check_stat("/test/made").await.unwrap().is_some());
    })
    .await;
}

/// Clients that take, release and take a lock again, while its node comes and goes: one holds, and
/// all get on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_s_node_that_comes_and_goes_is_one_lock() {
    limited(async {
        let (server, held) = (server().await, Arc::new(AtomicU32::new(0)));
        let tasks = (0..6u64).map(|i| {
            let (addr, held) = (server.addr().to_owned(), held.clone());
            tokio::spawn(async move {
                let (store, mut last) = (Store::new(at(&addr).await), None);
                for round in 0..40 {
                    let guard = hold(&store, "a", LONG).await;
                    assert_eq!(held.fetch_add(1, SeqCst), 0, "two hold");
                    assert!(Some(guard.fencing_token()) > last);
                    last = Some(guard.fencing_token());
                    held.fetch_sub(1, SeqCst);
                    guard.release().await.unwrap();
                    tokio::time::sleep(Duration::from_millis((i * 7 + round * 3) % 11)).await;
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
    })
    .await;
}

/// More than other tools could list. Those that are there stay; the rest is refused before anything
/// breaks.
#[tokio::test]
async fn a_queue_that_fills_a_packet_takes_no_more() {
    limited(async {
        let server = server().await;
        let (client, raw) = (client(&server).await, raw(&server).await);
        let (holder, waits) = (fair("a", LONG), fair("a", LONG));
        granted(&client, &holder).await;
        waiting(&client, &waits).await;
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        for i in 0..101 {
            let path = format!("/test/a/{}{i}", "x".repeat(10_000));
            raw.create(&path, b"", &persistent).await.unwrap();
        }
        let refused = fair("a", LONG);
        let e = client.claim(&refused).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("jute.maxbuffer"), "{e}");
        until_entries(&server, 2, 2).await;
        client.release(&holder, None).await.unwrap();
        until(|| async { holds(&client, &waits).await }).await;
    })
    .await;
}
