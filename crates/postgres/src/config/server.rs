//! One database as a URL names it: its hosts, its user and its TLS.

use std::sync::Arc;

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::{Address, Credentials, Host, Tls, tls_is_off};

use crate::client::identity::DatabaseIdentity;

/// A database, with the credentials and the TLS of its connections.
#[derive(Clone, Default)]
pub(crate) struct Server {
    /// The hosts, tried in this order until one is no standby.
    pub(crate) hosts: Vec<Host>,
    pub(crate) database: String,
    user: Option<String>,
    password: Option<String>,
    pub(super) credentials: Option<Credentials>,
    pub(crate) tls: Option<Tls>,
    /// The identity of the database, of the client that connects by this.
    pub(crate) identity: Arc<DatabaseIdentity>,
}

impl Server {
    pub(super) fn read(mut address: Address) -> Result<Server> {
        match address.take("target_session_attrs").as_deref() {
            None | Some("read-write" | "primary") => {}
            Some(_) => {
                return Err(invalid(
                    "target_session_attrs is read-write: locks are written",
                ));
            }
        }
        let files = FILES.map(|word| address.take(word));
        let secure = match address.take("sslmode").as_deref() {
            None | Some("disable") => false,
            Some("verify-full") => true,
            Some("allow" | "prefer" | "require" | "verify-ca") => {
                return Err(invalid(
                    "sslmode is verify-full or disable: a server that is not verified may be any",
                ));
            }
            Some(_) => return Err(invalid("sslmode is verify-full or disable")),
        };
        if !secure && files.iter().any(Option::is_some) {
            return Err(invalid(
                "sslrootcert, sslcert and sslkey are for sslmode=verify-full",
            ));
        }
        let [ca, cert, key] = files;
        let ca = ca.filter(|ca| ca != "system");
        let tls = match secure {
            true if cfg!(feature = "tls") => Some(Tls::from_files(FILES, [ca, cert, key])?),
            true => return Err(tls_is_off()),
            false => None,
        };
        address.done()?;
        if address.path.is_empty() || address.path.contains(['/', '\0']) {
            return Err(invalid("behind the hosts stands the name of one database"));
        }
        let has_nul = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains('\0'));
        if has_nul(&address.user) || has_nul(&address.password) {
            return Err(invalid("neither a user nor a password may contain NUL"));
        }
        Ok(Server {
            hosts: address.hosts,
            database: address.path,
            user: address.user,
            password: address.password,
            credentials: None,
            identity: Arc::default(),
            tls,
        })
    }

    /// The server for notifications: `place` is one or several hosts with the database of `self`,
    /// or a whole URL. The user and TLS of `self` apply where `place` has none.
    pub(super) fn beside(&self, place: &str) -> Result<Server> {
        let mut there = if place.contains("://") {
            Server::read(address_of(place)?)?
        } else {
            let hosts = place
                .split(',')
                .map(|host| Host::parse(host, PORT))
                .collect::<Result<_>>()?;
            Server {
                hosts,
                ..self.clone()
            }
        };
        if there.user.is_none() {
            (there.user, there.password) = (self.user.clone(), self.password.clone());
        }
        if there.tls.is_none() {
            there.tls.clone_from(&self.tls);
        }
        Ok(there)
    }

    /// Returns the user and the password for a new connection.
    pub(crate) async fn user(&self) -> Result<(String, Option<String>)> {
        if let Some(credentials) = &self.credentials {
            return credentials
                .ask()
                .await
                .map(|(user, password)| (user, Some(password)));
        }
        let user = self
            .user
            .clone()
            .ok_or_else(|| invalid("a user is missing: postgres://user:password@host/database"));
        user.map(|user| (user, self.password.clone()))
    }
}

/// The parameters with the files of TLS, as libpq names them: the CAs to trust, and the
/// certificate to show with its key.
const FILES: [&str; 3] = ["sslrootcert", "sslcert", "sslkey"];

/// The port of PostgreSQL.
const PORT: u16 = 5432;

/// Parses a URL into its parts.
pub(super) fn address_of(url: &str) -> Result<Address> {
    let scheme = if url.starts_with("postgresql:") {
        "postgresql"
    } else {
        "postgres"
    };
    Address::parse_with_user(url, scheme, PORT)
}

pub(super) fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the store's URL: {what}"))
}
