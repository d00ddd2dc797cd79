//! Any name, token or queue is read or refused, and comes back as it was written.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold_core::backend::{
    Admission, ClaimId, Mode, admit, holding, place_of_token, same_permits, token_of_place,
};
use leasehold_core::support::{escape, unescape};
use leasehold_core::{FencingToken, Name};
use leasehold_fuzz::{fuzz, fuzz_text};

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
