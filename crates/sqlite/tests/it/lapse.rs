//! A hold that is given back before its `min_hold` is over: it ends by itself, exactly then, whichever clients live.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Grant, LeaseRef, Mode, Moment, Renewal, WaitPolicy,
};
use leasehold_core::{Loss, Name};
use leasehold_sqlite::Sqlite;
use rusqlite::Connection;

const REST: Duration = Duration::from_millis(600);

fn claim(policy: WaitPolicy, ttl: Duration) -> Claim {
    claim_of("a", policy, ttl)
}

fn claim_of(name: &str, policy: WaitPolicy, ttl: Duration) -> Claim {
    Claim::new(name, Mode::Exclusive, policy, ttl, "")
}

async fn granted(client: &Sqlite, claim: &Claim) -> Grant {
    match client.claim(claim).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn is_free(client: &Sqlite) -> bool {
    client
        .inspect(&Name::from("a"))
        .await
        .unwrap()
        .holders
        .is_empty()
}

fn rows(place: &Place) -> i64 {
    let database = Connection::open(place.path()).unwrap();
    database
        .query_row(
            "SELECT (SELECT count(*) FROM session) + (SELECT count(*) FROM place)",
            [],
            |row| row.get(0),
        )
        .unwrap()
}

/// Neither the lease, which is longer, nor the client's renewals and its end make a difference.
#[test]
fn it_lasts_for_the_rest_and_no_longer_though_its_client_has_gone() {
    let place = Place::new();
    run(async {
        let (gone, other) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let held = claim(WaitPolicy::Fair, Duration::from_secs(60));
        let grant = granted(&gone, &held).await;
        let second = claim_of("b", WaitPolicy::Fair, Duration::from_secs(60));
        granted(&gone, &second).await;
        let before = Moment::now();
        gone.release_after(&held, Some(&grant.place), REST)
            .await
            .unwrap();
        let after = Moment::now();
        // Again, as after a lost reply, and beside a renewal of the client's other hold.
        tokio::time::sleep(REST / 3).await;
        gone.release_after(&held, Some(&grant.place), REST)
            .await
            .unwrap();
        let leases = [&held, &second]
            .map(|of| LeaseRef::new(Arc::new(of.clone()), grant.place.clone(), Some(grant.token)));
        gone.renew(&leases).await.unwrap();
        gone.close().await.unwrap();
        drop(gone);
        while !is_free(&other).await {
            assert!(
                since(before) < REST + Duration::from_secs(20),
                "it never ends"
            );
            tokio::time::sleep(ms(2)).await;
        }
        assert!(since(before) >= REST, "free after {:?}", since(after));
        assert!(
            since(after) < REST + Duration::from_secs(5),
            "free after {:?}",
            since(after)
        );
        assert!(matches!(
            other.claim(&claim(WaitPolicy::Try, REST)).await.unwrap(),
            Claimed::Granted(_)
        ));
        assert_eq!(rows(&place), 2, "what stays of it");
    });
}

/// A waiter was told of a lease of a minute, and is granted when the rest is over.
#[test]
fn whoever_waits_is_served_then() {
    let place = Place::new();
    run(async {
        let (one, two) = (open(place.path()).await.unwrap(), store(place.path()).await);
        let held = claim(WaitPolicy::Fair, Duration::from_secs(60));
        let grant = granted(&one, &held).await;
        let waiter = tokio::spawn(two.lock("a").ttl(Duration::from_secs(60)).acquire());
        while one
            .inspect(&Name::from("a"))
            .await
            .unwrap()
            .waiters
            .is_empty()
        {
            tokio::time::sleep(ms(2)).await;
        }
        let before = Moment::now();
        one.release_after(&held, Some(&grant.place), REST)
            .await
            .unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert!(since(before) >= REST, "served after {:?}", since(before));
        assert!(
            since(before) < REST + Duration::from_secs(5),
            "served after {:?}",
            since(before)
        );
        guard.release().await.unwrap();
    });
}

/// A release ends it before; and what is lost already is not revived.
#[test]
fn a_release_ends_it_and_nothing_revives_it() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let held = claim(WaitPolicy::Fair, Duration::from_secs(60));
        let grant = granted(&client, &held).await;
        client
            .release_after(&held, Some(&grant.place), Duration::from_secs(60))
            .await
            .unwrap();
        assert!(!is_free(&client).await);
        client.release(&held, Some(&grant.place)).await.unwrap();
        assert!(is_free(&client).await);
        client
            .release_after(&held, Some(&grant.place), REST)
            .await
            .unwrap();
        assert!(is_free(&client).await);
        let short = claim(WaitPolicy::Fair, ms(100));
        let grant = granted(&client, &short).await;
        while !is_free(&client).await {
            tokio::time::sleep(ms(2)).await;
        }
        client
            .release_after(&short, Some(&grant.place), Duration::from_secs(60))
            .await
            .unwrap();
        assert!(is_free(&client).await);
        let gone = client
            .renew(&[LeaseRef::new(
                Arc::new(short),
                grant.place,
                Some(grant.token),
            )])
            .await
            .unwrap();
        assert!(matches!(gone[..], [Renewal::Lost(Loss::Gone)]), "{gone:?}");
    });
}

/// Many of them leave nothing behind.
#[test]
fn nothing_stays_of_many() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        for i in 0..20 {
            let held = claim_of(&format!("job {i}"), WaitPolicy::Fair, REST);
            let grant = granted(&client, &held).await;
            client
                .release_after(&held, Some(&grant.place), ms(1))
                .await
                .unwrap();
        }
        tokio::time::sleep(ms(2)).await;
        client.close().await.unwrap();
        drop(open(place.path()).await.unwrap());
        assert_eq!(rows(&place), 0);
    });
}
