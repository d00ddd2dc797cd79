//! Who must not depend on whom: a user of one store compiles no other store's client.

use std::collections::BTreeSet;

use crate::{
    Outcome,
    run::{cargo, output},
};

/// A store and the crates that only its client may bring.
const CLIENTS: [(&str, &[&str]); 4] = [
    ("redis", &["redis"]),
    ("etcd", &["etcd-client", "tonic", "prost"]),
    ("zookeeper", &["zookeeper-client"]),
    (FILE, &["rusqlite", "libsqlite3-sys"]),
];

/// The store that needs no network.
const FILE: &str = "sqlite";

/// What anything that talks to a network is built on.
const NETWORK: [&str; 7] = ["mio", "socket2", "h2", "hyper", "rustls", "native-tls", "openssl"];

/// Checks the dependencies that users get.
pub(crate) fn bans() -> Outcome {
    for features in ["", "memory", "redis", "redlock", "etcd", "zookeeper", "sqlite"] {
        check("leasehold", features)?;
    }
    for store in ["core", "memory", "redis", "redlock", "etcd", "zookeeper", "sqlite", "conformance", "testbed"] {
        check(&format!("leasehold-{store}"), "")?;
    }
    println!("bans: nobody depends on a store's client who should not");
    Ok(())
}

fn check(package: &str, features: &str) -> Outcome {
    let tree = dependencies(package, features)?;
    // Redlock is many of Redis.
    let is = |store: &str| features == store || package == format!("leasehold-{store}");
    let own = |store: &str| is(store) || store == "redis" && is("redlock");
    let foreign = CLIENTS.into_iter().filter(|(store, _)| !own(store)).flat_map(|(_, crates)| crates.iter().copied());
    let with_network = package == "leasehold-testbed" || CLIENTS.iter().any(|(store, _)| own(store) && *store != FILE);
    let network = NETWORK.into_iter().filter(|_| !with_network);
    let found: Vec<&str> = foreign.chain(network).filter(|name| tree.contains(*name)).collect();
    if found.is_empty() {
        return Ok(());
    }
    let features = if features.is_empty() { "no features".into() } else { format!("feature {features}") };
    Err(format!("{package} with {features} must not depend on: {}", found.join(", ")))
}

/// The names of all crates a user compiles.
fn dependencies(package: &str, features: &str) -> Result<BTreeSet<String>, String> {
    let tree = output(cargo(&[
        "tree",
        "-p",
        package,
        "--no-default-features",
        "--features",
        features,
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))?;
    Ok(tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}
