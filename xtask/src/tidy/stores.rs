//! How large a store may be, and which files it has.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// How many lines of code each store, and what lies below it, may take, tests not counted. About 600 is the aim: a change that
/// raises one says why.
const STORES: [(&str, usize); 8] = [
    ("memory", 502),
    ("sqlite", 2725),
    ("redis", 1578),
    ("redis-client", 2344),
    ("redlock", 1178),
    ("etcd", 3028),
    ("zookeeper", 2850),
    ("postgres", 2429),
];
/// The files of a store, and folders of the same names. Who has read one store knows where to look in all others. What
/// knows no lock is in `client`.
const PLAN: [&str; 15] = [
    "lib", "config", "names", "entry", "claim", "renew", "release", "inspect", "observe", "evict", "fence", "error",
    "tests", "scripts", "client",
];

/// Says which stores are larger, or have other files.
pub(super) fn stores(files: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut complaints = Vec::new();
    for (store, most) in STORES {
        let folder = PathBuf::from(format!("./crates/{store}/src"));
        let mut code = 0;
        for file in files.iter().filter(|file| file.starts_with(&folder)) {
            if !store.ends_with("-client") && !is_planned(&folder, file) {
                complaints.push(format!("{}: no file of a store is called so", file.display()));
            }
            if !is_test(file) {
                code += code_lines(&fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?);
            }
        }
        if code > most {
            complaints.push(format!("{}: {code} lines of code, more than {most}", folder.display()));
        }
    }
    Ok(complaints)
}

/// A file of tests, or one of a folder of tests.
fn is_test(file: &Path) -> bool {
    file.iter().any(|part| part == "tests" || part == "tests.rs")
}

/// Scripts lie beside the file that uses them.
fn is_planned(folder: &Path, file: &Path) -> bool {
    let first = file.strip_prefix(folder).unwrap_or(file).components().next();
    let name = first.and_then(|first| Path::new(first.as_os_str()).file_stem());
    file.extension().is_none_or(|extension| extension != "rs")
        || PLAN.iter().any(|planned| Some(planned.as_ref()) == name)
}

/// Lines that are neither blank nor comment, up to the tests at the end.
fn code_lines(text: &str) -> usize {
    let code = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.is_empty() && !line.starts_with("//") && !line.starts_with("--")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_the_files_of_the_plan_and_folders_of_their_names() {
        let planned = |file| is_planned(Path::new("a/src"), &Path::new("a/src").join(file));
        for file in ["lib.rs", "claim.rs", "claim/wait.rs", "client/session/ping.rs", "node.lua"] {
            assert!(planned(file), "{file}");
        }
        assert!(!planned("look.rs") && !planned("line/claim.rs"));
    }

    #[test]
    fn comments_and_tests_are_no_code() {
        assert_eq!(code_lines("//! a\n\nfn a() {}\n  // b\n#[cfg(test)]\nmod tests {}\n"), 1);
    }
}
