//! Tests of the instants at which sleepers wake, and of the clocks whose instants can be compared.

use super::*;

#[tokio::test]
async fn a_virtual_sleep_ends_only_by_advance() {
    let time = VirtualClock::new();
    let clock = time.clock();
    let asleep = tokio::spawn({
        let at = clock.now() + Duration::from_secs(10);
        async move { clock.sleep_until(at).await }
    });
    time.advance(Duration::from_secs(9));
    tokio::task::yield_now().await;
    assert!(!asleep.is_finished());
    time.advance(Duration::from_secs(1));
    asleep.await.unwrap();
}

/// Returns the instants at which a sleep of `d` that begins at `from` wakes.
fn wakes(slices: Duration, from: u64, d: Duration) -> Vec<u64> {
    let mut now = Moment(from);
    let at = Moment(from) + d;
    let mut all = Vec::new();
    while let Some(slice) = slice(slices, now, at) {
        assert!(slice <= slices, "late after a suspend by {slice:?}");
        now = now + slice;
        all.push(now.0);
    }
    all
}

#[test]
fn sleepers_wake_together_and_each_at_its_own_end() {
    let ms = 1_000_000;
    let second = Duration::from_secs(1);
    assert_eq!(
        wakes(SLICE, 100 * ms, second),
        [250, 500, 750, 1000, 1100].map(|at| at * ms)
    );
    assert_eq!(
        wakes(SLICE, 500 * ms, second),
        [750, 1000, 1250, 1500].map(|at| at * ms)
    );
    assert_eq!(
        wakes(COARSE_SLICE, 500 * ms, 9 * second),
        [4000, 8000, 9500].map(|at| at * ms)
    );
    assert_eq!(
        COARSE_SLICE.as_nanos() % SLICE.as_nanos(),
        0,
        "coarse sleepers would wake alone"
    );
    assert!(wakes(SLICE, 7, Duration::ZERO).is_empty());
}

#[test]
fn moments_saturate() {
    assert_eq!(Moment(u64::MAX) + Duration::MAX, Moment(u64::MAX));
    assert_eq!(Moment(1).since(Moment(2)), Duration::ZERO);
}

#[test]
fn instants_of_one_clock_can_be_compared() {
    let one = VirtualClock::new();
    let another = VirtualClock::new();
    assert!(Clock::boot().is_same(&Clock::boot()) && one.clock().is_same(&one.clone().clock()));
    assert!(!one.clock().is_same(&another.clock()) && !one.clock().is_same(&Clock::boot()));
    let shown = [format!("{:?}", Clock::boot()), format!("{:?}", one.clock())];
    assert_eq!(shown, ["Clock(boot)", "Clock(virtual, Moment(3600s))"]);
}

#[tokio::test]
async fn a_sleep_that_is_dropped_is_nobodys() {
    let time = VirtualClock::new();
    let clock = time.clock();
    let sleepers = || {
        locked(&time.0.sleepers)
            .values()
            .copied()
            .collect::<Vec<_>>()
    };
    let mut both = [Box::pin(clock.sleep(SLICE)), Box::pin(clock.sleep(SLICE))].map(Some);
    for sleep in both.iter_mut().flatten() {
        assert!(futures_util::poll!(sleep).is_pending());
    }
    assert_eq!(sleepers(), [2]);
    both[0] = None;
    assert_eq!(sleepers(), [1]);
    both[1] = None;
    assert!(sleepers().is_empty());
}

#[tokio::test]
async fn each_sleeper_wakes_at_its_own_instant_and_none_holds_time_up() {
    let time = VirtualClock::new();
    let clock = time.clock();
    let began = time.clock().now();
    let seconds = |n| Duration::from_secs(n);
    let woken = Arc::new(Mutex::new(Vec::new()));
    for n in [1, 2, 5] {
        let clock = clock.clone();
        let woken = woken.clone();
        tokio::spawn(async move {
            clock.sleep(seconds(n)).await;
            locked(&woken).push(clock.now().since(began));
        });
    }
    let mut kept = Box::pin(clock.sleep(seconds(1)));
    assert!(futures_util::poll!(&mut kept).is_pending());
    tokio::time::timeout(seconds(60), time.pass(seconds(3)))
        .await
        .unwrap();
    assert_eq!(
        (&*locked(&woken), clock.now().since(began)),
        (&vec![seconds(1), seconds(2)], seconds(3))
    );
}

/// The machine's clock goes on, and a sleep on it never ends early.
#[tokio::test]
async fn a_sleep_on_the_machines_clock_ends_after_it() {
    let clock = Clock::boot();
    let d = Duration::from_millis(20);
    for coarse in [false, true] {
        let began = clock.now();
        assert!(began > Moment(1));
        if coarse {
            clock.coarse_sleep_until(began + d).await;
        } else {
            clock.sleep(d).await;
        }
        assert!(clock.now().since(began) >= d);
    }
}
