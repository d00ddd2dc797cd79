//! What `cargo xtask test` runs beyond the test targets of the workspace, which cargo names itself, and how some of them
//! want to be run.

/// Something that cargo builds in a way of its own, and runs: a heading, and the words after `cargo`.
pub(crate) const BY_CARGO: &[(&str, &[&str])] = &[
    ("what a plain `cargo test` runs", &["test", "--no-fail-fast"]),
    ("schedules of core", SCHEDULES),
    ("documentation tests", DOCUMENTATION),
    ("sqlite beside sqlx 0.8", &beside_sqlx("crates/sqlite/beside_sqlx/0.8/Cargo.toml")),
    ("sqlite beside sqlx 0.9", &beside_sqlx("crates/sqlite/beside_sqlx/0.9/Cargo.toml")),
];

/// A program that has our SQLite store and sqlx, of which a program can link only one SQLite. It is no part of the workspace, which can
/// have only one, too.
const fn beside_sqlx(manifest: &'static str) -> [&'static str; 5] {
    ["test", "--no-fail-fast", "--target-dir=target/beside_sqlx", "--manifest-path", manifest]
}

/// Without the store that the simulation builds of the same files under another name, as `--doc` heeds no `doctest = false`.
const DOCUMENTATION: &[&str] =
    &["test", "--no-fail-fast", "--workspace", "--exclude=leasehold-sim-zookeeper", "--all-features", "--doc"];

/// Built apart, so that what all others are built of is not built anew.
const SCHEDULES: &[&str] = &[
    "test",
    "--config=build.rustflags=['--cfg=shuttle', '-Dwarnings']",
    "--target-dir=target/shuttle",
    "--package=leasehold-core",
    "--features=simulation",
    "--test=schedules",
];

/// The same, at the very end: it builds another `leasehold` in the place of the one that other suites start.
pub(crate) const BY_CARGO_LAST: &[(&str, &[&str])] =
    &[("cli: what a build lacks", &["test", "-p", "leasehold-cli", "--no-default-features", "--test", "features"])];

/// Test targets of the root package that the plain `cargo test` runs, built no differently than with all features.
pub(crate) const IN_PLAIN: &[&str] = &["memory", "blocking"];

/// What takes longest begins first, so that nothing long is left at the end.
pub(crate) const LONG: &[&str] = &["servers", "command", "campaign", "conformance", "faults", "mutants", "measures"];

/// Test targets that measure processor time, or fill the machine: nothing else runs beside them.
pub(crate) const ALONE: &[(&str, &str)] = &[("leasehold-sqlite", "measures"), ("leasehold-compare", "stores")];

/// The same where not everything is judged, and why. How a server is reached decides little of what is said of locks: what waits,
/// loses, cancels and excludes is judged over TLS too, in a Cluster, and over three servers.
pub(crate) const SLICES: &[(&str, &str, &[&str])] = &[
    ("leasehold-redis", "conformance_tls", SLICE),
    ("leasehold-redis", "conformance_sentinel", SLICE),
    ("leasehold-redis", "conformance_cluster", SLICE),
    ("leasehold-redlock", "conformance_tls", SLICE),
    ("leasehold-etcd", "conformance_tls", SLICE),
    ("leasehold-etcd", "conformance_cluster", SLICE),
    ("leasehold-postgres", "conformance_bells", SLICE),
    ("leasehold-postgres", "conformance_pooled", SLICE),
    ("leasehold-zookeeper", "conformance_sasl", SLICE),
    ("leasehold-zookeeper", "conformance_ensemble", SLICE),
];
const SLICE: &[&str] = &[
    "--skip=at_once/",
    "--skip=cost/",
    "--skip=downgrade/",
    "--skip=election/",
    "--skip=fence/",
    "--skip=holding/",
    "--skip=hygiene/",
    "--skip=input/",
    "--skip=lease/",
    "--skip=modes/",
    "--skip=multi/",
    "--skip=names/",
    "--skip=permits/",
    "--skip=programs/",
    "--skip=reentry/",
    "--skip=scale/",
    "--skip=shared/",
    "--skip=(faulty)",
];

/// Words for the test binary itself. The command's tests mostly wait for leases to end.
pub(crate) const WORDS: &[(&str, &str, &[&str])] =
    &[("leasehold-verify", "servers", &["--test-threads=2"]), ("leasehold-cli", "command", &["--test-threads=4"])];

/// Examples, each of which runs to its end without a server.
pub(crate) const EXAMPLES: &[&str] = &[
    "quickstart",
    "swap_stores",
    "fencing",
    "counter",
    "readers_writers",
    "permits",
    "leader",
    "transfer",
    "blocking",
];
