//! The files of libpq that hold passwords and services, such as `~/.pgpass` and
//! `~/.pg_service.conf`. No crate reads them for settings beyond those of the client crate.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;

/// The greatest size of such a file in bytes.
const MOST: u64 = 1 << 20;
/// Debian's folder for the services of all users.
const SYSTEM: &str = "/etc/postgresql-common";

/// The folders in which servers of this machine have their sockets: Debian's, and PostgreSQL's own.
pub(super) const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Looks a variable of the environment up.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A file with passwords.
#[derive(Clone)]
pub(super) struct Passwords {
    path: PathBuf,
    /// A word names it, so it has to be there.
    is_named: bool,
}

impl Passwords {
    /// The file that a word names, or the one in the home of this user, if there is any.
    pub(super) fn find(named: Option<String>, environment: Environment<'_>) -> Option<Passwords> {
        let is_named = named.is_some();
        let path = match named {
            Some(path) => path.into(),
            None => home(environment)?.join(".pgpass"),
        };
        Some(Passwords { path, is_named })
    }

    /// Looks for the password of this user. It may block.
    pub(super) fn look_up(
        &self,
        host: &Host,
        database: &str,
        user: &str,
    ) -> Result<Option<String>> {
        let shown = self.path.display();
        let (text, metadata) = match read(&self.path) {
            Ok(read) => read,
            Err(_) if !self.is_named || self.is_no_file() => return Ok(None),
            Err(e) => {
                return Err(invalid(format_args!(
                    "the password file {shown} cannot be read: {e}"
                )));
            }
        };
        let host_name = match &*host.name {
            name if SOCKETS.contains(&name) => "localhost",
            name => name,
        };
        let port = host.port.to_string();
        let asked = [host_name, &port, database, user];
        // The first line that matches counts.
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| str::from_utf8(line).ok());
        let mut lines = lines.map(|line| line.strip_suffix('\r').unwrap_or(line));
        let found = lines.find_map(|line| password_in(line, asked));
        let found = found.filter(|password| !password.is_empty());
        if found.is_some() && is_open(&metadata) {
            return Err(invalid(format_args!(
                "the password file {shown} may be read by other users: chmod 600 {shown}"
            )));
        }
        Ok(found)
    }

    /// Returns whether something else is in the place of the file, such as `/dev/null`.
    fn is_no_file(&self) -> bool {
        self.path.metadata().is_ok_and(|found| !found.is_file())
    }
}

impl fmt::Display for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the password file {}", self.path.display())
    }
}

/// The password in this line, if it is about the host, the port, the database and the user.
fn password_in(line: &str, asked: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    // An escaped `*` is no wildcard.
    let mut fields = vec![(String::new(), false)];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let is_password = fields.len() > asked.len();
        let (field, is_escaped) = fields.last_mut()?;
        match character {
            '\\' => {
                *is_escaped = true;
                field.extend(characters.next());
            }
            // The password may have colons.
            ':' if !is_password => fields.push((String::new(), false)),
            other => field.push(other),
        }
    }
    let (password, _) = fields.pop()?;
    let is_about = |((field, is_escaped), asked): (&(String, bool), &str)| {
        field == asked || field == "*" && !is_escaped
    };
    let matches = fields.len() == asked.len() && fields.iter().zip(asked).all(is_about);
    matches.then_some(password)
}

/// The words of a service, and the file that has them.
pub(super) fn service(
    name: &str,
    environment: Environment<'_>,
) -> Result<(Vec<(String, String)>, PathBuf)> {
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    let own = variable("PGSERVICEFILE").map(PathBuf::from);
    let own = own.or_else(|| Some(home(environment)?.join(".pg_service.conf")));
    let system = variable("PGSYSCONFDIR").map_or_else(|| SYSTEM.into(), PathBuf::from);
    let files = [own, Some(system.join("pg_service.conf"))];
    let files: Vec<PathBuf> = files.into_iter().flatten().collect();
    for path in &files {
        let text = read(path).and_then(|(text, _)| {
            String::from_utf8(text).map_err(|_| io::Error::other("it is not UTF-8"))
        });
        let text = match text {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => {
                let path = path.display();
                return Err(invalid(format_args!(
                    "the file of services {path} cannot be read: {e}"
                )));
            }
        };
        if let Some(words) = section(&text, name, path)? {
            return Ok((words, path.clone()));
        }
    }
    let shown: Vec<String> = files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Err(invalid(format_args!(
        "no service of this name is in {}: write one there, or leave service out",
        shown.join(" or ")
    )))
}

