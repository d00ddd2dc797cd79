//! Running other programs.

use std::{
    env,
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
};

use crate::setup;

/// What a chore has to say when it fails.
pub(crate) type Outcome = Result<(), String>;

/// Everything happens in the root of the workspace, wherever it was called.
pub(crate) fn at_the_root() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent folder")?;
    env::set_current_dir(root).map_err(|error| format!("entering {}: {error}", root.display()))
}

/// The cargo that runs us, told where the protocol compiler is.
pub(crate) fn cargo(args: &[&str]) -> Command {
    prepared(Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))), args)
}

/// The cargo of another Rust, which rustup has.
pub(crate) fn cargo_of(toolchain: &str, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "cargo"]).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    prepared(command, args)
}

fn prepared(mut command: Command, args: &[&str]) -> Command {
    command.args(args).stdin(Stdio::null());
    if let Some(protoc) = setup::protoc() {
        command.env("PROTOC", protoc);
    }
    // What `cargo run` told us about ourselves is not about what is built next.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    command
}

/// Runs a command to its end, its output ours.
pub(crate) fn run(mut command: Command) -> Outcome {
    let shown = shown(&command);
    println!("$ {shown}");
    let status = command.status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

/// Runs a command and returns what it printed.
pub(crate) fn output(mut command: Command) -> Result<String, String> {
    let shown = shown(&command);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = [program].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
