//! Builds every test target of the workspace in one go, and says where the test binaries are.

use std::{path::PathBuf, process::Command};

use serde_json::Value;

use crate::run::{cargo, output, shown};

/// A built test target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) package: String,
    /// The target's name.
    pub(crate) target: String,
    /// It is a target of `tests`, and not the unit tests of a library or a program.
    pub(crate) is_suite: bool,
    executable: PathBuf,
    /// The package's folder, in which cargo would run it.
    folder: PathBuf,
}

/// Builds all of them with all features, or only these, each as the names of its package and its target.
pub(crate) fn build(only: &[(String, String)]) -> Result<Vec<Binary>, String> {
    let mut command = cargo(&["test", "--all-features", "--no-run", "--message-format=json-render-diagnostics"]);
    match only {
        [] => command.args(["--workspace", "--lib", "--bins", "--tests"]),
        _ => command.args(only.iter().flat_map(|(package, target)| ["-p", package, "--test", target])),
    };
    println!("$ {}", shown(&command));
    let binaries: Vec<Binary> = output(command)?.lines().filter_map(parse).collect();
    if binaries.is_empty() { Err("cargo built no test".into()) } else { Ok(binaries) }
}

/// One message of cargo's, if it tells of a test binary.
fn parse(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    let executable = message["executable"].as_str().filter(|_| is_test)?.into();
    let package = package(message["package_id"].as_str()?)?;
    let target = message["target"]["name"].as_str()?.to_owned();
    let is_suite = message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test");
    Some(Binary { package, target, is_suite, executable, folder })
}

/// The name in `path+file:///somewhere/crates/core#leasehold-core@0.1.0`, or in `…/xtask#0.1.0`, where it is the folder's.
fn package(id: &str) -> Option<String> {
    let (folder, rest) = id.rsplit_once('#')?;
    let name = rest.split_once('@').map_or_else(|| folder.rsplit('/').next(), |(name, _)| Some(name))?;
    Some(name.to_owned())
}

impl Binary {
    /// Runs it as cargo would.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.executable);
        command.args(words).current_dir(&self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_binary_is_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///a/crates/core#leasehold-core@0.1.0",
            "manifest_path":"/a/crates/core/Cargo.toml","target":{"kind":["test"],"name":"events"},
            "profile":{"test":true},"executable":"/a/target/debug/deps/events-1"}"#;
        let binary = parse(line).unwrap();
        assert_eq!((&*binary.package, &*binary.target, binary.is_suite), ("leasehold-core", "events", true));
        assert!(parse(&line.replace("\"test\":true", "\"test\":false")).is_none());
        assert!(parse("Compiling").is_none());
    }

    #[test]
    fn a_package_is_named_by_its_id() {
        assert_eq!(package("path+file:///a/xtask#0.0.0").as_deref(), Some("xtask"));
        assert_eq!(package("path+file:///a/b#leasehold@0.1.0").as_deref(), Some("leasehold"));
    }
}
