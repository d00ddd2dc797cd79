//! Running other programs.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use crate::setup;

/// The result of a chore; the error is a text for people.
pub(crate) type Outcome = Result<(), String>;

/// Everything happens in the root of the workspace, wherever it was called. This program is also made each [`Compiler`].
pub(crate) fn at_the_root() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask has no parent folder")?;
    env::set_current_dir(root).map_err(|error| format!("entering {}: {error}", root.display()))?;
    COMPILERS.iter().try_for_each(Compiler::link)
}

/// The cargo that runs this program, with the place of the protocol compiler in its environment.
pub(crate) fn cargo(args: &[&str]) -> Command {
    prepared(
        Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))),
        args,
    )
}

/// Turns on the code that only tests may have: faults of earlier versions, and simulated machines. No feature does, because any dependency
/// of a program can turn on a feature.
pub(crate) const LAB: [&str; 2] = ["--cfg", "leasehold_lab"];

/// A way to compile the crates of this workspace. This program is the compiler by its name.
/// `build.rustflags` would apply to all dependencies too, which would be built once more than for
/// users, and other features would have them built with other features.
pub(crate) struct Compiler {
    name: &'static str,
    /// Clippy, in place of the compiler.
    is_clippy: bool,
    more: &'static [&'static str],
    /// The beginnings of features that are turned off in the crates of this workspace alone.
    without: &'static [&'static str],
}

/// With [`LAB`].
pub(crate) const IN_LAB: Compiler = Compiler {
    name: "rustc-in-lab",
    is_clippy: false,
    more: &LAB,
    without: &[],
};

/// Has core run on Shuttle, which chooses the order of its threads.
pub(crate) const ON_SHUTTLE: Compiler = Compiler {
    name: "rustc-on-shuttle",
    is_clippy: false,
    more: &["--cfg", "shuttle", "-Dwarnings"],
    without: &[],
};

/// The stores as users have them who want nothing else.
pub(crate) const PLAIN: Compiler = Compiler {
    name: "clippy-of-plain-stores",
    is_clippy: true,
    more: &["-Dwarnings"],
    without: &["tls", "sasl", "deadpool", "bb8", "sqlx", "serde"],
};

const COMPILERS: [Compiler; 3] = [IN_LAB, ON_SHUTTLE, PLAIN];

impl Compiler {
    /// The cargo that runs this program, with this compiler.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo(args);
        let path = self.path().unwrap_or_else(|_| self.name.into());
        command.env(WRAPPER, path);
        command
    }

    /// Its path, beside this program.
    fn path(&self) -> Result<PathBuf, String> {
        let this = env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
        Ok(this.with_file_name(self.name))
    }

    /// Gives this program its name.
    fn link(&self) -> Outcome {
        let path = self.path()?;
        let linked = match fs::read_link(&path) {
            Ok(_) => Ok(()),
            Err(_) => link(&path),
        };
        match linked {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(format!("linking {}: {error}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Compiles, as cargo has told it. The first word is the path of rustc, for Clippy too.
    fn compile(&self, words: &[OsString]) -> Option<ExitCode> {
        let mut command = match self.is_clippy {
            true => Command::new(clippy_driver()),
            false => Command::new(words.first()?),
        };
        let given = if self.is_clippy { words } else { &words[1..] };
        command.args(self.kept(given)).args(self.more);
        let code = command.status().ok().and_then(|status| status.code());
        Some(code.map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
    }

    /// These words without those for features that are turned off.
    fn kept<'a>(&self, words: &'a [OsString]) -> Vec<&'a OsString> {
        let is_off = |word: &OsString| {
            let word = word.to_string_lossy();
            let feature = word.strip_prefix("feature=\"");
            feature.is_some_and(|name| self.without.iter().any(|off| name.starts_with(off)))
        };
        let mut kept: Vec<&OsString> = Vec::with_capacity(words.len());
        for word in words {
            if is_off(word) && kept.last().is_some_and(|last| *last == "--cfg") {
                kept.pop();
            } else {
                kept.push(word);
            }
        }
        kept
    }
}

/// The variable by which cargo knows the compiler of the crates of this workspace.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// The compiler that `cargo clippy` uses: it is beside cargo.
fn clippy_driver() -> PathBuf {
    let beside = env::var_os("CARGO").map(|cargo| Path::new(&cargo).with_file_name(CLIPPY));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| CLIPPY.into())
}
const CLIPPY: &str = "clippy-driver";

/// The cargo that runs this program, as `cargo clippy` with these words runs it: it needs not check again what that has checked.
pub(crate) fn beside_clippy(clippy: &[&str], args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.env(WRAPPER, clippy_driver());
    let words: String = clippy
        .iter()
        .map(|word| format!("{word}__CLIPPY_HACKERY__"))
        .collect();
    command.env("CLIPPY_ARGS", words);
    command
}

/// Links to this program, which is built anew under the same name.
#[cfg(unix)]
fn link(compiler: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink("xtask", compiler)
}

/// Nothing is built in another way elsewhere.
#[cfg(not(unix))]
fn link(_compiler: &Path) -> io::Result<()> {
    Ok(())
}

/// The cargo that runs this program, for builds with the code that only tests may have.
pub(crate) fn lab(args: &[&str]) -> Command {
    IN_LAB.cargo(args)
}

/// Compiles if cargo calls this program by the name of one of [`COMPILERS`].
pub(crate) fn compiled() -> Option<ExitCode> {
    let mut words = env::args_os();
    let this = words.next()?;
    let name = Path::new(&this).file_name()?;
    let compiler = COMPILERS.iter().find(|compiler| name == compiler.name)?;
    compiler.compile(&words.collect::<Vec<_>>())
}

/// The cargo of another Rust, which rustup has.
pub(crate) fn cargo_of(toolchain: &str, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", toolchain, "cargo"])
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN");
    prepared(command, args)
}

fn prepared(mut command: Command, args: &[&str]) -> Command {
    command.args(args).stdin(Stdio::null());
    if let Some(protoc) = setup::protoc() {
        command.env("PROTOC", protoc);
    }
    // The variables by which `cargo run` describes xtask do not apply to the next build.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Runs a command to its end; its output goes to that of this program.
pub(crate) fn run(mut command: Command) -> Outcome {
    let shown = shown(&command);
    println!("$ {shown}");
    let status = command
        .status()
        .map_err(|error| format!("{shown}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{shown}: {status}"))
    }
}

/// Runs a command and returns what it printed.
pub(crate) fn output(mut command: Command) -> Result<String, String> {
    let shown = shown(&command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words = [program].into_iter().chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_turned_off_and_nothing_else() {
        let given = [
            "rustc",
            "--cfg",
            "feature=\"tls-ring\"",
            "--cfg",
            "feature=\"redis\"",
            "--check-cfg",
            "cfg(feature, values(\"tls\"))",
            "--cfg",
            "feature=\"sasl\"",
            "a.rs",
        ]
        .map(OsString::from);
        let kept: Vec<String> = PLAIN
            .kept(&given)
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let rest = [
            "rustc",
            "--cfg",
            "feature=\"redis\"",
            "--check-cfg",
            "cfg(feature, values(\"tls\"))",
            "a.rs",
        ];
        assert_eq!(kept, rest);
        assert_eq!(IN_LAB.kept(&given).len(), given.len());
    }
}
