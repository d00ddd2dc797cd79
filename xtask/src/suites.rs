//! The suites of `cargo xtask test` beyond the test targets of the workspace, which cargo names
//! itself, and special ways to run some targets.
//!
//! A run without `--all` shows for each store, on a real server, every promise and every way to
//! lose one. It leaves out what another suite shows of the same code ([`WHOLE_ONLY`], [`SLICES`]),
//! and builds with other features or other versions, which change with a manifest and not with each
//! line ([`BUILDS`]). Tests of load, and of random programs by fixed seeds, do less in it: it tells
//! them so by `LEASEHOLD_GLANCE=1` (all but [`UNABRIDGED`]).

/// Suites that cargo builds in their own way and runs: a heading, and the words after `cargo`.
pub(crate) const BY_CARGO: &[(&str, &[&str])] = &[
    ("documentation tests", DOCUMENTATION),
    ("schedules of core", SCHEDULES),
];

/// Variables of the suites of [`BY_CARGO`], without `--all`. A mistake in the order of two threads
/// is found in most of the first schedules or in one of thousands.
pub(crate) const FEW_SCHEDULES: (&str, &str) = ("LEASEHOLD_SCHEDULES", "60");

/// Suites like [`BY_CARGO`] that only `--all` runs, because each builds most crates once more.
pub(crate) const BUILDS: &[(&str, &[&str])] = &[
    (
        "what a plain `cargo test` runs",
        &["test", "--no-fail-fast"],
    ),
    (
        "sqlite beside sqlx 0.8",
        &beside_sqlx("crates/sqlite/beside_sqlx/0.8/Cargo.toml"),
    ),
    (
        "sqlite beside sqlx 0.9",
        &beside_sqlx("crates/sqlite/beside_sqlx/0.9/Cargo.toml"),
    ),
    ("tls beside ring", BESIDE_RING),
    ("tls by the program's provider", BY_PROGRAMS_PROVIDER),
];

/// A program with ring and our stores over TLS. It is not a part of the workspace, whose ZooKeeper brings aws-lc-rs.
const BESIDE_RING: &[&str] = &[
    "test",
    "--target-dir=target/beside_ring",
    "--manifest-path=crates/net/beside_ring/Cargo.toml",
];

/// The program of [`BESIDE_RING`], in which our stores bring no provider.
const BY_PROGRAMS_PROVIDER: &[&str] = &[
    "test",
    "--no-default-features",
    "--target-dir=target/beside_ring",
    "--manifest-path=crates/net/beside_ring/Cargo.toml",
];

/// A program with Leasehold's SQLite store and sqlx, because a program can link only one SQLite. It
/// is not a part of the workspace, which can also have only one.
const fn beside_sqlx(manifest: &'static str) -> [&'static str; 5] {
    [
        "test",
        "--no-fail-fast",
        "--target-dir=target/beside_sqlx",
        "--manifest-path",
        manifest,
    ]
}

/// The documentation tests, without the store that the simulation builds of the same files under
/// another name: `--doc` ignores `doctest = false`.
const DOCUMENTATION: &[&str] = &[
    "test",
    "--no-fail-fast",
    "--workspace",
    "--exclude=leasehold-sim-zookeeper",
    "--all-features",
    "--doc",
];

/// The schedules of core, with the features of all other builds, whose dependencies it shares.
pub(crate) const SCHEDULES: &[&str] =
    &["test", "--workspace", "--all-features", "--test=schedules"];

/// Suites like [`BUILDS`], at the very end: they build another `leasehold` in place of the one
/// that other suites start.
pub(crate) const BUILDS_AT_LAST: &[(&str, &[&str])] = &[(
    "cli: what a build lacks",
    &[
        "test",
        "-p",
        "leasehold-cli",
        "--no-default-features",
        "--test",
        "features",
    ],
)];

/// The suites that take longest: they begin first, so that nothing long is left at the end.
pub(crate) const LONG: &[&str] = &["servers", "command", "campaign", "conformance", "faults"];

/// Suites that compute and do not wait. They stand in one row with the runs of cargo, because the
/// others must be on time.
pub(crate) const BUSY: &[(&str, &str)] = &[
    ("leasehold-conformance", "mutants"),
    ("leasehold-conformance", "models"),
    ("leasehold-models", "models"),
    ("leasehold-sim", "simulated_suite"),
    ("leasehold-sim", "simulation"),
];

/// Test targets that measure processor time, or fill the machine: nothing else runs beside them.
pub(crate) const ALONE: &[(&str, &str)] = &[
    ("leasehold-sqlite", "measures"),
    ("leasehold-lab", "stores"),
];

/// Packages whose suites find by chance what breaks a promise, or need no server that could be late.
pub(crate) const PROOFS: &[&str] = &[
    "leasehold-chaos",
    "leasehold-conformance",
    "leasehold-core",
    "leasehold-memory",
    "leasehold-models",
    "leasehold-sim",
];

