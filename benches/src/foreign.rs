//! Locks of other languages' clients, where their runtimes and libraries are installed: the programs are in `drivers/`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

use crate::driver::Driver;
use crate::rounds::Contender;
use crate::servers::Server;
use crate::subject::Result;

/// What they send to Redis.
const SENDS: &[&str] = &[
    "set",
    "evalsha",
    "eval",
    "hello",
    "script|load",
    "client|setinfo",
];
/// Debian's.
const JAVA: &str = "/usr/share/java";
const GO: &str = "/usr/share/gocode";
const JARS: [&str; 16] = [
    "curator-recipes",
    "curator-framework",
    "curator-client",
    "zookeeper",
    "zookeeper-jute",
    "guava",
    "slf4j-api",
    "slf4j-nop",
    "snappy-java",
    "metrics-core",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
];
const SOURCES: [(&str, &str); 3] = [
    ("locks.py", include_str!("../drivers/locks.py")),
    ("Curator.java", include_str!("../drivers/Curator.java")),
    ("etcd.go", include_str!("../drivers/etcd.go")),
];

/// Those of this store, each of which is asked this in each round.
pub async fn contenders(server: &Server, question: &str) -> Result<Vec<Contender>> {
    let folder = tempfile::tempdir()?;
    for (name, text) in SOURCES {
        fs::write(folder.path().join(name), text)?;
    }
    let programs = match server {
        Server::Redis(nodes) if nodes.len() == 1 => {
            vec![("redis-py", python("redis", nodes[0].addr(), &folder).await)]
        }
        Server::Etcd(etcd) => vec![("Go's concurrency", go(etcd.addr(), &folder).await)],
        Server::ZooKeeper(server) => {
            vec![
                ("Curator", java(server.addr(), &folder)),
                ("kazoo", python("kazoo", server.addr(), &folder).await),
            ]
        }
        _ => Vec::new(),
    };
    let mut contenders = Vec::new();
    for (label, program) in programs {
        let driver = match program {
            Ok(command) => Driver::start(command).await.map_err(|e| e.to_string()),
            Err(why) => Err(why),
        };
        contenders.push(match driver {
            Ok(driver) => driver.contender(label, question).sends(SENDS),
            Err(why) => Contender::absent(label, why),
        });
    }
    Ok(contenders)
}

/// What to start, or why that is not possible here.
type Program = std::result::Result<Command, String>;

async fn python(module: &str, addr: &str, folder: &TempDir) -> Program {
    let program = std::env::var("LEASEHOLD_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".into());
    succeeds(Command::new(&program).args(["-c", &format!("import {module}")])).await?;
    let mut command = Command::new(program);
    command
        .arg(folder.path().join("locks.py"))
        .args([module, addr]);
    Ok(command)
}

fn java(addr: &str, folder: &TempDir) -> Program {
    let jars = JARS.map(|jar| format!("{JAVA}/{jar}.jar"));
    if let Some(missing) = jars.iter().find(|jar| !Path::new(jar).is_file()) {
        return Err(format!("there is no {missing}"));
    }
    let mut command = Command::new("java");
    command
        .args(["-cp", &jars.join(":")])
        .arg(folder.path().join("Curator.java"))
        .arg(addr);
    Ok(command)
}

async fn go(addr: &str, folder: &TempDir) -> Program {
    let program = folder.path().join("driver");
    let libraries = std::env::var("LEASEHOLD_GOPATH").unwrap_or_else(|_| GO.into());
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg("etcd.go")
        .current_dir(folder.path());
    succeeds(build.env("GO111MODULE", "off").env("GOPATH", libraries)).await?;
    let mut command = Command::new(program);
    command.arg(addr);
    Ok(command)
}

async fn succeeds(command: &mut Command) -> std::result::Result<(), String> {
    let shown = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let output = command
        .output()
        .await
        .map_err(|e| format!("{shown}: {e}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{shown}: {}",
            error.trim().lines().last().unwrap_or_default()
        )),
    }
}
