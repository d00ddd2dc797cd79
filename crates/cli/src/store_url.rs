//! Chooses the store: `--store`, `--store-file`, their variables, or a file of this user. Its URL is
//! only ever shown without credentials.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use leasehold::{Error, ErrorKind};
use leasehold_net::parameters::{self, Shown};
use leasehold_net::{Address, may_be_secret};

/// The environment variable that names the store.
pub(crate) const VARIABLE: &str = "LEASEHOLD_STORE";
/// The environment variable that names the file with the URL of the store.
pub(crate) const FILE_VARIABLE: &str = "LEASEHOLD_STORE_FILE";

/// The greatest size of such a file in bytes.
const MOST: u64 = 64 << 10;

/// Which store.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArg {
    /// The store: sqlite:///PATH, postgres://USER@HOST[:PORT]/DATABASE, redis://HOST[:PORT][/DB],
    /// redis+sentinel://SENTINEL,…/MASTER[/DB], redis+cluster://HOST,…, redlock://HOST,HOST,HOST, etcd://HOST,…,
    /// zookeeper://HOST,…[/PATH], or "bridge+URL URL" for two of them during a move. An s behind the scheme asks for TLS
    /// [default: $LEASEHOLD_STORE, or the file leasehold/locks.db in $XDG_STATE_HOME or ~/.local/state].
    ///
    /// Put a URL with a password into $LEASEHOLD_STORE, or into a file: other users can read the arguments of a process.
    #[arg(long = "store", value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the URL of the store as its one line, such as a mounted secret [default: $LEASEHOLD_STORE_FILE].
    #[arg(long = "store-file", value_name = "FILE", conflicts_with = "url", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
}

/// The prefix of a bridge's URL, before the URLs of its two stores.
const BRIDGE: &str = "bridge+";

/// The scheme of the URLs of a kind of store, and their form.
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    pub(crate) form: &'static str,
    pub(crate) is_tls: bool,
}

const fn plain(name: &'static str, form: &'static str) -> Scheme {
    Scheme {
        name,
        form,
        is_tls: false,
    }
}

const fn tls(name: &'static str, form: &'static str) -> Scheme {
    Scheme {
        is_tls: true,
        ..plain(name, form)
    }
}

/// All schemes, including those of stores that this build lacks.
pub(crate) const SCHEMES: [Scheme; 16] = [
    plain("sqlite", "sqlite:///PATH"),
    plain("postgres", "postgres://USER@HOST[:PORT]/DATABASE"),
    plain("postgresql", "postgresql://USER@HOST[:PORT]/DATABASE"),
    plain("redis", "redis://HOST[:PORT][/DB]"),
    plain("redis+sentinel", "redis+sentinel://SENTINEL,…/MASTER[/DB]"),
    plain("redis+cluster", "redis+cluster://HOST,…"),
    plain("redlock", "redlock://HOST,HOST,HOST"),
    plain("etcd", "etcd://HOST,…"),
    plain("zookeeper", "zookeeper://HOST,…[/PATH]"),
    plain("memory", "memory://"),
    tls("rediss", "rediss://HOST[:PORT][/DB]"),
    tls(
        "rediss+sentinel",
        "rediss+sentinel://SENTINEL,…/MASTER[/DB]",
    ),
    tls("rediss+cluster", "rediss+cluster://HOST,…"),
    tls("redlocks", "redlocks://HOST,HOST,HOST"),
    tls("etcds", "etcds://HOST,…"),
    tls("zookeepers", "zookeepers://HOST,…[/PATH]"),
];

/// If the word is the name of a kind of store, where a URL is needed, returns the name and the form
/// of its URL.
pub(crate) fn kind(word: &str) -> Option<(&'static str, &'static str)> {
    let scheme = SCHEMES.iter().find(|it| it.name == word.trim())?;
    Some((scheme.name, scheme.form))
}

/// A store's URL. `Display` and `Debug` show it without credentials.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    url: String,
    origin: Origin,
}

/// The source of the URL.
#[derive(Clone, PartialEq, Eq)]
enum Origin {
    Argument,
    Variable,
    /// A file with the URL.
    File(PathBuf),
    #[cfg_attr(
        not(feature = "sqlite"),
        allow(dead_code, reason = "there is no default without files")
    )]
    Default,
}

