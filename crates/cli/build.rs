//! The commit that `leasehold --version` shows: of the checkout, or of the published package, which cargo writes into it.
//! Where there is neither, it shows none.

use std::process::Command;

/// What `cargo package` adds.
const PUBLISHED: &str = ".cargo_vcs_info.json";
/// How much of a commit's id is shown.
const SHOWN: usize = 10;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = std::fs::read_to_string(PUBLISHED)
        .ok()
        .and_then(|text| published(&text))
        .or_else(checked_out);
    let shown = commit.map_or(version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=LEASEHOLD_VERSION={shown}");
}

/// `{"git": {"sha1": "0123…"}, …}`
fn published(text: &str) -> Option<String> {
    let id = text.split_once("\"sha1\"")?.1.split('"').nth(1)?;
    id.get(..SHOWN)
        .filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .map(String::from)
}

fn checked_out() -> Option<String> {
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // Only in our own checkout: sources unpacked inside of somebody's repository are not of its commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    git(&["rev-parse", &format!("--short={SHOWN}"), "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(args)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    String::from_utf8(output.stdout)
        .ok()
        .map(|text| text.trim().to_owned())
}
