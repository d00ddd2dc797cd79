//! The configuration: a URL or its parts, and the clients that are made from it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use leasehold_core::{Error, ErrorKind, Result, StoreId};
use leasehold_net::{Address, Credentials, Tls};

#[cfg(feature = "tls-no-provider")]
use crate::client::secure;
use crate::error::Failure;

/// The default time limit of one request.
const REQUEST: Duration = Duration::from_secs(1);
/// etcd closes the connection of a client that pings more often than its `--grpc-keepalive-min-time`, 5 s unless set.
pub(crate) const PING: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(1));

/// The start of an endpoint over TLS.
pub(crate) const SECURE: &str = "https://";

/// The addresses of the servers, and the settings of connections, requests and keys.
///
/// ```
/// # use std::time::Duration;
/// use leasehold_etcd::Config;
/// use leasehold_etcd::client::ConnectOptions;
///
/// let options = ConnectOptions::new().with_user("me", "secret").with_auto_token_refresh(true);
/// let config = Config::new(["http://10.0.0.1:2379"]).namespace("prod").timeout(Duration::from_millis(500)).options(options);
/// ```
#[derive(Clone)]
pub struct Config {
    /// `http://host:port`, at least one; with TLS `https://`.
    pub(crate) endpoints: Vec<String>,
    /// The start of all keys: empty, or ends in `/`.
    pub(crate) root: String,
    options: Option<ConnectOptions>,
    credentials: Option<Credentials>,
    /// The program's client, which is used in place of the store's own clients. It knows its
    /// endpoints.
    pub(crate) client: Option<Client>,
    #[cfg(leasehold_lab)]
    reached_by: Option<fn(&str) -> Client>,
    pub(crate) tls: Option<Tls>,
    /// The time limit of one request to one endpoint.
    pub(crate) timeout: Duration,
    /// The members are asked for when the store connects.
    pub(crate) discover: bool,
    /// The identity of the cluster that all endpoints have to belong to, if one is named.
    pub(crate) store_id: Option<StoreId>,
    /// The identity of the cluster that has named its members.
    pub(crate) discovered: Option<StoreId>,
}