impl StoreUrl {
    pub(crate) fn new(url: impl AsRef<str>) -> StoreUrl {
        StoreUrl::from(Origin::Argument, url)
    }

    fn from(origin: Origin, url: impl AsRef<str>) -> StoreUrl {
        let url = url.as_ref().trim();
        let url = match url.split_once("://") {
            Some((scheme, rest)) if is_scheme(scheme) => {
                format!("{}://{rest}", scheme.to_ascii_lowercase())
            }
            _ => url.to_owned(),
        };
        StoreUrl { url, origin }
    }

    /// The store of a command that shares locks with other processes.
    pub(crate) fn choose(option: &StoreArg) -> Result<StoreUrl, String> {
        StoreUrl::any(option)?.shared()
    }

    /// The store of a command that only reads.
    pub(crate) fn existing(option: &StoreArg) -> Result<StoreUrl, String> {
        StoreUrl::choose(option)?.present()
    }

    /// Refuses a store that no other process would see.
    fn shared(self) -> Result<StoreUrl, String> {
        let is_private = |part: &&str| StoreUrl::new(part).url.starts_with("memory:");
        if self.parts().iter().any(is_private) {
            return Err(
                "memory:// lives in one process: no other process would see the lock".into(),
            );
        }
        Ok(self)
    }

    /// Refuses the name of a store that has to exist and does not. If it is a named file that does
    /// not exist, the name is wrong. The default file may be missing, since nothing was locked yet,
    /// and is made.
    pub(crate) fn present(self) -> Result<StoreUrl, String> {
        let url = self.shared()?;
        match url.file() {
            Some(file) if url.origin != Origin::Default && !file.exists() => {
                Err(format!("{}: there is no such file", url.named()))
            }
            _ => Ok(url),
        }
    }

    /// The store of this command, of any kind.
    pub(crate) fn any(option: &StoreArg) -> Result<StoreUrl, String> {
        if let Some(url) = &option.url {
            return Ok(StoreUrl::new(url));
        }
        if let Some(file) = &option.file {
            return StoreUrl::in_file(file);
        }
        let by_variable = match env::var(VARIABLE) {
            Ok(url) if !url.is_empty() => Some(StoreUrl::from(Origin::Variable, url)),
            Ok(_) | Err(env::VarError::NotPresent) => None,
            Err(env::VarError::NotUnicode(_)) => return Err(format!("{VARIABLE} is not UTF-8")),
        };
        let file = env::var_os(FILE_VARIABLE).filter(|file| !file.is_empty());
        let by_file = file.map(|file| StoreUrl::in_file(Path::new(&file)));
        match (by_variable, by_file.transpose()?) {
            // A program under a lock has both: the URL that it is given lacks the credentials.
            (Some(url), Some(whole)) if url.url == whole.for_program() => Ok(whole),
            (Some(_), Some(_)) => Err(format!(
                "{VARIABLE} and {FILE_VARIABLE} name different stores: unset one of them"
            )),
            (Some(url), None) | (None, Some(url)) => Ok(url),
            (None, None) => default_store(),
        }
    }

    /// The store whose URL is the one line of this file.
    fn in_file(path: &Path) -> Result<StoreUrl, String> {
        let shown = path.display();
        let cannot = |why: &dyn fmt::Display| {
            format!("the file with the store's URL, {shown}, cannot be read: {why}")
        };
        // Opening a pipe may never end.
        if !path.metadata().map_err(|e| cannot(&e))?.is_file() {
            return Err(cannot(&"it is no file"));
        }
        let mut url = String::new();
        let file = File::open(path).map_err(|e| cannot(&e))?;
        let read = file.take(MOST + 1).read_to_string(&mut url);
        if read.map_err(|e| cannot(&e))? as u64 > MOST {
            return Err(cannot(&"it is too large"));
        }
        // Editors of Windows begin a file with a mark.
        match url.trim_start_matches('\u{feff}').trim() {
            "" => Err(format!(
                "the file with the store's URL, {shown}, is empty: its one line is the URL"
            )),
            url if url.contains(['\n', '\r']) => Err(format!(
                "the file with the store's URL, {shown}, has several lines: its one line is the URL"
            )),
            url => {
                // The program may be in another folder.
                let path = std::path::absolute(path).map_err(|e| cannot(&e))?;
                Ok(StoreUrl::from(Origin::File(path), url))
            }
        }
    }

