//! Builds every test target and every example of the workspace in one go, and returns the suites in
//! them.
//!
//! The tests of a crate are one program, [`ALL`], because each program is linked with every client
//! library. Each of its modules is a suite and runs in a process of its own, as if it were a
//! program: a test that fails disturbs no other module. The program [`CONFORMANCE`] of a store is
//! a suite for each set-up of its servers.

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde_json::Value;

use crate::run::{cargo, lab, output, shown};

/// The name of the target of which each module is a suite.
const ALL: &str = "it";
/// The name of the target that judges a store in each of its set-ups.
const CONFORMANCE: &str = "conformance";
/// The variable that names the set-up to judge; with [`ALL_SETUPS`] the program prints their names.
const SETUP: &str = "LEASEHOLD_SETUP";
const ALL_SETUPS: &str = "?";
/// The word of a test binary before a part of the names of tests that do not run.
const SKIP: &str = "--skip=";

/// The kinds of programs that are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A target of `tests`.
    Suite,
    /// The unit tests of a library or a program.
    UnitTests,
    /// An example, which runs to its end without a server.
    Example,
}

/// A test target, a module of [`ALL`], or an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) package: String,
    /// The target's or the module's name.
    pub(crate) target: String,
    pub(crate) kind: Kind,
    executable: PathBuf,
    /// The package's folder, in which cargo would run it.
    folder: PathBuf,
    /// The tests to run, by their full names; none of them stands for all.
    tests: Vec<String>,
    /// The set-up to judge, if there are several.
    setup: Option<String>,
}

