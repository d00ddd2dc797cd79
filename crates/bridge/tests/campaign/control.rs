//! What must be caught, or a campaign shows nothing: stage 1 beside stage 3, and a move without the seal.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold_chaos::{Checker, History, Invariant, Recorder, Report, What};

use crate::client::{Plan, now};
use crate::fleet::Slot;
use crate::moves::take;
use crate::pairs::{Kind, Stage};
use crate::resource;

/// How long they are beside one another.
const LONG: Duration = Duration::from_secs(4);

/// Never 1 and 3: both hold at once.
pub(crate) async fn one_beside_three(plan: &Plan, folder: &Path) -> Result<(), String> {
    let folder = folder.join("one-and-three");
    fs::create_dir_all(&folder).unwrap();
    let record = begin(plan.kind, &folder);
    let (resource, _) = resource::start(&folder);
    let slots: Vec<Slot> = [Stage::One, Stage::Three]
        .into_iter()
        .zip(0..)
        .map(|(stage, nth)| {
            let plan = Plan {
                stage,
                lock: "control".into(),
                folder: folder.clone(),
                resource: resource.clone(),
                ..plan.clone()
            };
            Slot::start(nth, plan, [None, None])
        })
        .collect();
    tokio::time::sleep(LONG).await;
    for slot in &slots {
        // What they write is of no interest.
        let _ = slot.drain(LONG).await;
    }
    record.write(now(), What::End).unwrap();
    match report(&folder).of(Invariant::I1) {
        0 => Err("stage 1 beside stage 3 was not caught".into()),
        _ => Ok(()),
    }
}

/// Before the seal, a name that stage 1 had and no bridge took: its tokens fall, where those of new are behind.
pub(crate) async fn without_a_seal(
    kind: Kind,
    urls: &[String; 2],
    folder: &Path,
) -> Result<(), String> {
    let folder = folder.join("no-seal");
    fs::create_dir_all(&folder).unwrap();
    let record = begin(kind, &folder);
    let mut tokens = [0; 2];
    for (stage, nth) in [(Stage::One, 0), (Stage::Three, 1)] {
        let taken = take(stage, kind, urls, &record, (nth, "unsealed")).await;
        tokens[nth as usize] = taken.map_err(|e| format!("without a seal: {e}"))?;
    }
    record.write(now(), What::End).unwrap();
    let caught = report(&folder).of(Invariant::I3) > 0;
    match (kind, tokens[1] <= tokens[0], caught) {
        (_, true, false) => Err(format!("{tokens:?} without a seal was not caught")),
        (Kind::RedisToEtcd, false, _) => Err(format!("{tokens:?} rose without a seal")),
        _ => Ok(()),
    }
}

fn begin(kind: Kind, folder: &Path) -> Recorder {
    let record = Recorder::new(folder, 0).unwrap();
    record
        .write(
            now(),
            What::Begin {
                store: kind.name().into(),
                seed: 0,
                limits: kind.limits(),
            },
        )
        .unwrap();
    record
}

fn report(folder: &Path) -> Report {
    let mut checker = Checker::default();
    for event in History::in_folder(folder).unwrap() {
        checker.event(&event.unwrap());
    }
    checker.finish()
}