    /// The variables of a program under a lock that name the store: its URL without credentials,
    /// and the file with all of it, if there is one.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let mut variables = vec![(VARIABLE.to_owned(), self.for_program())];
        let file = match &self.origin {
            // A path that is no text cannot be handed on.
            Origin::File(path) => path.to_str().unwrap_or_default(),
            _ if env::var_os(FILE_VARIABLE).is_none() => return variables,
            // It names another store.
            _ => "",
        };
        variables.push((FILE_VARIABLE.to_owned(), file.to_owned()));
        variables
    }

    /// The URL with credentials, for connecting and for nothing else.
    pub(crate) fn secret(&self) -> &str {
        &self.url
    }

    /// The URL for the program's environment, without credentials and without the parameters that
    /// may not be shown, so that a command inside of the program can use the rest. It names the
    /// same database, or is refused.
    pub(crate) fn for_program(&self) -> String {
        if self.url.starts_with(BRIDGE) {
            return match self.pair() {
                Some([old, new]) => {
                    format!("{BRIDGE}{} {}", old.for_program(), new.for_program())
                }
                None => self.to_string(),
            };
        }
        let shown = without_hidden_parameters(&self.shown(true));
        let Some(database) = self.unwritten_database() else {
            return shown;
        };
        let (before, query) = match shown.split_once('?') {
            Some((before, query)) => (before, format!("?{query}")),
            None => (&*shown, String::new()),
        };
        let Some((scheme, hosts)) = before.split_once("://") else {
            return shown;
        };
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        format!("{scheme}://{hosts}/{database}{query}")
    }

    /// The database of a URL of PostgreSQL that names none, in the form of a URL: that of its user,
    /// who is hidden, or of the environment.
    #[cfg(feature = "postgres")]
    fn unwritten_database(&self) -> Option<String> {
        let mut address = Address::parse_libpq(&self.url, 0).ok()?;
        if !address.path.is_empty() || address.take("dbname").is_some() {
            return None;
        }
        let config = leasehold::postgres::Config::from_url(&self.url).ok()?;
        let is_special = |c: char| !c.is_alphanumeric() && !"-._".contains(c);
        Some(leasehold::backend::escape(config.database(), is_special))
    }

    #[cfg(not(feature = "postgres"))]
    fn unwritten_database(&self) -> Option<String> {
        None
    }

    /// The URL without credentials. Of a URL that is known to be right, the parameters behind a
    /// password are no parts of it.
    fn shown(&self, is_right: bool) -> String {
        if self.url.starts_with(BRIDGE) {
            return match self.pair() {
                Some([old, new]) => {
                    format!("{BRIDGE}{} {}", old.shown(is_right), new.shown(is_right))
                }
                None => format!("{BRIDGE}…"),
            };
        }
        let (scheme, rest) = self
            .url
            .split_once("://")
            .map_or(("", &*self.url), |(scheme, rest)| (scheme, rest));
        // If this is no scheme, credentials were written before it.
        let scheme = if is_scheme(scheme) { scheme } else { "…" };
        let is_path = ["sqlite", "unix", "redis+unix", "redis+socket"].contains(&scheme);
        if is_path && rest.starts_with('/') {
            // The rest is a path, and nothing else.
            return without_unknown_parameters(&self.url, is_right);
        }
        // The last @ counts, wherever it is: a password may contain any character.
        let (hidden, shown) = rest.rsplit_once('@').unwrap_or(("", rest));
        // Without an @, the text in the place of a port may be a password whose host was forgotten.
        let hosts = shown.split(['/', '?']).next().unwrap_or(shown);
        // Behind a `?`, the @ may be in a parameter, and that may be a secret one.
        let shown = if !hidden.contains('?') && hosts.split(',').all(may_be_a_host) {
            shown
        } else {
            "…"
        };
        let shown = without_unknown_parameters(shown, is_right);
        if scheme.is_empty() {
            shown
        } else {
            format!("{scheme}://{shown}")
        }
    }

    /// The store for errors: its URL, and the source of the URL if that is not the command line.
    pub(crate) fn named(&self) -> String {
        match &self.origin {
            Origin::Argument => self.to_string(),
            Origin::File(path) => format!("{self} (from the file {})", path.display()),
            Origin::Variable => format!("{self} (from {VARIABLE})"),
            Origin::Default => format!("{self} (the default)"),
        }
    }

    /// Finds mistakes that this command explains better than the library, which speaks to
    /// programmers.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.url.starts_with(BRIDGE) {
            return self
                .parts()
                .into_iter()
                .try_for_each(|part| StoreUrl::new(part).check());
        }
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return Ok(());
        };
        if is_as_shown(rest) {
            let what = "this is a URL as it is shown, without credentials: … stands for what was left out. Name the store by --store";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        match SCHEMES.iter().find(|known| known.name == scheme) {
            Some(known)
                if known.is_tls && cfg!(not(any(feature = "tls", feature = "tls-ring"))) =>
            {
                let what = "this build has no TLS for it; use a local tunnel (stunnel, ssh -L)";
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            // The library names the schemes that there are.
            _ => Ok(()),
        }
    }

    /// The URLs of a bridge, or this URL alone.
    fn parts(&self) -> Vec<&str> {
        self.url.strip_prefix(BRIDGE).map_or_else(
            || vec![&*self.url],
            |urls| urls.split_whitespace().collect(),
        )
    }

    /// The two stores of a bridge. A password may contain a space, so that there seem to be more.
    fn pair(&self) -> Option<[StoreUrl; 2]> {
        match self.parts()[..] {
            [old, new] if old.contains("://") && new.contains("://") => {
                Some([StoreUrl::new(old), StoreUrl::new(new)])
            }
            _ => None,
        }
    }

    /// The file that the URL names, if it is the URL of a file and can be parsed.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let path = self
            .url
            .strip_prefix("sqlite://")
            .filter(|path| path.starts_with('/'))?;
        // A file has no host, but the grammar of URLs wants one.
        let address = Address::parse(&format!("sqlite://localhost{path}"), "sqlite", 1).ok()?;
        Some(PathBuf::from(format!("/{}", address.path)))
    }

    /// Makes the folder of the default store. The folder of a named store must exist.
    pub(crate) fn make_folder(&self) -> Result<(), Error> {
        let Some(file) = self.file().filter(|_| self.origin == Origin::Default) else {
            return Ok(());
        };
        make_private(file.parent().unwrap_or(&file))
    }
}

