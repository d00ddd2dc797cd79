//! The server's side of the store: its Lua scripts.

use std::sync::LazyLock;

use leasehold_redis_client::{CLOCK, Script};

macro_rules! lua {
    ($part:literal) => {
        include_str!(concat!("scripts/", $part, ".lua"))
    };
}

fn script(parts: &[&str]) -> Script {
    Script::new(&[&[lua!("limits")], parts].concat())
}

/// Takes or keeps a place.
pub(crate) static CLAIM: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), CLOCK, lua!("claim_alone"), lua!("line"), lua!("claim")]));

/// Takes several names, or none.
pub(crate) static SEVERAL: LazyLock<Script> = LazyLock::new(|| {
    script(&[
        "local function before(KEYS, ARGV)\n",
        lua!("keys"),
        CLOCK,
        lua!("line"),
        lua!("before"),
        "end\nlocal function claim(KEYS, ARGV)\n",
        lua!("keys"),
        CLOCK,
        lua!("claim_alone"),
        lua!("line"),
        lua!("claim"),
        "end\n",
        lua!("several"),
    ])
});

/// Extends what is still there.
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), CLOCK, lua!("line"), lua!("renew")]));

/// Extends many exclusive holds.
pub(crate) static RENEW_HELD: LazyLock<Script> = LazyLock::new(|| script(&[lua!("renew_held")]));

/// Lets a hold end by itself.
pub(crate) static LAPSE: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), CLOCK, lua!("line"), lua!("lapse")]));

/// Removes every trace of an id.
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), lua!("release_alone"), CLOCK, lua!("line"), lua!("release")]));

/// Ends the hold with a token.
pub(crate) static EVICT: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), CLOCK, lua!("line"), lua!("evict")]));

/// Who holds and who waits.
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| script(&[lua!("keys"), CLOCK, lua!("line"), lua!("inspect")]));
