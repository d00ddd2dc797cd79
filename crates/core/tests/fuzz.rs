//! Whatever stands in a URL, a name, a token or a queue: it is read or refused, it comes back as it was written, and no secret is shown.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Write;

use leasehold_core::backend::{
    Admission, ClaimId, Mode, admit, holding, place_of_token, same_permits, token_of_place,
};
use leasehold_core::support::{Address, escape, unescape};
use leasehold_core::{ErrorKind, FencingToken, Name, Result};
use leasehold_fuzz::{fuzz, fuzz_text, fuzz_urls};

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

#[test]
fn names() {
    fuzz_text(include_str!("../corpus/names"), |text| {
        for special in ["", "/", "{}", "/?#\n"] {
            let special = |c: char| special.contains(c) || c.is_control();
            let escaped = escape(text, special);
            assert_eq!(unescape(&escaped, special).as_deref(), Some(text));
            assert!(!escaped.contains(special));
            if let Some(name) = unescape(text, special) {
                assert_eq!(escape(&name, special), text);
            }
        }
        let parts: Vec<&str> = text.split('\n').collect();
        let name = Name::of(&parts);
        let back: Vec<_> = name
            .as_str()
            .split('/')
            .map(|part| unescape(part, |c| c == '/').unwrap())
            .collect();
        assert_eq!(back, parts);
    });
}

#[test]
fn words() {
    fuzz_text(include_str!("../corpus/words"), |text| {
        if let Ok(token) = text.parse::<FencingToken>() {
            assert!(token.as_i64() >= 0 && token.to_string().parse() == Ok(token));
            let place = place_of_token(token);
            assert!(token_of_place(place) <= token);
        }
        if let Some(id) = ClaimId::parse(text) {
            assert_eq!(id.to_string(), text.to_lowercase());
        }
        let words: Vec<&str> = text.split(' ').collect();
        if let [kind, n, of] = words[..]
            && let Some(mode) =
                Mode::from_parts(kind, n.parse().unwrap_or(0), of.parse().unwrap_or(0))
        {
            let (kind, n, of) = mode.parts();
            assert!(1 <= n && n <= of);
            assert_eq!(Mode::from_parts(kind, n, of), Some(mode));
        }
    });
}

#[test]
fn queues() {
    fuzz(include_str!("../corpus/queues"), |bytes| {
        let number = |byte: u8| {
            if byte > 250 {
                u32::MAX - u32::from(255 - byte)
            } else {
                u32::from(byte % 6)
            }
        };
        let mode = |three: &[u8]| {
            let kind = ["exclusive", "shared", "permits"][usize::from(three[0] % 3)];
            Mode::from_parts(kind, number(three[1]), number(three[2])).unwrap_or(Mode::Exclusive)
        };
        let queue: Vec<Mode> = bytes.chunks_exact(3).take(12).map(mode).collect();
        let inside = |queue: &[Mode], at: usize| admit(&queue[..at], queue[at]) == Admission::In;
        let holders = holding(&queue);
        for at in 0..queue.len() {
            assert_eq!(inside(&queue, at), at < holders, "{queue:?}");
            let _ = same_permits(&queue[..at], queue[at]);
            let Admission::Watch(watched) = admit(&queue[..at], queue[at]) else {
                continue;
            };
            for leaver in (0..at).filter(|leaver| !watched.contains(leaver)) {
                let mut after = queue.clone();
                after.remove(leaver);
                assert!(
                    !inside(&after, at - 1),
                    "{queue:?}: {at} missed that {leaver} left"
                );
            }
        }
    });
}
