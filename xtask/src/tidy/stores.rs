//! The files that a store has.

use std::path::{Path, PathBuf};

/// The crates of the stores.
const STORES: [&str; 6] = ["memory", "sqlite", "redis", "etcd", "zookeeper", "postgres"];
/// The files of a store, and folders of the same names, so that a reader of one store knows where
/// to look in all others. Code that knows nothing of locks is in `client`.
const PLAN: [&str; 20] = [
    "lib",
    "config",
    "names",
    "entry",
    "claim",
    "renew",
    "release",
    "inspect",
    "observe",
    "evict",
    "fence",
    "completion",
    "error",
    "tests",
    "scripts",
    "client",
    "link",
    "redlock",
    "pool",
    "plain",
];

/// Lists the stores that have other files.
pub(super) fn stores(files: &[PathBuf]) -> Vec<String> {
    let folders = STORES.map(|store| PathBuf::from(format!("./crates/{store}/src")));
    let of = |file: &PathBuf| {
        folders
            .iter()
            .any(|folder| file.starts_with(folder) && !is_planned(folder, file))
    };
    let others = files.iter().filter(|file| of(file));
    others
        .map(|file| format!("{}: no file of a store is called so", file.display()))
        .collect()
}

/// Scripts lie beside the file that uses them.
fn is_planned(folder: &Path, file: &Path) -> bool {
    let first = file
        .strip_prefix(folder)
        .unwrap_or(file)
        .components()
        .next();
    let name = first.and_then(|first| Path::new(first.as_os_str()).file_stem());
    file.extension().is_none_or(|extension| extension != "rs")
        || PLAN.iter().any(|planned| Some(planned.as_ref()) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_the_files_of_the_plan_and_folders_of_their_names() {
        let planned = |file| is_planned(Path::new("a/src"), &Path::new("a/src").join(file));
        for file in [
            "lib.rs",
            "claim.rs",
            "claim/wait.rs",
            "client/session/ping.rs",
            "node.lua",
        ] {
            assert!(planned(file), "{file}");
        }
        assert!(!planned("look.rs") && !planned("line/claim.rs"));
    }
}
