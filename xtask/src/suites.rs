//! Which tests there are. A test target that is not named here is found by `tidy`; one that is named and does not exist
//! fails in `test`.

/// Something `cargo test` or `cargo run` is asked to do.
#[derive(Debug)]
pub(crate) struct Suite {
    /// The heading.
    pub(crate) name: &'static str,
    /// The words after `cargo`.
    pub(crate) args: &'static [&'static str],
}

const fn suite(name: &'static str, args: &'static [&'static str]) -> Suite {
    Suite { name, args }
}

/// Everything that is tested, in order: what fails soonest and explains most comes first.
pub(crate) const SUITES: &[Suite] = &[
    suite("unit tests", &["test", "--workspace", "--all-features", "--lib", "--bins"]),
    suite("documentation tests", &["test", "--workspace", "--all-features", "--doc"]),
    suite("what a plain `cargo test` runs", &["test"]),
    suite("memory", &["test", "--test", "memory"]),
    suite("connect", &["test", "--test", "connect"]),
    suite("blocking", &["test", "--test", "blocking"]),
    suite("memory: clients", &["test", "-p", "leasehold-memory", "--test", "clients"]),
    suite("core: events", &["test", "-p", "leasehold-core", "--test", "events"]),
    suite("core: under a microscope", &["test", "-p", "leasehold-core", "--test", "microscope"]),
    suite("conformance: seeded mistakes", &["test", "-p", "leasehold-conformance", "--test", "mutants"]),
    suite("conformance: random programs", &["test", "-p", "leasehold-conformance", "--test", "models"]),
    suite("compare: every store", &["test", "-p", "leasehold-compare", "--test", "stores"]),
    suite(
        "verify: private servers",
        &["test", "-p", "leasehold-verify", "--features", "redis", "--test", "servers", "--", "--test-threads=2"],
    ),
    suite("testbed: the fault proxy", &["test", "-p", "leasehold-testbed", "--test", "proxy"]),
    suite("testbed: private Redis", &["test", "-p", "leasehold-testbed", "--test", "redis"]),
    suite("testbed: private etcd", &["test", "-p", "leasehold-testbed", "--test", "etcd"]),
    suite("testbed: private ZooKeeper", &["test", "-p", "leasehold-testbed", "--test", "zookeeper"]),
    suite("redis: conformance", &["test", "-p", "leasehold-redis", "--test", "conformance"]),
    suite("redis: verbs", &["test", "-p", "leasehold-redis", "--test", "verbs"]),
    suite("redis: modes", &["test", "-p", "leasehold-redis", "--test", "modes"]),
    suite("redis: beside the memory store", &["test", "-p", "leasehold-redis", "--test", "model"]),
    suite("redis: observe", &["test", "-p", "leasehold-redis", "--test", "observe"]),
    suite("redis: set-up and replicas", &["test", "-p", "leasehold-redis", "--test", "setup"]),
    suite("redis: fenced writes", &["test", "-p", "leasehold-redis", "--test", "fenced"]),
    suite("redis: tokens", &["test", "-p", "leasehold-redis", "--test", "tokens"]),
    suite("redis: look", &["test", "-p", "leasehold-redis", "--test", "look"]),
    suite("redis: layout", &["test", "-p", "leasehold-redis", "--test", "layout"]),
    suite("redis: together", &["test", "-p", "leasehold-redis", "--test", "together"]),
    suite("redis: weather", &["test", "-p", "leasehold-redis", "--test", "weather"]),
    suite("redis: storm", &["test", "-p", "leasehold-redis", "--test", "storm"]),
    suite("redis: Python's redis-py", &["test", "-p", "leasehold-redis", "--test", "interop"]),
    suite("redlock: conformance", &["test", "-p", "leasehold-redlock", "--test", "conformance"]),
    suite("redlock: tokens", &["test", "-p", "leasehold-redlock", "--test", "tokens"]),
    suite("redlock: verbs", &["test", "-p", "leasehold-redlock", "--test", "verbs"]),
    suite("redlock: weather", &["test", "-p", "leasehold-redlock", "--test", "weather"]),
    suite("etcd: conformance", &["test", "-p", "leasehold-etcd", "--test", "conformance"]),
    suite("etcd: seam", &["test", "-p", "leasehold-etcd", "--test", "seam"]),
    suite("etcd: modes", &["test", "-p", "leasehold-etcd", "--test", "modes"]),
    suite("etcd: others", &["test", "-p", "leasehold-etcd", "--test", "others"]),
    suite("etcd: weather", &["test", "-p", "leasehold-etcd", "--test", "weather"]),
    suite("zookeeper: conformance", &["test", "-p", "leasehold-zookeeper", "--test", "conformance"]),
    suite("zookeeper: verbs", &["test", "-p", "leasehold-zookeeper", "--test", "verbs"]),
    suite("zookeeper: modes", &["test", "-p", "leasehold-zookeeper", "--test", "modes"]),
    suite("zookeeper: fence", &["test", "-p", "leasehold-zookeeper", "--test", "fence"]),
    suite("zookeeper: bells", &["test", "-p", "leasehold-zookeeper", "--test", "bells"]),
    suite("zookeeper: counts", &["test", "-p", "leasehold-zookeeper", "--test", "counts"]),
    suite("zookeeper: weather", &["test", "-p", "leasehold-zookeeper", "--test", "weather"]),
    suite("zookeeper: ensemble", &["test", "-p", "leasehold-zookeeper", "--test", "ensemble"]),
    suite("sqlite: conformance", &["test", "-p", "leasehold-sqlite", "--test", "conformance"]),
    suite("sqlite: weather", &["test", "-p", "leasehold-sqlite", "--test", "weather"]),
    suite("sqlite: fence", &["test", "-p", "leasehold-sqlite", "--test", "fence"]),
    suite("sqlite: shows", &["test", "-p", "leasehold-sqlite", "--test", "shows"]),
    suite("zookeeper: Python's kazoo", &["test", "-p", "leasehold-zookeeper", "--test", "interop"]),
    suite("cli: the command", &["test", "-p", "leasehold-cli", "--all-features", "--test", "command"]),
    suite("cli: what a build lacks", &["test", "-p", "leasehold-cli", "--test", "features"]),
];

/// Examples that run to their end without a server.
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

/// Examples that need a server somebody started, and are only built.
pub(crate) const EXAMPLES_WITH_SERVER: &[&str] = &[];

/// Whether some suite runs this test target by name.
pub(crate) fn runs(package: &str, target: &str) -> bool {
    SUITES.iter().any(|suite| {
        let value = |flag: &str| suite.args.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1]).next_back();
        value("-p").unwrap_or("leasehold") == package && suite.args.windows(2).any(|pair| *pair == ["--test", target])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_belongs_to_its_package() {
        assert!(runs("leasehold-redis", "verbs") && runs("leasehold-testbed", "proxy"));
        assert!(!runs("leasehold", "proxy") && !runs("leasehold-core", "redis"));
    }
}
