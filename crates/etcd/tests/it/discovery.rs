//! Members that the program does not name: they are used where the cluster is asked for them, and
//! none of another cluster ever is.

use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::Backend;
use leasehold_core::{ErrorKind, Guard, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use leasehold_testbed::Proxy;

async fn discovering(addr: &str) -> Store {
    let etcd = Etcd::connect(&format!("etcd://{addr}/test?timeout=3000&discover=true"))
        .await
        .unwrap();
    Store::new(etcd).ttl(LONG)
}

/// Whatever outages there are meanwhile.
async fn acquired(store: &Store, name: &str) -> Guard {
    loop {
        match store.lock(name).acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_not_named_are_used() {
    within(120, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        let named = &cluster.members()[0];
        let store = discovering(named.addr()).await;
        let guard = acquired(&store, "a").await;
        named.kill().await.unwrap();
        while let Err(e) = guard.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
        }
        give_back(acquired(&store, "b").await).await;
        give_back(guard).await;
        // Who does not ask knows no other.
        let error = Etcd::connect(&format!("etcd://{}/test", named.addr()))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    })
    .await;
}

/// Two clusters in one URL have different locks. The one of most endpoints is used, and a tie is
/// refused unless the URL names the right one.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_clusters_in_one_url_the_majority_is_used() {
    within(120, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        let other = server().await;
        let [one, two] = [&cluster.members()[0], &cluster.members()[1]];
        let tie = format!("etcd://{},{}/test?timeout=3000", one.addr(), other.addr());
        let error = Etcd::connect(&tie).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
        for addr in [one.addr(), other.addr()] {
            assert!(error.to_string().contains(addr), "{error}");
        }
        let all = [other.addr(), one.addr(), two.addr()].join(",");
        let most = Etcd::connect(&format!("etcd://{all}/test?timeout=3000"))
            .await
            .unwrap();
        let right = client(one.addr()).await;
        assert_eq!(most.identity(), right.identity());
        let (most, right) = (Store::new(most), Store::new(right));
        for _ in 0..4 {
            let guard = acquired(&most.clone().ttl(LONG), "a").await;
            let error = right.lock("a").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
            give_back(guard).await;
        }
        let id = client(other.addr()).await.identity().unwrap();
        let pinned = Etcd::connect(&format!("{tie}&store={id}")).await.unwrap();
        assert_eq!(pinned.identity(), Some(id));
        let error = Etcd::connect(&format!("{tie}&store=etcd-1"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
    })
    .await;
}

/// A member that was set up anew as a cluster of its own knows no user, and refuses all. The others
/// are used all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_another_cluster_that_refuses_the_user_keeps_nobody_out() {
    within(120, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        cluster.add_users("s3cret").await.unwrap();
        let other = server().await;
        let [one, two] = [&cluster.members()[0], &cluster.members()[1]];
        for _ in 0..6 {
            let all = [other.addr(), one.addr(), two.addr()].join(",");
            let url = format!("etcd://me:s3cret@{all}/test?timeout=3000");
            let store = Etcd::connect(&url).await.unwrap();
            assert!(store.identity().is_some());
        }
        let error = Etcd::connect(&format!("etcd://me:s3cret@{}/test", other.addr())).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Denied);
    })
    .await;
}

/// An address of a running client comes to lead to such a member: the next endpoint is used. If no
/// endpoint lets the user in, that is the error.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_client_leaves_a_member_that_refuses_its_user() {
    within(120, async {
        let [right, other] = [server().await, server().await];
        right.add_users("s3cret").await.unwrap();
        let mut proxies = Vec::new();
        for _ in 0..2 {
            proxies.push(Proxy::to(right.addr()).await.unwrap());
        }
        let all: Vec<&str> = proxies.iter().map(Proxy::addr).collect();
        let url = format!("etcd://me:s3cret@{}/test?timeout=3000", all.join(","));
        let store = Store::new(Etcd::connect(&url).await.unwrap()).ttl(LONG);
        give_back(acquired(&store, "a").await).await;
        for proxy in &proxies {
            proxy.lead_to(other.addr());
            proxy.disconnect().await;
            let guard = acquired(&store, "a").await;
            give_back(guard).await;
            proxy.lead_to(right.addr());
            proxy.disconnect().await;
        }
        for proxy in &proxies {
            proxy.lead_to(other.addr());
            proxy.disconnect().await;
        }
        let refused = loop {
            match store.lock("b").try_acquire().await {
                Err(e) if e.is_retryable() => {}
                Err(e) => break e,
                Ok(guard) => give_back(guard).await,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    })
    .await;
}

/// As shipped a member says that it is reached at `localhost`, where another one may be.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_cluster_is_never_used() {
    within(120, async {
        let other = server().await;
        let extra = vec![format!("--advertise-client-urls=http://{}", other.addr())];
        let server = testbed::Etcd::start_with(&testbed::EtcdOptions {
            extra,
            ..Default::default()
        })
        .await
        .unwrap();
        let store = discovering(server.addr()).await;
        let guard = acquired(&store, "a").await;
        server.kill().await.unwrap();
        for _ in 0..3 {
            let error = store
                .lock("b")
                .ttl(Duration::from_secs(6))
                .try_acquire()
                .await
                .unwrap_err();
            assert!(error.is_retryable(), "{error:?}");
        }
        assert_eq!(
            (
                other.key_count().await.unwrap(),
                other.lease_count().await.unwrap()
            ),
            (0, 0)
        );
        server.start_again().await.unwrap();
        give_back(acquired(&store, "b").await).await;
        give_back(guard).await;
    })
    .await;
}

