//! One database as a URL names it: its hosts, its user and its TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Result;
use leasehold_net::{Address, Credentials, Host, Tls, Verified, tls_is_off};
use tokio::task::spawn_blocking;
use tokio_postgres::Config as Settings;
use tokio_postgres::config::ChannelBinding;

use super::files::{Passwords, SOCKETS};
use super::words::{Words, invalid};
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
    /// The file that is asked for a password that is nowhere else.
    pub(super) passwords: Option<Passwords>,
    /// The ways to connect, of which the next is tried where the server lets nobody in by the one
    /// before it: over TLS with these settings, or in plain text. None: those of libpq.
    pub(crate) ways: Vec<Option<Tls>>,
    /// The warning about a way that verifies nothing.
    pub(super) warning: Option<String>,
    /// What a session begins with, and the settings of its socket.
    pub(crate) settings: Settings,
    /// The identity of the database, of the client that connects by this.
    pub(crate) identity: Arc<DatabaseIdentity>,
}

impl Server {
    /// Reads the words that name a server, beside those in `settings`. A user, a database and ways
    /// that none of them names are left open.
    pub(super) fn read(mut words: Words, mut settings: Settings) -> Result<Server> {
        let url = words.url();
        let (user, password) = (url.user.take(), url.password.take());
        let database = std::mem::take(&mut url.path);
        let hosts = hosts(&mut words)?;
        let not_empty = |text: &String| !text.is_empty();
        let user = words.take_beside("user", user).filter(not_empty);
        let password = words.take_beside("password", password).filter(not_empty);
        let database = words
            .take_beside("dbname", Some(database).filter(not_empty))
            .unwrap_or_default();
        session(&mut words, &mut settings)?;
        let (ways, warning) = ways(&mut words)?;
        let may_bind = ways.is_empty() || ways.iter().any(Option::is_some);
        let is_bound = settings.get_channel_binding() == ChannelBinding::Require;
        // Whoever answers in the server's place cannot complete such a login.
        let warning = warning.filter(|_| !is_bound);
        if is_bound && !may_bind {
            return Err(words.invalid(
                "channel_binding",
                "is required, which takes TLS, and sslmode=disable has none: write sslmode=verify-full",
            ));
        }
        words.done()?;
        let server = Server {
            hosts,
            database,
            user,
            password,
            ways,
            warning,
            settings,
            ..Server::default()
        };
        server.check().map(|()| server)
    }

    fn check(&self) -> Result<()> {
        if self.database.contains(['/', '\0']) {
            return Err(invalid("behind the hosts stands the name of one database"));
        }
        let has_nul = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains('\0'));
        if has_nul(&self.user) || has_nul(&self.password) {
            return Err(invalid("neither a user nor a password may contain NUL"));
        }
        Ok(())
    }

    /// Fills what was left open with what libpq takes then: the system's user, and the database of
    /// the user's name.
    pub(super) fn complete(mut self) -> Result<Server> {
        // A process in a container may be of no user. Its user may be a function's answer.
        self.user = self.user.or_else(|| whoami::username().ok());
        if self.database.is_empty() {
            let user = self.user.clone();
            self.database = user.ok_or_else(|| invalid("behind the hosts stands the database"))?;
        }
        if self.ways.is_empty() {
            self.ways = preferred(Tls::from_files(FILES, [None, None, None]).ok());
        }
        self.check().map(|()| self)
    }

    /// The server for notifications: `place` is one or several hosts with the database of `self`,
    /// or a whole URL. What `place` leaves out is as in `self`, which is complete.
    pub(super) fn beside(&self, place: &str) -> Result<Server> {
        if !place.contains("://") {
            let host = |host: &str| match host.starts_with('/') {
                true => Host::named(host, PORT),
                false => Host::parse(host, PORT),
            };
            let hosts = place.split(',').map(host).collect::<Result<_>>()?;
            return Ok(Server {
                hosts,
                ..self.clone()
            });
        }
        let words = Words::of(address_of(place)?);
        let mut there = Server::read(words, self.settings.clone())?;
        if there.user.is_none() {
            (there.user, there.password) = (self.user.clone(), self.password.clone());
        }
        if there.database.is_empty() {
            there.database.clone_from(&self.database);
        }
        if there.ways.is_empty() {
            there.ways.clone_from(&self.ways);
        }
        there.passwords.clone_from(&self.passwords);
        Ok(there)
    }

    /// Has every connection made by this TLS.
    #[cfg(feature = "tls")]
    pub(super) fn only_by(&mut self, tls: Tls) {
        self.ways = vec![Some(tls)];
        self.warning = None;
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

    /// Returns the password for a connection to this host: the given one, or that of the file.
    pub(crate) async fn password(
        &self,
        host: &Host,
        user: &str,
        given: Option<String>,
    ) -> Result<Option<String>> {
        let (None, Some(passwords)) = (&given, self.passwords.clone()) else {
            return Ok(given);
        };
        let (host, database, user) = (host.clone(), self.database.clone(), user.to_owned());
        let found = spawn_blocking(move || passwords.look_up(&host, &database, &user)).await;
        found.unwrap_or(Ok(None))
    }

    /// The limit of each step of connecting, where a request has this one.
    pub(crate) fn connect_limit(&self, request: Duration) -> Duration {
        let limit = self.settings.get_connect_timeout();
        limit.copied().unwrap_or(request)
    }
}

