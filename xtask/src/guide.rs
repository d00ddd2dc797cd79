//! The examples of `docs/transactions.md` and `docs/done-in-your-transaction.md` are those that are
//! tested, to the letter.

use std::{fs, path::Path};

/// Each is one example of `docs/transactions.md`, below its first line.
const EXAMPLES: [&str; 5] = [
    "crates/postgres/tests/guide/with_tokio_postgres.rs",
    "crates/postgres/tests/guide/with_sqlx.rs",
    "crates/postgres/tests/guide/with_diesel.rs",
    "crates/sqlite/tests/guide/with_rusqlite.rs",
    "crates/sqlite/beside_sqlx/0.8/src/with_sqlx.rs",
];

/// The examples of `docs/done-in-your-transaction.md`.
const DONE: [&str; 2] = [
    "crates/postgres/tests/guide/once_with_tokio_postgres.rs",
    "crates/postgres/tests/guide/once_with_sqlx.rs",
];

/// The blocks of Rust on a page.
fn blocks(page: &str) -> Vec<&str> {
    let parts = page.split("```rust,ignore\n").skip(1);
    parts
        .filter_map(|part| part.split_once("```").map(|(block, _)| block))
        .collect()
}

#[test]
fn the_page_shows_what_is_tested() {
    let read = |path: &str| {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
    };
    for (page, files) in [
        ("docs/transactions.md", &EXAMPLES[..]),
        ("docs/done-in-your-transaction.md", &DONE),
    ] {
        let page = read(page);
        let files: Vec<String> = files.iter().map(|file| read(file)).collect();
        let examples: Vec<&str> = files
            .iter()
            .map(|file| file.split_once("\n\n").unwrap().1)
            .collect();
        assert_eq!(blocks(&page), examples);
    }
}

#[test]
fn with_another_sqlx_one_word_differs() {
    let read = |version: &str| {
        let path = format!("../crates/sqlite/beside_sqlx/{version}/src/with_sqlx.rs");
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    };
    let old = read("0.8");
    let new = read("0.9");
    let differ: Vec<&str> = new
        .lines()
        .filter(|line| !old.lines().any(|other| other == *line))
        .collect();
    assert!(
        differ.len() == 3 && differ[2].contains("query(AssertSqlSafe(sql))"),
        "{differ:?}"
    );
}
