//! A glance at memory and at private servers: everything is measured, nothing overlaps, and the page stands on its own.

use std::time::Duration;

use leasehold_lab::compare::{Order, Reach, Report, Settings, Subject, compare};
use leasehold_testbed::{Etcd, Postgres, Redis, ZooKeeper};

async fn glance(subjects: &[Subject]) -> Report {
    let settings = Settings::glance();
    let run = compare(subjects, &settings, |_| {});
    let report = tokio::time::timeout(Duration::from_secs(170), run)
        .await
        .unwrap()
        .unwrap();
    println!("{}", report.table());
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_store_is_measured_in_every_way() {
    let (redis, etcd, zookeeper) = (
        Redis::start().await.unwrap(),
        Etcd::start().await.unwrap(),
        ZooKeeper::start().await.unwrap(),
    );
    let (etcd, zookeeper) = (
        format!("etcd://{}", etcd.addr()),
        format!("zookeeper://{}", zookeeper.addr()),
    );
    let masters = Redis::start_many(3).await.unwrap();
    let nodes: Vec<&str> = masters.iter().map(|node| node.addr()).collect();
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite://{}", folder.path().join("locks.db").display());
    let postgres = Postgres::start().await.unwrap();
    let redlock = format!("redlock://{}", nodes.join(","));
    let urls = [
        "memory://".to_owned(),
        redis.url(),
        etcd,
        zookeeper,
        sqlite,
        redlock,
        postgres.url(),
    ];
    let report = glance(&urls.map(|url| Subject::at(&url, &url))).await;

    let labels: Vec<&str> = report.stores.iter().map(|m| &*m.label).collect();
    assert_eq!(
        labels,
        [
            "memory",
            "redis",
            "etcd",
            "zookeeper",
            "sqlite",
            "redlock",
            "postgres"
        ]
    );
    for m in &report.stores {
        assert!(m.failures.is_empty(), "{}: {:?}", m.label, m.failures);
        assert!(
            m.round_trip.p50_us > 0.0 && m.uncontended.iter().all(|u| u.round_trips > 0.0),
            "{m:?}"
        );
        // Redlock keeps no line, so it is only ever fast.
        let orders = if m.label == "redlock" { 1 } else { 2 };
        assert_eq!(
            (m.uncontended.len(), m.contended.len()),
            (orders, 2 * orders),
            "{}",
            m.label
        );
        for c in &m.contended {
            assert!(
                c.overlaps == 0 && c.jain > 0.0 && c.jain <= 1.0 && c.per_second > 0.0,
                "{}: {c:?}",
                m.label
            );
        }
        // A busy machine loses locks of half a second, and the report says so.
        let renewal = m.renewal.as_ref().unwrap();
        assert!(renewal.batches > 0, "{}: {renewal:?}", m.label);
        let recovery = m.recovery.as_ref().unwrap();
        // Nobody gets the lock of a killed holder before two thirds of its lease have passed, less the margin of the clocks.
        assert!(
            recovery.waits_ms[0] * 10 >= recovery.lease_ms * 5,
            "{}: {recovery:?}",
            m.label
        );
    }
    let reaches = [0, 1, 4].map(|i| report.stores[i].reach);
    assert_eq!(reaches, [Reach::Process, Reach::Machines, Reach::Host]);

    // An answer to each need, and each store's is told whether fast is worth it.
    assert!(report.advice.len() > 8, "{:?}", report.advice);
    let fast: String = report.advice[8..]
        .iter()
        .map(|advice| &*advice.need)
        .collect();
    assert!(
        labels.iter().all(|label| fast.contains(label)),
        "{:?}",
        report.advice
    );
    assert!(
        report.advice[0]
            .why
            .contains("Inside of one process: memory"),
        "{:?}",
        report.advice[0]
    );

    let page = report.page();
    assert_eq!(page.matches("<figure>").count(), 5);
    for outside in ["<script", "<link", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["stores"][1]["contended"][0]["order"], "fair");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_a_kind_are_told_apart_and_what_is_shown_is_escaped() {
    let report = glance(&[
        Subject::at("memory://", "<first>"),
        Subject::at("memory://", "second"),
    ])
    .await;
    assert_eq!(
        [&*report.stores[0].label, &*report.stores[1].label],
        ["memory 1", "memory 2"]
    );
    assert!(report.stores[1].alone(Order::Fair).is_some());
    let page = report.page();
    assert!(page.contains("&lt;first&gt;") && !page.contains("<first>"));
}

#[tokio::test]
async fn bad_input_is_an_error() {
    let nothing = compare(&[], &Settings::glance(), |_| {}).await.unwrap_err();
    assert_eq!(nothing.kind(), leasehold::ErrorKind::Invalid);
    let unknown = compare(
        &[Subject::at("nonsense", "nonsense")],
        &Settings::glance(),
        |_| {},
    )
    .await
    .unwrap_err();
    assert_eq!(unknown.kind(), leasehold::ErrorKind::Invalid);
    let nobody = compare(
        &[Subject::at("redis://127.0.0.1:1", "x")],
        &Settings::glance(),
        |_| {},
    )
    .await
    .unwrap_err();
    assert_eq!(nobody.kind(), leasehold::ErrorKind::Unavailable);
    assert!(nobody.to_string().contains("x: "), "{nobody}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_used_is_named_and_the_others_are_compared() {
    let report = glance(&[
        Subject::at("redis://127.0.0.1:1", "nobody's"),
        Subject::at("memory://", "ours"),
    ])
    .await;
    assert_eq!(report.stores.len(), 1);
    assert_eq!(report.unreachable[0].address, "nobody's");
    let page = report.page();
    assert!(
        page.contains("Not compared: <code>nobody's</code>") && page.contains("Only a glance"),
        "{page}"
    );
    assert!(page.contains("1 holder, with a waiter") && !page.contains("1 holders"));
    let subjects = [
        Subject::at("memory://", "ours"),
        Subject::at("nonsense", "a typo"),
    ];
    let bad = compare(&subjects, &Settings::glance(), |_| {})
        .await
        .unwrap_err();
    assert!(
        bad.to_string().contains("a typo"),
        "before anything is measured: {bad}"
    );
}
