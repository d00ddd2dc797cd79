//! This program as one of several processes: see [`driver`](crate::driver).

use std::env;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Options;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::driver::{Answer, Driver};
use crate::meter::Done;
use crate::subject::{Result, Subject};
use crate::subjects::Ours;
#[cfg(feature = "peers")]
use crate::subjects::Rslock;
use crate::work::turns;

/// What makes this program one.
pub const WORD: &str = "--worker";
pub const FAST: &str = "leasehold, fast";
#[cfg(feature = "peers")]
pub const RSLOCK: &str = "rslock";

/// Starts another of this program.
pub async fn start(subject: &str, url: &str) -> Result<Driver> {
    let mut command = Command::new(env::current_exe()?);
    command.args([WORD, subject, url]);
    Driver::start(command).await
}

/// Is one, until nobody asks any more.
pub async fn serve(subject: &str, url: &str) -> Result<()> {
    match subject {
        FAST => answer(Ours::at(url, Options::default().fast()).await?).await,
        #[cfg(feature = "peers")]
        RSLOCK => answer(Rslock::at(vec![url.into()])).await,
        other => Err(format!("no such subject: {other}").into()),
    }
}

async fn answer<S: Subject>(subject: S) -> Result<()> {
    println!("ready");
    let (clients, mut questions): (Arc<[S]>, _) =
        ([subject].into(), BufReader::new(tokio::io::stdin()).lines());
    while let Some(question) = questions.next_line().await? {
        let answer = match work(clients.clone(), &question).await {
            Ok(done) => Answer::Done(done),
            Err(e) => Answer::Failed {
                error: e.to_string(),
            },
        };
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

async fn work<S: Subject>(clients: Arc<[S]>, question: &str) -> Result<Done> {
    let words: Vec<&str> = question.split(' ').collect();
    let ["turns", name, tasks, section, window] = words[..] else {
        return Err(format!("{question}?").into());
    };
    let (section, window) = (
        Duration::from_micros(section.parse()?),
        Duration::from_millis(window.parse()?),
    );
    turns(clients, name, tasks.parse()?, section, window).await
}
