//! The Java of ZooKeeper servers that live for one test. Most of their processor time goes into the
//! start, so the classes that one of them has loaded are archived for all others.

use std::path::{Path, PathBuf};

use tokio::{runtime::Handle, sync::OnceCell, task::spawn_blocking};

use crate::{
    error::{Error, Result},
    find::Program,
    kept, ports,
    zookeeper::{ZooKeeper, ZooKeeperOptions},
};

const OPTIONS: [&str; 6] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.extendedTypesEnabled=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];

/// The manifest of Debian's jar names a path for the rest of ZooKeeper, and forgets a part of Netty.
const JARS: [&str; 4] = [
    "zookeeper-jute.jar",
    "zookeeper.jar",
    "slf4j-simple.jar",
    "netty-codec.jar",
];

/// A program, and its first words.
#[derive(Clone, Debug)]
pub(crate) struct Java {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
}

impl Java {
    /// The one for all servers. It works without an archive, too, as with a Java that makes none.
    pub(crate) async fn of_tests() -> Result<Self> {
        static ARCHIVE: OnceCell<Option<PathBuf>> = OnceCell::const_new();
        let java = Self::find()?;
        let archive = ARCHIVE
            .get_or_init(|| async { java.archive().await.ok() })
            .await;
        Ok(match archive {
            Some(archive) => java.with("SharedArchiveFile", archive),
            None => java,
        })
    }

    fn find() -> Result<Self> {
        let program = Program::Java.find()?;
        let jar = Program::ZooKeeperJar.find()?;
        let jars = JARS.map(|name| match name {
            "zookeeper.jar" => jar.display().to_string(),
            _ => jar.with_file_name(name).display().to_string(),
        });
        let jars = jars.join(":");
        let words = [&OPTIONS[..], &["-cp", &jars]].concat();
        let args = words.into_iter().map(str::to_owned).collect();
        Ok(Self { program, args })
    }

    fn with(mut self, option: &str, file: &Path) -> Self {
        self.args.push(format!("-XX:{option}={}", file.display()));
        self
    }

    /// The file with the loaded classes of a server.
    async fn archive(&self) -> Result<PathBuf> {
        let program = self.program.display().to_string();
        let jar = Program::ZooKeeperJar.find()?.display().to_string();
        let words: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let name = kept::name_of("zookeeper", &[&words[..], &[&program, &jar]].concat());
        let (java, here) = (self.clone(), Handle::current());
        let kept = spawn_blocking(move || {
            kept::kept(&name, |path| {
                here.block_on(java.with("ArchiveClassesAtExit", path).serve_once())
            })
        });
        kept.await
            .map_err(|error| Error::answer("archiving classes", error.to_string()))?
    }

    async fn serve_once(self) -> Result<()> {
        let [port] = ports::free()?;
        let options = ZooKeeperOptions::default();
        let zookeeper = ZooKeeper::launch(&self, &options, port, None)?;
        zookeeper.until_ready().await?;
        zookeeper.mntr().await?;
        zookeeper.stop().await
    }
}
