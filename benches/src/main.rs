//! Raw commands of each store, leasehold and its peers behind one shape, measured in interleaved rounds.
//!
//! `cargo xtask bench` runs it. A row of the table is a file of [`rows`]; what is compared is a [`subject`], what it is made to
//! do is in [`work`], and what that costs is counted by a [`meter`]: on this side of the wire, and by the server itself.
//! [`compare`] shows several runs beside one another, and beside the [`goals`]; a [`page`] has what several runs say.

mod beside;
mod compare;
mod driver;
mod foreign;
mod goals;
mod machine;
mod meter;
mod metric;
mod page;
mod plan;
mod plots;
mod processes;
mod report;
mod rounds;
mod row;
mod rows;
mod servers;
mod spread;
mod subject;
mod subjects;
mod work;
mod worker;

use std::alloc::System;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use leasehold::backend::Moment;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use beside::Beside;
use machine::Machine;
use plan::Plan;
use report::{Report, Table};
use rounds::Rounds;
use row::Row;
use servers::{Server, Store};
use subject::Result;

/// It counts what is allocated, which costs each allocation a few atomic additions, everybody's alike.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [beside::WORD] => beside::spin(),
        [worker::WORD, subject, url] => worker::serve(subject, url).await,
        [compare::WORD, runs @ ..] => compare::compare(runs, &folder()),
        [page::WORD, runs @ ..] => page::page(runs, &folder()),
        _ => measure(Plan::parse(words.clone())?).await,
    }
}

/// Where the files are that this writes.
fn folder() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("bench")
}

async fn measure(plan: Plan) -> Result<()> {
    let mut report = Report {
        machine: Machine::here(),
        plan,
        tables: Vec::new(),
        failures: Vec::new(),
    };
    let (begin, mut servers) = (Moment::now(), BTreeMap::new());
    let beside = Beside::start(report.plan.beside)?;
    for row in rows::ALL {
        for &store in row
            .stores()
            .iter()
            .filter(|store| report.plan.wants(row.name(), **store))
        {
            let elapsed = Moment::now().since(begin);
            eprintln!("{:4} s: {}, {store}", elapsed.as_secs(), row.name());
            if elapsed > report.plan.limit() {
                report.failures.push(format!(
                    "{}, {store}: not begun after {} s",
                    row.name(),
                    elapsed.as_secs()
                ));
                continue;
            }
            match table(row, store, &report.plan, &mut servers).await {
                Ok(table) => report.tables.push(table),
                Err(e) => report
                    .failures
                    .push(format!("{}, {store}: {e}", row.name())),
            }
        }
    }
    report.machine.ended();
    drop(beside);
    report.write(&folder())?;
    for (of, plot) in plots::curves(&report) {
        fs::write(
            folder().join(format!("{}-{of}.svg", report.plan.name())),
            plot,
        )?;
    }
    println!("{report}");
    eprintln!(
        "{:4} s: written to {}",
        Moment::now().since(begin).as_secs(),
        folder().display()
    );
    match report.failed() {
        0 => Ok(()),
        failed => Err(format!("{failed} failures, which the report names").into()),
    }
}

/// A server is started for the first row that asks it, and kept for the others: those that compile themselves are warm then.
async fn table(
    row: &dyn Row,
    store: Store,
    plan: &Plan,
    servers: &mut BTreeMap<Store, Arc<Server>>,
) -> Result<Table> {
    let server = match servers.get(&store) {
        Some(server) => server.clone(),
        None => servers
            .entry(store)
            .or_insert(Arc::new(Server::start(store).await?))
            .clone(),
    };
    let contenders = row.contenders(&server, plan).await?;
    let (count, warm) = row.rounds(plan);
    let contenders = rounds::rounds(
        &server,
        &contenders,
        Rounds {
            count,
            warm,
            limit: plan.round_limit(),
        },
    )
    .await;
    let (title, server) = (row.title(plan), server.version().await?);
    // Another row: whoever compares writes with another's may not overlook it.
    let disk = if env::var_os(leasehold_testbed::ON_DISK).is_some() {
        ", on a disk"
    } else {
        ""
    };
    let (row, heads, shows) = (
        format!("{}{disk}", row.name()),
        row.heads().into(),
        row.shows().into(),
    );
    Ok(Table {
        row,
        title,
        store,
        server,
        heads,
        shows,
        contenders,
    })
}
