//! Arbitrary input for the parsers of Leasehold, for their tests only: a corpus line by line, and changes of it.
//!
//! A target is a closure that panics where a parser is wrong. This crate judges that it returns and that it allocates no more than its
//! input warrants. Each run of the tests replays the corpus and a few thousand changes of it, which are equal in each run;
//! `LEASEHOLD_FUZZ=10000000` draws that many others. A failing input is reduced and shown as the line to add to the corpus.

mod change;
mod watch;

use std::alloc::System;
use std::any::Any;
use std::env;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{PoisonError, RwLock};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use crate::change::{Change, changed, changes};
use crate::watch::Watch;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The number of changes of the corpus that each target sees unless `LEASEHOLD_FUZZ` gives another.
const DAILY: u32 = 3000;
/// The allocation limits of a target: in all, and for each byte of its input.
const MOST: (usize, usize) = (1 << 20, 512);
/// A target that seems to allocate too much runs again while no other target of the process runs.
static ALONE: RwLock<()> = RwLock::new(());
/// Other tests of the process allocate too: so often it is run again before it is blamed.
const AGAIN: usize = 50;

/// One input. It is shown as a line of a corpus.
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// Runs the target on each line of the corpus, and on changes of them.
///
/// # Panics
///
/// If the target panics, does not return, or allocates out of proportion.
pub fn fuzz(corpus: &str, target: impl Fn(&[u8])) {
    run(corpus, 1, |input| within_proportion(input, &target));
}

/// [`fuzz`] for inputs that are programs for real servers: a hundred times fewer, without a judgement of allocations.
///
/// # Panics
///
/// If the target panics, or does not return.
pub fn fuzz_servers(corpus: &str, target: impl Fn(&[u8])) {
    run(corpus, 100, target);
}

