//! A client of another library: a script that is told what a client process is told, and writes the same lines.

use std::{env, ffi::OsString, os::unix::process::CommandExt, path::Path, process::Command};

use super::client::Plan;

/// Where Debian's Python is. Another one that comes first in `PATH` would not find Debian's modules.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = "tests/campaign/foreign.py";

/// Goes on as the script: what is done to the process is done to it.
pub(crate) fn go_on(plan: &Plan) -> ! {
    let python = env::var_os("LEASEHOLD_PYTHON").unwrap_or_else(|| OsString::from(PYTHON));
    let (p, lease, seed) = (
        plan.p.to_string(),
        plan.kind.ttl().as_millis().to_string(),
        plan.seed.to_string(),
    );
    let mut command = Command::new(python);
    command
        .arg("-u")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT));
    command
        .arg(p)
        .arg(&plan.folder)
        .args([&plan.url, &lease, &seed]);
    panic!("starting Python: {}", command.exec());
}