/// The parameters with the files of TLS, as libpq names them: the CAs to trust, and the
/// certificate to show with its key.
const FILES: [&str; 3] = ["sslrootcert", "sslcert", "sslkey"];

/// The port of PostgreSQL.
const PORT: u16 = 5432;

/// Reads the hosts and their ports; without a host it is the socket of this machine. A list of
/// ports belongs to the list of hosts, or has one port for all.
fn hosts(words: &mut Words) -> Result<Vec<Host>> {
    let not_empty = |text: &String| !text.is_empty();
    let list = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let written = std::mem::take(&mut words.url().hosts);
    let names = written.iter().map(|host| host.name.clone());
    let names = Some(names.collect::<Vec<_>>().join(",")).filter(not_empty);
    let names = words.take_beside("host", names).filter(not_empty);
    let names = names.map(list).unwrap_or_default();
    let ports = written.iter().map(|host| match host.port {
        0 => String::new(),
        port => port.to_string(),
    });
    let ports = Some(ports.collect::<Vec<_>>().join(","));
    let ports = ports.filter(|ports| ports.bytes().any(|byte| byte != b','));
    let ports = words.take_beside("port", ports).filter(not_empty);
    let ports = ports.map_or_else(|| vec![String::new()], list);
    if ports.len() != 1 && ports.len() != names.len() {
        return Err(words.invalid("port", "has one number for each host, or one for all"));
    }
    let port = |nth: usize| match ports[if ports.len() == 1 { 0 } else { nth }].trim() {
        "" => Ok(PORT),
        port => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| words.invalid("port", "is not a number from 1 to 65535")),
    };
    if names.is_empty() {
        // The socket of this machine has a port, too.
        let folder = SOCKETS.iter().find(|folder| Path::new(folder).is_dir());
        return Ok(vec![Host::named(folder.unwrap_or(&SOCKETS[1]), port(0)?)?]);
    }
    let each = names.iter().enumerate();
    each.map(|(nth, name)| Host::named(name, port(nth)?))
        .collect()
}

/// Reads what a session begins with, and the settings of its socket.
fn session(words: &mut Words, settings: &mut Settings) -> Result<()> {
    let fallback = words.take("fallback_application_name");
    if let Some(name) = words.take("application_name").or(fallback) {
        settings.application_name(name);
    }
    if let Some(options) = words.take("options") {
        settings.options(options);
    }
    for (word, text) in [
        ("application_name", settings.get_application_name()),
        ("options", settings.get_options()),
    ] {
        if text.is_some_and(|text| text.contains('\0')) {
            return Err(words.invalid(word, "may not contain NUL"));
        }
    }
    match words.take("channel_binding").as_deref() {
        None => {}
        Some("prefer") => {
            settings.channel_binding(ChannelBinding::Prefer);
        }
        Some("disable") => {
            settings.channel_binding(ChannelBinding::Disable);
        }
        Some("require") => {
            settings.channel_binding(ChannelBinding::Require);
        }
        Some(_) => return Err(words.invalid("channel_binding", "is disable, prefer or require")),
    }
    let seconds = |number: u32| Duration::from_secs(number.into());
    match words.number("connect_timeout", "seconds")? {
        None => {}
        Some(0) => {
            let what = "is a number of seconds, 1 or more: a server that does not answer has to be given up";
            return Err(words.invalid("connect_timeout", what));
        }
        Some(number) => {
            settings.connect_timeout(seconds(number));
        }
    }
    match words.take("keepalives").as_deref() {
        None => {}
        Some("0") => {
            settings.keepalives(false);
        }
        Some("1") => {
            settings.keepalives(true);
        }
        Some(_) => return Err(words.invalid("keepalives", "is 0 or 1")),
    }
    // In libpq 0 stands for the value of the system.
    let set = |number: Option<u32>| number.filter(|number| *number > 0);
    if let Some(number) = set(words.number("keepalives_idle", "seconds")?) {
        settings.keepalives_idle(seconds(number));
    }
    if let Some(number) = set(words.number("keepalives_interval", "seconds")?) {
        settings.keepalives_interval(seconds(number));
    }
    if let Some(number) = set(words.number("keepalives_count", "probes")?) {
        settings.keepalives_retries(number);
    }
    if let Some(number) = set(words.number("tcp_user_timeout", "milliseconds")?) {
        settings.tcp_user_timeout(Duration::from_millis(number.into()));
    }
    Ok(())
}