fn make_private(folder: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    made.map_err(|e| {
        Error::new(
            ErrorKind::Invalid,
            format!("its folder {}: {e}", folder.display()),
        )
    })
}

/// The default store: a file of this user, on this machine.
#[cfg(feature = "sqlite")]
fn default_store() -> Result<StoreUrl, String> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    // A home that does not exist is not created.
    let home = || {
        absolute("HOME")
            .filter(|home| home.is_dir())
            .map(|home| home.join(".local/state"))
    };
    let Some(state) = absolute("XDG_STATE_HOME").or_else(home) else {
        let why = "without a HOME that is a folder there is no default";
        return Err(format!(
            "no store is named: use --store URL or {VARIABLE}; {why}"
        ));
    };
    let file = state.join("leasehold/locks.db");
    let file = file
        .to_str()
        .ok_or("the path of the default store is not UTF-8; use --store URL")?;
    let path = leasehold::backend::escape(file, |c| "?#%".contains(c) || c.is_control());
    Ok(StoreUrl::from(Origin::Default, format!("sqlite://{path}")))
}

#[cfg(not(feature = "sqlite"))]
fn default_store() -> Result<StoreUrl, String> {
    Err(format!("no store is named: use --store URL or {VARIABLE}"))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown(false))
    }
}

fn is_scheme(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-".contains(&byte))
}

/// Returns whether a value may have a secret in it, as a URL in the place of a name has: `%40` is `@`,
/// `%3A` is `:`, and `%3D` is `=`.
fn is_suspicious(value: &str) -> bool {
    let value = value.to_ascii_uppercase();
    let may_be_a_place = |part: &str| {
        let is_folder = part.starts_with('/') || part.starts_with("%2F");
        is_folder
            || part.parse::<Ipv6Addr>().is_ok()
            || ![":", "%3A"].iter().any(|it| part.contains(it))
    };
    ["@", "%40", "=", "%3D"].iter().any(|it| value.contains(it))
        || !value.split(',').all(may_be_a_place)
}

