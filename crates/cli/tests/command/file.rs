//! The embedded store as the command's default: where its file is, and what is wrong with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{code, leasehold, output, text};

const RUN: [&str; 4] = ["run", "job", "--", "true"];

/// `leasehold` as a user whose state is in `home`.
fn at_home<'a>(home: &Path, words: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = leasehold(words);
    command.env_remove("XDG_STATE_HOME").env("HOME", home);
    command
}

#[test]
fn the_default_is_a_file_of_this_user() {
    let home = tempfile::tempdir().unwrap();
    let echo = ["run", "job", "--", "sh", "-c", "echo $LEASEHOLD_STORE"];
    let shown = |command: &mut Command| text(command).trim().to_owned();
    let file = home.path().join(".local/state/leasehold/locks.db");
    assert_eq!(
        shown(&mut at_home(home.path(), echo)),
        format!("sqlite://{}", file.display())
    );
    assert!(file.exists());
    let mode = file
        .parent()
        .unwrap()
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700, "it is for no other user");

    let state = home.path().join("a b?#%@c");
    let shown = shown(at_home(home.path(), echo).env("XDG_STATE_HOME", &state));
    assert!(state.join("leasehold/locks.db").exists());
    // What is shown is a URL, and works as one.
    assert_eq!(
        code(at_home(home.path(), ["who", "job"]).env("LEASEHOLD_STORE", &shown)),
        Some(1),
        "{shown}"
    );
    assert_eq!(
        code(at_home(home.path(), ["run", "job", "--store", &shown, "--", "true"]).env_clear()),
        Some(0)
    );

    // A relative one means nothing, says the specification.
    assert_eq!(
        code(at_home(home.path(), RUN).env("XDG_STATE_HOME", "relative")),
        Some(0)
    );
    assert_eq!(
        code(
            leasehold(RUN)
                .env_remove("HOME")
                .env_remove("XDG_STATE_HOME")
        ),
        Some(64)
    );
    // A name that is set to nothing is not set.
    assert_eq!(
        code(at_home(home.path(), RUN).env("LEASEHOLD_STORE", "")),
        Some(0)
    );
}

/// Each client has a FIFO beside the file: one that ends in order leaves none, however soon after its release.
#[test]
fn nothing_stays_beside_the_file() {
    let home = tempfile::tempdir().unwrap();
    for _ in 0..5 {
        let running: Vec<_> = (0..3)
            .map(|_| at_home(home.path(), RUN).spawn().unwrap())
            .collect();
        for mut run in running {
            assert_eq!(run.wait().unwrap().code(), Some(0));
        }
    }
    let left = fs::read_dir(home.path().join(".local/state/leasehold")).unwrap();
    let left: Vec<String> = left
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(left.iter().all(|file| !file.contains("fifo")), "{left:?}");
}

#[test]
fn a_file_that_cannot_be_used() {
    let home = tempfile::tempdir().unwrap();
    let bad = home.path().join("junk.db");
    fs::write(&bad, "this is no database".repeat(100)).unwrap();
    let at = |path: &Path| {
        code(leasehold(RUN).env("LEASEHOLD_STORE", format!("sqlite://{}", path.display())))
    };
    assert_eq!(at(&bad), Some(69));
    assert_eq!(
        fs::read_to_string(&bad).unwrap().len(),
        1900,
        "it is left as it was"
    );
    assert_eq!(at(&home.path().join("no/such/folder/locks.db")), Some(64));
    assert_eq!(at(home.path()), Some(64));
    fs::write(
        home.path().join(".local"),
        "a file where a folder should be",
    )
    .unwrap();
    assert_eq!(code(&mut at_home(home.path(), RUN)), Some(64));
}

/// Runs a script on a disk of 8 MiB: `$1` is its folder, `$L` the binary, and `fill` fills it up.
fn on_a_small_disk(script: &str) -> Output {
    let disk = tempfile::tempdir().unwrap();
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    let prepare = "mount -t tmpfs -o size=8m none \"$1\" || exit 1; export LEASEHOLD_STORE=\"sqlite://$1/locks.db\"; \
                   fill() { cat /dev/zero > \"$1/full\" 2>/dev/null; }; export -f fill";
    let script = format!("{prepare}; {script}");
    unshare
        .args(["--mount", "bash", "-c", &script, "bash"])
        .arg(disk.path());
    output(unshare.env("L", env!("CARGO_BIN_EXE_leasehold")))
}

#[test]
fn a_full_disk() {
    let output = on_a_small_disk("fill \"$1\"; \"$L\" run job -- true");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("leasehold: "), "{said}");
}

/// The store has taken the room that renewals need: the lock outlives its lease on a full disk, and is given back there.
#[test]
fn a_disk_that_fills_up_while_the_program_runs() {
    let hold = "\"$L\" run job --ttl 1s -- bash -c 'fill \"$0\"; sleep 3; exit 5' \"$1\"; [ $? = 5 ] || exit 1";
    let next = "rm \"$1/full\"; exec \"$L\" run job -n -- sh -c 'exit 4'";
    let output = on_a_small_disk(&format!("{hold}; {next}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
}
