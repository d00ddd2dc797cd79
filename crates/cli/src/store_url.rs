//! Which store: `--store`, `$LEASEHOLD_STORE`, or a file of this user; and its URL without credentials, which is all that is
//! ever shown.

use std::env;
use std::fmt;
use std::path::PathBuf;

use leasehold::support::Address;
use leasehold::{Error, ErrorKind};

/// The environment variable that names the store.
pub(crate) const VARIABLE: &str = "LEASEHOLD_STORE";

/// What stands before the URLs of two stores.
const BRIDGE: &str = "bridge+";

/// A store's URL. Displays, and debugs, without credentials.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    url: String,
    origin: Origin,
}

/// Where its name came from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Argument,
    Variable,
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "there is no default without files"))]
    Default,
}

impl StoreUrl {
    pub(crate) fn new(url: impl AsRef<str>) -> StoreUrl {
        StoreUrl::from(Origin::Argument, url)
    }

    fn from(origin: Origin, url: impl AsRef<str>) -> StoreUrl {
        StoreUrl { url: url.as_ref().trim().to_owned(), origin }
    }

    /// The store of a command that shares locks with other processes.
    pub(crate) fn choose(option: Option<&str>) -> Result<StoreUrl, String> {
        let url = StoreUrl::any(option)?;
        if url.parts().iter().any(|part| part.starts_with("memory:")) {
            return Err("memory:// lives in one process: no other process would see the lock".into());
        }
        Ok(url)
    }

    /// The same for a command that only reads: a file that was named exists, or the name is wrong. The default is made: there
    /// nothing was locked yet.
    pub(crate) fn existing(option: Option<&str>) -> Result<StoreUrl, String> {
        let url = StoreUrl::choose(option)?;
        match url.file() {
            Some(file) if url.origin != Origin::Default && !file.exists() => {
                Err(format!("{}: there is no such file", url.named()))
            }
            _ => Ok(url),
        }
    }

    /// The store of this command, whatever it is.
    pub(crate) fn any(option: Option<&str>) -> Result<StoreUrl, String> {
        if let Some(url) = option {
            return Ok(StoreUrl::new(url));
        }
        match env::var(VARIABLE) {
            Ok(url) if !url.is_empty() => Ok(StoreUrl::from(Origin::Variable, url)),
            Ok(_) | Err(env::VarError::NotPresent) => default_store(),
            Err(env::VarError::NotUnicode(_)) => Err(format!("{VARIABLE} is not UTF-8")),
        }
    }

    /// With credentials: for connecting, and for nothing else.
    pub(crate) fn secret(&self) -> &str {
        &self.url
    }

    /// For errors: which store, and where its name came from if the command line does not show it.
    pub(crate) fn named(&self) -> String {
        match self.origin {
            Origin::Argument => self.to_string(),
            Origin::Variable => format!("{self} (from {VARIABLE})"),
            Origin::Default => format!("{self} (the default)"),
        }
    }

    /// What this command says better than the library, which speaks to programmers.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.url.starts_with(BRIDGE) {
            return self.parts().into_iter().try_for_each(|part| StoreUrl::new(part).check());
        }
        match self.url.split_once("://").map(|(scheme, _)| scheme) {
            Some("rediss" | "rediss+sentinel" | "rediss+cluster" | "redlocks" | "etcds" | "zookeepers")
                if cfg!(feature = "tls") =>
            {
                Ok(())
            }
            Some("rediss" | "rediss+sentinel" | "rediss+cluster" | "redlocks" | "etcds" | "zookeepers") => {
                let what = "this build has no TLS for it; use a local tunnel (stunnel, ssh -L)";
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            Some(
                "memory" | "sqlite" | "postgres" | "postgresql" | "redis" | "redis+sentinel" | "redis+cluster"
                | "redlock" | "etcd" | "zookeeper",
            )
            | None => Ok(()),
            Some(scheme) if !is_scheme(scheme) => {
                Err(Error::new(ErrorKind::Invalid, "a URL begins with its scheme, as in redis://host"))
            }
            Some(scheme) => {
                let known = "sqlite, postgres, redis, redis+cluster, redlock, etcd, zookeeper";
                let what = format!("unknown scheme {scheme:?}; the known ones are {known}");
                Err(Error::new(ErrorKind::Invalid, what))
            }
        }
    }

    /// The URLs of a bridge, or this one.
    fn parts(&self) -> Vec<&str> {
        self.url.strip_prefix(BRIDGE).map_or_else(|| vec![&*self.url], |urls| urls.split_whitespace().collect())
    }

    /// The file that it names, if it is one of a file and can be read.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("sqlite://").filter(|path| path.starts_with('/'))?;
        // A file has no host: the one grammar of URLs wants one.
        let address = Address::parse(&format!("sqlite://localhost{path}"), "sqlite", 1).ok()?;
        Some(PathBuf::from(format!("/{}", address.path)))
    }

    /// Makes the folder of the default store; that of a named store must exist.
    pub(crate) fn make_folder(&self) -> Result<(), Error> {
        let Some(file) = self.file().filter(|_| self.origin == Origin::Default) else { return Ok(()) };
        make_private(file.parent().unwrap_or(&file))
    }
}

fn make_private(folder: &std::path::Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| Error::new(ErrorKind::Invalid, format!("its folder {}: {e}", folder.display())))
}

