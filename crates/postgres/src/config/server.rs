//! One database as a URL names it: its hosts, its user and its TLS.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Result;
use leasehold_net::{Address, Credentials, Host, Tls, Verified};
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
    /// The words about TLS, for a server beside this one.
    tls: TlsWords,
    /// TLS was demanded in code, so a socket is refused.
    pub(crate) is_tls_demanded: bool,
    /// The warning about a way that verifies nothing.
    pub(super) warning: Option<String>,
    /// The parts of the place that the URL left to its surroundings, with what chose them.
    pub(super) chosen: Vec<String>,
    /// The places outside of the URL that have the user and the password.
    user_from: Option<String>,
    password_from: Option<String>,
    /// The warning about such a password that whoever answers may get.
    pub(super) exposed: Option<String>,
    /// What a session begins with, and the settings of its socket.
    pub(crate) settings: Settings,
    /// The identity of the database, of the client that connects by this.
    pub(crate) identity: Arc<DatabaseIdentity>,
}

/// The words about TLS as they were read.
#[derive(Clone, Default)]
struct TlsWords {
    mode: Option<String>,
    /// Those of [`FILES`].
    files: [Option<String>; 3],
}

impl Server {
    /// Reads the words that name a server, beside those in `settings`. A user, a database and ways
    /// that none of them names are left open. Files of TLS without a mode have that of `main`.
    pub(super) fn read(
        mut words: Words,
        mut settings: Settings,
        main: Option<&Server>,
    ) -> Result<Server> {
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
        let tls = TlsWords::read(&mut words, main.map(|main| &main.tls))?;
        let (ways, warning) = ways(&words, &tls)?;
        let is_bound = settings.get_channel_binding() == ChannelBinding::Require;
        // Whoever answers in the server's place cannot complete such a login.
        let warning = warning.filter(|_| !is_bound && !hosts.iter().all(Host::is_socket));
        if is_bound && matches!(ways.first(), Some(None)) {
            return Err(words.invalid(
                "channel_binding",
                "is required, which takes TLS, and the first connection of this sslmode has none: write sslmode=verify-full",
            ));
        }
        words.done()?;
        if database.contains(['/', '\0']) && words.origin("dbname").is_some() {
            return Err(words.invalid("dbname", "is the name of one database, without a /"));
        }
        let parts = [("host", "host"), ("port", "port"), ("dbname", "database")];
        let chosen = parts.into_iter().filter_map(|(word, part)| {
            let origin = words.origin(word)?;
            Some(format!("{origin} chose the {part}"))
        });
        let chosen = chosen.collect();
        let from = |word| words.origin(word).map(str::to_owned);
        let (user_from, password_from) = (from("user"), from("password"));
        let server = Server {
            hosts,
            database,
            user,
            password,
            ways,
            tls,
            warning,
            chosen,
            user_from,
            password_from,
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

    /// Fills what was left open with what libpq takes then: the system's user, the database of the
    /// user's name, and passwords of this file.
    pub(super) fn complete(mut self, passwords: Option<Passwords>) -> Result<Server> {
        self.passwords = passwords;
        if self.user.is_none() {
            // A process in a container may be of no user. Its user may be a function's answer.
            self.user = whoami::username().ok();
            self.user_from = Some("the system's user".to_owned());
        }
        if self.database.is_empty() {
            let user = self.user.clone();
            self.database = user.ok_or_else(|| invalid("behind the hosts stands the database"))?;
            let chose = |from| format!("{from} chose the database, which has the user's name");
            self.chosen.extend(self.user_from.as_ref().map(chose));
        }
        if self.ways.is_empty() {
            self.exposed = self.exposed();
            self.ways = preferred(Tls::from_files(FILES, [None, None, None]).ok());
        }
        self.check().map(|()| self)
    }

    /// The warning about a password from outside of the URL, where no word asks for TLS.
    fn exposed(&self) -> Option<String> {
        let is_bound = self.settings.get_channel_binding() == ChannelBinding::Require;
        let mut remote = self.hosts.iter().filter(|host| !is_here(host));
        let (host, from) = match &self.password {
            _ if is_bound => None,
            Some(_) => remote.next().zip(self.password_from.clone()),
            None => {
                let passwords = self.passwords.as_ref()?;
                let user = self.user.as_deref()?;
                let has = |host: &&Host| {
                    let found = passwords.look_up(host, &self.database, user);
                    found.is_ok_and(|password| password.is_some())
                };
                remote.find(has).map(|host| (host, passwords.to_string()))
            }
        }?;
        Some(format!(
            "{from} has the password for {host}, which without sslmode goes to whoever answers there: write sslmode=verify-full"
        ))
    }

    /// The server for notifications: `place` is one or several hosts with the database of `self`,
    /// or a whole URL. What `place` leaves out is as in `self`, which is complete.
    pub(super) fn beside(&self, place: &str) -> Result<Server> {
        if !place.contains("://") {
            let host = |host: &str| match host.rsplit_once(':') {
                _ if !host.starts_with('/') => Host::parse(host, PORT),
                Some((folder, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                    let port = port.parse().ok().filter(|port| *port != 0);
                    let wrong = || invalid("a port in listen is not a number from 1 to 65535");
                    Host::named(folder, port.ok_or_else(wrong)?)
                }
                _ => Host::named(host, PORT),
            };
            let hosts = place.split(',').map(host).collect::<Result<_>>()?;
            return Ok(Server {
                hosts,
                ..self.clone()
            });
        }
        let words = Words::of(address_of(place)?);
        let mut there = Server::read(words, self.settings.clone(), Some(self))?;
        if there.user.is_none() {
            there.user.clone_from(&self.user);
            there.password = there.password.or_else(|| self.password.clone());
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

    /// The files of its TLS: those of [`FILES`].
    #[cfg(all(test, feature = "tls-no-provider"))]
    pub(super) fn tls_files(&self) -> [Option<&str>; 3] {
        self.tls.files.each_ref().map(Option::as_deref)
    }

    /// Has every connection made by this TLS.
    #[cfg(feature = "tls-no-provider")]
    pub(super) fn only_by(&mut self, tls: Tls) {
        self.ways = vec![Some(tls)];
        self.is_tls_demanded = true;
        (self.warning, self.exposed) = (None, None);
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

/// Shows the place, without credentials.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}/{}", hosts.join(","), self.database)
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
    // As in libpq several hosts are a list of ports, even an empty one, and no variable has them.
    let ports = Some(ports.collect::<Vec<_>>().join(",")).filter(not_empty);
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
    let named = |(nth, name): (usize, &String)| {
        let host = Host::named(name, port(nth)?);
        host.map_err(|e| match words.origin("host") {
            Some(_) => words.invalid("host", "is malformed: the port stands in a word of its own"),
            None => e,
        })
    };
    names.iter().enumerate().map(named).collect()
}

/// Returns whether connections to this host stay on this machine.
fn is_here(host: &Host) -> bool {
    let is_loopback = |address: IpAddr| address.is_loopback();
    host.is_socket() || host.name == "localhost" || host.name.parse().is_ok_and(is_loopback)
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
    // In libpq 0 stands for the value of the system, which takes no more than these.
    let mut set = |word: &'static str, unit: &str, most: u32| {
        let number = words.number(word, unit)?;
        if number.is_some_and(|number| number > most) {
            return Err(words.invalid(word, &format!("is a number of {unit}, at most {most}")));
        }
        Ok(number.filter(|number| *number > 0))
    };
    if let Some(number) = set("keepalives_idle", "seconds", 32_767)? {
        settings.keepalives_idle(seconds(number));
    }
    if let Some(number) = set("keepalives_interval", "seconds", 32_767)? {
        settings.keepalives_interval(seconds(number));
    }
    if let Some(number) = set("keepalives_count", "probes", 127)? {
        settings.keepalives_retries(number);
    }
    if let Some(number) = set("tcp_user_timeout", "milliseconds", i32::MAX as u32)? {
        settings.tcp_user_timeout(Duration::from_millis(number.into()));
    }
    Ok(())
}

/// Reads `sslmode`, and JDBC's `ssl`, which other clients give any mode. The two may not disagree.
/// To the clients of `ssl=true` alone, JDBC's and node-postgres, it verifies the certificate.
fn mode(words: &mut Words) -> Result<Option<String>> {
    let mode = words.take("sslmode");
    let Some(ssl) = words.url().take("ssl") else {
        return Ok(mode);
    };
    let alone = match &*ssl {
        "true" => "verify-full",
        "false" => "disable",
        ssl => ssl,
    };
    Ok(Some(match mode {
        None => alone.to_owned(),
        Some(mode) if mode == alone || ssl == "true" && mode.starts_with("verify-") => mode,
        // The URL counts before other places.
        Some(_) if words.origin("sslmode").is_some() => alone.to_owned(),
        Some(mode) if ssl == "true" && mode != "disable" => mode,
        Some(_) => return Err(words.invalid("ssl", "contradicts sslmode: leave ssl out")),
    }))
}

impl TlsWords {
    /// Reads them. Files without a mode have that of the main server, and its other files.
    fn read(words: &mut Words, main: Option<&TlsWords>) -> Result<TlsWords> {
        let mut mode = mode(words)?;
        if mode.as_deref() == Some("disable") {
            // What the environment says of TLS is for other connections.
            words.forget_elsewhere("ssl");
        }
        let [mut ca, mut cert, mut key] = FILES.map(|word| words.take(word));
        let shows = cert.is_some() || key.is_some();
        if let Some(main) = main
            && mode.is_none()
            && (shows || ca.is_some())
        {
            mode.clone_from(&main.mode);
            let [main_ca, main_cert, main_key] = main.files.clone();
            ca = ca.or(main_ca);
            if !shows {
                (cert, key) = (main_cert, main_key);
            }
        }
        let mode = mode.or_else(|| match &ca {
            Some(ca) if ca == "system" => Some("verify-full".to_owned()),
            _ if shows => Some("require".to_owned()),
            Some(_) => Some("prefer".to_owned()),
            None => None,
        });
        let files = [ca, cert, key];
        Ok(TlsWords { mode, files })
    }
}

/// Finds how connections are encrypted and how servers are verified, by libpq's rules. Without a
/// word about that the ways are open. The second value is a warning.
fn ways(words: &Words, tls: &TlsWords) -> Result<(Vec<Option<Tls>>, Option<String>)> {
    let TlsWords {
        mode: Some(mode),
        files: [ca, cert, key],
    } = tls.clone()
    else {
        return Ok((Vec::new(), None));
    };
    let is_system = ca.as_deref() == Some("system");
    let verified = match &*mode {
        "disable" if cert.is_some() || key.is_some() => {
            let what = "is for TLS, and sslmode=disable has none: write sslmode=verify-full";
            let word = if cert.is_some() { "sslcert" } else { "sslkey" };
            return Err(words.invalid(word, what));
        }
        "disable" | "allow" | "prefer" if ca.is_some() => {
            let what =
                "is for sslmode=verify-full, and for verify-ca and require, which verify no name";
            return Err(words.invalid("sslrootcert", what));
        }
        "disable" => return Ok((vec![None], None)),
        "require" | "verify-ca" if is_system => {
            let what = "is system, whose CAs sign for everybody: write sslmode=verify-full, or the file of a CA of your own";
            return Err(words.invalid("sslrootcert", what));
        }
        "require" | "verify-ca" if ca.is_some() => Verified::Ca,
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
    let half = match (&cert, &key) {
        (Some(_), None) => Some("sslcert"),
        (None, Some(_)) => Some("sslkey"),
        _ => None,
    };
    // Of the URL it is told as in every store.
    if let Some(word) = half.filter(|word| words.origin(word).is_some()) {
        let what = "is half of a client certificate: sslcert and sslkey belong together";
        return Err(words.invalid(word, what));
    }
    let is_optional = matches!(&*mode, "allow" | "prefer");
    let shows = cert.is_some() || key.is_some();
    let ca = ca.filter(|_| !is_system);
    let tls = Tls::from_files(FILES, [ca, cert, key]).map(|tls| Some(tls.verifying(verified)));
    let tls = match tls {
        // Plain text is one of the ways of this mode, and the only one of this build.
        Err(_) if cfg!(not(feature = "tls-no-provider")) && is_optional && !shows => None,
        tls => tls?,
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
