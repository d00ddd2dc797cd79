//! Users with few rights, and names of servers: the cases of every store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test judges by panicking")]

use leasehold_core::{Result, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use leasehold_testbed::fleet_cases;
use leasehold_testbed::fleet_cases::FleetStore;
use leasehold_testbed::seam::until;

/// A server with users.
struct Accounts(testbed::Etcd);

impl Accounts {
    async fn role(&self, verb: &str, user: &str) {
        self.0.post(&format!("/v3/auth/user/{verb}"), &format!(r#"{{"{user}":"me","role":"all"}}"#)).await.unwrap();
    }
}

impl FleetStore for Accounts {
    const WRONG: &'static str = "authentication failed";
    const RIGHTS: &'static str = "the rights";

    async fn start(password: &str) -> Accounts {
        let options = testbed::EtcdOptions { extra: vec!["--bcrypt-cost=4".into()], ..Default::default() };
        let server = testbed::Etcd::start_with(&options).await.unwrap();
        server.add_users(password).await.unwrap();
        Accounts(server)
    }

    fn url(&self, password: &str) -> String {
        format!("etcd://me:{password}@{}/test?timeout=3000", self.0.addr())
    }

    fn addrs(&self) -> Vec<String> {
        vec![self.0.addr().to_owned()]
    }

    async fn connect(url: &str) -> Result<Store> {
        Etcd::connect(url).await.map(Store::new)
    }

    async fn revoke(&self) {
        self.role("revoke", "name").await;
    }

    async fn restore(&self) {
        self.role("grant", "user").await;
    }

    async fn nothing_is_left(&self) {
        let left = async || self.0.key_count().await.unwrap() + self.0.lease_count().await.unwrap() as u64;
        until(async || left().await == 0).await;
    }
}

fleet_cases!(Accounts);
