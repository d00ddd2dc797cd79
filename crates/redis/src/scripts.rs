//! The server's side of the store: its Lua scripts, and the rounds in which a script runs until it
//! is done.

use std::sync::LazyLock;
use std::time::Duration;

use crate::link::{CLOCK, Call, Connection, Needs, Script, fence_of, slot_of};
use leasehold_core::backend::{Claim, Moment};
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::Value;

use crate::client::nodes::Nodes;
pub(crate) use crate::entry::FENCE;
use crate::{BESIDE, COMPLETION, Redis};

macro_rules! lua {
    ($part:literal) => {
        include_str!(concat!("scripts/", $part, ".lua"))
    };
}

/// The time limit of one verb that takes several runs of its script.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);

pub(crate) static CLAIM: LazyLock<Script> = LazyLock::new(|| script(&claim(&[CLOCK])));

pub(crate) static CLAIM_ONCE: LazyLock<Script> = LazyLock::new(|| {
    let claim = function("claim", &claim(&[]));
    on_completion(&[&claim, &finish(), lua!("claim_once")])
});

pub(crate) static COMPLETE: LazyLock<Script> = LazyLock::new(|| {
    script(&on_queue(
        &[CLOCK, lua!("completion"), lua!("complete_fast_path")],
        &[lua!("serve"), lua!("complete")],
    ))
});

pub(crate) static GO_ON_TELLING: LazyLock<Script> =
    LazyLock::new(|| on_completion(&[&finish(), lua!("go_on_telling")]));

pub(crate) static READ_COMPLETION: LazyLock<Script> =
    LazyLock::new(|| on_completion(&[lua!("read_completion")]));

pub(crate) static FORGET: LazyLock<Script> = LazyLock::new(|| on_completion(&[lua!("forget")]));

pub(crate) static CLAIM_ALL: LazyLock<Script> = LazyLock::new(|| {
    let blocked_by = function("blocked_by", &on_queue(&[CLOCK], &[lua!("blocked_by")]));
    let claim = function("claim", &claim(&[CLOCK]));
    script(&[&blocked_by, &claim, lua!("keys_of"), lua!("claim_all")])
});

pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    let renew = function("renew", &on_queue(&[CLOCK], &[lua!("renew")]));
    script(&[&renew, lua!("keys_of"), lua!("renew_all")])
});

pub(crate) static EXTEND: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[lua!("extend")]).needing(&NEEDS));

pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    script(&on_queue(
        &[lua!("release_fast_path"), CLOCK],
        &[lua!("release")],
    ))
});

pub(crate) static RELEASE_AFTER: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue(&[CLOCK], &[lua!("release_after")])));

pub(crate) static EVICT: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue(&[CLOCK], &[lua!("walk"), lua!("evict")])));

pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| script(&on_queue(&[CLOCK], &[lua!("walk"), lua!("inspect")])));

pub(crate) static RAISE: LazyLock<Script> = LazyLock::new(|| script(&[CLOCK, lua!("raise")]));

/// The commands that all scripts together call.
pub(crate) const NEEDS: Needs = Needs {
    calls: &[
        "exists #",
        "get #",
        "mget #",
        "set # x y",
        "setrange # x y",
        "pexpire # x",
        "pttl #",
        "del -",
        "unlink -",
        "hset # x y z",
        "hget # x",
        "hmget # x",
        "hgetall #",
        "hlen #",
        "hdel # {}",
        "zadd # x x",
        "zcard #",
        "zscore # x",
        "zrange # 0 0",
        "zrevrange # 0 0",
        "zrangebyscore # 0 0",
        "zrem # x",
        "publish leasehold:name: x",
        "time",
    ],
};

fn script(parts: &[&str]) -> Script {
    Script::new(&[&[lua!("limits")], parts].concat()).needing(&NEEDS)
}

