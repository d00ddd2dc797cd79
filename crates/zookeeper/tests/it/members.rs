//! Three members over TLS where both sides show a certificate, and credentials: what a hold and a
//! waiter outlive, and which members are passed by.

use std::fs;
use std::time::Duration;

use crate::common::{connected, until};
use leasehold_core::{ErrorKind, Guard, Store};
use leasehold_testbed::verbs::within;
use leasehold_testbed::{
    Certificates, Proxy, TlsPort, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions,
};
use leasehold_zookeeper::ZooKeeper;

const PASSWORD: &str = "s3cret";
/// Longer than an election.
const TTL: Duration = Duration::from_secs(10);

struct Members {
    authority: Certificates,
    ensemble: ZooKeeperEnsemble,
}

impl Members {
    async fn start() -> Members {
        let authority = Certificates::new().unwrap();
        authority.issue("client").unwrap();
        let tls = Some(TlsPort::new(&authority).unwrap().mutual());
        let ensemble = Server::ensemble_with(
            3,
            &ZooKeeperOptions {
                tls,
                ..ZooKeeperOptions::default()
            },
        )
        .await
        .unwrap();
        Members {
            authority,
            ensemble,
        }
    }

    fn addr(&self, member: usize) -> &str {
        self.ensemble.members()[member].tls_addr().unwrap()
    }

    fn all(&self) -> String {
        [0, 1, 2].map(|member| self.addr(member)).join(",")
    }

    fn url(&self, at: &str) -> String {
        let folder = self.authority.ca().parent().unwrap().display();
        let files = format!("ca={folder}/ca.pem&cert={folder}/client.pem&key={folder}/client.key");
        format!("zookeepers://me:{PASSWORD}@{at}/test?{files}")
    }

    async fn store(&self, at: &str) -> Store {
        Store::new(connected(&self.url(at)).await).ttl(TTL)
    }
}

async fn until_waiting(store: &Store, name: &str) {
    until(|| async {
        store
            .lock(name)
            .inspect()
            .await
            .is_ok_and(|queue| queue.waiters.len() == 1)
    })
    .await;
}

/// The way there may be cut at any moment: what was not answered is free at the end of the lease.
async fn give_back(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert!(
            e.is_retryable() || e.kind() == ErrorKind::Ambiguous,
            "{e:?}"
        );
    }
}

/// Each member is killed, the leader first, and the last leader stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_and_a_waiter_outlive_their_members() {
    within(150, async {
        let members = Members::start().await;
        let (one, two) = (
            members.store(&members.all()).await,
            members.store(&members.all()).await,
        );
        let guard = one.lock("a").acquire().await.unwrap();
        let mut waiter = tokio::spawn(two.lock("a").acquire());
        until_waiting(&one, "a").await;
        let leader = members.ensemble.leader().await;
        for member in [leader, (leader + 1) % 3, (leader + 2) % 3] {
            let server = &members.ensemble.members()[member];
            server.kill().await.unwrap();
            tokio::time::sleep(TTL / 2).await;
            assert!(
                guard.is_valid() && !waiter.is_finished(),
                "{member} of {leader}: {:?}",
                guard.check()
            );
            server.start_again().await.unwrap();
            while let Err(e) = guard.confirm().await {
                assert!(e.is_retryable(), "{e:?}");
            }
        }
        let stands = members.ensemble.leader().await;
        members.ensemble.members()[stands].pause().await.unwrap();
        let token = guard.fencing_token();
        give_back(guard).await;
        let next = within(40, &mut waiter).await.unwrap().unwrap();
        assert!(next.fencing_token() > token);
        give_back(next).await;
        members.ensemble.members()[stands].resume().unwrap();
    })
    .await;
}

/// It is refused when it alone is named, and passed by when others are, also by a hold that was
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_certificate_is_not_trusted_is_passed_by() {
    within(150, async {
        let members = Members::start().await;
        // Each member reads its files when it starts.
        let name = format!("server-{}", members.addr(0).rsplit(':').next().unwrap());
        let way = Proxy::to(members.addr(0)).await.unwrap();
        let store = members
            .store(&format!("{},{}", way.addr(), members.addr(1)))
            .await;
        let guard = store.lock("a").acquire().await.unwrap();
        let files = members.authority.issue_expired(&name).unwrap();
        let both = [files.key, files.certificate.clone()]
            .map(|file| fs::read_to_string(file).unwrap())
            .concat();
        fs::write(files.certificate.with_extension("both.pem"), both).unwrap();
        let server = &members.ensemble.members()[0];
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        let error = loop {
            // The first handshakes of a server are slow on a busy machine.
            match within(10, ZooKeeper::connect(&members.url(members.addr(0))))
                .await
                .unwrap_err()
            {
                e if e.kind() == ErrorKind::Unavailable => {}
                e => break e,
            }
        };
        let said = format!("{error} {error:?}");
        assert!(
            error.kind() == ErrorKind::Denied && said.contains("expired"),
            "{said}"
        );
        assert!(
            said.contains(members.addr(0)) && !said.contains(PASSWORD),
            "{said}"
        );
        drop(members.store(&members.all()).await);
        while let Err(e) = guard.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
        }
        give_back(guard).await;
    })
    .await;
}
