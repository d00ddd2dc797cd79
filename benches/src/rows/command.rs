//! The command: what it adds to the program that it runs.

use std::sync::Arc;
use std::{env, fs};

use async_trait::async_trait;

use crate::metric::Metric;
use crate::plan::Plan;
use crate::rounds::Contender;
use crate::row::Row;
use crate::servers::{Server, Store};
use crate::subject::Result;
use crate::work::commands;

/// It runs this.
const PROGRAM: &str = "true";

pub struct Command;

#[async_trait]
impl Row for Command {
    fn name(&self) -> &'static str {
        "command"
    }

    fn title(&self, _: &Plan) -> String {
        format!("A lock around `{PROGRAM}`, which nobody else wants: for each run")
    }

    fn stores(&self) -> &'static [Store] {
        &[Store::Sqlite]
    }

    fn heads(&self) -> &'static [Metric] {
        &[Metric::Median, Metric::SystemCalls, Metric::FileSize]
    }

    fn shows(&self) -> &'static [Metric] {
        self.heads()
    }

    async fn contenders(&self, server: &Arc<Server>, plan: &Plan) -> Result<Vec<Contender>> {
        let Server::File(folder) = &**server else {
            return Err("this needs a file".into());
        };
        let window = plan.long_window();
        let contender = |label: &str, words: Vec<String>, size: Option<u64>| {
            let words: Arc<[String]> = words.into();
            Contender::new(label, move |meter| {
                let words = words.clone();
                async move {
                    let mut sample = commands(&words, meter, window).await?;
                    sample.extend(size.map(|size| (Metric::FileSize, size as f64)));
                    Ok(sample)
                }
            })
        };
        let words = |words: &[&str]| words.iter().copied().map(String::from).collect();
        let lock = folder.path().join("flock").display().to_string();
        // `cargo xtask bench` builds it into the same folder.
        let ours = env::current_exe()?.with_file_name("leasehold");
        let size = fs::metadata(&ours)
            .map_err(|e| format!("{}: {e}", ours.display()))?
            .len();
        // Its own: what other rows have left behind is not its matter.
        let store = format!("sqlite://{}", folder.path().join("command.db").display());
        let run = [
            &ours.display().to_string(),
            "run",
            "x",
            "--store",
            &store,
            "--",
            PROGRAM,
        ];
        Ok(vec![
            contender("flock", words(&["flock", &lock, PROGRAM]), None),
            contender("leasehold", words(&run), Some(size)),
            contender(PROGRAM, words(&[PROGRAM]), None),
        ])
    }
}
