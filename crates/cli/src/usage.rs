//! Explains mistakes on a command line: with a hint where the usual one would not help, and without
//! the credentials that an argument may contain.

use std::ffi::OsString;
use std::io::{self, Write, stderr, stdout};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error, Parser};

use crate::args::Args;
use crate::exit::USAGE;
use crate::output;
use crate::store_url::StoreUrl;

/// Reports the mistake in these words, or shows the help that they ask for. Returns the exit code
/// of this process.
pub(crate) fn report(error: Error, words: &[OsString]) -> io::Result<u8> {
    let (mut error, words) = without_credentials(error, words);
    let hint = hint(&error, &words).map_or_else(String::new, |hint| format!("\n  hint: {hint}\n"));
    if error.kind() == ErrorKind::UnknownArgument {
        // The usual advice is to pass a mistyped option on to the program.
        error.remove(ContextKind::Suggested);
    }
    if error.kind() == ErrorKind::InvalidSubcommand {
        // Our own suggestion also recognizes letters in the wrong order.
        error.remove(ContextKind::SuggestedSubcommand);
    }
    let text = |colours: bool| {
        let text = error.render();
        let text = if colours {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        text + &hint
    };
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return output::print(&text(output::has_colours(&stdout()))).map(|()| 0);
    }
    // If it cannot be written, there is no other place to say it.
    let _ = stderr().write_all(text(output::has_colours(&stderr())).as_bytes());
    Ok(USAGE)
}

fn hint(error: &Error, words: &[OsString]) -> Option<String> {
    let command = words
        .iter()
        .skip(1)
        .find_map(|word| word.to_str().filter(|word| !word.starts_with('-')))?;
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(unknown)))
            if !unknown.starts_with('-') =>
        {
            let separated = separated(words, unknown)?;
            Some(format!("put -- before the program: {separated}"))
        }
        (ErrorKind::InvalidSubcommand, _) if matches!(command, "verify" | "compare") => Some(
            format!("`{command}` needs the feature \"lab\", which is off in this build"),
        ),
        (ErrorKind::InvalidSubcommand, _) => {
            Some(format!("did you mean `leasehold {}`?", nearest(command)?))
        }
        (ErrorKind::MissingRequiredArgument, _) if command == "break" => {
            Some("`leasehold who NAME` shows the token of the hold".into())
        }
        (ErrorKind::MissingRequiredArgument, _) if command == "forget" => {
            Some("`leasehold who NAME` shows the token of the record".into())
        }
        _ => None,
    }
}

/// Other words for the commands, from other tools and from the library.
const SYNONYMS: [(&str, &str); 26] = [
    ("evict", "break"),
    ("unlock", "break"),
    ("force-unlock", "break"),
    ("release", "break"),
    ("kill", "break"),
    ("steal", "break"),
    ("delete", "break"),
    ("rm", "break"),
    ("lock", "run"),
    ("acquire", "run"),
    ("hold", "run"),
    ("exec", "run"),
    ("with", "run"),
    ("cron", "once"),
    ("undo", "forget"),
    ("redo", "forget"),
    ("campaign", "elect"),
    ("lead", "elect"),
    ("leader", "elect"),
    ("inspect", "who"),
    ("show", "who"),
    ("status", "who"),
    ("get", "who"),
    ("check", "verify"),
    ("bench", "compare"),
    ("schema", "postgres-schema"),
];

/// The command that was meant: `typed` is another word for it, or differs from it by one or two
/// slips of the fingers, such as two letters in the wrong order.
fn nearest(typed: &str) -> Option<String> {
    if let Some((_, meant)) = SYNONYMS.iter().find(|(word, _)| *word == typed) {
        return Some((*meant).to_owned());
    }
    let commands = Args::command();
    let names = commands
        .get_subcommands()
        .flat_map(|it| std::iter::once(it.get_name()).chain(it.get_visible_aliases()));
    let near = names.map(|name| (strsim::osa_distance(typed, name), name));
    let most = if typed.chars().count() > 4 { 2 } else { 1 };
    let nearest = near.filter(|(slips, _)| *slips <= most).min()?;
    Some(nearest.1.to_owned())
}

/// The words with the `--` that was forgotten before this one, if that mends them.
fn separated(words: &[OsString], before: &str) -> Option<String> {
    (1..words.len())
        .filter(|at| words[*at] == *before)
        .find_map(|at| {
            let mut mended = words.to_vec();
            mended.insert(at, "--".into());
            Args::try_parse_from(&mended).ok()?;
            let rest: Vec<_> = mended[1..]
                .iter()
                .map(|word| word.to_string_lossy())
                .collect();
            Some(format!("leasehold {}", rest.join(" ")))
        })
}

