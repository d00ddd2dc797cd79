//! The verbs of the seam, one by one, on a real server.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use leasehold_core::seam::{Backend, Claim, Claimed, LeaseRef, Renewal};
use leasehold_core::{ErrorKind, FencingToken, Loss, Name};

#[tokio::test]
async fn claiming_again_answers_the_same_grant() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let claim = fair("a", LONG);
        let first = granted(&client, &claim).await;
        assert_eq!(first.turns, 256);
        assert_eq!(first.token.get() % 256, 0);
        let again = granted(&client, &claim).await;
        assert_eq!((&again.place, again.token), (&first.place, first.token));
        // Another label is stored.
        granted(&client, &claim.clone().with_label("new")).await;
        let line = client.inspect(&claim.name).await.unwrap();
        assert_eq!((line.holders.len(), line.waiters.len()), (1, 0));
        assert_eq!(line.holders[0].label.as_deref(), Some("new"));
        assert_eq!(line.holders[0].token, Some(first.token));
        release(&client, &claim, &first.place).await;
        release(&client, &claim, &first.place).await; // and again
        client.release(&claim, None).await.unwrap();
        until_entries(&server, 0, 2).await;
    })
    .await;
}

#[tokio::test]
async fn a_line_is_served_in_order_with_rising_tokens() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let claims: Vec<Claim> = (0..4).map(|_| fair("a", LONG)).collect();
        let first = granted(&a, &claims[0]).await;
        let second = waiting(&b, &claims[1]).await;
        assert_eq!(second.who.label.as_deref(), Some("label of a"));
        assert_eq!(second.who.token, Some(first.token));
        assert_eq!(second.who.waiters, Some(0));
        assert!(!second.who.foreign);
        // Two claims of one client on one name are two places.
        waiting(&b, &claims[2]).await;
        let fourth = waiting(&a, &claims[3]).await;
        assert_eq!(fourth.who.waiters, Some(2));
        let line = a.inspect(&claims[0].name).await.unwrap();
        assert_eq!((line.holders.len(), line.waiters.len()), (1, 3));
        assert!(line.waiters.iter().all(|w| w.token.is_none() && w.since.is_some() && !w.foreign));

        let mut last = first.token;
        release(&a, &claims[0], &first.place).await;
        for (client, claim) in [(&b, &claims[1]), (&b, &claims[2]), (&a, &claims[3])] {
            let grant = granted(client, claim).await;
            assert!(grant.token > last, "{:?} after {last:?}", grant.token);
            last = grant.token;
            release(client, claim, &grant.place).await;
        }
        until_entries(&server, 0, 4).await;
        assert_eq!(server.watch_count().await.unwrap(), 4, "one for each session's `-notify` node");
    })
    .await;
}

#[tokio::test]
async fn a_try_leaves_nothing() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let claim = fair("a", LONG);
        let grant = granted(&a, &claim).await;
        let attempt = trying("a", LONG);
        let who = busy(&b, &attempt).await;
        assert_eq!((who.label.as_deref(), who.token, who.waiters), (Some("label of a"), Some(grant.token), Some(0)));
        assert!(who.held_for.is_some());
        until_entries(&server, 1, 4).await;
        release(&a, &claim, &grant.place).await;
        let taken = granted(&b, &attempt).await;
        assert!(taken.token > grant.token);
        let again = granted(&b, &attempt).await;
        assert_eq!(again.token, taken.token);
        release(&b, &attempt, &taken.place).await;
        until_entries(&server, 0, 4).await;
    })
    .await;
}

#[tokio::test]
async fn a_release_frees_nobody_else() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (mine, other) = (fair("a", LONG), fair("a", LONG));
        let grant = granted(&client, &mine).await;
        client.release(&other, None).await.unwrap();
        release(&client, &mine, &grant.place).await;
        let next = granted(&client, &other).await;
        release(&client, &mine, &grant.place).await; // late, and again
        assert_eq!(granted(&client, &other).await.token, next.token);
    })
    .await;
}