/// The clock is at the start, unless the script has it already.
fn claim(start: &[&'static str]) -> Vec<&'static str> {
    on_queue(
        &[start, &[lua!("claim_fast_path")]].concat(),
        &[lua!("walk"), lua!("claim")],
    )
}

/// The function that ends what there is of a claim whose work is done.
fn finish() -> String {
    let parts = on_queue(
        &[lua!("finish_fast_path")],
        &[lua!("serve"), lua!("finish")],
    );
    function("finish", &parts)
}

/// A script that reads the completion of its name.
fn on_completion(parts: &[&str]) -> Script {
    script(&[&[CLOCK, lua!("completion")], parts].concat())
}

/// The parts of a verb that works on the queue. It starts with the clock, and with a fast path that
/// may end the verb before the functions of the queue are defined.
fn on_queue(start: &[&'static str], verb: &[&'static str]) -> Vec<&'static str> {
    let queue = [lua!("records"), lua!("entries"), lua!("queue")];
    [&[lua!("keys")], start, &queue, verb].concat()
}

/// Turns a script for one name into a function for a script for many.
fn function(name: &str, parts: &[&str]) -> String {
    format!("local function {name}(KEYS, ARGV)\n{}end\n", parts.concat())
}

impl Redis {
    /// Refuses servers that can never run the scripts, and users without the rights.
    pub(crate) async fn check(&self) -> Result<()> {
        self.nodes.check(&NEEDS, FENCE, &self.names).await
    }

    /// Runs a script on this name until it no longer answers `more`: it works for others first, and
    /// then for its caller. `call` builds the call for each connection over which it is tried.
    pub(crate) async fn run(
        &self,
        name: &Name,
        mut call: impl FnMut(&Connection) -> Result<Call>,
    ) -> Result<Value> {
        let answer = self.nodes.run(|| self.names.lock(name), &mut call).await?;
        // Boxed: this is rare, and unboxed it would enlarge every call's future.
        if is_more(&answer) {
            Box::pin(self.go_on(name, call)).await
        } else {
            Ok(answer)
        }
    }

    async fn go_on(
        &self,
        name: &Name,
        mut call: impl FnMut(&Connection) -> Result<Call>,
    ) -> Result<Value> {
        let begun = Moment::now();
        while Moment::now().since(begun) <= LONGEST {
            // The script has run already, so a later failure to reach the server leaves the outcome
            // unknown.
            let answer = self
                .nodes
                .run(|| self.names.lock(name), &mut call)
                .await
                .map_err(|e| match e.kind() {
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

    /// The beginning of every call for a claim.
    pub(crate) fn call(&self, script: &'static Script, claim: &Claim) -> Call {
        self.on(script, &claim.name).arg(claim.id)
    }

    /// A call with the keys of this name, and that of its completion.
    pub(crate) fn on_once(&self, script: &'static Script, name: &Name) -> Call {
        let lock = self.names.lock(name);
        let completion = self.names.beside(name, COMPLETION);
        keyed(&self.nodes, script, &[lock], Some(&completion))
    }

    /// A call with the keys of this name.
    pub(crate) fn on(&self, script: &'static Script, name: &Name) -> Call {
        on(&self.nodes, script, &[self.names.lock(name)])
    }

    /// A call with the keys of these names.
    pub(crate) fn on_all<'a>(
        &self,
        script: &'static Script,
        names: impl IntoIterator<Item = &'a Name>,
    ) -> Call {
        let locks: Vec<_> = names
            .into_iter()
            .map(|name| self.names.lock(name))
            .collect();
        on(&self.nodes, script, &locks)
    }
}

/// The beginning of every call for locks: the keys of each lock, and then the fence. All names of a
/// database, or of a slot, share the fence, since other prefixes may lead to the lock, too. Locks of
/// one call are in one database, or in one slot of a Cluster.
///
/// In a Cluster there is one more key, which never exists. While a slot is moved, its node refuses a
/// script of several keys before it runs, unless all of them exist there. Without that key the
/// script could stop midway, at the first key that it deletes and writes again.
///
/// The key of a completion is the last of all, where a script needs it.
pub(crate) fn on(nodes: &Nodes, script: &'static Script, locks: &[String]) -> Call {
    keyed(nodes, script, locks, None)
}

fn keyed(
    nodes: &Nodes,
    script: &'static Script,
    locks: &[String],
    completion: Option<&str>,
) -> Call {
    let keys = locks.len() * (1 + BESIDE.len()) + usize::from(completion.is_some());
    let all = |call: Call| {
        locks.iter().fold(call.names(locks.len()), |call, lock| {
            call.lock(lock, &BESIDE)
        })
    };
    let call = match (nodes, locks) {
        (Nodes::Many(_), [lock, ..]) => all(Call::of(script, keys + 2))
            .arg(fence_of(slot_of(lock)))
            .arg(format_args!("{{{lock}}}:-")),
        _ => all(Call::of(script, keys + 1)).arg(FENCE),
    };
    completion.into_iter().fold(call, Call::arg)
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
        for other in [
            Value::Nil,
            Value::Int(1),
            Value::BulkString(b"granted 1 1".to_vec()),
        ] {
            assert!(!is_more(&other), "{other:?}");
        }
    }

    /// Every right that is checked is used, and every right that is used is checked.
    #[test]
    fn what_is_needed_is_what_the_scripts_call() {
        let all = [
            &*CLAIM,
            &*CLAIM_ALL,
            &*CLAIM_ONCE,
            &*COMPLETE,
            &*GO_ON_TELLING,
            &*READ_COMPLETION,
            &*FORGET,
            &*RENEW,
            &*EXTEND,
            &*RELEASE,
            &*RELEASE_AFTER,
            &*EVICT,
            &*INSPECT,
            &*RAISE,
        ];
        let mut called: Vec<String> = all.iter().flat_map(|script| script.calls()).collect();
        called.sort_unstable();
        called.dedup();
        let mut needed: Vec<&str> = NEEDS
            .calls
            .iter()
            .filter_map(|call| call.split(' ').next())
            .collect();
        needed.sort_unstable();
        assert_eq!(called, needed);
    }

    /// The parts of a verb come before the parts that use them, and the verb comes last.
    #[test]
    fn a_verb_is_its_parts_in_order() {
        let parts = on_queue(&[CLOCK, "fast"], &["verb"]);
        assert_eq!(parts[..3], [lua!("keys"), CLOCK, "fast"]);
        assert_eq!(parts.last(), Some(&"verb"));
        assert_eq!(
            function("f", &["return ", "1\n"]),
            "local function f(KEYS, ARGV)\nreturn 1\nend\n"
        );
        assert_eq!(claim(&[]).last(), Some(&lua!("claim")));
        assert_eq!(claim(&[CLOCK])[1..3], [CLOCK, lua!("claim_fast_path")]);
    }
}
