//! The data of a private PostgreSQL server, the user that it runs as, and the removal of its
//! remains.

use std::{
    fs::{self, File},
    io,
    io::Write,
    os::unix::{
        fs::{FileExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::geteuid;

use crate::{
    certificates::TlsPort,
    error::{Error, Result},
    find::Program,
    kept,
    process::User,
    server,
};

/// The roles: the superuser, and one that may make a schema. Both have one password.
pub(crate) const SUPERUSER: &str = "postgres";
pub(crate) const USER: &str = "app";
pub(crate) const PASSWORD: &str = "s3cret";
pub(crate) const DATABASE: &str = "postgres";

/// The size in bytes of its only System V shared memory segment, by which two servers notice that
/// they share their data.
const SEGMENT: u64 = 56;

/// The user for a server that refuses to run as root: `postgres` if the system has it, else
/// `nobody`. `None` if this process is not root.
pub(crate) fn not_root() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let users =
        fs::read_to_string("/etc/passwd").map_err(Error::io("reading the users of the system"))?;
    let find = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line
            .split(':')
            .skip(2)
            .take(2)
            .map(|number| number.parse().ok());
        Some(User {
            uid: numbers.next()??,
            gid: numbers.next()??,
        })
    };
    let user = find("postgres").or_else(|| find("nobody"));
    user.map(Some).ok_or_else(|| {
        Error::answer(
            "a user that is not root",
            "there is no user `postgres` or `nobody`",
        )
    })
}

/// Gives a file or folder of the testbed to the server's user, who alone may read it.
pub(crate) fn give(path: &Path, user: Option<User>) -> Result<()> {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    let given =
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).and_then(|()| match user {
            Some(User { uid, gid }) => chown(path, Some(uid), Some(gid)),
            None => Ok(()),
        });
    given.map_err(Error::io(format!(
        "giving {} to the server's user",
        path.display()
    )))
}

/// The origin of the data.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// A cluster without content, of this system identifier: a copy of one that is made once.
    New(u64),
    /// A copy of the data of the server with this socket, to follow it.
    Standby {
        of: PathBuf,
        port: u16,
        name: String,
    },
}

impl Origin {
    /// Fills an empty folder with the data.
    pub(crate) fn fill(&self, data: &Path, user: Option<User>) -> Result<()> {
        give(data, user)?;
        match self {
            Self::New(identifier) => {
                copy(&template(user)?.join("."), data)?;
                identify(data, *identifier)
            }
            Self::Standby { of, port, name } => {
                let port = port.to_string();
                let folder = text(of);
                let primary = format!("application_name={name}");
                let words = [
                    "-h",
                    &folder,
                    "-p",
                    &port,
                    "-U",
                    SUPERUSER,
                    "-d",
                    &primary,
                    "-D",
                    &text(data),
                ];
                let how = ["-R", "-X", "stream", "-c", "fast", "--no-sync"];
                run(
                    &Program::PgBasebackup.find()?,
                    &[&words[..], &how].concat(),
                    "",
                    user,
                )
            }
        }
    }
}

/// The words for `initdb`, beside those with paths.
const INITDB: [&str; 8] = [
    "-U",
    SUPERUSER,
    "--encoding=UTF8",
    "--locale=C",
    "--wal-segsize=1",
    "--auth-local=trust",
    "--auth-host=scram-sha-256",
    "--no-sync",
];

/// The folder with the cluster of which each server has a copy: to make one takes a second of a
/// processor.
fn template(user: Option<User>) -> Result<PathBuf> {
    let initdb = Program::Initdb.find()?;
    let roles = format!(
        "CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}';\nGRANT CREATE ON DATABASE {DATABASE} TO {USER};\n\
         REVOKE CREATE ON SCHEMA public FROM PUBLIC;\nGRANT CREATE ON SCHEMA public TO {USER};\n"
    );
    let program = text(&initdb);
    let owner = format!("{user:?}");
    let words = [&INITDB[..], &[&program, &roles, &owner]].concat();
    kept::kept(&kept::name_of("postgres", &words), |path| {
        // The server's user may not be able to enter the folder of this program.
        let folder = server::folder("template")?;
        give(folder.path(), user)?;
        let data = folder.path().join("data");
        let password = folder.path().join("password");
        fs::write(&password, PASSWORD).map_err(Error::io("writing a password"))?;
        give(&password, user)?;
        let paths = [
            format!("--pgdata={}", data.display()),
            format!("--pwfile={}", password.display()),
        ];
        let paths = paths.each_ref().map(String::as_str);
        run(&initdb, &[&INITDB[..], &paths].concat(), "", user)?;
        run(
            &Program::Postgres.find()?,
            &["--single", "-D", &text(&data), "-F", DATABASE],
            &roles,
            user,
        )?;
        copy(&data, path)
    })
}

