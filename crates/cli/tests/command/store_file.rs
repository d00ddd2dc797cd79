//! A store whose URL is in a file, as a mounted secret is.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{code, leasehold, output, text};

const VARIABLE: &str = "LEASEHOLD_STORE_FILE";

/// How it ends, and what it says.
fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("s3cret"), "{said}");
    (output.status.code(), said)
}

fn written(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.display().to_string()
}

#[test]
fn its_one_line_is_the_url() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    for (name, before, ending) in [
        ("none", "", ""),
        ("one", "", "\n"),
        ("dos", "", "\r\n"),
        ("mark", "\u{feff}", "\r\n"),
    ] {
        let file = written(folder.path(), name, format!("{before}{url}{ending}"));
        let ran = ["run", "job", "--store-file", &file, "--", "true"];
        assert_eq!(code(&mut leasehold(ran)), Some(0), "{name}");
        let who = ["who", "job", "--json"];
        assert_eq!(code(leasehold(who).env(VARIABLE, &file)), Some(1), "{name}");
    }
    assert!(folder.path().join("locks.db").exists());
}

/// A command inside of the program uses the whole URL, and not the shown one.
#[test]
fn the_program_gets_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    written(folder.path(), "url", &url);
    let shown = "echo $LEASEHOLD_STORE $LEASEHOLD_STORE_FILE; cd /; $0 who job; $0 run other -- true && echo ran";
    let inner = ["--", "sh", "-c", shown, env!("CARGO_BIN_EXE_leasehold")];
    let by_file = ["run", "job", "--store-file", "url"];
    let said = text(leasehold(by_file.into_iter().chain(inner)).current_dir(&folder));
    assert!(
        said.starts_with(&format!("{url} {}/url\n", folder.path().display())),
        "{said}"
    );
    assert!(said.contains("holds") && said.ends_with("ran\n"), "{said}");

    // A file that names another store than the lock's is not for the program.
    let other = written(folder.path(), "other", "redis://127.0.0.1:1");
    let by_url = ["run", "job", "--store", &url];
    let said = text(leasehold(by_url.into_iter().chain(inner)).env(VARIABLE, other));
    assert!(
        said.starts_with(&format!("{url}\n")) && said.ends_with("ran\n"),
        "{said}"
    );
}

#[test]
fn a_file_that_names_no_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| written(folder.path(), name, content);
    for (file, says) in [
        (
            folder.path().join("absent").display().to_string(),
            "cannot be read: No such file",
        ),
        (folder.path().display().to_string(), "it is no file"),
        (file("empty", b"\n"), "is empty"),
        (
            file("two", b"redis://:s3cret@h\nredis://:s3cret@i\n"),
            "has several lines",
        ),
        (file("bytes", b"redis://:s3cret\xff@h"), "valid UTF-8"),
        (file("large", &[b'a'; 70_000]), "too large"),
        (
            file("other", b"mysql://me:s3cret@h"),
            "unknown scheme \"mysql\"",
        ),
    ] {
        let words = ["run", "job", "--store-file", &file, "--", "true"];
        let (status, said) = said(&mut leasehold(words));
        assert!(status == Some(64) && said.contains(says), "{file}: {said}");
        assert!(said.contains(&file), "{said}");
    }
    let away = file("away", b"redis://:s3cret@127.0.0.1:1\n");
    let words = ["who", "job", "--store-file", &away];
    let (status, told) = said(&mut leasehold(words));
    assert!(
        status == Some(69) && told.contains(&format!("redis://127.0.0.1:1 (from the file {away})")),
        "{told}"
    );
    let both = ["who", "job", "--store-file", &away, "--store", "redis://h"];
    assert_eq!(said(&mut leasehold(both)).0, Some(64));
    let differ = leasehold(["who", "job"])
        .env(VARIABLE, &away)
        .env("LEASEHOLD_STORE", "redis://h")
        .output();
    let told = String::from_utf8(differ.unwrap().stderr).unwrap();
    assert!(told.contains("name different stores"), "{told}");
}
