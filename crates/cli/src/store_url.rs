//! Which store: `--store`, `$LEASEHOLD_STORE`, or a file of this user; and its URL without credentials, which is all that is
//! ever shown.

use std::env;
use std::fmt;
#[cfg(feature = "sqlite")]
use std::{os::unix::fs::DirBuilderExt, path::PathBuf};

/// The environment variable that names the store.
pub(crate) const VARIABLE: &str = "LEASEHOLD_STORE";

/// A store's URL. Displays, and debugs, without credentials.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    url: String,
}

impl StoreUrl {
    pub(crate) fn new(url: impl AsRef<str>) -> StoreUrl {
        StoreUrl { url: url.as_ref().trim().to_owned() }
    }

    /// The store of a command that shares locks with other processes.
    pub(crate) fn choose(option: Option<&str>) -> Result<StoreUrl, String> {
        let url = StoreUrl::any(option)?;
        if url.url.starts_with("memory:") {
            return Err("memory:// lives in one process: nobody else would see the lock".into());
        }
        Ok(url)
    }

    /// The store of this command, whatever it is.
    pub(crate) fn any(option: Option<&str>) -> Result<StoreUrl, String> {
        if let Some(url) = option {
            return Ok(StoreUrl::new(url));
        }
        match env::var(VARIABLE) {
            Ok(url) if !url.is_empty() => Ok(StoreUrl::new(url)),
            Ok(_) | Err(env::VarError::NotPresent) => default_store(),
            Err(env::VarError::NotUnicode(_)) => Err(format!("{VARIABLE} is not UTF-8")),
        }
    }

    /// With credentials: for connecting, and for nothing else.
    pub(crate) fn secret(&self) -> &str {
        &self.url
    }
}

/// The file of this user, on this machine.
#[cfg(feature = "sqlite")]
fn default_store() -> Result<StoreUrl, String> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let Some(state) = state else {
        return Err(format!("no store is named: use --store URL or {VARIABLE}; without HOME there is no default"));
    };
    let folder = state.join("leasehold");
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|e| format!("the default store's folder {}: {e}", folder.display()))?;
    let file = folder.join("locks.db");
    let file = file.to_str().ok_or("the path of the default store is not UTF-8; use --store URL")?;
    Ok(StoreUrl::new(format!("sqlite://{}", leasehold::seam::escape(file, |c| "?#%".contains(c) || c.is_control()))))
}

#[cfg(not(feature = "sqlite"))]
fn default_store() -> Result<StoreUrl, String> {
    Err(format!("no store is named: use --store URL or {VARIABLE}"))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.url.split_once("://").map_or(("", &*self.url), |(scheme, rest)| (scheme, rest));
        if scheme == "sqlite" {
            // A path, and nothing else.
            return f.write_str(&self.url);
        }
        // The last @, wherever it is: a password may be written with any character.
        let shown = rest.rsplit_once('@').map_or(rest, |(_, shown)| shown);
        if scheme.is_empty() { f.write_str(shown) } else { write!(f, "{scheme}://{shown}") }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        for (url, shown) in [
            ("redis://me:s3cret@host:1/0", "redis://host:1/0"),
            ("redis://:s3/cr@et@host", "redis://host"),
            ("etcd://a:1,b:2/ns", "etcd://a:1,b:2/ns"),
            ("me:s3cret@host", "host"),
            ("sqlite:///a/b@c.db", "sqlite:///a/b@c.db"),
        ] {
            let url = StoreUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("cret"));
        }
    }
}
