//! Which store: `--store`, `$LEASEHOLD_STORE`, or a file of this user; and its URL without credentials, which is all that is
//! ever shown.

use std::env;
use std::fmt;

/// The environment variable that names the store.
pub(crate) const VARIABLE: &str = "LEASEHOLD_STORE";

/// A store's URL. Displays, and debugs, without credentials.
#[derive(Clone)]
pub(crate) struct StoreUrl {
    url: String,
}

impl StoreUrl {
    pub(crate) fn new(url: impl Into<String>) -> StoreUrl {
        StoreUrl { url: url.into() }
    }

    /// The store of this command.
    pub(crate) fn choose(option: Option<&str>) -> Result<StoreUrl, String> {
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

fn default_store() -> Result<StoreUrl, String> {
    Err(format!("no store is named: use --store URL or {VARIABLE}"))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.url.split_once("://").map_or(("", &*self.url), |(scheme, rest)| (scheme, rest));
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
            ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ] {
            let url = StoreUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("cret"));
        }
    }
}
