//! Finds the servers' programs: by an environment variable, then in `PATH`, then where Debian puts
//! them.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use which::{which, which_in};

use crate::error::{Error, Result};

/// A program or library of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// `redis-server`.
    RedisServer,
    /// `redis-sentinel`.
    RedisSentinel,
    /// `etcd`.
    Etcd,
    /// `java`, for ZooKeeper.
    Java,
    /// `zookeeper.jar`; its manifest names the other jars it needs.
    ZooKeeperJar,
    /// `postgres`, in the folder of the newest version.
    Postgres,
    /// `initdb`, which makes the data of a server.
    Initdb,
    /// `pg_basebackup`, which copies the data for a standby.
    PgBasebackup,
    /// `pgbouncer`.
    PgBouncer,
    /// `cc`, which builds a clock that can be stepped.
    CCompiler,
}

impl Program {
    /// The file's name, its Debian package, and the environment variable that may name another
    /// path.
    fn facts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::RedisServer => ("redis-server", "redis-server", "LEASEHOLD_REDIS_SERVER"),
            Self::RedisSentinel => (
                "redis-sentinel",
                "redis-sentinel",
                "LEASEHOLD_REDIS_SENTINEL",
            ),
            Self::Etcd => ("etcd", "etcd-server", "LEASEHOLD_ETCD"),
            Self::Java => ("java", "default-jre-headless", "LEASEHOLD_JAVA"),
            Self::ZooKeeperJar => ("zookeeper.jar", "zookeeper", "LEASEHOLD_ZOOKEEPER_JAR"),
            Self::Postgres => ("postgres", "postgresql", "LEASEHOLD_POSTGRES"),
            Self::Initdb => ("initdb", "postgresql", "LEASEHOLD_INITDB"),
            Self::PgBasebackup => (
                "pg_basebackup",
                "postgresql-client",
                "LEASEHOLD_PG_BASEBACKUP",
            ),
            Self::PgBouncer => ("pgbouncer", "pgbouncer", "LEASEHOLD_PGBOUNCER"),
            Self::CCompiler => ("cc", "gcc", "LEASEHOLD_CC"),
        }
    }

    /// The path of this program.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] names the Debian package to install.
    pub fn find(self) -> Result<PathBuf> {
        let (program, package, variable) = self.facts();
        if let Some(named) = env::var_os(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_file())
        {
            return Ok(named);
        }
        let found = match self {
            Self::ZooKeeperJar => {
                let folders = ["/usr/share/java", "/usr/share/zookeeper"].map(Path::new);
                folders
                    .map(|folder| folder.join(program))
                    .into_iter()
                    .find(|path| path.is_file())
            }
            Self::Java => in_path(program)
                .or_else(|| which(Path::new(&env::var_os("JAVA_HOME")?).join("bin/java")).ok()),
            Self::Postgres | Self::Initdb | Self::PgBasebackup => {
                of_newest_postgres(program).or_else(|| in_path(program))
            }
            _ => in_path(program),
        };
        found.ok_or(Error::Missing {
            program,
            package,
            variable,
        })
    }
}

/// Finds a program in `PATH`, or where Debian puts servers if `PATH` lacks those folders.
fn in_path(program: &str) -> Option<PathBuf> {
    which(program)
        .or_else(|_| which_in(program, Some("/usr/bin:/usr/sbin:/usr/local/bin"), "/"))
        .ok()
}

/// Finds a program of the newest PostgreSQL. Debian has a folder for each version, and none of them
/// is in `PATH`.
fn of_newest_postgres(program: &str) -> Option<PathBuf> {
    let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()));
    let with = versions.filter(|folder| folder.join("bin").join(program).is_file());
    Some(with.max_by_key(version)?.join("bin").join(program))
}

/// The address of a server to test against in place of a private one, if this environment variable
/// (`LEASEHOLD_REDIS_URL` and the like) names one.
///
/// Such a server can be used but not controlled: a test that kills, pauses or empties it is not available there.
#[must_use]
pub fn external_url(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|url| !url.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_names_its_package() {
        for program in [
            Program::RedisServer,
            Program::RedisSentinel,
            Program::Etcd,
            Program::Java,
            Program::ZooKeeperJar,
            Program::Postgres,
            Program::Initdb,
            Program::PgBasebackup,
            Program::PgBouncer,
            Program::CCompiler,
        ] {
            let (name, package, variable) = program.facts();
            assert!(!name.is_empty() && !package.is_empty() && variable.starts_with("LEASEHOLD_"));
        }
    }
}
