//! The server's side of the store: its Lua scripts, and how one runs until it is done.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_core::seam::{Claim, Moment};
use leasehold_core::{Error, ErrorKind, Name, Result};
use leasehold_redis_client::{CLOCK, Call, Script};
use redis::Value;

use crate::Redis;

macro_rules! lua {
    ($part:literal) => {
        include_str!(concat!("scripts/", $part, ".lua"))
    };
}

/// How long one verb goes on where more is to be done than one script may.
const LONGEST: Duration = Duration::from_secs(2);

const CLAIM_PARTS: [&str; 5] = [lua!("keys"), lua!("claim_fast_path"), CLOCK, lua!("queue"), lua!("claim")];

pub(crate) static CLAIM: LazyLock<Script> = LazyLock::new(|| script(&CLAIM_PARTS));

pub(crate) static CLAIM_ALL: LazyLock<Script> = LazyLock::new(|| {
    let blocked_by = function("blocked_by", &on_queue(lua!("blocked_by")));
    script(&[&blocked_by, &function("claim", &CLAIM_PARTS), lua!("claim_all")])
});

pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| script(&[&function("renew", &on_queue(lua!("renew"))), lua!("renew_all")]));

pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), lua!("release_fast_path"), CLOCK, lua!("queue"), lua!("release")]));

pub(crate) static RELEASE_AFTER: LazyLock<Script> = LazyLock::new(|| script(&on_queue(lua!("release_after"))));

pub(crate) static EVICT: LazyLock<Script> = LazyLock::new(|| script(&on_queue(lua!("evict"))));

pub(crate) static INSPECT: LazyLock<Script> = LazyLock::new(|| script(&on_queue(lua!("inspect"))));

fn script(parts: &[&str]) -> Script {
    Script::new(&[&[lua!("limits")], parts].concat())
}

/// Whether there is more to do than one script may.
pub(crate) fn is_more(answer: &Value) -> bool {
    matches!(answer, Value::BulkString(word) if word == b"more")
}

/// The parts of a verb that works on the queue.
fn on_queue(verb: &'static str) -> [&'static str; 4] {
    [lua!("keys"), CLOCK, lua!("queue"), verb]
}

/// A script for one name as a function of one for many.
fn function(name: &str, parts: &[&str]) -> String {
    format!("local function {name}(KEYS, ARGV)\n{}end\n", parts.concat())
}

impl Redis {
    /// Runs a script until it no longer answers `more`: it works for others first, and then for its caller.
    pub(crate) async fn run(&self, script: &Script, call: &Call) -> Result<Value> {
        let begun = Moment::now();
        loop {
            let answer = script.run(&self.connection, call).await?;
            if !is_more(&answer) {
                return Ok(answer);
            }
            if Moment::now().since(begun) > LONGEST {
                let what = "so many waited here that they are still being served: ask again";
                return Err(Error::new(ErrorKind::Ambiguous, what));
            }
        }
    }

    /// The start of every call for a claim.
    pub(crate) fn call(&self, claim: &Claim) -> Call {
        Call::on(self.keys(&claim.name)).arg(claim.id)
    }

    /// The keys of a name, and the one that all names share.
    pub(crate) fn keys(&self, name: &Name) -> Vec<String> {
        [self.names.keys(name), vec![self.names.common("f")]].concat()
    }
}
