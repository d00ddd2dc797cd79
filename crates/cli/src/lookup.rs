//! Looks for the program before the wait for its lock, so that a mistyped name is reported at once.

use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::exit;
use crate::run_outcome::RunOutcome;

/// The reason why a program cannot be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Missing {
    #[error("there is no such program")]
    NotFound,
    #[error("it cannot be executed: {0}")]
    NotExecutable(&'static str),
}

/// Looks for `program` as `execvp` will. If it is not there, the run ends.
pub(crate) fn look_up(program: &OsStr) -> Result<(), RunOutcome> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    look_up_in(program, &path).map_err(|missing| {
        let code = if missing == Missing::NotFound {
            exit::NOT_FOUND
        } else {
            exit::NOT_EXECUTABLE
        };
        RunOutcome::failed(code, format!("{}: {missing}", program.display()))
    })
}

fn look_up_in(program: &OsStr, path: &OsStr) -> Result<(), Missing> {
    if program.is_empty() {
        return Err(Missing::NotFound);
    }
    if program.as_bytes().contains(&b'/') {
        return check(Path::new(program));
    }
    let mut verdict = Missing::NotFound;
    for folder in env::split_paths(path) {
        match check(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(missing @ Missing::NotExecutable(_)) => verdict = missing,
            Err(Missing::NotFound) => {}
        }
    }
    Err(verdict)
}

fn check(file: &Path) -> Result<(), Missing> {
    match file.metadata() {
        Ok(about) if about.is_file() => access(file, Access::EXEC_OK).map_err(|_| {
            Missing::NotExecutable(
                "we lack the right to execute it (chmod +x), or its disk allows none",
            )
        }),
        Ok(about) if about.is_dir() => Err(Missing::NotExecutable("it is a directory")),
        Ok(_) => Err(Missing::NotExecutable("it is no regular file")),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(Missing::NotExecutable(
            "we may not enter a directory on its path",
        )),
        Err(_) => Err(Missing::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_missing_from_not_executable() {
        let find =
            |program: &str| look_up_in(program.as_ref(), "/nowhere:/usr/bin:/bin:/etc".as_ref());
        assert_eq!(find("sh"), Ok(()));
        assert_eq!(find("/bin/sh"), Ok(()));
        assert_eq!(find("no-such-program"), Err(Missing::NotFound));
        assert_eq!(find("/no/such/program"), Err(Missing::NotFound));
        let not_executable = |program| match find(program) {
            Err(Missing::NotExecutable(why)) => why,
            other => panic!("{program}: {other:?}"),
        };
        assert!(not_executable("/etc/passwd").contains("right"));
        assert!(not_executable("/etc").contains("directory"));
        assert_eq!(
            find("passwd"),
            Ok(()),
            "a later folder has a file of that name that is not executable"
        );
        assert!(not_executable("group").contains("right"));
        assert_eq!(find(""), Err(Missing::NotFound));
    }
}
