//! Any URL is read or refused, comes back as it was written, and shows no secret.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write;

use leasehold_core::support::escape;
use leasehold_core::{ErrorKind, Result};
use leasehold_fuzz::{fuzz_text, fuzz_urls};
use leasehold_net::Address;

const WORDS: [&str; 8] = [
    "prefix",
    "ca",
    "cert",
    "key",
    "server_name",
    "sentinel_user",
    "sentinel_password",
    "min_replicas",
];

type Parts = (
    Option<String>,
    Option<String>,
    Vec<String>,
    String,
    bool,
    Vec<Option<String>>,
);

/// All that a URL says.
fn read(url: &str) -> Result<Parts> {
    let scheme = url.split("://").next().unwrap_or_default();
    let scheme = scheme
        .strip_suffix('s')
        .filter(|_| scheme != "redis")
        .unwrap_or(scheme);
    let mut read = Address::parse_tls(url, scheme, 6379, 6380)?;
    let timeout = read.timeout()?;
    assert!((10..=60_000).contains(&timeout.as_millis()));
    let words = WORDS.map(|word| read.take(word)).into();
    read.done()?;
    let hosts = read.hosts.iter().map(ToString::to_string).collect();
    Ok((read.user, read.password, hosts, read.path, read.tls, words))
}

/// A URL that says it.
fn written((user, password, hosts, path, tls, words): &Parts) -> String {
    let encoded = |text: &str| escape(text, |c| !c.is_alphanumeric() && c != '/');
    let bare = |text: &str| encoded(text).replace('/', "%2F");
    let mut url = format!("etcd{}://", if *tls { "s" } else { "" });
    if let Some(password) = password {
        let user = user.as_deref().unwrap_or_default();
        write!(url, "{}:{}@", bare(user), bare(password)).unwrap();
    }
    write!(url, "{}/{}/?timeout=70", hosts.join(","), encoded(path)).unwrap();
    for (word, value) in WORDS.iter().zip(words) {
        value
            .iter()
            .for_each(|value| write!(url, "&{word}={}", bare(value)).unwrap());
    }
    url
}

#[test]
fn urls() {
    fuzz_text(include_str!("../corpus/urls"), |url| match read(url) {
        Ok(parts) => assert_eq!(
            read(&written(&parts)).unwrap(),
            parts,
            "{}",
            written(&parts)
        ),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Invalid, "{e}"),
    });
}

#[test]
fn credentials() {
    fuzz_urls(include_str!("../corpus/credentials"), |url| {
        let scheme = url.split("://").next().unwrap_or_default();
        match Address::parse(
            url,
            if scheme.contains('@') {
                "redis"
            } else {
                scheme
            },
            1,
        ) {
            Ok(mut read) => {
                let refused = (
                    read.timeout().map_err(|e| e.to_string()),
                    read.done().map_err(|e| e.to_string()),
                );
                format!("{read:?} {refused:?}")
            }
            Err(e) => format!("{e} {e:?}"),
        }
    });
}