/// Returns the error and the words, with each URL among them as it is shown everywhere else, so
/// that clap's message has no credentials to show.
fn without_credentials(error: Error, words: &[OsString]) -> (Error, Vec<OsString>) {
    let shown: Vec<OsString> = words.iter().map(shown).collect();
    if shown == words {
        return (error, shown);
    }
    let other = || Error::raw(error.kind(), "an argument with a URL is not understood\n");
    (
        Args::try_parse_from(&shown).err().unwrap_or_else(other),
        shown,
    )
}

fn shown(word: &OsString) -> OsString {
    let text = word.to_string_lossy();
    let Some((before, _)) = text.split_once("://") else {
        return word.clone();
    };
    let scheme = before
        .trim_end_matches(|c: char| c.is_ascii_alphanumeric() || "+-".contains(c))
        .len();
    // Credentials may have been written before the scheme.
    let scheme = if before[..scheme].contains('@') {
        0
    } else {
        scheme
    };
    format!("{}{}", &text[..scheme], StoreUrl::new(&text[scheme..])).into()
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_urls;

    use super::*;

    fn said(words: &[&str]) -> String {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (error, words) = without_credentials(Args::try_parse_from(&words).unwrap_err(), &words);
        let hint = hint(&error, &words).unwrap_or_default();
        format!("{error}{hint}")
    }

    #[test]
    fn no_argument_shows_its_credentials() {
        for secret in [
            "redis://me:s3cret@host",
            "redis://:s3=cret@host",
            "redis://:s3/c ret'@host/0",
        ] {
            let option = format!("--frobnicate{secret}");
            let value = format!("--json={secret}");
            for words in [
                &["leasehold", "ls", "a", secret][..],
                &["leasehold", "ls", &option],
                &["leasehold", "ls", &value],
            ] {
                let said = said(words);
                assert!(said.contains("redis://") && !said.contains("s3"), "{said}");
            }
        }
    }

    #[test]
    fn a_forgotten_separator_is_told() {
        for (words, mended) in [
            (
                &["leasehold", "run", "x", "./job.sh", "-a"][..],
                "leasehold run x -- ./job.sh -a",
            ),
            (&["leasehold", "run", "x", "x"], "leasehold run x -- x"),
            (
                &["leasehold", "elect", "--ttl", "3s", "x", "a", "b"],
                "leasehold elect --ttl 3s x -- a b",
            ),
        ] {
            let said = said(words);
            assert!(
                said.ends_with(&format!("put -- before the program: {mended}")),
                "{said}"
            );
        }
        for (typed, meant) in [
            ("rnu", "run"),
            ("rn", "run"),
            ("lits", "list"),
            ("gaurantees", "guarantees"),
            ("brake", "break"),
            ("evict", "break"),
        ] {
            assert!(
                said(&["leasehold", typed])
                    .ends_with(&format!("did you mean `leasehold {meant}`?")),
                "{typed}"
            );
        }
        let commands = Args::command();
        for (word, meant) in SYNONYMS {
            assert!(commands.find_subcommand(word).is_none(), "{word}");
            // A build may lack this command.
            let is_there = commands.find_subcommand(meant).is_some();
            assert!(is_there || meant == "postgres-schema", "{meant}");
        }
        assert!(!said(&["leasehold", "frobnicate"]).contains("did you mean"));
        assert!(!said(&["leasehold", "run", "x", "--frob", "--", "true"]).contains("put --"));
        for command in ["break", "forget"] {
            assert!(said(&["leasehold", command, "x"]).contains("leasehold who"));
        }
    }

    #[test]
    fn whatever_the_words_are_no_secret_in_a_url_is_shown() {
        let shown = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let (error, words) = without_credentials(Args::try_parse_from(&words).err()?, &words);
            let hint = hint(&error, &words).unwrap_or_default();
            Some(format!("{error}{hint}"))
        };
        let corpus = include_str!("../corpus/urls");
        fuzz_urls(corpus, |url| {
            // The argument of a process has no NUL.
            let url = url.replace('\0', "");
            let beside = ["://", "redis://:x@h", "s://"][url.len() % 3];
            let option = format!("--frob{url}");
            let lines: [&[&str]; 4] = [
                &["leasehold", "ls", "a", &url, beside],
                &["leasehold", "ls", beside, "a", &url],
                &["leasehold", &url],
                &["leasehold", "ls", &option, beside],
            ];
            shown(lines[url.len() / 3 % 4]).unwrap_or_default()
        });
    }
}
