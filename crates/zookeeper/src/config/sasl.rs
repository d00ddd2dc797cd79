//! Accounts of the servers, proved by SASL with DIGEST-MD5.

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Credentials;
use zookeeper_client::{Connector, SaslOptions};

use crate::config::Config;

impl Config {
    /// Connects as this account of the servers (`DigestLoginModule` in their JAAS file), by SASL
    /// with DIGEST-MD5: to ZooKeeper it is `sasl:user` then. The password is never sent, but anyone
    /// who listens can try many: use it with [`tls`](Config::tls).
    ///
    /// A wrong password is [`Denied`](ErrorKind::Denied) when connecting. A server that does not
    /// know SASL lets everyone in as an anonymous user: with [`private`](Config::private) that is
    /// `Denied` as well. A user may have no quotation mark and no backslash, and neither a user nor
    /// a password may have anything outside ASCII: the client crate and the servers encode that
    /// differently.
    #[must_use]
    pub fn sasl(self, user: &str, password: &str) -> Config {
        let account = (user.to_owned(), password.to_owned());
        self.sasl_credentials(move || std::future::ready(Ok(account.clone())))
    }

    /// Connects by SASL like [`sasl`](Config::sasl), and asks this function for the user and the
    /// password before each connection, so they can be rotated without a restart. While a server
    /// refuses them, new sessions are refused, and holds stay until their leases end. ZooKeeper's
    /// servers read their accounts when they start: restart them one after the other, and let the
    /// function return the new account then.
    #[must_use]
    pub fn sasl_credentials<F>(mut self, function: impl Fn() -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        self.sasl = Some(Credentials::new(function));
        self
    }

    /// The connector, with the account as it is now.
    pub(super) async fn with_sasl(&self, connector: Connector) -> Result<Connector> {
        let Some(account) = &self.sasl else {
            return Ok(connector);
        };
        let (user, password) = account.ask().await?;
        if !is_user(&user) || !is_sendable(&password) {
            let what = "SASL: a user is of ASCII without \" and \\, a password of ASCII, and neither is empty";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(connector.with_sasl(SaslOptions::digest_md5(user, password)))
    }
}

/// Returns whether it can be a user: the client crate puts it between quotation marks without
/// escapes.
fn is_user(user: &str) -> bool {
    is_sendable(user) && !user.contains(['"', '\\'])
}

fn is_sendable(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii() && !c.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_account_is_sent_as_it_is_or_refused_and_never_shown() {
        let config = |user, password| Config::new("a").sasl(user, password).checked().unwrap();
        let connector = config("me", "s3 \"c\\ret").authenticated().await.unwrap();
        assert!(format!("{connector:?}").contains("sasl: Some"));
        for (user, password) in [
            ("", "s3cret"),
            ("m\"e", "s3cret"),
            ("m\\e", "s3cret"),
            ("mé", "s3cret"),
            ("me", ""),
            ("me", "s3crét"),
        ] {
            let config = config(user, password);
            let e = config.authenticated().await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid, "{user}");
            assert!(!format!("{e:?} {e} {config:?}").contains("s3cr"), "{e:?}");
        }
        let config = Config::from_url("zookeeper://me:s3cret@a?sasl=digest-md5").unwrap();
        assert!(config.sasl.is_some() && !format!("{config:?}").contains("s3cret"));
        let e = Config::from_url("zookeeper://a?sasl=digest-md5").unwrap_err();
        assert!(
            e.kind() == ErrorKind::Invalid && e.to_string().contains("password"),
            "{e}"
        );
    }
}
