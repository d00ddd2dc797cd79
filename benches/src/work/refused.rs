//! Many tasks that try to take what somebody else has.

use std::time::Duration;

use leasehold::backend::Moment;
use tokio::task::JoinSet;

use crate::meter::{Done, Meter, Sample};
use crate::subject::{Result, Tries};

/// `tasks` of one client, while another has it.
pub async fn refused<S: Tries>(
    holder: S,
    client: S,
    name: &'static str,
    tasks: usize,
    meter: Meter,
    window: Duration,
) -> Result<Sample> {
    let held = holder.acquire(name).await?;
    let sample = meter
        .around(async {
            let (begin, mut all) = (Moment::now(), JoinSet::new());
            for _ in 0..tasks {
                let client = client.clone();
                all.spawn(async move {
                    let mut tries = 0;
                    while Moment::now().since(begin) < window {
                        if client.try_acquire(name).await?.is_some() {
                            return Err("two hold at once".into());
                        }
                        tries += 1;
                    }
                    Result::Ok(tries)
                });
            }
            let mut operations = 0;
            while let Some(tries) = all.join_next().await {
                operations += tries??;
            }
            Ok(Done {
                operations: f64::from(operations),
                ..Done::default()
            })
        })
        .await;
    holder.release(held).await?;
    sample
}
