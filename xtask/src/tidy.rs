//! The project's rules that no compiler checks.

use std::{
    fs,
    path::{self, Path, PathBuf},
};

use serde_json::Value;

use crate::run::{Outcome, cargo, output};
use circles::circles;
use stores::stores;

mod circles;
mod imports;
mod stores;

const MAX_TABLE_LINE: usize = 300;
/// Folders at the root of a particular machine, which no file of the project may mention.
const MACHINE: [&str; 4] = ["work", "tmp", "root", "home"];
/// The features that published crates may have. Each adds something and changes nothing else; `shuttle` does nothing without `--cfg shuttle`.
const FEATURES: [&str; 22] = [
    "default",
    "full",
    "memory",
    "sqlite",
    "postgres",
    "redis",
    "redlock",
    "etcd",
    "zookeeper",
    "bridge",
    "tls",
    "tls-aws-lc",
    "tls-ring",
    "tls-no-provider",
    "deadpool",
    "bb8",
    "sqlx",
    "sasl",
    "serde",
    "lab",
    "runner",
    "shuttle",
];
/// The kinds of files that are searched for paths of a machine.
const TEXTS: [&str; 8] = ["rs", "toml", "md", "yml", "yaml", "sh", "lua", "py"];

/// Checks all rules and reports everything that breaks one.
pub(crate) fn tidy() -> Outcome {
    let files = files(Path::new("."))?;
    let mut complaints = Vec::new();
    for path in &files {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if !TEXTS.contains(&&*extension) && !path.starts_with("./.ci") {
            continue;
        }
        let text = fs::read_to_string(path)
            .map_err(|error| format!("reading {}: {error}", path.display()))?;
        let mut complain = |what: String| complaints.push(format!("{}: {what}", path.display()));
        if extension == "rs" {
            source(&text).into_iter().for_each(&mut complain);
        }
        if extension == "md" {
            wide_tables(&text).into_iter().for_each(&mut complain);
        }
        for path in machine_paths(&text) {
            complain(format!("a path of a machine: {path}"));
        }
    }
    let packages = output(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    complaints.extend(forgotten_tests(&packages, &files)?);
    complaints.extend(other_features(&packages)?);
    complaints.extend(stores(&files));
    complaints.extend(circles(&files)?);
    if complaints.is_empty() {
        println!("tidy: {} files keep the rules of the house", files.len());
        return Ok(());
    }
    Err(format!(
        "{} rules broken:\n{}",
        complaints.len(),
        complaints.join("\n")
    ))
}

fn source(text: &str) -> Option<String> {
    let opens = text.starts_with("//!");
    (!opens).then(|| "does not open with `//!` and what belongs there".into())
}

/// Lines of tables that are too long to be read as one: a table answers one question, the rest is text.
fn wide_tables(text: &str) -> Vec<String> {
    let wide = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with('|') && line.len() > MAX_TABLE_LINE);
    wide.map(|(at, _)| {
        format!(
            "line {}: a line of a table of more than {MAX_TABLE_LINE} bytes",
            at + 1
        )
    })
    .collect()
}

/// Absolute paths that exist on one machine only.
fn machine_paths(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('/') {
        let before = text[..at].chars().next_back();
        let inside = before.is_some_and(|c| {
            c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | ')' | '>')
        });
        let rest = &text[at + 1..];
        if !inside
            && MACHINE.iter().any(|folder| {
                rest.strip_prefix(folder)
                    .is_some_and(|rest| rest.starts_with('/'))
            })
        {
            let end = rest
                .find(|c: char| c.is_whitespace() || c == '"')
                .unwrap_or(rest.len());
            found.push(&text[at..=at + end.min(rest.len())]);
        }
    }
    found.into_iter().map(str::trim_end).collect()
}

