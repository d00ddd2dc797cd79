//! The server's side of the store: its Lua scripts, and how one runs until it is done.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_core::seam::{Claim, Moment};
use leasehold_core::{Error, ErrorKind, Name, Result};
use leasehold_redis_client::{CLOCK, Call, Connection, Script, fence_of, slot_of};
use redis::Value;

use crate::Redis;
use crate::client::nodes::Nodes;

macro_rules! lua {
    ($part:literal) => {
        include_str!(concat!("scripts/", $part, ".lua"))
    };
}

/// The fence of all names of a database.
pub(crate) const FENCE: &str = "{}:f";
/// How long one verb goes on where more is to be done than one script may.
const LONGEST: Duration = Duration::from_secs(2);

pub(crate) static CLAIM: LazyLock<Script> = LazyLock::new(|| script(&claim()));

pub(crate) static CLAIM_ALL: LazyLock<Script> = LazyLock::new(|| {
    let blocked_by = function("blocked_by", &on_queue(["", "", ""], &[lua!("blocked_by")]));
    script(&[&blocked_by, &function("claim", &claim()), lua!("claim_all")])
});

pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    let renew = function("renew", &on_queue(["", "", ""], &[lua!("renew")]));
    script(&[&renew, lua!("renew_all")])
});

/// For one name, in a Cluster.
pub(crate) static RENEW_ONE: LazyLock<Script> = LazyLock::new(|| script(&on_queue(["", "", ""], &[lua!("renew")])));

pub(crate) static EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(&[lua!("extend")]));

pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue([lua!("release_fast_path"), lua!("hand_over"), ""], &[lua!("release")])));

pub(crate) static RELEASE_AFTER: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue(["", "", ""], &[lua!("release_after")])));

pub(crate) static EVICT: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue(["", "", ""], &[lua!("walk"), lua!("evict")])));

pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue(["", "", ""], &[lua!("walk"), lua!("inspect")])));

pub(crate) static RAISE: LazyLock<Script> = LazyLock::new(|| script(&[CLOCK, lua!("raise")]));

fn script(parts: &[&str]) -> Script {
    Script::new(&[&[lua!("limits")], parts].concat())
}

fn claim() -> Vec<&'static str> {
    on_queue([lua!("claim_fast_path"), "", lua!("join")], &[lua!("walk"), lua!("claim")])
}

/// The parts of a verb that works on the queue. Its fast paths end it before: one that needs nothing of what is there, one that needs
/// the first waiter alone, and one that admits nobody.
fn on_queue([fast_path, hand_over, join]: [&'static str; 3], verb: &[&'static str]) -> Vec<&'static str> {
    let parts = [lua!("keys"), fast_path, CLOCK, lua!("records"), hand_over, lua!("entries"), join, lua!("queue")];
    [&parts, verb].concat()
}

/// A script for one name as a function of one for many.
fn function(name: &str, parts: &[&str]) -> String {
    format!("local function {name}(KEYS, ARGV)\n{}end\n", parts.concat())
}

impl Redis {
    /// Runs a script on this name until it no longer answers `more`: it works for others first, and then for its caller. `call` makes
    /// it for each connection that it is tried over.
    pub(crate) async fn run(&self, name: &Name, mut call: impl FnMut(&Connection) -> Result<Call>) -> Result<Value> {
        let answer = self.nodes.run(|| self.names.lock(name), &mut call).await?;
        // Boxed: it is rare, and its space would be that of each call.
        if is_more(&answer) { Box::pin(self.go_on(name, call)).await } else { Ok(answer) }
    }

    async fn go_on(&self, name: &Name, mut call: impl FnMut(&Connection) -> Result<Call>) -> Result<Value> {
        let begun = Moment::now();
        while Moment::now().since(begun) <= LONGEST {
            // It has run, whatever becomes of the next round.
            let answer = self.nodes.run(|| self.names.lock(name), &mut call).await.map_err(|e| match e.kind() {
                ErrorKind::Unavailable => Error::new(ErrorKind::Ambiguous, e.to_string()),
                _ => e,
            })?;
            if !is_more(&answer) {
                return Ok(answer);
            }
        }
        let what = "so many waited here that they are still being served: ask again";
        Err(Error::new(ErrorKind::Ambiguous, what))
    }

    /// The start of every call for a claim.
    pub(crate) fn call(&self, script: &'static Script, claim: &Claim) -> Call {
        self.on(script, &claim.name).arg(claim.id)
    }

    /// A call with the lock of this name as its first key, and the fence as its second, which all names of a database share, or of a slot:
    /// other prefixes may lead to the same lock. The scripts name the other keys.
    ///
    /// In a Cluster there is a third key, which never exists. While its slot is moved, a node refuses a script of several keys unless
    /// all are there, before it runs: without that it could stop in its midst, at the first key that has moved.
    pub(crate) fn on(&self, script: &'static Script, name: &Name) -> Call {
        on(&self.nodes, script, &self.names.lock(name))
    }

    /// The same for several names of one database.
    pub(crate) fn on_all<'a>(
        &self,
        script: &'static Script,
        names: impl IntoIterator<Item = &'a Name, IntoIter: ExactSizeIterator>,
    ) -> Call {
        let names = names.into_iter();
        let call = Call::of(script, names.len() + 1);
        names.fold(call, |call, name| call.arg(self.names.lock(name))).arg(FENCE)
    }
}

/// The start of every call for a lock.
pub(crate) fn on(nodes: &Nodes, script: &'static Script, lock: &str) -> Call {
    match nodes {
        Nodes::One(_) => Call::of(script, 2).arg(lock).arg(FENCE),
        Nodes::Many(_) => Call::of(script, 3).arg(lock).arg(fence_of(slot_of(lock))).arg(format_args!("{{{lock}}}:-")),
    }
}

fn is_more(answer: &Value) -> bool {
    matches!(answer, Value::BulkString(word) if word == b"more")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_not_done_says_so() {
        assert!(is_more(&Value::BulkString(b"more".to_vec())));
        for other in [Value::Nil, Value::Int(1), Value::BulkString(b"granted 1 1".to_vec())] {
            assert!(!is_more(&other), "{other:?}");
        }
    }

    /// The parts of a verb come before what uses them, and the verb last.
    #[test]
    fn a_verb_is_its_parts_in_order() {
        let parts = on_queue(["fast", "hand", "join"], &["verb"]);
        let at = |part: &str| parts.iter().position(|other| *other == part);
        assert!(at("fast") < at(CLOCK) && at(CLOCK) < at("hand") && at("hand") < at("join"), "{parts:?}");
        assert_eq!((at(lua!("keys")), at("verb")), (Some(0), Some(parts.len() - 1)));
        assert_eq!(function("f", &["return ", "1\n"]), "local function f(KEYS, ARGV)\nreturn 1\nend\n");
        assert_eq!(claim().last(), Some(&lua!("claim")));
    }
}
