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

/// Everything happens in the root of the workspace, wherever it was called. This program is also made the compiler of [`lab`].
pub(crate) fn at_the_root() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask has no parent folder")?;
    env::set_current_dir(root).map_err(|error| format!("entering {}: {error}", root.display()))?;
    link_compiler()
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

/// The name by which this program is the compiler of the crates of this workspace, with [`LAB`]. `build.rustflags` would do so for all
/// dependencies too, which would be built once more than for users.
const COMPILER: &str = "rustc-in-lab";

/// The path of [`COMPILER`], beside this program.
fn compiler() -> Result<PathBuf, String> {
    let this = env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
    Ok(this.with_file_name(COMPILER))
}

/// Links to this program, which is built anew under the same name.
#[cfg(unix)]
fn link(compiler: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink("xtask", compiler)
}

/// Nothing is built for the lab elsewhere.
#[cfg(not(unix))]
fn link(_compiler: &Path) -> io::Result<()> {
    Ok(())
}

/// Gives this program its name as a compiler.
fn link_compiler() -> Outcome {
    let compiler = compiler()?;
    let linked = match fs::read_link(&compiler) {
        Ok(_) => Ok(()),
        Err(_) => link(&compiler),
    };
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(format!("linking {}: {error}", compiler.display()))
        }
        _ => Ok(()),
    }
}

/// The cargo that runs this program, for builds with the code that only tests may have.
pub(crate) fn lab(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.env(
        "RUSTC_WORKSPACE_WRAPPER",
        compiler().unwrap_or_else(|_| COMPILER.into()),
    );
    command
}

/// Compiles with [`LAB`] if cargo calls this program as the compiler: the first word is then the path of rustc.
pub(crate) fn compiled_in_lab() -> Option<ExitCode> {
    let mut words = env::args_os();
    let name = words.next()?;
    if Path::new(&name).file_name()? != COMPILER {
        return None;
    }
    let status = Command::new(words.next()?).args(words).args(LAB).status();
    let code = status.ok().and_then(|status| status.code());
    Some(code.map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
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