#[tokio::test]
async fn renew_says_what_is_still_there() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, client(&server).await);
        let (held, waits) = (fair("a", SHORT), fair("a", SHORT));
        let grant = granted(&client, &held).await;
        assert!(grant.validity.ttl() > SHORT * 98 / 100 && grant.validity.ttl() <= SHORT);
        let queued = waiting(&client, &waits).await;
        let leases = [
            LeaseRef::new(Arc::new(held.clone()), grant.place.clone(), Some(grant.token)),
            LeaseRef::new(Arc::new(waits.clone()), queued.place.clone(), None),
        ];
        let renewed = client.renew(&leases).await.unwrap();
        assert!(matches!(renewed[..], [Renewal::Renewed(_), Renewal::Renewed(_)]), "{renewed:?}");
        assert!(other.evict(&held.name, FencingToken::new(grant.token.get() + 7)).await.unwrap(), "any of its turns");
        let renewed = client.renew(&leases).await.unwrap();
        assert!(matches!(renewed[..], [Renewal::Lost(Loss::Gone), Renewal::Renewed(_)]), "{renewed:?}");
        assert_eq!(granted(&client, &waits).await.place, queued.place);
        assert!(!other.evict(&held.name, grant.token).await.unwrap());
        let elsewhere = LeaseRef::new(Arc::new(fair("a", Duration::from_secs(7))), grant.place.clone(), None);
        assert!(matches!(client.renew(&[elsewhere]).await.unwrap()[..], [Renewal::Lost(Loss::Expired)]));
    })
    .await;
}

#[tokio::test]
async fn names_never_meet_and_are_listed_in_order() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let long = "\u{1F512}".repeat(128);
        let mut names =
            vec!["a", "a/b", "a%2Fb", "{a}", "\"a\"", ".", "..", ".leasehold", "zookeeper", "é", "a b", "\u{1}", &long];
        let mut held = Vec::new();
        for name in &names {
            let claim = fair(name, LONG);
            let grant = granted(&client, &claim).await;
            held.push((claim, grant));
        }
        names.sort();
        let all: Vec<Name> = names.iter().map(Name::new).collect();
        assert_eq!(client.list("", None, 100).await.unwrap(), all);
        assert_eq!(client.list("", Some(&all[2]), 3).await.unwrap(), all[3..6]);
        assert_eq!(client.list("a/", None, 9).await.unwrap(), [Name::new("a/b")]);
        for (claim, grant) in &held {
            release(&client, claim, &grant.place).await;
        }
        assert_eq!(client.list("", None, 100).await.unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn what_is_not_there_is_empty_and_what_is_not_ours_is_said() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let raw = zookeeper_client::Client::connect(server.addr()).await.unwrap();
        let anyone = zookeeper_client::Acls::anyone_all();
        assert_eq!(client.inspect(&"none".into()).await.unwrap(), leasehold_core::LockQueue::default());
        assert!(!client.evict(&"none".into(), FencingToken::new(256)).await.unwrap());
        // A parent that can have no children.
        let ephemeral = zookeeper_client::CreateMode::Ephemeral.with_acls(anyone);
        raw.create("/test/wrong", b"", &ephemeral).await.unwrap();
        let e = client.claim(&fair("wrong", LONG)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal);
        // Junk beside the line.
        let claim = fair("a", LONG);
        let grant = granted(&client, &claim).await;
        let persistent = zookeeper_client::CreateMode::Persistent.with_acls(anyone);
        for junk in ["0", "junk", "lock-", "_c_-lock-x"] {
            raw.create(&format!("/test/a/{junk}"), b"\xff", &persistent).await.unwrap();
        }
        release(&client, &claim, &grant.place).await;
        let next = granted(&client, &fair("a", LONG)).await;
        assert!(next.token > grant.token);
        assert_eq!(client.inspect(&claim.name).await.unwrap().holders.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_old_style_parent_and_a_deleted_one_do_no_harm() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let raw = zookeeper_client::Client::connect(server.addr()).await.unwrap();
        let persistent = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
        raw.mkdir("/test/old", &persistent).await.unwrap();
        let mut last = FencingToken::new(0);
        for name in ["old", "new", "old", "new"] {
            let claim = fair(name, LONG);
            let grant = granted(&client, &claim).await;
            assert!(grant.token > last);
            last = grant.token;
            release(&client, &claim, &grant.place).await;
            raw.delete(&format!("/test/{name}"), None).await.unwrap(); // its numbers begin again
        }
    })
    .await;
}

#[tokio::test]
async fn a_closed_client_leaves_nothing_and_says_so() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, client(&server).await);
        let claim = fair("a", LONG);
        granted(&client, &claim).await;
        waiting(&client, &fair("a", SHORT)).await;
        client.close().await.unwrap();
        until_entries(&server, 0, 1).await;
        assert_eq!(client.claim(&claim).await.unwrap_err().kind(), ErrorKind::Closed);
        assert!(matches!(other.claim(&claim).await.unwrap(), Claimed::Granted(_)));
        drop(other);
        until(|| async { server.ephemerals_count().await.unwrap() == 0 }).await;
        assert_eq!(server.watch_count().await.unwrap(), 0);
        assert_eq!(server.connection_count().await.unwrap(), 0);
    })
    .await;
}
