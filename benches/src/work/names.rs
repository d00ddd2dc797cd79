//! Many names, many tasks of one client, and none wants what another has.

use std::time::Duration;

use leasehold::backend::Moment;
use tokio::task::JoinSet;

use crate::meter::{Done, Meter, Sample};
use crate::subject::{Result, Subject};

/// Each task takes its own part of the names in turn.
pub async fn names<S: Subject>(
    subject: S,
    names: usize,
    tasks: usize,
    meter: Meter,
    window: Duration,
) -> Result<Sample> {
    meter
        .around(async {
            let (begin, mut all) = (Moment::now(), JoinSet::new());
            for first in 0..tasks {
                let subject = subject.clone();
                all.spawn(async move {
                    let mut cycles = 0;
                    for name in (first..names).step_by(tasks).cycle() {
                        if Moment::now().since(begin) >= window {
                            break;
                        }
                        subject.cycle(&format!("name {name}")).await?;
                        cycles += 1;
                    }
                    Result::Ok(cycles)
                });
            }
            let mut operations = 0;
            while let Some(cycles) = all.join_next().await {
                operations += cycles??;
            }
            Ok(Done {
                operations: f64::from(operations),
                ..Done::default()
            })
        })
        .await
}
