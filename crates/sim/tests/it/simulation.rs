//! A slice of the worlds: nothing is wrong in them, one seed is one history, and faults that are put back are found and made small.

use std::process::Command;

use leasehold_sim::{Kind, Part, run};

/// The program that runs worlds; what it is told, and which faults are put back.
fn worlds(words: &[&str], faults: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold-sim"));
    let output = command
        .args(words)
        .env("LEASEHOLD_FAULTS", faults)
        .output()
        .unwrap();
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// Returns whether a few worlds of each kind are enough.
fn is_glance() -> bool {
    std::env::var_os("LEASEHOLD_GLANCE").is_some_and(|on| on == "1")
}

#[test]
fn nothing_is_wrong_in_some_worlds() {
    for (store, seeds, few) in [
        ("simple", "40", "20"),
        ("redis", "15", "6"),
        ("redlock", "6", "3"),
        ("etcd", "4", "2"),
        ("etcd-3", "6", "3"),
        ("zookeeper", "8", "3"),
        ("zookeeper-3", "8", "3"),
    ] {
        let seeds = if is_glance() { few } else { seeds };
        let (good, said) = worlds(&["--store", store, "--seeds", seeds], "");
        println!("{store}: {said}");
        assert!(good, "{store}: {said}");
    }
}

#[test]
fn one_seed_is_one_history() {
    for kind in [
        Kind::Simple,
        Kind::Redis,
        Kind::Redlock,
        Kind::Etcd3,
        Kind::ZooKeeper3,
    ] {
        for seed in 0..if is_glance() { 1 } else { 4 } {
            let (one, two) = (
                run(kind, seed, &Part::default()),
                run(kind, seed, &Part::default()),
            );
            assert_eq!(one.lines(), two.lines(), "{} {seed}", kind.name());
        }
    }
}

/// A part of a world has the steps and the faults that are named, and no others.
#[test]
fn a_part_of_a_world_is_a_world() {
    let part = Part {
        steps: Some(vec![0]),
        faults: Some(Vec::new()),
    };
    let outcome = run(Kind::Simple, 1, &part);
    assert!(
        outcome.wrong.is_empty() && outcome.figures.faults.is_empty(),
        "{:?}",
        outcome.wrong
    );
    assert!(outcome.lines().len() < run(Kind::Simple, 1, &Part::default()).lines().len());
}

/// Faults of earlier versions, and how many worlds it takes at most to find each.
#[test]
fn faults_that_are_put_back_are_found() {
    let all = [
        ("simple", "C1", "100"),
        ("redis", "counter", "50"),
        ("simple", "no-withdrawal", "200"),
    ];
    // One of each protocol for a glance.
    let these = if is_glance() { &all[..2] } else { &all[..] };
    for &(store, fault, seeds) in these {
        let (good, said) = worlds(&["--store", store, "--seeds", seeds], fault);
        assert!(
            !good && said.contains("to see it again:"),
            "{fault}: {said}"
        );
        // The last line repeats it, and what it finds is as small as it can be.
        let words: Vec<&str> = said
            .lines()
            .last()
            .unwrap()
            .split_whitespace()
            .skip_while(|word| *word != "--store")
            .collect();
        let (good, again) = worlds(&words, fault);
        assert!(
            !good && again.lines().last() == said.lines().last(),
            "{fault}: {said}\n{again}"
        );
    }
}
