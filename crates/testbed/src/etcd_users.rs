//! Users of private etcd servers.

use crate::{
    error::{Error, Result},
    etcd::Etcd,
    etcd_cluster::EtcdCluster,
    http,
};

/// The permission of the role of `me`.
const ALL: &str =
    r#"{"name":"all","perm":{"permType":"READWRITE","key":"AA==","range_end":"AA=="}}"#;

impl Etcd {
    /// Makes two users with this password, `root` and `me`, who may read and write all keys, and
    /// turns authentication on. From then on the testbed itself asks as `root`.
    pub async fn add_users(&self, password: &str) -> Result<()> {
        let user = |name: &str| format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        for (path, json) in [
            ("user/add", &*user("root")),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("role/add", r#"{"name":"all"}"#),
            ("role/grant", ALL),
            ("user/add", &*user("me")),
            ("user/grant", r#"{"user":"me","role":"all"}"#),
            ("enable", "{}"),
        ] {
            self.post(&format!("/v3/auth/{path}"), json).await?;
        }
        self.ask_as_root(password);
        Ok(())
    }

    /// Returns whether clients have to authenticate.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.root.get().is_some()
    }

    /// Changes the roles without a change of anybody's rights. All tokens signed so far become
    /// invalid.
    pub async fn change_users(&self) -> Result<()> {
        self.post("/v3/auth/role/grant", ALL).await.map(drop)
    }

    /// Has the testbed ask as `root` from now on.
    fn ask_as_root(&self, password: &str) {
        let _ = self.root.set(password.to_owned());
    }

    /// Asks for a token of `root`. A new one is needed each time: a token may expire, or be older
    /// than a change of the users.
    pub(crate) async fn token_of_root(&self, password: &str) -> Result<String> {
        let json = format!(r#"{{"name":"root","password":"{password}"}}"#);
        let answer = http::post(self.addr(), "/v3/auth/authenticate", &json, None).await?;
        let token = answer
            .split_once(r#""token":""#)
            .and_then(|(_, rest)| rest.split_once('"'))
            .map(|(token, _)| token);
        token
            .map(str::to_owned)
            .ok_or_else(|| Error::answer("authenticating", answer.clone()))
    }
}

impl EtcdCluster {
    /// Makes the users for the cluster, as [`Etcd::add_users`] does for one server.
    pub async fn add_users(&self, password: &str) -> Result<()> {
        if let Some(first) = self.members().first() {
            first.add_users(password).await?;
        }
        self.members()
            .iter()
            .for_each(|member| member.ask_as_root(password));
        Ok(())
    }
}