/// Reads how connections are encrypted and how servers are verified, by libpq's rules. Without a
/// word about that the ways are open. The second value is a warning.
fn ways(words: &mut Words) -> Result<(Vec<Option<Tls>>, Option<String>)> {
    let [ca, cert, key] = FILES.map(|word| words.take(word));
    let mut mode = words.take("sslmode");
    // Libpq takes JDBC's word, and others take any mode in it.
    if let Some(ssl) = words.url().take("ssl") {
        mode = Some(match &*ssl {
            "true" => "require".to_owned(),
            "false" => "disable".to_owned(),
            _ => ssl,
        });
    }
    let is_system = ca.as_deref() == Some("system");
    let mode = match mode {
        None if is_system => "verify-full".to_owned(),
        None if cert.is_none() && key.is_none() && ca.is_none() => return Ok((Vec::new(), None)),
        None => "prefer".to_owned(),
        Some(mode) => mode,
    };
    let no_ca = || {
        words.invalid(
            "sslrootcert",
            "is for sslmode=verify-full, and for verify-ca and require, which verify no name",
        )
    };
    let verified = match &*mode {
        "disable" if cert.is_some() || key.is_some() => {
            let what = "is for TLS, and sslmode=disable has none: write sslmode=verify-full";
            let word = if cert.is_some() { "sslcert" } else { "sslkey" };
            return Err(words.invalid(word, what));
        }
        "disable" | "allow" | "prefer" if ca.is_some() => return Err(no_ca()),
        "disable" => return Ok((vec![None], None)),
        "require" | "verify-ca" if is_system => {
            let what = "is system, whose CAs sign for everybody: write sslmode=verify-full, or the file of a CA of your own";
            return Err(words.invalid("sslrootcert", what));
        }
        "require" if ca.is_some() => Verified::Ca,
        "verify-ca" if ca.is_some() => Verified::Ca,
        "verify-ca" => {
            let what = "is verify-ca, which needs sslrootcert=file: write that too, or sslmode=verify-full";
            return Err(words.invalid("sslmode", what));
        }
        "verify-full" => Verified::Name,
        "allow" | "prefer" | "require" => Verified::Nothing,
        _ => {
            let what = "is disable, allow, prefer, require, verify-ca or verify-full";
            return Err(words.invalid("sslmode", what));
        }
    };
    let is_optional = matches!(&*mode, "allow" | "prefer");
    let shows = cert.is_some() || key.is_some();
    let tls = if cfg!(feature = "tls") {
        let ca = ca.filter(|_| !is_system);
        Some(Tls::from_files(FILES, [ca, cert, key])?.verifying(verified))
    } else if is_optional && !shows {
        None
    } else {
        return Err(tls_is_off());
    };
    let ways = match (&*mode, tls) {
        ("prefer", tls) => preferred(tls),
        ("allow", Some(tls)) => vec![None, Some(tls)],
        (_, tls) => vec![tls],
    };
    let whoever =
        "whoever is on the way can answer in the server's place: write sslmode=verify-full";
    let warning = match &*mode {
        _ if verified != Verified::Nothing => None,
        "require" => Some(format!(
            "sslmode=require encrypts, and verifies no certificate: {whoever}"
        )),
        _ => Some(format!(
            "sslmode={mode} encrypts only if the server does, and verifies no certificate: {whoever}"
        )),
    };
    Ok((ways, warning))
}

/// The ways of libpq's `prefer`: over TLS, if the server offers it, and otherwise in plain text.
fn preferred(tls: Option<Tls>) -> Vec<Option<Tls>> {
    let tls = tls.map(|tls| tls.verifying(Verified::Nothing));
    tls.into_iter().map(Some).chain([None]).collect()
}

/// Parses a URL into its parts. A host without a port has port 0.
pub(super) fn address_of(url: &str) -> Result<Address> {
    Address::parse_libpq(url, 0)
}