/// The address that the cluster names for its member comes to lead to another cluster. Nobody who
/// waits is granted anything there, and holds stay.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_was_discovered_leads_nobody_to_another_cluster() {
    within(120, async {
        let other = server().await;
        let proxy = Proxy::to(other.addr()).await.unwrap();
        let extra = vec![format!("--advertise-client-urls=http://{}", proxy.addr())];
        let right = testbed::Etcd::start_with(&testbed::EtcdOptions {
            extra,
            ..Default::default()
        })
        .await
        .unwrap();
        proxy.lead_to(right.addr());
        let misled = discovering(proxy.addr()).await;
        let beside = store(&right).await;
        let (mut holds, mut waits) = (Vec::new(), Vec::new());
        for n in 0..6 {
            let [here, there] = ["here", "there"].map(|who| format!("{who}-{n}"));
            holds.push((
                acquired(&misled, &here).await,
                acquired(&beside, &there).await,
            ));
            waits.push(tokio::spawn(misled.lock(there.as_str()).acquire()));
            until_waiting(&beside, &there, 1).await;
        }
        proxy.lead_to(other.addr());
        proxy.disconnect().await;
        let told = loop {
            match misled.lock("free").try_acquire().await.unwrap_err() {
                e if e.kind() == ErrorKind::OtherStore => break e.to_string(),
                e => assert!(e.is_retryable(), "{e:?}"),
            }
        };
        for store in [&beside, &Store::new(client(other.addr()).await)] {
            let id = store.identity().unwrap();
            assert!(told.contains(id.as_str()), "{told}: {id}");
        }
        for n in 0..6 {
            let taken = beside.lock(format!("here-{n}")).try_acquire().await;
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::Contended);
        }
        assert!(holds.iter().all(|(here, _)| here.is_valid()));
        assert!(waits.iter().all(|wait| !wait.is_finished()));
        assert_eq!(
            (
                other.key_count().await.unwrap(),
                other.lease_count().await.unwrap()
            ),
            (0, 0)
        );
        proxy.lead_to(right.addr());
        proxy.disconnect().await;
        for ((here, there), wait) in holds.into_iter().zip(waits) {
            let token = there.fencing_token();
            give_back(there).await;
            let next = wait.await.unwrap().unwrap();
            assert!(next.fencing_token() > token);
            give_back(next).await;
            give_back(here).await;
        }
    })
    .await;
}

/// Each member in turn comes back without data, as a cluster of its own. No two programs that name
/// all members hold one lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_became_a_cluster_of_its_own_grants_nothing() {
    within(240, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        let other = server().await;
        let (mut programs, mut ways) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let mut proxies = Vec::new();
            for member in cluster.members() {
                proxies.push(Proxy::to(member.addr()).await.unwrap());
            }
            let all: Vec<&str> = proxies.iter().map(Proxy::addr).collect();
            let url = format!("etcd://{}/test?timeout=3000", all.join(","));
            programs.push(Store::new(Etcd::connect(&url).await.unwrap()).ttl(LONG));
            ways.push(proxies);
        }
        for (nth, member) in cluster.members().iter().enumerate() {
            member.kill().await.unwrap();
            for proxies in &ways {
                proxies[nth].lead_to(other.addr());
                proxies[nth].disconnect().await;
            }
            for n in 0..3 {
                let name = format!("{nth}-{n}");
                let (one, two) = (n % 2, (n + 1) % 2);
                let guard = acquired(&programs[one], &name).await;
                let others = || {
                    let each = ways[two].iter().enumerate();
                    each.filter(|(member, _)| *member != nth)
                };
                let asked = async |kind: ErrorKind| loop {
                    match programs[two].lock(name.as_str()).try_acquire().await {
                        Err(e) if e.kind() == kind => break,
                        Err(e) => assert!(e.is_retryable(), "{e:?}"),
                        Ok(_) => panic!("{name} is held twice"),
                    }
                };
                // It reaches that member alone, and then the others, too.
                for (_, proxy) in others() {
                    proxy.cut().await;
                }
                asked(ErrorKind::OtherStore).await;
                for (_, proxy) in others() {
                    proxy.heal().await;
                }
                asked(ErrorKind::Contended).await;
                assert!(guard.is_valid());
                give_back(guard).await;
            }
            assert_eq!(other.key_count().await.unwrap(), 0);
            for proxies in &ways {
                proxies[nth].lead_to(member.addr());
                proxies[nth].disconnect().await;
            }
            member.start_again().await.unwrap();
        }
    })
    .await;
}
