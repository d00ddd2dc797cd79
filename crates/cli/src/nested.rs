//! A command inside of another command's program. It would wait for itself if it wanted a lock that
//! the outer command holds.

use std::env;
use std::fmt;
use std::fs;

use leasehold::backend::Mode;
use leasehold::{Participant, Store};

use crate::exit;
use crate::held::{NAME, TOKEN};
use crate::processes::{Kin, own_pid};
use crate::run_outcome::RunOutcome;
use crate::store_url::{StoreUrl, VARIABLE};

/// Refuses to wait for a lock that cannot be free before this process has ended: the program that
/// runs under it waits for this process, or is this process.
pub(crate) async fn refuse_to_wait_for_itself(
    store: &Store,
    url: &StoreUrl,
    name: &str,
    mode: Mode,
) -> Result<(), RunOutcome> {
    // Only an outer command sets this variable.
    if env::var_os(NAME).is_none() {
        return Ok(());
    }
    let above = programs_above(name, &url.for_program());
    if above.is_empty() {
        return Ok(());
    }
    let Ok(mut queue) = store.lock(name).inspect().await else {
        return Ok(());
    };
    queue.holders.retain(|holder| {
        let token = holder.token.map(|token| token.get());
        token.is_some_and(|token| above.iter().any(|it| it.token == token))
    });
    if !is_in_the_way(&queue.holders, mode) {
        return Ok(());
    }
    let above: Vec<String> = above.iter().map(Above::to_string).collect();
    let what = format!(
        "lock {name:?}: this command would wait for itself: it was started by {}, which runs under this lock already \
         and waits for it; do without the inner lock, or give it another name",
        above.join(", ")
    );
    Err(RunOutcome::failed(exit::USAGE, what))
}

/// Returns whether these holds keep a claim of this mode out for as long as they last.
fn is_in_the_way(holders: &[Participant], mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => !holders.is_empty(),
        Mode::Shared => holders
            .iter()
            .any(|it| it.mode.is_some_and(|mode| mode != Mode::Shared)),
        Mode::Permits { n, of } => {
            let taken = holders.iter().map(|it| match it.mode {
                Some(Mode::Permits { n, .. }) => n,
                Some(_) => of,
                None => 0,
            });
            taken.fold(n, u32::saturating_add) > of
        }
    }
}

/// A program under the lock: this process, or an ancestor of it.
struct Above {
    pid: i32,
    /// The token of its hold.
    token: u64,
}

impl fmt::Display for Above {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        let pid = self.pid;
        let token = self.token;
        write!(f, "process {pid} ({:?}, token {token})", comm.trim_end())
    }
}

/// The programs under this lock among this process and its ancestors.
fn programs_above(name: &str, store: &str) -> Vec<Above> {
    let mut programs = Vec::new();
    let mut pid = own_pid();
    while let Some(kin) = Kin::of(pid) {
        if is_program_of(pid, kin)
            && let Some(token) = token_in(&environment_of(pid), name, store)
        {
            programs.push(Above { pid, token });
        }
        pid = kin.parent;
    }
    programs
}

/// Returns whether a process is the program of its parent, a guardian. Processes that the program
/// left behind are children of the guardian too, but the program does not wait for them, and they
/// may wait for its end.
fn is_program_of(pid: i32, kin: Kin) -> bool {
    let is_guardian = fs::read_to_string(format!("/proc/{}/comm", kin.parent))
        .is_ok_and(|comm| comm.trim_end() == "lock-guardian");
    is_guardian
        && kin.group == pid
        && Kin::of(kin.parent).is_some_and(|guardian| guardian.session == kin.session)
}

/// The environment that a process was started with; empty if we may not read it.
fn environment_of(pid: i32) -> Vec<String> {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variables = text.split(|byte| *byte == 0);
    variables
        .map(|variable| String::from_utf8_lossy(variable).into_owned())
        .collect()
}

/// The token of a program with this environment, if it runs under this lock.
fn token_in(environment: &[String], name: &str, store: &str) -> Option<u64> {
    let value = |of: &str| {
        let is_of = |it: &&String| {
            it.strip_prefix(of)
                .is_some_and(|rest| rest.starts_with('='))
        };
        let variable = environment.iter().find(is_of)?;
        Some(&variable[of.len() + 1..])
    };
    if value(NAME)? != name || value(VARIABLE)? != store {
        return None;
    }
    value(TOKEN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_lock_of_the_same_store() {
        let environment = |name: &str| {
            let name = format!("LEASEHOLD_NAME={name}");
            [
                "A=1",
                "LEASEHOLD_NAMES=x",
                &name,
                "LEASEHOLD_STORE=redis://h",
                "LEASEHOLD_FENCING_TOKEN=7",
            ]
            .map(String::from)
            .to_vec()
        };
        let token = |environment: &[String]| token_in(environment, "job", "redis://h");
        assert_eq!(token(&environment("job")), Some(7));
        assert_eq!(token(&environment("jobs")), None);
        assert_eq!(token_in(&environment("job"), "job", "redis://h/1"), None);
        assert_eq!(token(&environment("job")[..3]), None);
        assert_eq!(token(&[]), None);
    }

    #[test]
    fn what_keeps_whom_out() {
        let permits = |n, of| Mode::Permits { n, of };
        let holders = |modes: &[Mode]| -> Vec<Participant> {
            let holder = |mode: &Mode| Participant::new("x").mode(*mode);
            modes.iter().map(holder).collect()
        };
        for (held, wanted, expected) in [
            (&[][..], Mode::Exclusive, false),
            (&[Mode::Shared], Mode::Exclusive, true),
            (&[Mode::Exclusive], Mode::Shared, true),
            (&[Mode::Shared, Mode::Shared], Mode::Shared, false),
            (&[permits(1, 2)], permits(1, 2), false),
            (&[permits(1, 2), permits(1, 2)], permits(1, 2), true),
            (&[Mode::Shared], permits(1, 2), true),
        ] {
            assert_eq!(
                is_in_the_way(&holders(held), wanted),
                expected,
                "{held:?}, {wanted:?}"
            );
        }
        // The store does not report the mode of this hold.
        assert!(!is_in_the_way(&[Participant::new("x")], Mode::Shared));
    }
}