/// Returns whether a value is the path of a file: any other text in its place may be the secret
/// itself that belongs into the file.
fn is_path(value: &str) -> bool {
    ["/", "%2F", "%2f", "."]
        .iter()
        .any(|it| value.starts_with(it))
}

/// Hides the parameters that no store has: such a one may be a password. Of one that chooses the
/// database the name stays, so that the URL names no other database, and is refused. Behind a
/// password all are hidden, since an `&` may be a part of it, unless the URL is known to be right.
fn without_unknown_parameters(url: &str, is_right: bool) -> String {
    let Some((before, query)) = url.split_once('?') else {
        return url.into();
    };
    let mut is_behind_secret = false;
    let shown = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        is_behind_secret |= may_be_secret(key);
        if is_behind_secret && !is_right {
            return "…".to_owned();
        }
        let is_shown = match parameters::shown(key) {
            Some(Shown::All) => true,
            Some(Shown::Value | Shown::IfHarmless) => !is_suspicious(value),
            Some(Shown::Path) => is_path(value) && !is_suspicious(value),
            Some(Shown::Nothing) => pair == "listen=off",
            None => false,
        };
        match parameters::shown(key) {
            Some(_) if is_shown => pair.to_owned(),
            Some(Shown::Value | Shown::Path) => format!("{key}=…"),
            // It may be the name of any of them.
            None if key.contains('%') => "…=…".to_owned(),
            _ => "…".to_owned(),
        }
    };
    let shown: Vec<String> = query.split('&').map(shown).collect();
    format!("{before}?{}", shown.join("&"))
}

/// Returns whether this is the rest of a URL as it is shown, with something left out.
fn is_as_shown(rest: &str) -> bool {
    let (_, query) = rest.split_once('?').unwrap_or_default();
    rest == "…"
        || query
            .split('&')
            .any(|pair| pair == "…" || pair.ends_with("=…"))
}

/// Removes the parameters that are hidden in a shown URL.
fn without_hidden_parameters(url: &str) -> String {
    let Some((before, query)) = url.split_once('?') else {
        return url.into();
    };
    let known: Vec<&str> = query.split('&').filter(|pair| *pair != "…").collect();
    if known.is_empty() {
        return before.into();
    }
    format!("{before}?{}", known.join("&"))
}

