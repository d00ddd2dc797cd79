//! Faults of earlier versions, put back to see whether a campaign finds them. Without the feature `faults` this is a constant `false`.

/// Whether the fault of this name is put back, by the environment variable `LEASEHOLD_FAULTS`: names with commas between them.
#[cfg(feature = "faults")]
#[must_use]
pub fn fault(name: &str) -> bool {
    use std::sync::LazyLock;
    static BACK: LazyLock<String> = LazyLock::new(|| std::env::var("LEASEHOLD_FAULTS").unwrap_or_default());
    BACK.split(',').any(|back| back == name)
}

/// No fault is put back in a build like this.
#[cfg(not(feature = "faults"))]
#[inline(always)]
#[must_use]
pub const fn fault(_name: &str) -> bool {
    false
}
