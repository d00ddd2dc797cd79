//! Tasks that want one lock, each again as soon as it has given it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::backend::Moment;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::meter::{Done, Meter, Sample};
use crate::metric::Metric;
use crate::spread::{jain, median};
use crate::subject::{Result, Subject};

/// What all tasks see; the lock alone keeps them apart.
struct Room {
    window: Duration,
    section: Duration,
    begin: Barrier,
    inside: AtomicBool,
    /// When the last release began, in nanoseconds.
    released: AtomicU64,
}

#[derive(Default)]
struct Seen {
    turns: f64,
    /// Those that began within the window.
    in_time: f64,
    gaps: Vec<f64>,
    longest: f64,
}

/// `tasks` of these clients in turn, and what that costs.
pub async fn contended<S: Subject>(
    clients: Arc<[S]>,
    name: &str,
    tasks: usize,
    section: Duration,
    meter: Meter,
    window: Duration,
) -> Result<Sample> {
    meter
        .around(turns(clients, name, tasks, section, window))
        .await
}

/// `tasks` of these clients in turn. `section`: for how long each holds it. None is left behind when the window ends: each has
/// its last turn.
pub async fn turns<S: Subject>(
    clients: Arc<[S]>,
    name: &str,
    tasks: usize,
    section: Duration,
    window: Duration,
) -> Result<Done> {
    let (begin, inside, released) = (
        Barrier::new(tasks),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    let name: Arc<str> = name.into();
    let room = Arc::new(Room {
        window,
        section,
        begin,
        inside,
        released,
    });
    let mut all = JoinSet::new();
    for task in 0..tasks {
        all.spawn(compete(
            room.clone(),
            clients[task % clients.len()].clone(),
            name.clone(),
        ));
    }
    let mut seen = Vec::with_capacity(tasks);
    while let Some(task) = all.join_next().await {
        seen.push(task??);
    }
    Ok(done(&seen, window))
}

async fn compete<S: Subject>(room: Arc<Room>, client: S, name: Arc<str>) -> Result<Seen> {
    let mut seen = Seen::default();
    room.begin.wait().await;
    let begin = Moment::now();
    while Moment::now().since(begin) < room.window {
        let asked = Moment::now();
        let held = client.acquire(&name).await?;
        let now = Moment::now();
        if room.inside.swap(true, Ordering::SeqCst) {
            return Err("two hold at once".into());
        }
        let released = Moment::from_nanos(room.released.load(Ordering::SeqCst));
        // It stood in line when the release began.
        if released > asked {
            seen.gaps.push(now.since(released).as_nanos() as f64);
        }
        seen.longest = seen.longest.max(now.since(asked).as_nanos() as f64);
        seen.turns += 1.0;
        seen.in_time += f64::from(u8::from(now.since(begin) < room.window));
        if !room.section.is_zero() {
            tokio::time::sleep(room.section).await;
        }
        room.inside.store(false, Ordering::SeqCst);
        room.released
            .store(Moment::now().as_nanos(), Ordering::SeqCst);
        client.release(held).await?;
    }
    Ok(seen)
}

fn done(seen: &[Seen], window: Duration) -> Done {
    let turns: f64 = seen.iter().map(|task| task.turns).sum();
    let in_time: f64 = seen.iter().map(|task| task.in_time).sum();
    let longest = seen.iter().map(|task| task.longest).fold(0.0, f64::max);
    let jain = jain(seen.iter().map(|task| task.turns));
    let mut figures = Sample::from([(Metric::Jain, jain), (Metric::LongestWait, longest)]);
    if in_time > 0.0 {
        figures.insert(Metric::Turn, window.as_nanos() as f64 / in_time);
    }
    let mut gaps: Vec<f64> = seen
        .iter()
        .flat_map(|task| task.gaps.iter().copied())
        .collect();
    gaps.sort_by(f64::total_cmp);
    if !gaps.is_empty() {
        figures.insert(Metric::Gap, median(&gaps));
    }
    Done {
        operations: turns,
        figures,
        elsewhere: false,
    }
}