impl Config {
    /// Reads `etcd://[user:password@]host[:port][,host[:port]…][/namespace][?timeout=ms&discover=true&store=id]`.
    ///
    /// The port is 2379 unless given, the user and the password are percent-encoded, and `timeout`
    /// is from 10 to 60000. `etcds://` is the same over TLS, and needs the feature `tls`.
    /// `discover` is [`Config::discover`], and `store` is [`Config::store_id`]. The options of TLS are `ca`, `cert`, `key` and
    /// `server_name`, as `Tls` has them.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a URL that is not like this, and [`Unsupported`](ErrorKind::Unsupported) for `etcds://`
    /// without the feature. Neither shows the credentials.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = Address::parse_tls(url, "etcd", 2379, 2379)?;
        let timeout = address.timeout()?;
        let tls = Tls::from_address(&mut address, cfg!(feature = "tls-no-provider"))?;
        let store_id = address.store_id("etcd")?;
        let discover = match address.take("discover").as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(invalid("discover is true or false")),
        };
        address.done()?;
        let options = match (&address.user, &address.password) {
            (Some(user), Some(password)) => ConnectOptions::new()
                .with_user(user, password)
                .with_auto_token_refresh(true),
            (None, Some(_)) => return Err(invalid("etcd knows no password without a user")),
            _ => ConnectOptions::new(),
        };
        let scheme = if address.tls { "https" } else { "http" };
        let config = Config::new(
            address
                .hosts
                .iter()
                .map(|host| format!("{scheme}://{host}")),
        );
        let config = config
            .namespace(&address.path)
            .timeout(timeout)
            .options(options)
            .discover(discover);
        let config = Config {
            tls,
            store_id,
            ..config
        };
        config.check().map(|()| config)
    }

    /// The endpoints, such as `http://10.0.0.1:2379`. No namespace, and a second for each request.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Config {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        Config {
            endpoints,
            root: String::new(),
            options: None,
            credentials: None,
            client: None,
            #[cfg(leasehold_lab)]
            reached_by: None,
            tls: None,
            timeout: REQUEST,
            discover: false,
            store_id: None,
            discovered: None,
        }
    }

    /// Uses a client that the program has, with its endpoints, its user and its TLS, in place of
    /// endpoints; it stays the program's, and is never closed. No namespace, and a second for each
    /// request.
    ///
    /// Such a client balances: each request goes to a random member, even to one that is down. A
    /// request that fails or is not answered in time is therefore sent up to three times. Build the
    /// client [`with_require_leader`](ConnectOptions::with_require_leader) and
    /// [`with_keep_alive`](ConnectOptions::with_keep_alive); this store cannot see whether it was.
    /// Without them a member that is cut off goes on serving a watch that receives nothing, and
    /// waiters learn of a release only when they ask by themselves, once in a lease. A user's token
    /// is renewed if it has run out, whatever
    /// [`with_auto_token_refresh`](ConnectOptions::with_auto_token_refresh) says.
    pub fn with_client(client: Client) -> Config {
        Config {
            client: Some(client),
            ..Config::new([""; 1])
        }
    }

    /// Makes every connection over TLS, and none without: all endpoints begin with `https://`. It replaces the TLS of the options.
    #[cfg(feature = "tls-no-provider")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        self.tls = Some(tls);
        self
    }

    /// The start of all keys, before a `/`: such as `prod` or `prod/eu`. A part of it may neither
    /// be empty nor begin with `%` nor contain NUL.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Config {
        self.root = if namespace.is_empty() {
            String::new()
        } else {
            format!("{namespace}/")
        };
        self
    }

    /// Uses the cluster with this identity, and no other: see [`StoreId`]. Without it, the cluster
    /// that most of the endpoints belong to is used.
    #[must_use]
    pub fn store_id(mut self, id: StoreId) -> Config {
        self.store_id = Some(id);
        self
    }

    /// Sets the function by which a simulation reaches each endpoint.
    #[cfg(leasehold_lab)]
    #[doc(hidden)]
    #[must_use]
    pub fn reached_by(mut self, reach: fn(&str) -> Client) -> Config {
        self.reached_by = Some(reach);
        self
    }

    /// The time limit of one request to one endpoint: from 10 ms to 60 s; any other value is
    /// replaced by the nearest of these. An endpoint that does not answer in time is given up to
    /// four times as long after that, so that a client works over longer round trips.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.clamp(Duration::from_millis(10), Duration::from_secs(60));
        self
    }

    /// Options of [`etcd_client`] that a URL cannot express.
    ///
    /// Require-leader, the connect time-out and the keep-alive pings are set by this store,
    /// whatever the options say: without pings, a watch on a connection that has died silently is
    /// never missed. With [`tls`](Config::tls) the options' time-out of requests and TCP keep-alive
    /// are not used.
    #[must_use]
    pub fn options(mut self, options: ConnectOptions) -> Config {
        self.options = Some(options);
        self
    }

    /// Asks this function for the user and the password before each connection, and before each new
    /// token, so they can be rotated without a restart. It replaces the credentials of the URL and
    /// of the options.
    ///
    /// etcd refuses a token that was given for an old password from the change on. The request is
    /// then sent again with a token for the credentials that the function returns then. While these
    /// are still the old ones, requests are [`Denied`](ErrorKind::Denied), and holds stay until
    /// their leases end: let the function return the new password within a third of the shortest
    /// lease. The function may take as long as connecting may; its errors are
    /// [`Unavailable`](ErrorKind::Unavailable) unless they are `Invalid` or `Denied`.
    ///
    /// ```
    /// use leasehold_core::{Error, ErrorKind};
    /// use leasehold_etcd::Config;
    ///
    /// let config = Config::new(["http://10.0.0.1:2379"]).credentials(|| async {
    ///     let read = |e| Error::new(ErrorKind::Unavailable, "no password").with_source(e);
    ///     let password = std::fs::read_to_string("/run/secrets/etcd").map_err(read)?;
    ///     Ok(("me".to_owned(), password.trim().to_owned()))
    /// });
    /// ```
    #[must_use]
    pub fn credentials<F>(mut self, function: impl Fn() -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        self.credentials = Some(Credentials::new(function));
        self
    }

    /// A client of this endpoint, or the program's own: with a user, it has a new token.
    pub(crate) async fn connect(
        &self,
        endpoint: &str,
        connect_timeout: Duration,
    ) -> Result<Client, Failure> {
        if let Some(client) = &self.client {
            client.refresh_token().await?;
            return Ok(client.clone());
        }
        #[cfg(leasehold_lab)]
        if let Some(reach) = self.reached_by {
            return Ok(reach(endpoint));
        }
        let options = self.connect_options(connect_timeout).await?;
        #[cfg(feature = "tls-no-provider")]
        if let Some(tls) = &self.tls {
            return secure::connect(tls, endpoint, options, connect_timeout).await;
        }
        Ok(Client::connect([endpoint], Some(options)).await?)
    }

    /// Returns whether the endpoints are simulated, and no servers.
    pub(crate) fn is_simulated(&self) -> bool {
        #[cfg(leasehold_lab)]
        if self.reached_by.is_some() {
            return true;
        }
        false
    }

    /// The options of one connection.
    async fn connect_options(&self, connect_timeout: Duration) -> Result<ConnectOptions, Failure> {
        let options = self
            .options
            .clone()
            .unwrap_or_default()
            .with_require_leader(true)
            .with_connect_timeout(connect_timeout);
        let options = match &self.credentials {
            // The client crate must not renew a refused token, because it knows only these
            // credentials: the connection is made anew instead.
            Some(credentials) => {
                let said = credentials
                    .ask()
                    .await
                    .map_err(|e| Failure::new(e.kind(), e.to_string()))?;
                options
                    .with_user(said.0, said.1)
                    .with_auto_token_refresh(false)
            }
            None => options,
        };
        // A ping on an idle connection would be answered by its end, so pings are sent beside open streams only.
        Ok(options
            .with_keep_alive(PING.0, PING.1)
            .with_keep_alive_while_idle(false))
    }

    /// Returns whether the configuration has settings of connections.
    fn is_about_connections(&self) -> bool {
        self.options.is_some() || self.credentials.is_some() || self.tls.is_some() || self.discover
    }

    /// Fails if a setting is wrong.
    pub(crate) fn check(&self) -> Result<()> {
        if self.client.is_some() && self.is_about_connections() {
            return Err(invalid(
                "a client of etcd-client has its own options, endpoints, credentials and TLS: give them to it",
            ));
        }
        if self.endpoints.is_empty() {
            return Err(invalid("etcd needs at least one endpoint"));
        }
        if self.endpoints.iter().any(|endpoint| endpoint.contains('@')) {
            return Err(invalid(
                "an endpoint of etcd has no user: give it by `options` or `credentials`",
            ));
        }
        if self.tls.is_some()
            && !self
                .endpoints
                .iter()
                .all(|endpoint| endpoint.starts_with(SECURE))
        {
            return Err(invalid(
                "with TLS each endpoint of etcd begins with https://",
            ));
        }
        // A key of which a part begins with `%` is the library's own.
        let bad = |part: &str| part.is_empty() || part.starts_with('%') || part.contains('\0');
        if self
            .root
            .strip_suffix('/')
            .is_some_and(|namespace| namespace.split('/').any(bad))
        {
            return Err(invalid(
                "a part of the etcd namespace may neither be empty nor begin with `%` nor contain NUL",
            ));
        }
        Ok(())
    }
}

impl FromStr for Config {
    type Err = Error;

    /// Reads a URL, as [`from_url`](Config::from_url) does.
    fn from_str(url: &str) -> Result<Config> {
        Config::from_url(url)
    }
}

/// Shows no options, because they hold the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An endpoint that is not checked yet may have credentials.
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .filter_map(|endpoint| endpoint.rsplit('@').next())
            .collect();
        let at = if self.client.is_some() {
            "a client".into()
        } else {
            endpoints.join(",")
        };
        write!(f, "{at}/{}", self.root.trim_end_matches('/'))
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests;
