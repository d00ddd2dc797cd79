//! Three members over TLS where both sides show a certificate, and users whose signed tokens run
//! out: what a hold and a waiter outlive, and which members are passed by.

use std::fs;
use std::time::Duration;

use crate::common::*;
use leasehold_core::{ErrorKind, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use leasehold_testbed::{Certificates, EtcdCluster, EtcdOptions, Proxy, TlsPort};

const PASSWORD: &str = "s3cret";
/// Longer than a token is good.
const TTL: Duration = Duration::from_secs(6);

struct Members {
    authority: Certificates,
    cluster: EtcdCluster,
}

impl Members {
    async fn start() -> Members {
        let authority = Certificates::new().unwrap();
        authority.issue("client").unwrap();
        let (tls, jwt) = (
            Some(TlsPort::new(&authority).unwrap().mutual()),
            Some(Duration::from_secs(2)),
        );
        let cluster = testbed::Etcd::cluster_with(
            3,
            &EtcdOptions {
                tls,
                jwt,
                ..EtcdOptions::default()
            },
        )
        .await
        .unwrap();
        cluster.add_users(PASSWORD).await.unwrap();
        Members { authority, cluster }
    }

    fn addr(&self, member: usize) -> &str {
        self.cluster.members()[member].tls_addr().unwrap()
    }

    fn all(&self) -> String {
        [0, 1, 2].map(|member| self.addr(member)).join(",")
    }

    fn url(&self, at: &str) -> String {
        let folder = self.authority.ca().parent().unwrap().display();
        format!(
            "etcds://me:{PASSWORD}@{at}/test?ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key"
        )
    }

    async fn store(&self, at: &str) -> Store {
        Store::new(Etcd::connect(&self.url(at)).await.unwrap()).ttl(TTL)
    }

    /// What the certificate of a member is called.
    fn certificate_of(&self, member: usize) -> String {
        format!("server-{}", self.addr(member).rsplit(':').next().unwrap())
    }
}

/// Tokens run out many times, each member is killed, the leader first, and one stands still.
#[tokio::test]
async fn a_hold_and_a_waiter_outlive_their_tokens_and_their_members() {
    within(150, async {
        let members = Members::start().await;
        let (one, two) = (
            members.store(&members.all()).await,
            members.store(&members.all()).await,
        );
        let guard = one.lock("a").acquire().await.unwrap();
        let mut waiter = tokio::spawn(two.lock("a").acquire());
        until_waiting(&one, "a", 1).await;
        let leader = members.cluster.leader().await;
        for member in [leader, (leader + 1) % 3, (leader + 2) % 3] {
            let server = &members.cluster.members()[member];
            server.kill().await.unwrap();
            tokio::time::sleep(TTL + Duration::from_secs(1)).await;
            assert!(
                guard.is_valid() && !waiter.is_finished(),
                "{member} of {leader}: {:?}",
                guard.check()
            );
            server.start_again().await.unwrap();
        }
        let stands = members.cluster.leader().await;
        members.cluster.members()[stands].pause().await.unwrap();
        tokio::time::sleep(TTL / 2).await;
        assert!(
            guard.is_valid() && !waiter.is_finished(),
            "{:?}",
            guard.check()
        );
        let token = guard.fencing_token();
        give_back(guard).await;
        let next = within(40, &mut waiter).await.unwrap().unwrap();
        assert!(next.fencing_token() > token);
        give_back(next).await;
        members.cluster.members()[stands].resume().unwrap();
    })
    .await;
}

/// It is refused when it alone is named, and passed by when others are, also by a hold that was
/// there.
#[tokio::test]
async fn a_member_whose_certificate_is_not_trusted_is_passed_by() {
    within(150, async {
        let members = Members::start().await;
        let stranger = Certificates::new().unwrap();
        for (member, refusal) in [(0, "expired"), (1, "not signed by the CA")] {
            let (name, next) = (members.certificate_of(member), (member + 1) % 3);
            let way = Proxy::to(members.addr(member)).await.unwrap();
            let store = members
                .store(&format!("{},{}", way.addr(), members.addr(next)))
                .await;
            let guard = store.lock("a").acquire().await.unwrap();
            if member == 0 {
                members.authority.issue_expired(&name).unwrap();
            } else {
                let strange = stranger.issue(&name).unwrap();
                let folder = members.authority.ca().parent().unwrap();
                for file in [strange.certificate, strange.key] {
                    fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
                }
            }
            way.disconnect().await;
            let error = within(10, Etcd::connect(&members.url(members.addr(member))))
                .await
                .unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(
                error.kind() == ErrorKind::Denied && said.contains(refusal),
                "{said}"
            );
            assert!(
                said.contains(members.addr(member)) && !said.contains(PASSWORD),
                "{said}"
            );
            drop(members.store(&members.all()).await);
            // What was connected goes elsewhere in time.
            tokio::time::sleep(TTL + Duration::from_secs(1)).await;
            assert!(guard.is_valid(), "{refusal}: {:?}", guard.check());
            give_back(guard).await;
            // It is renewed on the disk, and good again without a restart.
            members.authority.issue(&name).unwrap();
            drop(members.store(members.addr(member)).await);
        }
    })
    .await;
}

/// What is wrong with the user is not hidden by what is right with the certificate, and the
/// reverse.
#[tokio::test]
async fn a_certificate_and_a_password_are_both_needed() {
    within(60, async {
        let members = Members::start().await;
        let (all, stranger) = (members.all(), Certificates::new().unwrap());
        stranger.issue("client").unwrap();
        let right = members.url(&all);
        let wrong_password = right.replace(PASSWORD, "wr0ng");
        let [ours, theirs] = [&members.authority, &stranger]
            .map(|ca| ca.ca().parent().unwrap().display().to_string());
        let wrong_certificate =
            right.replace(&format!("{ours}/client"), &format!("{theirs}/client"));
        let wrong_ca = right.replace(&format!("{ours}/ca"), &format!("{theirs}/ca"));
        let no_certificate = right.split("&cert").next().unwrap().to_owned();
        // A user of one's own is not replaced by the name in a certificate.
        let unknown = right.replace("me:", "client:");
        for (url, words) in [
            (wrong_password, "authentication failed"),
            (unknown, "authentication failed"),
            (wrong_certificate, "refused the client's certificate"),
            (no_certificate, "demands a client certificate"),
            (wrong_ca, "not signed by the CA"),
        ] {
            let error = within(10, Etcd::connect(&url)).await.unwrap_err();
            let said = format!("{error} {error:?}");
            assert!(
                error.kind() == ErrorKind::Denied && said.contains(words),
                "{words}: {said}"
            );
            assert!(
                !said.contains(PASSWORD) && !said.contains("wr0ng"),
                "{said}"
            );
        }
        assert_eq!(members.cluster.members()[0].lease_count().await.unwrap(), 0);
        members
            .store(&all)
            .await
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}