/// The words below `[name]`; `None` without such a section.
fn section(text: &str, name: &str, path: &Path) -> Result<Option<Vec<(String, String)>>> {
    let mut words = None;
    for (nth, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(head) = line.strip_prefix('[') {
            if words.is_some() {
                break;
            }
            words = (head.strip_suffix(']') == Some(name)).then(Vec::new);
            continue;
        }
        let Some(words) = &mut words else { continue };
        let (word, value) = line.split_once('=').ok_or_else(|| {
            let path = path.display();
            let nth = nth + 1;
            invalid(format_args!("line {nth} of {path} is not word=value"))
        })?;
        words.push((word.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(words)
}

fn home(environment: Environment<'_>) -> Option<PathBuf> {
    let home = environment("HOME").map(PathBuf::from);
    home.filter(|home| home.is_absolute())
}

/// Reads a file. Opening a pipe may never end.
fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    let read = File::open(path)?.take(MOST + 1).read_to_end(&mut text)?;
    if read as u64 > MOST {
        return Err(io::Error::other("it is too large"));
    }
    Ok((text, metadata))
}

/// Returns whether other users may read a file.
#[cfg(unix)]
fn is_open(metadata: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn is_open(_metadata: &Metadata) -> bool {
    false
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, what.to_string())
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_line_is_about_a_host_a_port_a_database_and_a_user() {
        let asked = ["h", "5432", "db", "me"];
        for (line, password) in [
            ("h:5432:db:me:pw", Some("pw")),
            ("*:*:*:*:p:w", Some("p:w")),
            (r"*:*:*:*:p\:w\\", Some(r"p:w\")),
            (r"\h:*:*:me:pw", Some("pw")),
            ("i:5432:db:me:pw", None),
            ("h:5432:db:you:pw", None),
            ("h:5432:db:me:", Some("")),
            (r"\*:5432:db:me:pw", None),
            ("h:5432:db:me", None),
            ("#*:*:*:*:pw", None),
            ("", None),
        ] {
            assert_eq!(password_in(line, asked).as_deref(), password, "{line}");
        }
        let corpus = "*:*:*:*:S3CRET\nh:5432:db:me:S3\\:CRET\n\\\n";
        fuzz_text(corpus, |line| drop(password_in(line, asked)));
    }

    /// Libpq takes the first line that is about a connection, whatever the others are.
    #[cfg(unix)]
    #[test]
    fn the_first_line_of_a_file_that_matches_counts() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("passwords");
        let lines = b"*:*:*:caf\xe9:x\r\nh:5432:db:me:pw\r\nh:5432:db:none:\n*:*:*:*:other\n";
        std::fs::write(&path, lines).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let passwords = Passwords {
            path,
            is_named: true,
        };
        let host = Host::named("h", 5432).unwrap();
        for (user, password) in [("me", Some("pw")), ("none", None), ("you", Some("other"))] {
            let found = passwords.look_up(&host, "db", user).unwrap();
            assert_eq!(found.as_deref(), password, "{user}");
        }
    }

    #[test]
    fn a_section_has_the_words_of_a_service() {
        let text = "# mine\n[one]\nhost=a\n\n[two]\nhost = b\n#port=1\nport=2\n[two]\nport=3\n";
        let read = |name| section(text, name, Path::new("/f")).unwrap();
        let words = |all: &[(&str, &str)]| {
            let owned = |(word, value): &(&str, &str)| ((*word).to_owned(), (*value).to_owned());
            Some(all.iter().map(owned).collect::<Vec<_>>())
        };
        assert_eq!(read("one"), words(&[("host", "a")]));
        assert_eq!(read("two"), words(&[("host", "b"), ("port", "2")]));
        assert_eq!(read("three"), None);
        let error = section("[x]\nS3CRET", "x", Path::new("/f")).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("line 2 of /f is not word=value"),
            "{error}"
        );
        fuzz_text(text, |text| drop(section(text, "two", Path::new("/f"))));
    }
}
