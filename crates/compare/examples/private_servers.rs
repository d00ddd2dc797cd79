//! Compares private servers of its own: `private_servers FOLDER` writes `compare.html` and `compare.json` there.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example speaks on its standard streams")]

use std::path::PathBuf;
use std::time::Duration;

use leasehold_compare::{Settings, Subject, compare, hold_until_killed};
use leasehold_testbed::{Etcd, Redis, ZooKeeper};
use tokio::process::Command;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [hold, url, name, millis] if hold == "hold" => {
            let store = leasehold::connect(url).await?;
            Ok(hold_until_killed(&store, name, Duration::from_millis(millis.parse()?)).await?)
        }
        [folder] => all(PathBuf::from(folder)).await,
        _ => Err("say in which folder the page shall be".into()),
    }
}

async fn all(folder: PathBuf) -> Outcome {
    let (redis, etcd, zookeeper) = (Redis::start().await?, Etcd::start().await?, ZooKeeper::start().await?);
    let redlock = Redis::start_many(3).await?;
    let nodes: Vec<&str> = redlock.iter().map(|node| node.addr()).collect();
    let file = tempfile::tempdir()?;
    let urls = [
        format!("sqlite://{}", file.path().join("locks.db").display()),
        redis.url(),
        format!("redlock://{}", nodes.join(",")),
        format!("etcd://{}", etcd.addr()),
        format!("zookeeper://{}", zookeeper.addr()),
    ];
    let mut subjects = vec![Subject::at("memory://", "memory://")];
    for url in urls {
        let program = std::env::current_exe()?;
        let (held, shown) = (url.clone(), url.clone());
        subjects.push(Subject::at(&url, shown).killed_as(move |name, lease| {
            let mut command = Command::new(&program);
            command.args(["hold", &held, name, &lease.as_millis().to_string()]);
            command
        }));
    }
    let report = compare(&subjects, &Settings::default(), |progress| {
        eprintln!("{:3.0} % {} {}", progress.done * 100.0, progress.store, progress.workload);
    })
    .await?;
    println!("{}", report.table());
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("compare.json"), report.json()?)?;
    std::fs::write(folder.join("compare.html"), report.page())?;
    Ok(())
}