/// Builds all of them with all features, or only these, each as the names of its package and of its
/// target or module.
pub(crate) fn build(only: &[(String, String)]) -> Result<Vec<Binary>, String> {
    let mut command = lab(&[
        "test",
        "--all-features",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    match only {
        [] => command.args(["--workspace", "--lib", "--bins", "--tests", "--examples"]),
        _ => {
            let targets = targets()?;
            command.args(only.iter().flat_map(|suite| {
                let (package, target) = suite;
                let is_setup = target.starts_with(CONFORMANCE);
                let target = match targets.contains(suite) {
                    true => target,
                    false if is_setup => CONFORMANCE,
                    false => ALL,
                };
                ["-p", package, "--test", target]
            }))
        }
    };
    println!("$ {}", shown(&command));
    let mut suites = Vec::new();
    for binary in output(command)?.lines().filter_map(parse) {
        if binary.kind == Kind::Suite && binary.target == ALL {
            let list = output(binary.command(&["--list", "--format", "terse"]))?;
            suites.extend(binary.modules(&list));
        } else if binary.kind == Kind::Suite && binary.target == CONFORMANCE {
            let mut names = binary.command(&[]);
            names.env(SETUP, ALL_SETUPS);
            suites.extend(binary.setups(&output(names)?));
        } else {
            suites.push(binary);
        }
    }
    if suites.is_empty() {
        return Err("cargo built no test".into());
    }
    let is_there = |(package, target): &&(String, String)| {
        suites
            .iter()
            .any(|suite| suite.package == *package && suite.target == *target)
    };
    match only.iter().find(|suite| !is_there(suite)) {
        Some((package, target)) => Err(format!("{package} has no suite {target:?}")),
        None => Ok(suites),
    }
}

/// The targets of the workspace, each as the names of its package and its own.
fn targets() -> Result<Vec<(String, String)>, String> {
    let text = output(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let name = |it: &Value| it["name"].as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            found.push((name(package), name(target)));
        }
    }
    Ok(found)
}

/// Reads one message of cargo's; `None` if it is not about a program to run.
fn parse(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is = |kind: &str| {
        let mut kinds = message["target"]["kind"].as_array().into_iter().flatten();
        kinds.any(|it| it == kind)
    };
    let kind = match message["profile"]["test"] == true {
        true if is("test") => Kind::Suite,
        true => Kind::UnitTests,
        false if is("example") => Kind::Example,
        false => return None,
    };
    let folder = PathBuf::from(message["manifest_path"].as_str()?)
        .parent()?
        .to_owned();
    let executable = message["executable"].as_str()?.into();
    let package = package(message["package_id"].as_str()?)?;
    let target = message["target"]["name"].as_str()?.to_owned();
    Some(Binary {
        package,
        target,
        kind,
        executable,
        folder,
        tests: Vec::new(),
        setup: None,
    })
}

/// The name in `path+file:///somewhere/crates/core#leasehold-core@0.1.0`, or in `…/xtask#0.1.0`, where it is the folder's.
fn package(id: &str) -> Option<String> {
    let (folder, rest) = id.rsplit_once('#')?;
    let name = rest
        .split_once('@')
        .map_or_else(|| folder.rsplit('/').next(), |(name, _)| Some(name))?;
    Some(name.to_owned())
}

impl Binary {
    /// Runs it as cargo would.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder);
        command.envs(self.setup.as_ref().map(|setup| (SETUP, setup)));
        if self.tests.is_empty() {
            command.args(words);
            return command;
        }
        // A name without `--exact` would also stand for longer names, and with it `--skip` would
        // want whole ones.
        let (skips, words): (Vec<&str>, Vec<&str>) = words
            .iter()
            .copied()
            .partition(|word| word.starts_with(SKIP));
        let is_skipped = |test: &str| skips.iter().any(|skip| test.contains(&skip[SKIP.len()..]));
        let tests = self.tests.iter().filter(|test| !is_skipped(test));
        command.arg("--exact").args(tests).args(words);
        command
    }

    /// Runs these of its tests, named in full.
    pub(crate) fn command_of(&self, tests: &[String]) -> Command {
        let chosen = Self {
            tests: tests.to_vec(),
            ..self.clone()
        };
        chosen.command(&[])
    }

    /// A suite for each set-up, from the program's own list of their names. The first one has none.
    fn setups(&self, names: &str) -> Vec<Self> {
        let suite = |name: &str| Self {
            target: match name {
                "" => CONFORMANCE.to_owned(),
                _ => format!("{CONFORMANCE}_{name}"),
            },
            setup: Some(name.to_owned()),
            ..self.clone()
        };
        names.lines().map(suite).collect()
    }

    /// A suite for each module, from the program's own list of tests such as `faults::a_node_dies: test`.
    fn modules(&self, list: &str) -> Vec<Self> {
        let mut modules = BTreeMap::<&str, Vec<String>>::new();
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            let module = test.split_once("::").map_or(ALL, |(module, _)| module);
            modules.entry(module).or_default().push(test.to_owned());
        }
        modules
            .into_iter()
            .map(|(module, tests)| Self {
                target: module.to_owned(),
                tests,
                ..self.clone()
            })
            .collect()
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
        assert_eq!(
            (&*binary.package, &*binary.target, binary.kind),
            ("leasehold-core", "events", Kind::Suite)
        );
        let plain = line.replace("\"test\":true", "\"test\":false");
        assert!(parse(&plain).is_none());
        let example = parse(&plain.replace("[\"test\"]", "[\"example\"]")).unwrap();
        assert_eq!(example.kind, Kind::Example);
        let library = parse(&line.replace("[\"test\"]", "[\"lib\"]")).unwrap();
        assert_eq!(library.kind, Kind::UnitTests);
        assert!(parse("Compiling").is_none());
    }

    #[test]
    fn each_module_is_a_suite_with_its_own_tests_alone() {
        let program = Binary {
            package: "leasehold-redis".into(),
            target: "it".into(),
            kind: Kind::Suite,
            executable: "/a/it-1".into(),
            folder: "/a".into(),
            tests: Vec::new(),
            setup: None,
        };
        let list =
            "faults::a: test\ncluster_faults::a: test\nfaults::b: test\nfaults::deep::c: test\n";
        let suites = program.modules(list);
        let words: Vec<(&str, String)> = suites
            .iter()
            .map(|suite| {
                let command = suite.command(&["--skip=::deep::", "--nocapture"]);
                (&*suite.target, shown(&command))
            })
            .collect();
        assert_eq!(
            words,
            [
                (
                    "cluster_faults",
                    "it-1 --exact cluster_faults::a --nocapture".to_owned()
                ),
                (
                    "faults",
                    "it-1 --exact faults::a faults::b --nocapture".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn each_set_up_is_a_suite() {
        let program = Binary {
            package: "leasehold-redis".into(),
            target: CONFORMANCE.into(),
            kind: Kind::Suite,
            executable: "/a/conformance-1".into(),
            folder: "/a".into(),
            tests: Vec::new(),
            setup: None,
        };
        let suites: Vec<(String, Option<String>)> = program
            .setups("\ncluster\n")
            .into_iter()
            .map(|suite| (suite.target, suite.setup))
            .collect();
        let suite = |target: &str, setup: &str| (target.to_owned(), Some(setup.to_owned()));
        assert_eq!(
            suites,
            [
                suite("conformance", ""),
                suite("conformance_cluster", "cluster")
            ]
        );
    }

    #[test]
    fn a_package_is_named_by_its_id() {
        assert_eq!(
            package("path+file:///a/xtask#0.0.0").as_deref(),
            Some("xtask")
        );
        assert_eq!(
            package("path+file:///a/b#leasehold@0.1.0").as_deref(),
            Some("leasehold")
        );
    }
}
