//! The tables on the page of a store that its tests judge: the reasons for which it refuses, and the
//! URLs of providers and frameworks.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use leasehold_core::{Error, ErrorKind};

/// A row of the page: what the server says or does, the kind of the error, the words of the error,
/// and the time after which it is told. `…` in the words stands for words that differ.
pub type Reason = (&'static str, ErrorKind, &'static str, &'static str);

/// The rows of a page, and those among them that a test has judged.
#[derive(Debug)]
pub struct Reasons {
    rows: &'static [Reason],
    judged: Mutex<BTreeSet<&'static str>>,
    /// The errors that are not those of their rows.
    others: Mutex<Vec<String>>,
}

impl Reasons {
    /// Rows of which none is judged yet.
    pub fn new(rows: &'static [Reason]) -> Reasons {
        Reasons {
            rows,
            judged: Mutex::default(),
            others: Mutex::default(),
        }
    }

    /// Judges whether the error, with its causes, is that of the row with this first cell.
    pub fn is(&self, row: &'static str, error: &Error) {
        let (_, kind, says, _) = self.rows.iter().find(|reason| reason.0 == row).unwrap();
        let words = format!("{error:?}");
        let mut parts = says.split(", …").flat_map(|part| part.split('…'));
        if error.kind() != *kind || !parts.all(|part| words.contains(part.trim())) {
            self.others.lock().unwrap().push(format!("{row}: {words}"));
        }
        self.judged.lock().unwrap().insert(row);
    }

    /// Asserts that each row was judged, and that each error was the row's.
    pub fn are_judged(self) {
        let others = self.others.into_inner().unwrap();
        assert!(others.is_empty(), "{}", others.join("\n"));
        let rows: BTreeSet<&str> = self.rows.iter().map(|reason| reason.0).collect();
        assert_eq!(self.judged.into_inner().unwrap(), rows);
    }

    /// Asserts that the section `Reasons` of this store's page has these rows, and no others.
    pub fn are_on_the_page_of(self, store: &str) {
        let lines = self.rows.iter().map(|(row, kind, says, takes)| {
            format!(
                "| {row} | `{kind:?}`, {} | {says} | {takes} |",
                exit_code(*kind)
            )
        });
        are_on_page(store, "Reasons", lines);
    }
}

/// Asserts that the first table in this section of a store's page has these rows, and no others.
pub fn are_on_page(store: &str, section: &str, rows: impl IntoIterator<Item = String>) {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores");
    let page = std::fs::read_to_string(pages.join(format!("{store}.md"))).unwrap();
    let (_, section) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let shown: Vec<&str> = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let rows: Vec<String> = rows.into_iter().collect();
    assert_eq!(shown, rows, "\n{}\n", rows.join("\n"));
}

/// A URL as somebody has it: whose it is, the URL, and what becomes of it.
pub type Shape = (&'static str, &'static str, &'static str);

/// Asserts that each URL means what is said of it, and that the store's page has the same table.
pub fn urls_are_on_page(store: &str, shapes: &[Shape], meaning: impl Fn(&str) -> String) {
    let row = |(of, url, expected): &Shape| {
        assert_eq!(meaning(url), *expected, "{of}: {url}");
        format!("| {of} | `{url}` | {expected} |")
    };
    are_on_page(
        store,
        "URLs of providers and frameworks",
        shapes.iter().map(row),
    );
}

/// The exit code of the command for an error of this kind.
pub fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid | ErrorKind::Unsupported => 64,
        ErrorKind::Contended | ErrorKind::TimedOut => 75,
        ErrorKind::Lost | ErrorKind::Stale => 76,
        _ => 69,
    }
}
