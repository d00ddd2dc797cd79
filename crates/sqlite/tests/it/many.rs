//! Many holds of one client: none is lost, beside others who write and on a busy machine.

use std::time::Duration;

use crate::support::*;
use leasehold_core::Guard;
use leasehold_core::backend::Moment;

/// 10,000 locks of 3 s for 30 s with `LEASEHOLD_CAMPAIGN=1`, and else a part of that.
#[test]
fn none_is_lost() {
    let campaign = std::env::var_os("LEASEHOLD_CAMPAIGN").is_some_and(|on| on == "1");
    let (holds, time) = if campaign {
        (10_000, Duration::from_secs(30))
    } else {
        (1_000, Duration::from_secs(4))
    };
    let place = Place::new();
    run_for(Duration::from_secs(300), async {
        let (here, other) = (
            store(place.path()).await.ttl(Duration::from_secs(3)),
            store(place.path()).await,
        );
        let mut guards: Vec<Guard> = Vec::with_capacity(holds);
        for i in 0..holds {
            guards.push(here.lock(format!("many/{i}")).acquire().await.unwrap());
        }
        let (began, mut cycles, mut least) = (Moment::now(), 0, Duration::MAX);
        while since(began) < time {
            for _ in 0..20 {
                other
                    .lock("another")
                    .acquire()
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
                cycles += 1;
            }
            least = least.min(
                guards
                    .iter()
                    .map(Guard::remaining)
                    .min()
                    .unwrap_or_default(),
            );
            let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
            assert_eq!(lost, 0, "lost after {:?}", since(began));
        }
        println!(
            "many: {holds} holds of 3 s for {time:?} beside {cycles} cycles, none lost, {least:?} left at least"
        );
    });
}