/// Every file of a package's `tests` is a target, by what cargo says, and every file of its
/// `tests/it` a module: then cargo builds it, and `test` runs it.
fn forgotten_tests(packages: &str, files: &[PathBuf]) -> Result<Vec<String>, String> {
    let packages: Value =
        serde_json::from_str(packages).map_err(|error| format!("cargo metadata: {error}"))?;
    let targets = packages["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|package| package["targets"].as_array());
    let built: Vec<&Path> = targets
        .flatten()
        .filter_map(|it| it["src_path"].as_str())
        .map(Path::new)
        .collect();
    let is_test = |file: &&PathBuf| {
        let folder = file.parent().filter(|folder| folder.ends_with("tests"));
        file.extension().is_some_and(|e| e == "rs")
            && folder.is_some_and(|it| files.contains(&it.with_file_name("Cargo.toml")))
    };
    let is_built = |file: &&PathBuf| path::absolute(file).is_ok_and(|file| built.contains(&&*file));
    let forgotten = files.iter().filter(is_test).filter(|file| !is_built(file));
    let mut complaints: Vec<String> = forgotten
        .map(|file| format!("{}: no [[test]] names it", file.display()))
        .collect();
    for main in files
        .iter()
        .filter(|file| file.ends_with("tests/it/main.rs"))
    {
        let text = fs::read_to_string(main)
            .map_err(|error| format!("reading {}: {error}", main.display()))?;
        let lost = files
            .iter()
            .filter(|file| *file != main && file.parent() == main.parent())
            .filter(|file| !is_module(&text, file));
        complaints.extend(lost.map(|file| format!("{}: no `mod` names it", file.display())));
    }
    Ok(complaints)
}

/// The text of a `main.rs` names the file beside it as a module.
fn is_module(main: &str, file: &Path) -> bool {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    main.lines().any(|line| line == format!("mod {name};"))
}

/// A published crate has no feature that breaks locks on purpose: any dependency of a program could turn it on.
fn other_features(packages: &str) -> Result<Vec<String>, String> {
    let packages: Value =
        serde_json::from_str(packages).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut complaints = Vec::new();
    for package in packages["packages"].as_array().into_iter().flatten() {
        // `null` stands for every registry.
        if !package["publish"].is_null() {
            continue;
        }
        let features = package["features"].as_object().into_iter().flatten();
        for (feature, _) in features.filter(|(feature, _)| !FEATURES.contains(&&***feature)) {
            complaints.push(format!(
                "{}: the feature {feature} is not in the list of xtask's tidy",
                package["name"].as_str().unwrap_or_default()
            ));
        }
    }
    Ok(complaints)
}

/// All files below a folder, except what is built or belongs to git.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(folder).map_err(|error| format!("reading {}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_a_machine_are_found() {
        let here = [
            "let a = \"/",
            "tmp/x\"; // see https://a.org/",
            "home/b and src/",
            "work/c and (/",
            "root/d)",
        ]
        .concat();
        assert_eq!(
            machine_paths(&here),
            [["/", "tmp/x"].concat(), ["/", "root/d)"].concat()]
        );
    }

    #[test]
    fn a_table_has_no_long_lines() {
        let short = format!("| {} |", "x".repeat(290));
        let long = format!("| {} |", "x".repeat(300));
        assert_eq!(
            wide_tables(&format!("{}\n{short}\n{long}\n", "text ".repeat(80))).len(),
            1
        );
    }

    #[test]
    fn a_test_without_a_target_is_found() {
        let known = path::absolute("crates/b/tests/known.rs").unwrap();
        let packages = json!({ "packages": [{ "targets": [{ "src_path": known }] }] }).to_string();
        let files = [
            "Cargo.toml",
            "src/tests/c.rs",
            "tests/known.rs",
            "tests/lost.rs",
            "tests/support/mod.rs",
        ];
        let files = files.map(|file| PathBuf::from("./crates/b").join(file));
        assert_eq!(
            forgotten_tests(&packages, &files),
            Ok(vec![
                "./crates/b/tests/lost.rs: no [[test]] names it".into()
            ])
        );
    }

    #[test]
    fn a_test_that_is_no_module_is_found() {
        let main = "//! Tests.\n\n#[cfg(feature = \"tls\")]\nmod tls;\nmod faults;\n";
        let is_module = |name: &str| is_module(main, &Path::new("tests/it").join(name));
        assert!(is_module("tls.rs") && is_module("faults.rs"));
        assert!(!is_module("fault.rs"));
    }

    #[test]
    fn a_feature_of_a_published_crate_is_in_the_list() {
        let packages = json!({ "packages": [
            { "name": "a", "publish": null, "features": { "tls": [], "faults": [] } },
            { "name": "b", "publish": [], "features": { "faults": [] } },
        ] });
        assert_eq!(
            other_features(&packages.to_string()),
            Ok(vec![
                "a: the feature faults is not in the list of xtask's tidy".into()
            ])
        );
    }

    #[test]
    fn a_source_opens_with_its_purpose() {
        assert_eq!(source("//! What belongs here.\n"), None);
        assert!(source("use std::fs;\n").is_some());
    }
}
