//! Raw commands of each store, leasehold and its peers behind one shape, measured in interleaved rounds.
//!
//! `cargo xtask bench` runs it. A row of the table is a file of [`rows`]; what is compared is a [`subject`], what it is made to
//! do is in [`work`], and what that costs is counted by a [`meter`]: on this side of the wire, and by the server itself.

mod machine;
mod meter;
mod metric;
mod plan;
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

use std::alloc::System;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs};

use leasehold::seam::Moment;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use machine::Machine;
use plan::Plan;
use report::{Report, Table};
use row::Row;
use servers::{Server, Store};
use subject::Result;

/// It counts what is allocated, which costs each allocation a few atomic additions, everybody's alike.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[tokio::main]
async fn main() -> Result<()> {
    let plan = Plan::parse(env::args().skip(1))?;
    let mut report = Report { machine: Machine::here(), plan, tables: Vec::new(), failures: Vec::new() };
    let (begin, mut servers) = (Moment::now(), BTreeMap::new());
    for row in rows::ALL {
        for &store in row.stores().iter().filter(|store| report.plan.wants(row.name(), **store)) {
            eprintln!("{:4} s: {}, {store}", Moment::now().since(begin).as_secs(), row.name());
            match table(row, store, &report.plan, &mut servers).await {
                Ok(table) => report.tables.push(table),
                Err(e) => report.failures.push(format!("{}, {store}: {e}", row.name())),
            }
        }
    }
    report.machine.ended();
    let folder = PathBuf::from(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("bench");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("bench.json"), serde_json::to_string_pretty(&report)?)?;
    fs::write(folder.join("bench.md"), report.to_string())?;
    println!("{report}");
    eprintln!("{:4} s: written to {}", Moment::now().since(begin).as_secs(), folder.display());
    match report.failed() {
        0 => Ok(()),
        failed => Err(format!("{failed} failures, which the report names").into()),
    }
}

/// A server is started for the first row that asks it, and kept for the others: those that compile themselves are warm then.
async fn table(row: &dyn Row, store: Store, plan: &Plan, servers: &mut BTreeMap<Store, Arc<Server>>) -> Result<Table> {
    let server = match servers.get(&store) {
        Some(server) => server.clone(),
        None => servers.entry(store).or_insert(Arc::new(Server::start(store).await?)).clone(),
    };
    let contenders = row.contenders(&server, plan).await?;
    let contenders = rounds::rounds(&server, &contenders, plan.rounds()).await;
    let (title, server) = (row.title(plan), server.version().await?);
    Ok(Table { row: row.name(), title, store, server, heads: row.heads(), shows: row.shows(), contenders })
}
