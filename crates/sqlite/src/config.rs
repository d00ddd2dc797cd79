//! The path of the file. A URL is read strictly: a part that is not understood is refused.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use leasehold_core::{Error, ErrorKind, Result, StoreId};
use leasehold_net::Address;

/// The path of the file, and the way in which it is opened.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) path: PathBuf,
    pub(crate) at_once: bool,
    pub(crate) looks: bool,
    /// The identity that the file has to have, if one is named.
    pub(crate) store_id: Option<StoreId>,
}

impl Config {
    /// Reads `sqlite:///absolute/path`, percent-encoded. The parameter `store` is
    /// [`Config::store_id`].
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) names the part that is wrong.
    pub fn from_url(url: &str) -> Result<Config> {
        let invalid = |what| {
            Err(Error::new(
                ErrorKind::Invalid,
                format!("the store's URL: {what}"),
            ))
        };
        let Some(path) = url.strip_prefix("sqlite://") else {
            return invalid("it does not begin with sqlite://");
        };
        if !path.starts_with('/') {
            return invalid(
                "the path is absolute, after three slashes, as in sqlite:///var/lib/app/locks.db",
            );
        }
        // A file has no host, but the common parser of URLs demands one.
        let mut address = Address::parse(&format!("sqlite://localhost{path}"), "sqlite", 1)?;
        let store_id = address.store_id("sqlite")?;
        address.done()?;
        let is_directory = path.split('?').next().unwrap_or_default().ends_with('/');
        if address.path.is_empty() || address.path.ends_with('/') || is_directory {
            return invalid("the path names a directory, not a file");
        }
        if address.path.contains('\0') {
            return invalid("the path contains NUL");
        }
        let config = Config::new(format!("/{}", address.path));
        Ok(Config { store_id, ..config })
    }

    /// A configuration with this path of the file. A relative path begins at the current directory.
    pub fn new(path: impl AsRef<Path>) -> Config {
        Config {
            path: path.as_ref().to_owned(),
            at_once: false,
            looks: false,
            store_id: None,
        }
    }

    /// Uses the file with this identity, and no other: see [`StoreId`]. Without it, the file that is
    /// at the path is used. A client with it makes no file where there is none.
    pub fn store_id(mut self, id: StoreId) -> Config {
        self.store_id = Some(id);
        self
    }

    /// Opens the file on the caller's thread, unless another process has to be waited for, and
    /// starts no thread of the client before it is needed: by a queue, a renewal, or a hold of more
    /// than 20 ms. This is for a short program that has nothing else to do, such as a command: a
    /// thread would cost it more than the lock does. A disk that stalls holds up the runtime.
    pub fn at_once(mut self) -> Config {
        self.at_once = true;
        self
    }

    /// Makes the client begin no file anew, for a program that only looks at the queues. A file of
    /// another boot, one that does not belong to its log and index any more, and one that is
    /// missing all seem empty to it, and an eviction finds no hold there. Its first claim begins the
    /// file anew all the same.
    pub fn to_look(mut self) -> Config {
        self.looks = true;
        self
    }
}

impl FromStr for Config {
    type Err = Error;

    /// Reads a URL, as [`from_url`](Config::from_url) does.
    fn from_str(url: &str) -> Result<Config> {
        Config::from_url(url)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn reads_a_path() {
        let path = |url: &str| url.parse::<Config>().unwrap().path;
        let pinned: Config = "sqlite:///x.db?store=sqlite-1".parse().unwrap();
        assert_eq!(pinned.path, PathBuf::from("/x.db"));
        assert_eq!(pinned.store_id, Some("sqlite-1".parse().unwrap()));
        assert_eq!(
            path("sqlite:///var/lib/locks.db"),
            PathBuf::from("/var/lib/locks.db")
        );
        assert_eq!(
            path("sqlite:///a%20b/%C3%BC%3F%23@,c:x.db"),
            PathBuf::from("/a b/\u{fc}?#@,c:x.db")
        );
    }

    #[test]
    fn refuses_the_rest_and_names_the_part() {
        for (url, part) in [
            ("sqlite:", "sqlite://"),
            ("sqlite:x.db", "sqlite://"),
            ("sqlite::memory:", "sqlite://"),
            ("file:///x.db", "sqlite://"),
            ("sqlite://", "absolute"),
            ("sqlite://x.db", "absolute"),
            ("sqlite://host/x.db", "absolute"),
            ("sqlite://../x.db", "absolute"),
            ("sqlite:///", "directory"),
            ("sqlite:///x/", "directory"),
            ("sqlite:///x%2F", "directory"),
            ("sqlite:///x/?store=sqlite-1", "directory"),
            ("sqlite:///x.db?mode=ro", "mode"),
            ("sqlite:///x.db?store=redis-1", "begins with sqlite-"),
            ("sqlite:///x.db?store=a%20b", "identity"),
            ("sqlite:///x.db#y", "fragment"),
            ("sqlite:///x%", "path"),
            ("sqlite:///x%FF", "path"),
            ("sqlite:///x%00", "NUL"),
        ] {
            let error = Config::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn whatever_a_url_says_it_is_a_file_or_refused() {
        fuzz_text(
            include_str!("../corpus/urls"),
            |url| match Config::from_url(url) {
                Ok(config) => {
                    let path = config.path.to_str().unwrap();
                    let written = leasehold_core::support::escape(path, |c| {
                        "?#%".contains(c) || c.is_control()
                    });
                    let pin = config.store_id.as_ref();
                    let pin = pin.map_or(String::new(), |id| format!("?store={id}"));
                    let again = Config::from_url(&format!("sqlite://{written}{pin}")).unwrap();
                    assert_eq!((again.path, again.store_id), (config.path, config.store_id));
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::Invalid, "{e}"),
            },
        );
    }
}
