//! The server's side of the store: its Lua scripts.

use std::sync::LazyLock;

use leasehold_redis_client::{CLOCK, Script};

macro_rules! lua {
    ($part:literal) => {
        include_str!(concat!("scripts/", $part, ".lua"))
    };
}

/// Takes or keeps a place.
pub(crate) static CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[lua!("keys"), CLOCK, lua!("claim_alone"), lua!("line"), lua!("claim")]));

/// Takes several names, or none.
pub(crate) static SEVERAL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[
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
    LazyLock::new(|| Script::new(&[lua!("keys"), CLOCK, lua!("line"), lua!("renew")]));

/// Removes every trace of an id.
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[lua!("keys"), lua!("release_alone"), CLOCK, lua!("line"), lua!("release")]));

/// Ends the hold with a token.
pub(crate) static EVICT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[lua!("keys"), CLOCK, lua!("line"), lua!("evict")]));

/// Who holds and who waits.
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[lua!("keys"), CLOCK, lua!("line"), lua!("inspect")]));
