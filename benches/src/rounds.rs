//! Contenders of one row, measured in turn, round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::meter::{Meter, Sample};
use crate::metric::Metric;
use crate::servers::Server;
use crate::spread::Spread;
use crate::subject::Result;

type Work = Box<dyn Fn(Meter) -> BoxFuture<'static, Result<Sample>> + Send + Sync>;

/// A round that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// One who is measured in a row. The first is what the others are compared with.
pub struct Contender {
    label: String,
    sends: &'static [&'static str],
    work: Work,
}

impl Contender {
    /// `work` is one round; it says itself which part of it is measured.
    pub fn new<F>(label: impl Into<String>, work: impl Fn(Meter) -> F + Send + Sync + 'static) -> Contender
    where
        F: Future<Output = Result<Sample>> + Send + 'static,
    {
        Contender { label: label.into(), sends: &[], work: Box::new(move |meter| Box::pin(work(meter))) }
    }

    /// These commands are its requests, where the server counts what is inside of scripts, too.
    pub fn sends(self, sends: &'static [&'static str]) -> Contender {
        Contender { sends, ..self }
    }

    /// In a task of the runtime, as a program would.
    async fn round(&self, server: &Arc<Server>) -> Result<Sample> {
        let mut task = JoinSet::new();
        task.spawn((self.work)(Meter::new(server, self.sends)));
        // Dropped, it is aborted.
        match timeout(LIMIT, task.join_next()).await {
            Ok(done) => done.ok_or("no task")??,
            Err(_) => Err(format!("no end after {LIMIT:?}").into()),
        }
    }
}

/// What the rounds have shown of one contender.
#[derive(Serialize)]
pub struct Measured {
    pub label: String,
    pub figures: BTreeMap<Metric, Spread>,
    /// To the first contender, in the same round.
    pub ratios: BTreeMap<Metric, Spread>,
    /// Why it was not measured to the end.
    pub failure: Option<String>,
}

/// One round to get warm, which does not count; then so many of all, each round begun by another contender. One that fails is
/// out, and keeps nobody from the rest.
pub async fn rounds(server: &Arc<Server>, contenders: &[Contender], rounds: usize) -> Vec<Measured> {
    let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut failures: Vec<Option<String>> = contenders.iter().map(|_| None).collect();
    for round in 0..=rounds {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            if failures[at].is_some() {
                continue;
            }
            match contenders[at].round(server).await {
                Ok(_) if round == 0 => {}
                Ok(sample) => samples[at].push(sample),
                Err(e) => failures[at] = Some(e.to_string()),
            }
        }
    }
    let first = |round: usize, metric| samples[0].get(round).and_then(|sample| sample.get(&metric));
    let measured = |((contender, own), failure): ((&Contender, &Vec<Sample>), Option<String>)| Measured {
        label: contender.label.clone(),
        figures: spreads(own, |_, value, _| Some(value)),
        ratios: spreads(own, |metric, value, round| first(round, metric).map(|first| value / first)),
        failure,
    };
    contenders.iter().zip(&samples).zip(failures).map(measured).collect()
}

fn spreads(samples: &[Sample], value: impl Fn(Metric, f64, usize) -> Option<f64>) -> BTreeMap<Metric, Spread> {
    let metrics: BTreeSet<Metric> = samples.iter().flat_map(|sample| sample.keys().copied()).collect();
    let spread = |metric: Metric| {
        let rounds = samples.iter().enumerate();
        Spread::of(rounds.filter_map(|(round, sample)| value(metric, *sample.get(&metric)?, round)))
    };
    metrics.into_iter().filter_map(|metric| Some((metric, spread(metric)?))).collect()
}
