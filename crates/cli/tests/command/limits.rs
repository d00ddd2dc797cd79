//! Limits that a shell or a sandbox sets for the command.

use std::process::Command;

use crate::support::{leasehold, output, sqlite};

fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// The kernel sends SIGXFSZ to a process that writes more, which ends it by default. A command that only looks writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_the_size_of_files_is_said() {
    let home = tempfile::tempdir().unwrap();
    for words in ["run job -- true", "elect job -- true"] {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &format!("ulimit -f 2; exec $L {words}")])
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .env_remove("LEASEHOLD_STORE")
            .env_remove("XDG_STATE_HOME")
            .env("HOME", home.path());
        let (status, said) = said(&mut shell);
        assert!(
            status == Some(69) && said.contains("ulimit -f") && said.contains("2048 bytes"),
            "{words}: {status:?}, {said}"
        );
    }
}

/// The program's own limit is the program's: the signal is its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_reaches_its_limit_ends_of_it() {
    let stage = sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "ulimit -f 1; exec dd if=/dev/zero of={}/big bs=4096 count=1",
        folder.path().display()
    );
    assert_eq!(said(&mut stage.sh(&script)).0, Some(153));
}

/// Puts a seccomp filter before the command: this system call fails with EPERM.
const SANDBOX: &str = r#"
import ctypes, os, platform, struct, sys
number, audit = {"x86_64": (247, 0xC000003E), "aarch64": (95, 0xC00000B7)}[platform.machine()]
rules = [(0x20, 0, 0, 4), (0x15, 0, 3, audit), (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), ctypes.addressof(code))), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_in_which_no_process_can_be_waited_for() {
    let stage = sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let mut python = Command::new("timeout");
    python
        .args(["-s", "KILL", "20", "python3", "-c", SANDBOX])
        .args([env!("CARGO_BIN_EXE_leasehold"), "run", "job", "--", "touch"])
        .arg(&ran)
        .env("LEASEHOLD_STORE", &stage.url);
    let (status, said) = said(&mut python);
    assert!(
        status == Some(125) && said.contains("waitid") && said.contains("seccomp"),
        "{status:?}, {said}"
    );
    assert!(!ran.exists(), "it was not run");
    // Nothing of it is left.
    assert_eq!(said_of_who(&stage.url), Some(1));
}

fn said_of_who(url: &str) -> Option<i32> {
    said(leasehold(["who", "job"]).env("LEASEHOLD_STORE", url)).0
}