/// Suites that only `--all` runs, because modules of the target `it` show what these ways to a
/// server change: `tls`, `sasl`, `pooled` and `own_pool` a connection, `sentinel` and `failover`
/// another server, and `ensemble`, `members` and `failover` three servers. The simulated suite runs
/// over three servers, too.
pub(crate) const WHOLE_ONLY: &[(&str, &str)] = &[
    ("leasehold-redis", "conformance_tls"),
    ("leasehold-redis", "conformance_sentinel"),
    ("leasehold-redis", "conformance_redlock_tls"),
    ("leasehold-redis", "conformance_redlock_declared"),
    ("leasehold-etcd", "conformance_tls"),
    ("leasehold-etcd", "conformance_cluster"),
    ("leasehold-postgres", "conformance_pooled"),
    ("leasehold-postgres", "conformance_sqlx"),
    ("leasehold-postgres", "conformance_deadpool"),
    ("leasehold-zookeeper", "conformance_sasl"),
    ("leasehold-zookeeper", "conformance_ensemble"),
];

/// Suites of which only a slice runs. Faults between core and a store show the retries of core,
/// which the suites of Redis, Redlock, SQLite and memory show, too. The way in which a server is
/// reached affects few of the promises: those of exclusion, waiting, cancellation, loss and tokens
/// in a Cluster, without scripts and on simulated servers, those of waiting where only
/// notifications come in another way. The models with the most states change with a protocol and not
/// with each line. `verify` judges each server by all cases that the store's own
/// suite has, so only one server shows what it finds and that it leaves nothing behind.
pub(crate) const SLICES: &[(&str, &str, &[&str])] = &[
    ("leasehold-redis", "conformance_cluster", SLICE),
    ("leasehold-redis", "conformance_declared", SCRIPTS),
    ("leasehold-redis", "conformance_resp2", WAITING),
    ("leasehold-redis", "conformance_plain", SLICE),
    ("leasehold-etcd", "conformance", WITHOUT_FAULTS),
    ("leasehold-postgres", "conformance", WITHOUT_FAULTS),
    ("leasehold-postgres", "conformance_listen", WAITING),
    ("leasehold-zookeeper", "conformance", WITHOUT_FAULTS),
    ("leasehold-sim", "simulated_suite", SLICE),
    (
        "leasehold-models",
        "models",
        &[
            "--skip=a_fleet_",
            "--skip=etcd_proves_holds_that_may_be_deleted",
            "--skip=redlock_agrees",
            "--skip=redlock_needs_its_rules_to_change_nodes",
            "--skip=redlock_operators_agree_on_its_nodes",
        ],
    ),
    (
        "leasehold-lab",
        "servers",
        &[
            "--skip=a_safe_redis",
            "--skip=an_etcd",
            "--skip=a_zookeeper",
            "--skip=a_postgres",
            "--skip=an_embedded_file_and_a_majority",
        ],
    ),
];
const WITHOUT_FAULTS: &[&str] = &["--skip=(faulty)"];
const WAITING: &[&str] = &["waiting/"];
/// Suites that do everything as often as the others do it with `--all`: they show that the suite of
/// the stores finds mistakes as it is.
pub(crate) const UNABRIDGED: &[(&str, &str)] = &[
    ("leasehold-conformance", "mutants"),
    ("leasehold-conformance", "models"),
];
/// Each script, and the ways through it.
const SCRIPTS: &[&str] = &[
    "--skip=at_once/",
    "--skip=cancel/",
    "--skip=cost/",
    "--skip=election/",
    "--skip=fence/",
    "--skip=hygiene/",
    "--skip=identity/",
    "--skip=input/",
    "--skip=lease/",
    "--skip=loss/",
    "--skip=names/",
    "--skip=programs/",
    "--skip=reentry/",
    "--skip=runtimes/",
    "--skip=scale/",
    "--skip=waiting/",
    "--skip=(faulty)",
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
pub(crate) const WORDS: &[(&str, &str, &[&str])] = &[
    ("leasehold-lab", "servers", &["--test-threads=2"]),
    ("leasehold-cli", "command", &["--test-threads=4"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_left_out_or_cut_and_not_both() {
        let cut = SLICES.iter().map(|(package, suite, _)| (*package, *suite));
        let both: Vec<_> = cut.filter(|suite| WHOLE_ONLY.contains(suite)).collect();
        assert!(both.is_empty(), "{both:?}");
        assert!(SLICES.iter().all(|(.., words)| !words.is_empty()));
    }

    /// The first set-up of each store runs every case, with its row in the matrix.
    #[test]
    fn each_store_is_judged_by_every_case() {
        for store in ["redis", "etcd", "postgres", "zookeeper"] {
            let package = format!("leasehold-{store}");
            let is_first = |of: &str, suite: &str| of == package && suite == "conformance";
            assert!(!WHOLE_ONLY.iter().any(|(of, suite)| is_first(of, suite)));
            let cut = SLICES.iter().filter(|(of, suite, _)| is_first(of, suite));
            for (.., words) in cut {
                assert_eq!(*words, WITHOUT_FAULTS, "{store}");
            }
        }
    }
}
