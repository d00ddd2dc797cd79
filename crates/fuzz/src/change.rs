//! Changes of an input, each of which is drawn by itself, so that what fails can be made small.

use proptest::prelude::{Strategy, any};

/// Words that parsers search for, and words at which they fail.
const WORDS: [&[u8]; 36] = [
    b" ",
    b"\n",
    b"\0",
    b"/",
    b"//",
    b":",
    b"://",
    b"@",
    b"?",
    b"&",
    b"=",
    b"#",
    b"%",
    b"%2F",
    b"%00",
    b"%FF",
    b",",
    b"[",
    b"]",
    b"[::1]",
    b"{",
    b"}",
    b"\"",
    b"\\",
    b"-",
    b"+",
    b".",
    b"_",
    b"*",
    b"\xff",
    "\u{e9}".as_bytes(),
    "\u{1F512}".as_bytes(),
    b"\r\n",
    b"s",
    b"0",
    b"null",
];
/// Replacements for a number.
const NUMBERS: [&str; 18] = [
    "0",
    "1",
    "-1",
    "+1",
    "007",
    "255",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "1e999",
    "",
];

/// The kind of the change, its position, and its material.
pub(crate) type Change = (u8, u16, u8);

/// A few of them.
pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    proptest::collection::vec((0..9u8, any::<u16>(), any::<u8>()), 0..7)
}

/// The changed input. Others of the corpus lend their parts.
pub(crate) fn changed(mut input: Vec<u8>, change: Change, corpus: &[Vec<u8>]) -> Vec<u8> {
    let (kind, at, with) = change;
    let at = usize::from(at) % (input.len() + 1);
    let with = usize::from(with);
    let end = (at + 1 + with % 16).min(input.len());
    let mut put =
        |from: usize, to: usize, bytes: &[u8]| drop(input.splice(from..to, bytes.iter().copied()));
    match kind {
        0 => put(at, at, WORDS[with % WORDS.len()]),
        1 => put(at, at, &[change.2]),
        2 => put(at, end.min(at + 1), &[change.2]),
        3 => put(at, end, b""),
        4 => input.truncate(at),
        5 => repeat(&mut input, at, end, 1),
        6 => {
            let other = &corpus[with % corpus.len()];
            input.truncate(at);
            input.extend_from_slice(&other[at.min(other.len())..]);
        }
        7 => {
            let is_digit = |at: &usize| input[*at].is_ascii_digit();
            let from = (at..input.len()).find(is_digit).unwrap_or(at);
            let to = (from..input.len())
                .find(|at| !is_digit(at))
                .unwrap_or(input.len());
            input.splice(from..to, NUMBERS[with % NUMBERS.len()].bytes());
        }
        // Long enough for what grows faster than its input, and rare.
        _ if with < 4 => repeat(&mut input, at, end, 100),
        _ => drop(input.drain(..at)),
    }
    input
}

fn repeat(input: &mut Vec<u8>, from: usize, to: usize, times: usize) {
    let part = input[from..to].repeat(times);
    input.splice(from..from, part);
}