fn may_be_a_host(host: &str) -> bool {
    // A colon inside of brackets belongs to the address.
    let (name, rest) = host.rsplit_once(']').unwrap_or(("", host));
    let (before, port) = rest.split_once(':').unwrap_or((rest, ""));
    port.bytes().all(|byte| byte.is_ascii_digit())
        && (port.is_empty() || !name.is_empty() || !before.is_empty())
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_urls;

    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        for (url, shown) in [
            ("redis://me:s3cret@host:1/0", "redis://host:1/0"),
            ("redis://:s3/cr@et@host", "redis://host"),
            ("redis://:s3cret", "redis://…"),
            ("redis://me:s3cret/0", "redis://…"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("etcd://a:1,b:2/ns", "etcd://a:1,b:2/ns"),
            ("me:s3cret@host", "host"),
            ("sqlite:///a/b@c.db", "sqlite:///a/b@c.db"),
            ("redis://h/0?password=s3cret", "redis://h/0?…"),
            ("redis://h?s3cret", "redis://h?…"),
            (
                "redis+sentinel://me:s3cret@a,b/main?sentinel_password=s3cret",
                "redis+sentinel://a,b/main?…",
            ),
            (
                "redis://h?timeout=9&pass=s3&prefix=cret",
                "redis://h?timeout=9&…&…",
            ),
            (
                "rediss://h?ca=/a.pem&cert=/b.pem&key=s3cret",
                "rediss://h?ca=/a.pem&cert=/b.pem&key=…",
            ),
            ("sqlite:///a.db?key=s3cret", "sqlite:///a.db?key=…"),
            ("me:s3cret@redis://host", "…://host"),
            ("sqlite://me:s3cret@host/x.db", "sqlite://host/x.db"),
            (
                "redis+sentinel://a,b/main?sentinel_password=s3@cret",
                "redis+sentinel://…",
            ),
            (
                "postgres://me:s3cret@h:1,[::1]/db?schema=locks&install=false",
                "postgres://h:1,[::1]/db?schema=locks&install=false",
            ),
            (
                "postgresql://me:s3/cret@h/db?sslmode=verify-full&sslkey=s3cret",
                "postgresql://h/db?sslmode=verify-full&sslkey=…",
            ),
            (
                "postgres://h/db?sslpassword=s3cret&options=-cs3cret&user=s3cret",
                "postgres://h/db?…&…&…",
            ),
            (
                "postgres://h/db?listen=postgres:%2F%2Fme:s3cret%40d&listen=off",
                "postgres://h/db?…&listen=off",
            ),
            (
                "postgres://me:s3cret@h/db?listen=postgres://me:s3cret@d/db",
                "postgres://…",
            ),
            (
                "bridge+redis://:s3cret@a etcd://me:s3cret@b/ns",
                "bridge+redis://a etcd://b/ns",
            ),
            (
                "bridge+redis://:s3cret redis://h?pass=s3cret",
                "bridge+redis://… redis://h?…",
            ),
            (
                "redis+unix:///run/a@b.sock?pass=s3cret",
                "redis+unix:///run/a@b.sock?…",
            ),
            (
                "postgres://h?dbname=postgres://u:s3cret%40h/x&timeout=9",
                "postgres://h?dbname=…&timeout=9",
            ),
            ("postgres://h?host=u:s3cret%40h", "postgres://h?host=…"),
            (
                "postgres://h?service=password%3ds3cret",
                "postgres://h?service=…",
            ),
            ("postgres://h?application_name=s3:cret", "postgres://h?…"),
            ("postgres://h?%64bname=s3cret", "postgres://h?…=…"),
            (
                "postgres://?host=/cloudsql/a:b,::1&port=1,2",
                "postgres://?host=/cloudsql/a:b,::1&port=1,2",
            ),
            ("bridge+redis://:s3 cret", "bridge+…"),
            ("bridge+redis://:s3 cret@a redis://b", "bridge+…"),
            (
                "redis+sentinel://a,b/main?@timeout=9&sentinel_password=s3cret",
                "redis+sentinel://…",
            ),
        ] {
            let url = StoreUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("cret"));
        }
    }

    #[test]
    fn the_program_gets_a_url_that_can_be_used() {
        for (url, given) in [
            ("redis://me:s3cret@h:1/0", "redis://h:1/0"),
            ("redis://h/0?password=s3cret", "redis://h/0"),
            (
                "redis://h/0?password=s3cret&prefix=a:",
                "redis://h/0?prefix=a:",
            ),
            (
                "postgres://me:s3cret@h/db?schema=locks&listen=postgres:%2F%2Fme:s3cret%40d&install=false",
                "postgres://h/db?schema=locks&install=false",
            ),
            (
                "bridge+redis://:s3cret@a?pass=s3cret etcd://b/ns",
                "bridge+redis://a etcd://b/ns",
            ),
            ("sqlite:///a b/c.db", "sqlite:///a b/c.db"),
            ("redis://h?database=3", "redis://h?database=3"),
            (
                "redis+unix:///x?virtual_host=2&password=s3cret",
                "redis+unix:///x?virtual_host=2",
            ),
            (
                "rediss://h?ssl_check_hostname=false&ca=/a.pem",
                "rediss://h?ssl_check_hostname=false&ca=/a.pem",
            ),
            (
                "redis-sentinel://a,b/3?master=m",
                "redis-sentinel://a,b/3?master=m",
            ),
            (
                "postgres://me:s3cret@h/db?ssl=verify-full",
                "postgres://h/db?ssl=verify-full",
            ),
            (
                "postgres://h/db?store=postgres-1",
                "postgres://h/db?store=postgres-1",
            ),
            (
                "rediss://h?cert=/b.pem&key=%2Fb.key&scripts=off&min_replicas=1",
                "rediss://h?cert=/b.pem&key=%2Fb.key&scripts=off&min_replicas=1",
            ),
            (
                "rediss://h?ssl_certfile=/b.pem&ssl_keyfile=/b.key&protocol=2",
                "rediss://h?ssl_certfile=/b.pem&ssl_keyfile=/b.key&protocol=2",
            ),
            (
                "postgres://h/db?sslcert=/me.pem&sslkey=./me.key&passfile=/pass",
                "postgres://h/db?sslcert=/me.pem&sslkey=./me.key&passfile=/pass",
            ),
            (
                "bridge+etcd://a?discover=true zookeeper://b?sasl=digest-md5",
                "bridge+etcd://a?discover=true zookeeper://b?sasl=digest-md5",
            ),
            (
                "postgres://h/db?options=-csearch_path%3Dx",
                "postgres://h/db",
            ),
        ] {
            let given_url = StoreUrl::new(url).for_program();
            assert_eq!(given_url, given);
            assert!(StoreUrl::new(&given_url).check().is_ok(), "{given_url}");
        }
        let hidden = |url| StoreUrl::new(url).for_program();
        for shown in [
            &*hidden("postgres://h?dbname=x:s3cret"),
            &*hidden("postgres://h/x?%64bname=y"),
            &*hidden("rediss://h?cert=/b.pem&key=b.key"),
            "redis://…",
            "postgres://h/db?…",
            "bridge+redis://a redis://…",
        ] {
            let refused = StoreUrl::new(shown).check().unwrap_err().to_string();
            assert!(refused.contains("without credentials"), "{refused}");
        }
    }

    /// The other direction, that a store reads no parameter that the list lacks, is checked wherever
    /// a URL is parsed.
    #[cfg(all(feature = "etcd", feature = "tls"))]
    #[test]
    fn each_parameter_in_the_list_is_known_to_a_store() {
        use leasehold::{etcd, postgres, redis, zookeeper};

        let knows = |e: Option<Error>| e.is_none_or(|e| !e.to_string().contains("is unknown"));
        for word in parameters::PARAMETERS.iter().flat_map(|(_, all)| *all) {
            let url = |before: &str| format!("{before}?{word}=1");
            let is_known = [
                etcd::Config::from_url(&url("etcd://h")).err(),
                postgres::Config::from_url(&url("postgres://h/db")).err(),
                redis::Config::from_url(&url("redis://h")).err(),
                redis::Config::from_url(&url("redis-sentinel://h/name")).err(),
                zookeeper::Config::from_url(&url("zookeeper://h")).err(),
            ];
            assert!(is_known.into_iter().any(knows), "{word}");
        }
    }

    /// Otherwise the command inside of the program would be in the database of another user.
    #[cfg(feature = "postgres")]
    #[test]
    fn the_program_gets_the_database_of_the_user_that_is_hidden() {
        for (url, given) in [
            ("postgres://alice:s3cret@h", "postgres://h/alice"),
            (
                "postgres://a%23b@h/?timeout=250",
                "postgres://h/a%23b?timeout=250",
            ),
            (
                "postgresql+psycopg://h?user=bob",
                "postgresql+psycopg://h/bob",
            ),
            (
                "postgres://alice@/?host=/run/x",
                "postgres:///alice?host=/run/x",
            ),
            ("postgres://alice@h/db", "postgres://h/db"),
            ("postgres://alice@h?dbname=db", "postgres://h?dbname=db"),
            (
                "bridge+postgres://alice:s3cret@h redis://r",
                "bridge+postgres://h/alice redis://r",
            ),
        ] {
            assert_eq!(StoreUrl::new(url).for_program(), given);
        }
    }

    #[test]
    fn a_store_of_one_process_is_refused_in_any_case() {
        for url in [
            "memory://",
            "MEMORY://",
            "bridge+MEMORY:// redis://h",
            "bridge+redis://h Memory://",
        ] {
            assert!(StoreUrl::new(url).shared().is_err(), "{url}");
        }
    }

    #[test]
    fn whatever_a_url_says_no_secret_of_it_is_shown() {
        fuzz_urls(include_str!("../corpus/urls"), |url| {
            let store = StoreUrl::new(url);
            let refused = store.check().map_err(|e| e.to_string());
            if let Some(file) = store.file() {
                assert!(file.is_absolute(), "{url}");
            }
            format!("{store} {store:?} {} {refused:?}", store.named())
        });
    }
}