/// A daily run draws the same changes each time, so that it fails only for what was changed. A campaign draws others.
#[allow(
    clippy::panic,
    reason = "a campaign of another length than was asked for is none"
)]
fn config(fewer: u32) -> Config {
    let asked = env::var("LEASEHOLD_FUZZ").ok();
    let campaign = asked.map(|n| {
        n.parse::<u32>()
            .unwrap_or_else(|_| panic!("LEASEHOLD_FUZZ is a number, and not {n:?}"))
    });
    let rng_seed = if campaign.is_some() {
        RngSeed::Random
    } else {
        RngSeed::Fixed(0)
    };
    Config {
        cases: campaign.unwrap_or(DAILY) / fewer,
        rng_seed,
        failure_persistence: None,
        ..Config::default()
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it has panicked")
}

#[allow(clippy::panic, reason = "it is a test that fails")]
fn run(corpus: &str, fewer: u32, judge: impl Fn(&[u8])) {
    let lines: Vec<Vec<u8>> = corpus.lines().map(unescaped).collect();
    assert!(!lines.is_empty(), "a corpus has one line at least");
    let watch = Watch::default();
    let judged = |input: &[u8]| {
        watch.begins(input);
        judge(input);
    };
    for line in &lines {
        if let Err(failed) = catch_unwind(AssertUnwindSafe(|| judged(line))) {
            panic!(
                "{}\nthe line of the corpus: {}",
                message(&*failed),
                line.escape_ascii()
            );
        }
    }
    let inputs = (0..lines.len(), changes()).prop_map(|(at, changes): (usize, Vec<Change>)| {
        Input(
            changes
                .into_iter()
                .fold(lines[at].clone(), |input, change| {
                    changed(input, change, &lines)
                }),
        )
    });
    let ran = TestRunner::new(config(fewer)).run(&inputs, |input| {
        judged(&input.0);
        Ok(())
    });
    match ran {
        Ok(()) => {}
        Err(TestError::Fail(why, input)) => {
            panic!("{why}\nthe input, as a line of the corpus: {input:?}")
        }
        Err(other) => panic!("{other}"),
    }
}

/// [`fuzz`] for text: bytes that are no UTF-8 are replaced.
///
/// # Panics
///
/// As [`fuzz`].
pub fn fuzz_text(corpus: &str, target: impl Fn(&str)) {
    fuzz(corpus, |input| target(&String::from_utf8_lossy(input)));
}

/// [`fuzz`] for URLs whose password is `S3CRET`, not encoded. The target returns every text that is shown of a URL; none may contain the
/// secret.
///
/// # Panics
///
/// As [`fuzz`], and if a secret is shown.
pub fn fuzz_urls(corpus: &str, shown: impl Fn(&str) -> String) {
    fuzz_text(corpus, |url| {
        let shown = shown(url);
        assert!(
            !(has_secret(url) && shown.contains(SECRET)),
            "a secret is shown: {shown}"
        );
    });
}

const SECRET: &str = "S3CRET";

/// Returns whether the secret is at the place of a password.
fn has_secret(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else {
        return false;
    };
    if url.matches(SECRET).count() != 1 {
        return false;
    }
    let colon = rest
        .find(':')
        .filter(|colon| !rest[..*colon].contains(['/', '?']));
    let password = colon
        .and_then(|colon| rest.get(colon..rest.rfind('@')?))
        .unwrap_or_default();
    let words = rest.split_once('?').map_or("", |(_, words)| words);
    let is_word = |pair: &str| pair.starts_with("sentinel_password=") && pair.contains(SECRET);
    // A password may have an `&`, which splits it.
    let mut pairs = words
        .split('&')
        .skip_while(|pair| !pair.contains("password="));
    let is_split = pairs.any(|pair| pair.contains(SECRET) && !pair.contains('='));
    let before = scheme.rsplit_once('@').map_or("", |(before, _)| before);
    let is_part = [password, before].iter().any(|part| part.contains(SECRET));
    is_part || is_split || words.split('&').any(is_word)
}

/// Runs the target on this input.
fn within_proportion(input: &[u8], target: &impl Fn(&[u8])) {
    let most = MOST.0 + MOST.1 * input.len();
    let allocates = || {
        let region = Region::new(ALLOCATOR);
        target(input);
        region.change().bytes_allocated
    };
    let beside_others = {
        let _beside = ALONE.read().unwrap_or_else(PoisonError::into_inner);
        allocates()
    };
    if beside_others <= most {
        return;
    }
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let least = (0..AGAIN)
        .map(|_| allocates())
        .find(|bytes| *bytes <= most)
        .unwrap_or(beside_others);
    assert!(
        least <= most,
        "{least} bytes are allocated for {} bytes of input",
        input.len()
    );
}

/// A line as bytes: what `escape_ascii` shows, read back. A backslash that begins none of its escapes stands for itself.
fn unescaped(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (byte, taken) = match (first, behind) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [quoted @ (b'\\' | b'\'' | b'"'), ..]) => (*quoted, 2),
            (b'\\', [b'x', high, low, ..]) => {
                hex(&[*high, *low]).map_or((b'\\', 1), |byte| (byte, 4))
            }
            (byte, _) => (*byte, 1),
        };
        bytes.push(byte);
        rest = &rest[taken..];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    fn failure(corpus: &str, target: impl Fn(&[u8])) -> String {
        message(&*catch_unwind(AssertUnwindSafe(|| fuzz(corpus, target))).unwrap_err()).to_owned()
    }

    #[test]
    fn every_byte_comes_back_from_a_line() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&format!("{:?}", Input(all.clone()))), all);
        assert_eq!(unescaped("\\q\\xg0\\"), b"\\q\\xg0\\");
    }

    #[test]
    fn the_corpus_is_replayed_and_changed() {
        let seen = RefCell::new(BTreeSet::new());
        fuzz("ab\n17\n", |input| {
            seen.borrow_mut().insert(input.to_vec());
        });
        let seen = seen.into_inner();
        assert!(
            seen.len() > 1000 && seen.contains(&b"ab"[..]) && seen.contains(&b"17"[..]),
            "{}",
            seen.len()
        );
    }

    #[test]
    fn what_fails_is_made_small_and_shown_as_a_line() {
        let said = failure("a long line\n", |input| {
            assert!(!input.ends_with(b"\n"), "it ends so");
        });
        assert!(said.contains("it ends so"), "{said}");
        let line = said.rsplit(": ").next().unwrap();
        assert!(unescaped(line).ends_with(b"\n"), "{said}");
    }

    #[test]
    fn a_secret_is_where_somebody_writes_it() {
        for url in [
            "a://b:S3CRET@h",
            "a://:x/S3CRET@h",
            "a://h?sentinel_password=S3CRET",
            "b:S3CRET@a://h",
        ] {
            assert!(has_secret(url), "{url}");
        }
        for url in [
            "a://b:c@S3CRET",
            "S3CRET",
            "a://h/b:S3CRET@",
            "a://h?prefix=S3CRET",
            "S3CRET://h",
        ] {
            assert!(!has_secret(url), "{url}");
        }
    }

    #[test]
    fn who_allocates_out_of_proportion_is_told() {
        let said = failure("8\n", |input| drop(vec![1u8; input.len() << 24]));
        assert!(
            said.contains("are allocated for 1 bytes of input"),
            "{said}"
        );
    }
}