/// Copies a folder with its owners.
fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Path::new("cp"), &["-a", &text(from), &text(to)], "", None)
}

/// A system identifier that no other cluster has.
pub(crate) fn new_identifier() -> u64 {
    fastrand::u64(1..=i64::MAX as u64)
}

/// Gives a cluster that was shut down a system identifier: in its control file, which ends in a
/// checksum, and at the begin of each file of its write-ahead log.
fn identify(data: &Path, identifier: u64) -> Result<()> {
    let refused = |file: &Path| Error::answer(format!("reading {}", file.display()), "unknown");
    let control = data.join("global/pg_control");
    let mut bytes = fs::read(&control).map_err(Error::io("reading pg_control"))?;
    let former: [u8; 8] = bytes
        .first_chunk()
        .copied()
        .ok_or_else(|| refused(&control))?;
    let sum = |bytes: &[u8]| crc32c(bytes).to_ne_bytes();
    let at = (8..bytes.len().min(512))
        .step_by(4)
        .find(|&at| bytes[at..].starts_with(&sum(&bytes[..at])));
    let at = at.ok_or_else(|| refused(&control))?;
    bytes[..8].copy_from_slice(&identifier.to_ne_bytes());
    let new = sum(&bytes[..at]);
    bytes[at..at + 4].copy_from_slice(&new);
    fs::write(&control, bytes).map_err(Error::io("writing pg_control"))?;
    let log = fs::read_dir(data.join("pg_wal")).map_err(Error::io("reading pg_wal"))?;
    for file in log.flatten().filter(|file| file.path().is_file()) {
        let path = file.path();
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(Error::io("opening a file of pg_wal"))?;
        let mut found = [0; 8];
        let read = file.read_exact_at(&mut found, IDENTIFIER_IN_LOG);
        read.map_err(Error::io("reading a file of pg_wal"))?;
        if found != former {
            return Err(refused(&path));
        }
        file.write_all_at(&identifier.to_ne_bytes(), IDENTIFIER_IN_LOG)
            .map_err(Error::io("writing a file of pg_wal"))?;
    }
    Ok(())
}

/// The position of the system identifier in a file of the write-ahead log.
const IDENTIFIER_IN_LOG: u64 = 24;

/// The checksum of PostgreSQL, CRC-32C.
fn crc32c(bytes: &[u8]) -> u32 {
    let shifted = |sum: u32| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
    let next = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), |sum, _| shifted(sum));
    !bytes.iter().fold(!0, next)
}

/// Copies the certificate and the key to files that the server may read: only its user may have the
/// key.
pub(crate) fn copy_certificates(tls: &TlsPort, data: &Path, user: Option<User>) -> Result<()> {
    for (from, name) in [
        (&tls.files.certificate, "server.pem"),
        (&tls.files.key, "server.key"),
        (&tls.ca, "ca.pem"),
    ] {
        let to = data.join(name);
        fs::copy(from, &to).map_err(Error::io("copying a certificate"))?;
        give(&to, user)?;
    }
    Ok(())
}

/// Runs a program to its end as the server's user.
fn run(program: &Path, words: &[&str], input: &str, user: Option<User>) -> Result<()> {
    let doing = || format!("running {} {}", program.display(), words.join(" "));
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .current_dir("/");
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().map_err(Error::io(doing()))?;
    // The input is short and fits into the pipe.
    child
        .stdin
        .take()
        .map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()))
        .map_err(Error::io(doing()))?;
    let output = child.wait_with_output().map_err(Error::io(doing()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    // The server's single-user mode reports success whatever its statements did.
    if output.status.success() && !said.contains("ERROR:") && !said.contains("FATAL:") {
        return Ok(());
    }
    Err(Error::answer(doing(), said))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Removes the shared memory segment that a killed server has left. Its id is in the file of the
/// server's process id.
pub(crate) fn remove_segment(data: &Path) {
    let file = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    if let Some(id) = file
        .lines()
        .nth(6)
        .and_then(|line| line.split_whitespace().nth(1))
    {
        remove_by_id(id);
    }
}

/// Removes the remains of servers that were killed together with their tests: segments of that user
/// that no process has attached, made by a process that is gone. They are of no use any more, and
/// the system has room for only 4,096 of them.
pub(crate) fn remove_segments_of_the_dead(user: Option<User>) {
    let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    for line in segments.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let is = |at, value| number(at) == Some(value);
        let gone = number(4).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if is(3, SEGMENT) && is(6, 0) && is(7, uid.into()) && gone {
            remove_by_id(words[1]);
        }
    }
}

/// Removes a segment. Failures are ignored: it may be gone already.
fn remove_by_id(id: &str) {
    let mut command = Command::new("ipcrm");
    let _: io::Result<_> = command
        .args(["-m", id])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_its_definition() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
