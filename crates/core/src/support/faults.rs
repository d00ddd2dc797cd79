//! Faults of earlier versions, which campaigns and simulations put back and must find. The switch is a constant `false` unless the crate is
//! built with `--cfg leasehold_lab`, which no dependency of a program can turn on.

/// Returns whether the environment variable `LEASEHOLD_FAULTS` names this fault. It has names with commas between them.
#[cfg(leasehold_lab)]
#[must_use]
pub fn fault(name: &str) -> bool {
    use std::sync::LazyLock;
    static BACK: LazyLock<String> =
        LazyLock::new(|| std::env::var("LEASEHOLD_FAULTS").unwrap_or_default());
    BACK.split(',').any(|back| back == name)
}

/// No fault is put back in a build like this.
#[cfg(not(leasehold_lab))]
#[inline(always)]
#[must_use]
pub const fn fault(_name: &str) -> bool {
    false
}
