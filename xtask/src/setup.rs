//! The programs and files that the tests need on the machine, and their installation.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::run::{self, Outcome};

/// A file that must be there and the Debian package that brings it. A name without a folder is a program in `PATH`.
const NEEDED: [(&str, &str); 16] = [
    ("redis-server", "redis-server"),
    ("redis-sentinel", "redis-sentinel"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("/usr/share/java/zookeeper.jar", "zookeeper"),
    ("java", "default-jre-headless"),
    (POSTGRES, "postgresql"),
    ("/usr/sbin/pgbouncer", "pgbouncer"),
    ("protoc", "protobuf-compiler"),
    (WELL_KNOWN_TYPES, "libprotobuf-dev"),
    (REDIS_PY, "python3-redis"),
    (KAZOO, "python3-kazoo"),
    ("tmux", "tmux"),
    ("strace", "strace"),
    ("openssl", "openssl"),
    ("unshare", "util-linux"),
];

/// Has a folder for each version, with the programs in its `bin`.
const POSTGRES: &str = "/usr/lib/postgresql";

/// A file that `protoc` imports from the `include` folder beside its own. Its package only
/// recommends the package with this file.
const WELL_KNOWN_TYPES: &str = "include/google/protobuf/descriptor.proto";

/// The other tools' clients that share locks with ours, for the Python of Debian. `LEASEHOLD_PYTHON` names another, which
/// is then believed to have them.
const REDIS_PY: &str = "/usr/lib/python3/dist-packages/redis/lock.py";
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/recipe/lock.py";

/// Installs what is missing. The tests start servers of their own on free ports: whether the packages start theirs does
/// not matter.
pub(crate) fn setup() -> Outcome {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing)?;
    match self::missing() {
        still if still.is_empty() => Ok(()),
        still => Err(format!(
            "still missing after the installation: {}",
            still.join(" ")
        )),
    }
}

/// Installs packages of Debian.
pub(crate) fn install(packages: &[&str]) -> Outcome {
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    let by_hand = format!("apt-get update && apt-get {}", install.join(" "));
    if !is_root()? {
        return Err(format!(
            "the tests need more packages; as root, run: {by_hand}"
        ));
    }
    println!("setup: {by_hand}");
    run::run(apt(&["update"])).and_then(|()| run::run(apt(&install))).map_err(|error| {
        format!("{error}; where apt-get is not available, install the servers by other means and put them in PATH")
    })
}

/// The protocol compiler that building etcd's client takes: `PROTOC`, or the one in `PATH`.
pub(crate) fn protoc() -> Option<PathBuf> {
    env::var_os("PROTOC")
        .map(PathBuf::from)
        .filter(|path| path.is_file())
        .or_else(|| which::which("protoc").ok())
}

fn missing() -> Vec<&'static str> {
    let missing = NEEDED.into_iter().filter(|(file, _)| match *file {
        "protoc" => protoc().is_none(),
        WELL_KNOWN_TYPES => !protoc().is_some_and(|protoc| has_well_known_types(&protoc)),
        POSTGRES => !["postgres", "initdb", "pg_basebackup"]
            .into_iter()
            .all(of_any_postgres),
        REDIS_PY | KAZOO if env::var_os("LEASEHOLD_PYTHON").is_some() => false,
        file => !Path::new(file).is_file() && which::which(file).is_err(),
    });
    missing.map(|(_, package)| package).collect()
}

fn of_any_postgres(program: &str) -> bool {
    let versions = fs::read_dir(POSTGRES).into_iter().flatten().flatten();
    versions
        .into_iter()
        .any(|version| version.path().join("bin").join(program).is_file())
}

fn has_well_known_types(protoc: &Path) -> bool {
    // A link in `PATH` may point to where the compiler really lives.
    let real = protoc.canonicalize().unwrap_or_else(|_| protoc.into());
    let beside = |protoc: &Path| Some(protoc.parent()?.parent()?.join(WELL_KNOWN_TYPES).is_file());
    [protoc, &real]
        .into_iter()
        .any(|protoc| beside(protoc).unwrap_or(false))
}

fn is_root() -> Result<bool, String> {
    let mut id = Command::new("id");
    id.arg("-u");
    Ok(run::output(id)?.trim() == "0")
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"])
        .args(args);
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null());
    command
}