/// The file of this user, on this machine.
#[cfg(feature = "sqlite")]
fn default_store() -> Result<StoreUrl, String> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // A home that does not exist is not made.
    let home = || absolute("HOME").filter(|home| home.is_dir()).map(|home| home.join(".local/state"));
    let Some(state) = absolute("XDG_STATE_HOME").or_else(home) else {
        let why = "without a HOME that is a folder there is no default";
        return Err(format!("no store is named: use --store URL or {VARIABLE}; {why}"));
    };
    let file = state.join("leasehold/locks.db");
    let file = file.to_str().ok_or("the path of the default store is not UTF-8; use --store URL")?;
    let path = leasehold::support::escape(file, |c| "?#%".contains(c) || c.is_control());
    Ok(StoreUrl::from(Origin::Default, format!("sqlite://{path}")))
}

#[cfg(not(feature = "sqlite"))]
fn default_store() -> Result<StoreUrl, String> {
    Err(format!("no store is named: use --store URL or {VARIABLE}"))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.url.starts_with(BRIDGE) {
            return match self.parts()[..] {
                [old, new] if old.contains("://") && new.contains("://") => {
                    write!(f, "{BRIDGE}{} {}", StoreUrl::new(old), StoreUrl::new(new))
                }
                // A password may have a space.
                _ => write!(f, "{BRIDGE}…"),
            };
        }
        let (scheme, rest) = self.url.split_once("://").map_or(("", &*self.url), |(scheme, rest)| (scheme, rest));
        // Credentials were written before it.
        let scheme = if is_scheme(scheme) { scheme } else { "…" };
        if scheme == "sqlite" && rest.starts_with('/') {
            // A path, and nothing else.
            return f.write_str(&without_unknown_parameters(&self.url));
        }
        // The last @, wherever it is: a password may be written with any character.
        let (hidden, shown) = rest.rsplit_once('@').unwrap_or(("", rest));
        // Without one, what stands for a port may be a password whose host was forgotten.
        let hosts = shown.split(['/', '?']).next().unwrap_or(shown);
        // Behind a ? the @ may stand in a parameter, which may be one that nobody may see.
        let shown = if !hidden.contains('?') && hosts.split(',').all(may_be_a_host) { shown } else { "…" };
        let shown = &without_unknown_parameters(shown);
        if scheme.is_empty() { f.write_str(shown) } else { write!(f, "{scheme}://{shown}") }
    }
}

fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
}

/// Parameters of stores that have no secret in them. `bells` of PostgreSQL may be a URL with a password.
const KNOWN: [&str; 12] = [
    "timeout=",
    "prefix=",
    "ca=",
    "cert=",
    "server_name=",
    "schema=",
    "connections=",
    "install=",
    "sslmode=",
    "sslrootcert=",
    "sslcert=",
    "target_session_attrs=",
];

/// A parameter that no store has may be a password.
fn without_unknown_parameters(url: &str) -> String {
    let Some((before, query)) = url.split_once('?') else { return url.into() };
    let is_known = |pair: &str| pair == "bells=off" || KNOWN.iter().any(|key| pair.starts_with(key));
    let shown: Vec<&str> = query.split('&').map(|pair| if is_known(pair) { pair } else { "…" }).collect();
    format!("{before}?{}", shown.join("&"))
}

fn may_be_a_host(host: &str) -> bool {
    // A colon inside of brackets belongs to the address.
    let (name, rest) = host.rsplit_once(']').unwrap_or(("", host));
    let (before, port) = rest.split_once(':').unwrap_or((rest, ""));
    port.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || !name.is_empty() || !before.is_empty())
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
            ("redis+sentinel://me:s3cret@a,b/main?sentinel_password=s3cret", "redis+sentinel://a,b/main?…"),
            ("redis://h?timeout=9&pass=s3cret&prefix=a:", "redis://h?timeout=9&…&prefix=a:"),
            ("rediss://h?ca=/a.pem&cert=/b.pem&key=s3cret", "rediss://h?ca=/a.pem&cert=/b.pem&…"),
            ("sqlite:///a.db?key=s3cret", "sqlite:///a.db?…"),
            ("me:s3cret@redis://host", "…://host"),
            ("sqlite://me:s3cret@host/x.db", "sqlite://host/x.db"),
            ("redis+sentinel://a,b/main?sentinel_password=s3@cret", "redis+sentinel://…"),
            (
                "postgres://me:s3cret@h:1,[::1]/db?schema=locks&install=false",
                "postgres://h:1,[::1]/db?schema=locks&install=false",
            ),
            (
                "postgresql://me:s3/cret@h/db?sslmode=verify-full&sslkey=/s3cret",
                "postgresql://h/db?sslmode=verify-full&…",
            ),
            ("postgres://h/db?bells=postgres:%2F%2Fme:s3cret%40d&bells=off", "postgres://h/db?…&bells=off"),
            ("postgres://me:s3cret@h/db?bells=postgres://me:s3cret@d/db", "postgres://…"),
            ("bridge+redis://:s3cret@a etcd://me:s3cret@b/ns", "bridge+redis://a etcd://b/ns"),
            ("bridge+redis://:s3cret redis://h?pass=s3cret", "bridge+redis://… redis://h?…"),
            ("bridge+redis://:s3 cret", "bridge+…"),
            ("bridge+redis://:s3 cret@a redis://b", "bridge+…"),
            ("redis+sentinel://a,b/main?@timeout=9&sentinel_password=s3cret", "redis+sentinel://…"),
        ] {
            let url = StoreUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("cret"));
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
