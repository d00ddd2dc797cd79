//! Checks forbidden dependencies: a user of one store compiles no other store, and no other client.

use std::collections::BTreeSet;

use crate::run::{Outcome, cargo, output};

/// The features of the stores that users choose from. Each has a crate of its name, but `redlock` is
/// in that of `redis`.
const STORES: [&str; 7] = [
    "memory",
    "redis",
    "redlock",
    "etcd",
    "zookeeper",
    "postgres",
    "sqlite",
];

/// Crates that only certain stores may depend on: the stores, and the crates.
const CLIENTS: [(&[&str], &[&str]); 5] = [
    (&["redis", "redlock"], &["redis"]),
    (&["etcd"], &["etcd-client", "tonic", "prost"]),
    (&["zookeeper"], &["zookeeper-client"]),
    (&["postgres"], &["tokio-postgres"]),
    (FILE, &["rusqlite", "libsqlite3-sys"]),
];

/// The store that needs no network.
const FILE: &[&str] = &["sqlite"];

/// Crates on which every program that uses a network is built.
const NETWORK: [&str; 7] = [
    "mio",
    "socket2",
    "h2",
    "hyper",
    "rustls",
    "native-tls",
    "openssl",
];

/// Crates that only the features `tls` and `sasl` may bring.
const OPTIONAL: [&str; 5] = ["rustls", "aws-lc-rs", "ring", "rsasl", "md5"];

/// The providers of cryptography that rustls can have. In a program with two, rustls chooses neither, and code that relies on its
/// choice panics.
const PROVIDERS: [&str; 3] = ["aws-lc-rs", "aws-lc-sys", "ring"];

/// The stores whose dependencies leave the provider to our features. ZooKeeper's client crate brings aws-lc-rs with TLS.
const LEFT_TO_FEATURES: &str = "memory,redis,redlock,etcd,postgres,sqlite,bridge";

/// The stores of [`LEFT_TO_FEATURES`] with this feature, and the one provider that a user compiles then.
const WITH_PROVIDER: [(&str, Option<&str>); 4] = [
    ("tls", Some("aws-lc")),
    ("tls-aws-lc", Some("aws-lc")),
    ("tls-ring", Some("ring")),
    ("tls-no-provider", None),
];

/// Crates that only tests may use.
const FOR_TESTS: [&str; 4] = [
    "leasehold-testbed",
    "leasehold-fuzz",
    "libtest-mimic",
    "proptest",
];

/// Checks the dependencies that users get.
pub(crate) fn bans() -> Outcome {
    for features in STORES.into_iter().chain([""]) {
        check("leasehold", features)?;
    }
    for package in STORES
        .into_iter()
        .filter(|store| *store != "redlock")
        .chain(["core", "conformance", "testbed"])
    {
        check(&format!("leasehold-{package}"), "")?;
    }
    let command = dependencies("leasehold-cli", "full")?;
    let not_in_it = FOR_TESTS.into_iter().chain(["ring"]).map(String::from);
    refuse("leasehold-cli", "full", not_in_it, &command)?;
    let all = format!("tls,sasl,{}", STORES.join(","));
    let other_provider = ["ring".to_owned()].into_iter();
    refuse(
        "leasehold",
        &all,
        other_provider,
        &dependencies("leasehold", &all)?,
    )?;
    for (feature, provider) in WITH_PROVIDER {
        one_provider(
            "leasehold",
            &format!("{LEFT_TO_FEATURES},{feature}"),
            provider,
        )?;
    }
    let command = "lab,sqlite,postgres,redis,redlock,etcd,tls-ring";
    one_provider("leasehold-cli", command, Some("ring"))?;
    println!(
        "bans: nobody depends on a store, or on its client, who should not, and the command on nothing of tests"
    );
    Ok(())
}

/// Checks that this provider is compiled, and no other.
fn one_provider(package: &str, features: &str, provider: Option<&str>) -> Outcome {
    let tree = dependencies(package, features)?;
    let is_it = |name: &str| provider.is_some_and(|it| name.starts_with(it));
    let others = PROVIDERS.into_iter().filter(|name| !is_it(name));
    refuse(package, features, others.map(String::from), &tree)?;
    match provider.is_none() || tree.iter().any(|name| is_it(name)) {
        true => Ok(()),
        false => Err(format!(
            "{package} with feature {features} lacks a provider of cryptography"
        )),
    }
}

fn check(package: &str, features: &str) -> Outcome {
    let tree = dependencies(package, features)?;
    let is = |store: &str| features == store || package == format!("leasehold-{store}");
    let others = STORES
        .into_iter()
        .filter(|store| !(is(store) || *store == "redis" && is("redlock")))
        .map(|store| format!("leasehold-{store}"));
    let owns = |owners: &[&str]| owners.iter().any(|owner| is(owner));
    let foreign = CLIENTS
        .iter()
        .filter(|(owners, _)| !owns(owners))
        .flat_map(|(_, crates)| crates.iter());
    let with_network =
        package == "leasehold-testbed" || CLIENTS.iter().any(|(who, _)| owns(who) && *who != FILE);
    let network = NETWORK.iter().filter(|_| !with_network);
    // The testbed makes certificates.
    let optional = OPTIONAL.iter().filter(|_| package != "leasehold-testbed");
    let banned = foreign
        .chain(network)
        .chain(optional)
        .map(|name| (*name).to_owned());
    refuse(package, features, others.chain(banned), &tree)
}

fn refuse(
    package: &str,
    features: &str,
    banned: impl Iterator<Item = String>,
    tree: &BTreeSet<String>,
) -> Outcome {
    let found: Vec<String> = banned.filter(|name| tree.contains(name)).collect();
    if found.is_empty() {
        return Ok(());
    }
    let features = if features.is_empty() {
        "no features".into()
    } else {
        format!("feature {features}")
    };
    Err(format!(
        "{package} with {features} must not depend on: {}",
        found.join(", ")
    ))
}

/// The names of all crates a user compiles.
fn dependencies(package: &str, features: &str) -> Result<BTreeSet<String>, String> {
    let mut tree = cargo(&[
        "tree",
        "-p",
        package,
        "--no-default-features",
        "--features",
        features,
    ]);
    tree.args([
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let tree = output(tree)?;
    Ok(tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_banned_is_named() {
        let tree = ["leasehold-core", "proptest"].map(str::to_owned).into();
        let refused =
            |names: [&str; 2]| refuse("a", "", names.map(str::to_owned).into_iter(), &tree);
        assert_eq!(refused(["libtest-mimic", "leasehold-testbed"]), Ok(()));
        assert_eq!(
            refused(["libtest-mimic", "proptest"]),
            Err("a with no features must not depend on: proptest".into())
        );
    }
}
