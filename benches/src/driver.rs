//! Other processes that are made to work: several of our own, and clients that are not written in Rust.
//!
//! They talk in lines. One says `ready` once. It is asked `cycles NAME MILLIS`, or `turns NAME TASKS SECTION_MICROS MILLIS`, and
//! answers with a [`Done`] as JSON, or `{"error": "…"}`. It ends when its input does.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::meter::Done;
use crate::metric::Metric;
use crate::processes;
use crate::rounds::Contender;
use crate::subject::Result;

/// So long may one take until it is ready.
const START: Duration = Duration::from_secs(60);

pub struct Driver {
    child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// What is answered.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub enum Answer {
    Failed { error: String },
    Done(Done),
}

impl Driver {
    /// Starts it, and waits until it is ready. It is killed when this is dropped.
    pub async fn start(mut command: Command) -> Result<Driver> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (questions, answers) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .ok_or("no pipes")?;
        let mut driver = Driver {
            child,
            questions,
            answers: BufReader::new(answers).lines(),
        };
        match timeout(START, driver.answers.next_line()).await?? {
            Some(line) if line == "ready" => Ok(driver),
            line => Err(format!("it began with {line:?}").into()),
        }
    }

    pub async fn ask(&mut self, question: &str) -> Result<Done> {
        let process = self.child.id().ok_or("it is gone")?;
        let before = processes::cpu(process)?;
        self.questions
            .write_all(format!("{question}\n").as_bytes())
            .await?;
        self.questions.flush().await?;
        let line = self.answers.next_line().await?.ok_or("it has ended")?;
        let used = processes::cpu(process)?.saturating_sub(before);
        match serde_json::from_str(&line)? {
            Answer::Failed { error } => Err(error.into()),
            Answer::Done(mut done) => {
                done.figures
                    .insert(Metric::ClientCpu, used.as_nanos() as f64 / done.operations);
                Ok(Done {
                    elsewhere: true,
                    ..done
                })
            }
        }
    }

    /// As one of those that are compared: it is asked the same in each round.
    pub fn contender(self, label: &str, question: &str) -> Contender {
        let (driver, question): (_, Arc<str>) = (Arc::new(Mutex::new(self)), question.into());
        Contender::new(label, move |meter| {
            let (driver, question) = (driver.clone(), question.clone());
            async move {
                meter
                    .around(async { driver.lock().await.ask(&question).await })
                    .await
            }
        })
    }
}
