//! Contenders of one row, measured in turn, round by round.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::meter::{Meter, Sample};
use crate::metric::Metric;
use crate::servers::Server;
use crate::spread::Spread;
use crate::subject::Result;

type Work = Box<dyn Fn(Meter) -> BoxFuture<'static, Result<Sample>> + Send + Sync>;

/// How often, and how.
pub struct Rounds {
    pub count: usize,
    /// Whether there is one before, to get warm, which does not count.
    pub warm: bool,
    /// A round that takes longer has failed.
    pub limit: Duration,
}

/// One who is measured in a row. The first is what the others are compared with.
pub struct Contender {
    label: String,
    size: Option<usize>,
    sends: &'static [&'static str],
    /// Or why there is none.
    work: std::result::Result<Work, String>,
}

impl Contender {
    /// `work` is one round; it says itself which part of it is measured.
    pub fn new<F>(
        label: impl Into<String>,
        work: impl Fn(Meter) -> F + Send + Sync + 'static,
    ) -> Contender
    where
        F: Future<Output = Result<Sample>> + Send + 'static,
    {
        let work: Work = Box::new(move |meter| Box::pin(work(meter)));
        Contender {
            label: label.into(),
            size: None,
            sends: &[],
            work: Ok(work),
        }
    }

    /// One that cannot be measured here. The report says why, and that is no failure.
    pub fn absent(label: impl Into<String>, why: String) -> Contender {
        Contender {
            label: label.into(),
            size: None,
            sends: &[],
            work: Err(why),
        }
    }

    /// How many there are in it: where it stands in a curve.
    pub fn size(self, size: usize) -> Contender {
        Contender {
            size: Some(size),
            ..self
        }
    }

    /// These commands are its requests, where the server counts what is inside of scripts, too.
    pub fn sends(self, sends: &'static [&'static str]) -> Contender {
        Contender { sends, ..self }
    }

    /// In a task of the runtime, as a program would.
    async fn round(&self, server: &Arc<Server>, limit: Duration) -> Result<Sample> {
        let work = self.work.as_ref().map_err(String::as_str)?;
        let mut task = JoinSet::new();
        task.spawn(work(Meter::new(server, self.sends)));
        // Dropped, it is aborted.
        let mut sample = match timeout(limit, task.join_next()).await {
            Ok(done) => done.ok_or("no task")???,
            Err(_) => return Err(format!("no end after {limit:?}").into()),
        };
        // JSON has no other numbers.
        sample.retain(|_, value| value.is_finite());
        Ok(sample)
    }
}

/// What the rounds have shown of one contender.
#[derive(Serialize, Deserialize)]
pub struct Measured {
    pub label: String,
    /// How many there are in it, where that makes a curve.
    pub size: Option<usize>,
    /// Round by round. Those of one round belong together.
    pub samples: Vec<Sample>,
    pub figures: BTreeMap<Metric, Spread>,
    /// To the first contender, in the same round.
    pub ratios: BTreeMap<Metric, Spread>,
    /// Why it was not measured to the end.
    pub failure: Option<String>,
    /// Why it was not measured at all, which is no failure.
    pub absent: Option<String>,
}

impl Measured {
    /// The ratio to another contender of the same row, in the same rounds.
    pub fn ratio(&self, metric: Metric, other: &Measured) -> Option<Spread> {
        ratios(&self.samples, &other.samples).remove(&metric)
    }

    /// A figure without what another one counts of it, in the same rounds.
    pub fn without(&self, metric: Metric, part: Metric) -> Option<Spread> {
        Spread::of(
            self.samples
                .iter()
                .filter_map(|sample| Some(sample.get(&metric)? - sample.get(&part)?)),
        )
    }
}

/// So many rounds of all, each begun by another contender. One that fails is out, and keeps nobody from the rest.
pub async fn rounds(
    server: &Arc<Server>,
    contenders: &[Contender],
    rounds: Rounds,
) -> Vec<Measured> {
    let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut failures: Vec<Option<String>> = contenders.iter().map(|_| None).collect();
    for round in usize::from(!rounds.warm)..=rounds.count {
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            if failures[at].is_some() || contenders[at].work.is_err() {
                continue;
            }
            match contenders[at].round(server, rounds.limit).await {
                Ok(_) if round == 0 => {}
                Ok(sample) => samples[at].push(sample),
                Err(e) => failures[at] = Some(e.to_string()),
            }
        }
    }
    let all_ratios: Vec<_> = samples.iter().map(|own| ratios(own, &samples[0])).collect();
    let measured =
        |(((contender, samples), ratios), failure): (((&Contender, Vec<Sample>), _), _)| Measured {
            label: contender.label.clone(),
            size: contender.size,
            figures: spreads(&samples, |_, value, _| Some(value)),
            ratios,
            samples,
            failure,
            absent: contender.work.as_ref().err().cloned(),
        };
    contenders
        .iter()
        .zip(samples)
        .zip(all_ratios)
        .zip(failures)
        .map(measured)
        .collect()
}

fn ratios(samples: &[Sample], others: &[Sample]) -> BTreeMap<Metric, Spread> {
    let other = |round: usize, metric| others.get(round).and_then(|sample| sample.get(&metric));
    spreads(samples, |metric, value, round| {
        other(round, metric).map(|other| value / other)
    })
}

fn spreads(
    samples: &[Sample],
    value: impl Fn(Metric, f64, usize) -> Option<f64>,
) -> BTreeMap<Metric, Spread> {
    let metrics: BTreeSet<Metric> = samples
        .iter()
        .flat_map(|sample| sample.keys().copied())
        .collect();
    let spread = |metric: Metric| {
        let rounds = samples.iter().enumerate();
        Spread::of(rounds.filter_map(|(round, sample)| value(metric, *sample.get(&metric)?, round)))
    };
    metrics
        .into_iter()
        .filter_map(|metric| Some((metric, spread(metric)?)))
        .collect()
}
