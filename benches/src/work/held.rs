//! Many locks that one client holds and renews, and does nothing else.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use leasehold::backend::Moment;
use leasehold::{Guard, Store};

use crate::meter::{Done, Meter, Sample, settled_heap};
use crate::metric::Metric;
use crate::processes;
use crate::servers::Server;
use crate::subject::Result;

/// So many requests at a time while they are taken and given back.
const AT_ONCE: usize = 64;

/// What is held, and what taking it has shown.
pub struct Holds {
    guards: Vec<Guard>,
    ttl: Duration,
    figures: Sample,
    /// The CPU that the server used in 30 s while nothing was held.
    idle: f64,
}

impl Holds {
    /// So many: those that are there already, if it is as many.
    pub async fn stand(
        standing: &mut Option<Holds>,
        server: &Server,
        store: &Store,
        count: usize,
        ttl: Duration,
    ) -> Result<()> {
        match standing.take() {
            Some(holds) if holds.guards.len() == count => *standing = Some(holds),
            others => {
                let guards = stream::iter(others.into_iter().flat_map(|holds| holds.guards))
                    .map(Guard::release);
                guards.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
                *standing = Some(Holds::take(server, store, count, ttl).await?);
            }
        }
        Ok(())
    }

    async fn take(server: &Server, store: &Store, count: usize, ttl: Duration) -> Result<Holds> {
        store.lock("warm").acquire().await?.release().await?;
        let idle = idle(server).await?;
        let (heap, begin) = (settled_heap().await, Moment::now());
        let taking = stream::iter(0..count)
            .map(|i| store.lock(("held", i)).ttl(ttl).acquire())
            .buffer_unordered(AT_ONCE);
        let guards: Vec<Guard> = taking.try_collect().await?;
        let took = Moment::now().since(begin).as_nanos() as f64;
        let figures = [
            (Metric::SetUp, took),
            (Metric::Heap, (settled_heap().await - heap) / count as f64),
        ];
        Ok(Holds {
            guards,
            ttl,
            figures: figures.into(),
            idle,
        })
    }
}

/// What the server's processes use in 30 s while nothing is asked of them.
async fn idle(server: &Server) -> Result<f64> {
    let cpu = || {
        server
            .processes()
            .into_iter()
            .map(processes::cpu)
            .sum::<Result<Duration>>()
    };
    let (begin, before) = (Moment::now(), cpu()?);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = cpu()?.saturating_sub(before);
    Ok(used.as_nanos() as f64 * 30.0 / Moment::now().since(begin).as_secs_f64())
}

/// For a third of the lease, in which each is renewed once. The operation is 30 s.
pub async fn held(holds: &Holds, meter: Meter) -> Result<Sample> {
    let mut sample = meter
        .around(async {
            let begin = Moment::now();
            tokio::time::sleep(holds.ttl / 3).await;
            let watched = Moment::now().since(begin);
            Ok(Done {
                operations: watched.as_secs_f64() / 30.0,
                figures: holds.figures.clone(),
                elsewhere: false,
            })
        })
        .await?;
    if let Some(server) = sample.get(&Metric::ServerCpu) {
        let thirds = 30.0 / holds.ttl.as_secs_f64() * 3.0;
        sample.insert(
            Metric::RenewalCpu,
            (server - holds.idle) / thirds / holds.guards.len() as f64,
        );
    }
    match holds
        .guards
        .iter()
        .filter(|guard| !guard.is_valid())
        .count()
    {
        0 => Ok(sample),
        lost => Err(format!("{lost} of {} were lost", holds.guards.len()).into()),
    }
}
